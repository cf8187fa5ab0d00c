"""`cutlayer audit`: which question a file's columns allow, and what is refused before anything is run."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from cutlayer.cli.audit import OVER
from cutlayer.reports import audit as reports
from cutlayer.reports import read_audit
from tests.promises.runs import corpus
from tests.service.fixtures import tiny_model  # noqa: F401 - fixtures are used by name
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
    done = audit(run, texts, tiny_model, tmp_path, "--eta", 60, *QUICK, "--fail-over", "label_recovery=0.5")
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
    monkeypatch.setattr(reports, "recorded_evidence", None)  # never reached
    refused = audit(run, texts, tiny_model, tmp_path, "--transcript", tmp_path / "run")
    assert refused.code == 4
    assert "no column 'label'" in refused.err
