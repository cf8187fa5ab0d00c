"""`cutlayer audit`: which question a file's columns allow, and what is refused before anything is run."""

from __future__ import annotations

import csv
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from cutlayer.cli.audit import OVER
from cutlayer.customer import FinetuneSpec
from cutlayer.customer.evidence import Evidence
from cutlayer.data import Dataset
from cutlayer.reports import read_audit
from cutlayer.reports.audit import evaluate, leak_report, local_evidence
from tests.promises.runs import corpus
from tests.service.fixtures import tiny_model  # noqa: F401 - fixtures are used by name
from tests.service.tiny import write_tiny_gpt2
from tests.unit.cli.conftest import Ran, Run

QUICK = ("--attack", "nearest-neighbour", "--attack", "output-gradient", "--attack", "lengths")


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    return write(tmp_path / "texts.csv")


def write(path: Path, *, label: str = "") -> Path:
    data = corpus(120, seed=5)
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["text", label] if label else ["text"])
        for (text,), name in zip(data.texts, data.labels or (), strict=True):
            rows.writerow([text, name] if label else [text])
    return path


def audit(run: Run, texts: Path, model: Path, folder: Path, *options: object) -> Ran:
    line = ("audit", "--data", texts, "--model", model, "--out", folder / "out", "--home", folder / "home", "--json")
    return run(*line, "--public", texts, *options)


@pytest.fixture
def nothing_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def ran(*_: object, **__: object) -> None:
        raise AssertionError("a vendor was made")

    monkeypatch.setattr("cutlayer.vendor.init", ran)


# ---------------------------------------------------------------- labels


def test_texts_without_labels_get_a_report_that_says_so(
    run: Run,
    texts: Path,
    tiny_model: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    done = audit(run, texts, tiny_model, tmp_path, "--eta", 60, *QUICK, "--fail-above", "label_recovery=0.5")
    assert "the texts have no labels" in done.err
    assert "--label-column" in done.err
    # what was not measured passes no limit
    assert done.code == OVER
    assert done.result["over"] == ["label_recovery has no number, which is no pass"]
    assert done.result["settings"]["unlabelled"] is True
    assert {each["name"]: each["status"] for each in done.result["attacks"]} == {
        "nearest-neighbour": "measured",
        "lengths": "measured",
        "output-gradient": "not applicable",
    }
    assert "No labels were given" in done.err
    assert read_audit(tmp_path / "out").settings.unlabelled


@pytest.mark.parametrize(
    ("column", "options"), [("label", ()), ("ward", ("--label-column", "ward"))], ids=["default", "named"]
)
def test_labels_that_are_there_are_asked_for(
    run: Run,
    tiny_model: Path,  # noqa: F811
    tmp_path: Path,
    column: str,
    options: tuple[str, ...],
) -> None:
    texts = write(tmp_path / "texts.csv", label=column)
    done = audit(run, texts, tiny_model, tmp_path, "--eta", 60, *QUICK, *options)
    assert done.code == 0, done.err
    assert done.result["settings"]["unlabelled"] is False
    assert "no labels" not in done.err
    (labels,) = [each for each in done.result["attacks"] if each["name"] == "output-gradient"]
    assert labels["value"] == 1


# ---------------------------------------------------------------- private attributes that are numbers


def aged(path: Path, ages: Sequence[object]) -> Path:
    texts = [text for (text,) in corpus(len(ages), seed=5).texts]
    path.write_text(
        "text,age,sex\n"
        + "".join(f"{text},{age},{'fm'[len(text) % 2]}\n" for text, age in zip(texts, ages, strict=True))
    )
    return path


def test_ages_become_bins_of_equally_many_texts(run: Run, tiny_model: Path, tmp_path: Path) -> None:  # noqa: F811
    texts = aged(tmp_path / "texts.csv", [20 + n % 40 for n in range(120)])
    asked = ("--secret-column", "age", "--secret-column", "sex", "--bins", 4, "--attack", "attribute-lengths")
    done = audit(run, texts, tiny_model, tmp_path, "--eta", 60, *asked)
    assert done.code == 0, done.err
    majority = {
        each["question"]: metric["value"]
        for each in done.result["attacks"]
        for metric in each["further"]
        if metric["name"] == "majority"
    }
    # of the texts that the attacker does not know about a quarter are of the most frequent bin, not a fortieth
    assert 0.2 < majority["attribute:age"] < 0.4
    assert majority["attribute:sex"] >= 0.5


@pytest.mark.usefixtures("nothing_is_run")
@pytest.mark.parametrize(
    ("ages", "options", "code", "message"),
    [
        ((20, 30, 40), ("--secret-column", "age", "--bins", 1), 3, "at least 2"),
        ((20, 30, 40), ("--secret-column", "age", "--bins", 4), 3, "column 'age' has 3 different values"),
        ((20, 30, 40), ("--bins", 2), 3, "--secret-column"),
        ((20, 30, 40), ("--secret-column", "sex", "--bins", 2), 3, "none of the columns sex holds numbers"),
        ((20, "wombat", 40), ("--secret-column", "age", "--bins", 2), 4, "Row 2 has no number in column 'age'"),
    ],
)
def test_bins_that_cannot_be_are_refused(
    run: Run, tmp_path: Path, ages: Sequence[object], options: tuple[object, ...], code: int, message: str
) -> None:
    done = audit(run, aged(tmp_path / "texts.csv", ages), tmp_path / "none", tmp_path, "--eta", 60, *options)
    assert done.code == code
    assert message in done.err
    assert "wombat" not in done.err


# ---------------------------------------------------------------- columns


@pytest.mark.usefixtures("nothing_is_run")
@pytest.mark.parametrize("name", ["ward", "label"])
def test_a_column_that_was_named_must_be_there(
    run: Run,
    texts: Path,
    tiny_model: Path,  # noqa: F811
    tmp_path: Path,
    name: str,
) -> None:
    refused = audit(run, texts, tiny_model, tmp_path, "--eta", 60, "--label-column", name)
    assert refused.code == 4
    assert f"no column '{name}'" in refused.err


@pytest.mark.usefixtures("nothing_is_run")
def test_contributing_tokens_without_labels_are_refused(
    run: Run,
    texts: Path,
    tiny_model: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    refused = audit(run, texts, tiny_model, tmp_path, "--eta", 60, "--cti")
    assert refused.code == 3
    assert "--cti" in refused.err
    assert "--label-column" in refused.err


def test_a_recorded_run_is_of_labels(
    run: Run,
    texts: Path,
    tiny_model: Path,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(leak_report, "recorded_evidence", None)  # never reached
    refused = audit(run, texts, tiny_model, tmp_path, "--transcript", tmp_path / "run")
    assert refused.code == 4
    assert "no column 'label'" in refused.err


# ---------------------------------------------------------------- settings beside the audited one


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[FinetuneSpec]:
    """The settings that are run, in their order."""
    specs: list[FinetuneSpec] = []

    def recorded(texts: Dataset, spec: FinetuneSpec, *others: Any, **settings: Any) -> Evidence:
        specs.append(spec)
        return local_evidence(texts, spec, *others, **settings)

    monkeypatch.setattr(leak_report, "local_evidence", recorded)
    monkeypatch.setattr(sys.modules[evaluate.__module__], "local_evidence", recorded)
    return specs


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[FinetuneSpec]:
    """The settings that would be run; none is."""
    specs: list[FinetuneSpec] = []

    def recorded(*asked: Any, **settings: Any) -> list[FinetuneSpec]:
        found = local(*asked, **settings)
        specs.extend(found)
        return found

    def early(*_: object, **__: object) -> None:
        raise SystemExit(0)

    local = leak_report._settings
    monkeypatch.setattr(leak_report, "_settings", recorded)
    monkeypatch.setattr("cutlayer.vendor.init", early)
    return specs


@pytest.mark.slow
def test_other_etas_are_run_and_drawn_beside_the_audited_one(
    run: Run,
    tiny_model: Path,  # noqa: F811
    tmp_path: Path,
    ran: list[FinetuneSpec],
) -> None:
    texts = write(tmp_path / "texts.csv", label="label")
    etas = ("--frontier", "inf", "--frontier", 20, "--frontier", 60, "--frontier", 20)
    done = audit(run, texts, tiny_model, tmp_path, "--eta", 60, *QUICK, *etas, "--epochs", 2)
    assert done.code == 0, done.err
    # the same runs but for eta, each once
    assert [spec.privacy.eta for spec in ran] == [60, math.inf, 20]
    assert len({spec.model_copy(update={"privacy": ran[0].privacy}) for spec in ran}) == 1
    assert (ran[0].training.epochs, ran[0].training.dev_share) == (2, 0.2)
    report = read_audit(tmp_path / "out")
    assert report.frontier is not None
    points = {point.eta: point for point in report.frontier.points}
    assert list(points) == [20, 60, math.inf]
    assert [eta for eta, point in points.items() if point.audited] == [60]
    assert {point.attacks for point in points.values()} == {("nearest-neighbour",)}
    (nearest,) = [each for each in report.attacks if each.name == "nearest-neighbour"]
    assert points[60].recovered == nearest.value
    assert points[20].recovered < points[60].recovered < points[math.inf].recovered == 1
    assert all(point.utility is not None and point.utility_ci is not None for point in points.values())
    # 120 texts, of which a fifth is held out
    assert report.frontier.utility_name == "accuracy on 24 texts that were held out"
    assert report.settings.texts == 96
    assert "chose the best of up to 2 epochs" in report.frontier.note
    assert (tmp_path / "out/frontier.png").exists()
    assert "settings beside this one 2/2" in done.err
    assert "no noise" in done.err


def test_accuracies_are_compared_of_runs_as_long_as_a_fine_tuning(
    run: Run,
    tiny_model: Path,  # noqa: F811
    tmp_path: Path,
    asked: list[FinetuneSpec],
) -> None:
    texts = write(tmp_path / "texts.csv", label="label")
    audit(run, texts, tiny_model, tmp_path, "--eta", 60)
    audit(run, texts, tiny_model, tmp_path, "--eta", 60, "--frontier", 60)
    alone, compared = (spec.training for spec in asked)
    assert (alone.epochs, alone.learning_rate, alone.dev_share) == (1, None, None)
    assert (compared.epochs, compared.learning_rate, compared.dev_share) == (None, None, 0.2)


@pytest.mark.slow
def test_without_labels_each_setting_shows_what_it_gives_away(
    run: Run,
    texts: Path,
    tiny_model: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    done = audit(run, texts, tiny_model, tmp_path, "--eta", 60, *QUICK, "--frontier", "inf")
    assert done.code == 0, done.err
    report = read_audit(tmp_path / "out")
    assert report.frontier is not None
    assert [(point.eta, point.utility) for point in report.frontier.points] == [(60, None), (math.inf, None)]
    assert "Accuracy was not measured" in (tmp_path / "out/report.html").read_text()


@pytest.mark.slow
def test_of_a_language_model_perplexity_is_compared(run: Run, texts: Path, tmp_path: Path) -> None:
    model = write_tiny_gpt2(tmp_path / "model")
    lm = ("--objective", "lm", "--bottom", 0, "--attack", "nearest-neighbour", "--max-length", 32)
    done = audit(run, texts, model, tmp_path, "--eta", 60, *lm, "--frontier", "inf", "--epochs", 1)
    assert done.code == 0, done.err
    report = read_audit(tmp_path / "out")
    assert report.frontier is not None
    assert report.frontier.lower_is_better
    assert report.frontier.utility_name.startswith("perplexity on ")
    assert all(point.utility is not None and point.utility > 1 for point in report.frontier.points)
    assert not report.settings.unlabelled


def test_noise_is_neither_chosen_nor_steered_where_there_is_none(
    run: Run,
    tiny_model: Path,  # noqa: F811
    tmp_path: Path,
    asked: list[FinetuneSpec],
) -> None:
    texts = write(tmp_path / "texts.csv", label="label")
    audit(run, texts, tiny_model, tmp_path, "--eta", 60, "--cti", "--frontier", "inf", "--frontier", 20)
    assert [(spec.privacy.eta, spec.privacy.cti is not None) for spec in asked] == [
        (60, True),
        (math.inf, False),
        (20, True),
    ]


@pytest.mark.usefixtures("nothing_is_run")
@pytest.mark.parametrize(
    ("options", "code", "named"),
    [
        (("--frontier", "60", "--transcript", "run"), 3, "leave --transcript out"),
        (("--eta", "60", "--frontier", "20", "--attack", "lengths"), 3, "nearest-neighbour"),
        (("--eta", "60", "--frontier", "0"), 2, "no number above 0"),
        (("--frontier", "20"), 2, "--eta"),
    ],
)
def test_settings_that_cannot_be_compared_are_refused(
    run: Run,
    texts: Path,
    tiny_model: Path,  # noqa: F811
    tmp_path: Path,
    options: tuple[str, ...],
    code: int,
    named: str,
) -> None:
    refused = audit(run, texts, tiny_model, tmp_path, *options)
    assert refused.code == code
    assert named in refused.err
    assert not (tmp_path / "out").exists()


# ---------------------------------------------------------------- embeddings


def test_embeddings_are_attacked_without_labels(
    run: Run,
    texts: Path,
    tiny_model: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    options = ("--objective", "embed", "--eta", 60, "--mechanism", "vector", "--clip", "--max-length", 16)
    line = (*options, "--attack", "nearest-neighbour", "--attack", "lengths", "--fail-above", "length_recovery=0.9")
    done = audit(run, texts, tiny_model, tmp_path, *line)
    assert done.code == OVER, done.err
    assert done.result["over"] == ["length_recovery is 1.0000, over 0.9"]
    assert "no labels" not in done.err
    settings = done.result["settings"]
    assert (settings["objective"], settings["mechanism"], settings["unlabelled"]) == ("embed", "vector", False)
    assert {each["name"]: each["status"] for each in done.result["attacks"]} == {
        "nearest-neighbour": "measured",
        "lengths": "measured",
    }
    page = (tmp_path / "out/report.html").read_text()
    assert "embeddings were asked of the model as it is" in page
    asked = audit(run, texts, tiny_model, tmp_path, *options, "--attack", "lengths", "--fail-above", "label_recovery=1")
    assert asked.code == 2
    assert "label_recovery is none of this report's" in asked.err


@pytest.mark.usefixtures("nothing_is_run")
@pytest.mark.parametrize(
    ("options", "named"),
    [
        (("--denoisers", "vendor"), "--denoisers = 'vendor': is measured on labels: add objective embed"),
        (("--target-column", "answer"), "--target-column = 'answer'"),
        (("--facts",), "--facts = True"),
        (("--epochs", "3"), "--epochs = 3"),
        (("--learning-rate", "0.5"), "--learning-rate = 0.5"),
        (("--transcript", "runs/ward"), "--transcript = 'runs/ward'"),
        (("--dev", "dev.csv"), "--dev = 'dev.csv'"),
        (("--test", "test.csv"), "--test = 'test.csv'"),
        (("--bottom", "1"), "--bottom = 1"),
        (("--tail", "0"), "--tail = 0"),
        (("--target-bottom", "1"), "--target-bottom = 1"),
        (("--cti",), "--cti"),
    ],
)
def test_what_embeddings_have_no_use_for_is_refused(
    run: Run,
    texts: Path,
    tiny_model: Path,  # noqa: F811
    tmp_path: Path,
    options: tuple[str, ...],
    named: str,
) -> None:
    refused = audit(run, texts, tiny_model, tmp_path, "--objective", "embed", "--eta", 60, *options)
    assert refused.code == 3, refused.err
    assert named in refused.err
    assert not (tmp_path / "out").exists()
