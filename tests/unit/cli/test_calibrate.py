"""`cutlayer calibrate`: a search from the texts to a command line that can be run."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from cutlayer.cli.calibrate import command
from cutlayer.core import Place
from cutlayer.customer.columns import DataSpec
from cutlayer.customer.settings import Training
from cutlayer.privacy import Words
from cutlayer.reports import read_audit
from cutlayer.reports.audit import quick_attacks
from cutlayer.reports.calibrate import Arm, Setting
from cutlayer.reports.calibrate import run as evaluation
from tests.promises.runs import corpus
from tests.service.fixtures import tiny_model  # noqa: F401 - fixtures are used by name
from tests.unit.cli.conftest import Ran, Run
from tests.unit.reports.conftest import known_secret  # noqa: F401 - fixtures are used by name


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    data = corpus(120, seed=5)
    path = tmp_path / "texts.jsonl"
    rows = zip(data.texts, data.labels or (), strict=True)
    path.write_text("".join(json.dumps({"text": row[0], "label": label}) + "\n" for row, label in rows))
    return path


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole suite takes minutes; that the confirmation is a run of its own is what counts here.

    It keeps the accuracy that the setting was chosen by: with fresh noise and in another order it is another one.
    """

    def thorough(self, setting, repeat):  # type: ignore[no-untyped-def]
        found, report = self._evaluate(setting, quick_attacks(), repeat, shown=2)
        return found.model_copy(update={"utility": self.quick(setting).utility}), report

    monkeypatch.setattr(evaluation._Evaluator, "thorough", thorough)


def calibrate(run: Run, texts: Path, model: Path, folder: Path, *options: object) -> Ran:
    line = ("calibrate", "--data", texts, "--model", model, "--out", folder / "out", "--epochs", 1)
    return run(*line, "--home", folder / "home", "--json", *options)


@pytest.mark.slow
@pytest.mark.usefixtures("known_secret")  # with others a model sometimes learns
def test_a_setting_is_found_confirmed_and_recommended(
    run: Run,
    texts: Path,
    tiny_model: Path,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options = ("--at-most", "token_recovery=0.6", "--evaluations", 3, "--public", texts)
    done = calibrate(run, texts, tiny_model, tmp_path, *options)
    assert done.code == 0, done.err
    found = done.result
    assert found["chosen"]["interval"][1] <= 0.6
    assert len(found["evaluations"]) == 3
    passing = [each for each in found["evaluations"] if each["interval"][1] <= 0.6]
    assert found["chosen"]["utility"] == max(each["utility"] for each in passing)
    report = read_audit(tmp_path / "out/report")
    assert report.frontier is not None
    assert [point.audited for point in report.frontier.points].count(True) == 1
    assert report.settings.eta == found["chosen"]["setting"]["eta"]
    words = shlex.split(found["command"])
    assert f"{report.settings.eta:g}" == words[words.index("--eta") + 1]
    assert (tmp_path / "out/report/report.html").exists()
    # of the texts nothing is kept beside the report
    kept = "".join(path.read_text() for path in (tmp_path / "out/evaluations").iterdir())
    assert not [word for row in corpus(120, seed=5).texts for word in row[0].split() if f" {word} " in kept]

    # the same command goes on: what was evaluated is not run again
    evaluated = []
    real = evaluation._Evaluator._evaluate

    def counted(self, setting, *others, **settings):  # type: ignore[no-untyped-def]
        evaluated.append(setting)
        return real(self, setting, *others, **settings)

    monkeypatch.setattr(evaluation._Evaluator, "_evaluate", counted)
    again = calibrate(run, texts, tiny_model, tmp_path, *options)
    assert again.code == 0
    # one epoch of a tiny model on a hundred texts
    assert again.result["learns"] is False
    assert again.result["majority"] == pytest.approx(0.5, abs=0.2)
    assert "the most frequent label alone is right for" in again.err
    assert len(evaluated) == 1  # the confirmation


@pytest.mark.usefixtures("known_secret")
@pytest.mark.slow
def test_words_are_searched_to_the_command_line(
    run: Run,
    texts: Path,
    tiny_model: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    """In a space of a few components: its etas are found among its own words, not in the table of tokens."""
    vocabulary = tmp_path / "words.tsv"
    vocabulary.write_text("".join(f"w{number}\t{tag}\t1\n" for number in range(200) for tag in ("NOUN", "VERB")))
    drawn = ("--mechanism", "words", "--space", f"{tiny_model}:4", "--vocabulary", vocabulary, "--words", "noun,verb")
    options = ("--at-most", "token_recovery=0.5", "--evaluations", 1, "--public", texts, *drawn)
    done = calibrate(run, texts, tiny_model, tmp_path, *options)
    assert done.code == 0, done.err
    found = done.result
    tried = [each["setting"]["eta"] for each in found["evaluations"]]
    assert all(0.1 < each["replaced"] < 0.995 for each in found["evaluations"]), tried
    report = read_audit(tmp_path / "out/report")
    assert report.settings.mechanism == "words"
    assert report.frontier is not None
    line = shlex.split(found["command"])
    assert [line[line.index(name) + 1] for name in ("--mechanism", "--space", "--words")] == [
        "words", f"{tiny_model}:4", "noun,verb",
    ]  # fmt: skip
    assert line[line.index("--vocabulary") + 1] == str(vocabulary)
    # a vocabulary that was written anew is another: nothing that was evaluated with the first one counts
    arm = Arm(mechanism="words", words=Words(eta=1, vocabulary=vocabulary))
    evaluator = object.__new__(evaluation._Evaluator)
    evaluator._digest = "texts"
    before = evaluator._data(Setting(arm=arm, eta=6))
    vocabulary.write_text(vocabulary.read_text().replace("w199\t", "w200\t"))
    assert evaluator._data(Setting(arm=arm, eta=6)) != before != evaluator._data(Setting(arm=Arm(), eta=6))


def test_a_target_that_nothing_reaches_is_said(
    run: Run,
    texts: Path,
    tiny_model: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    options = ("--at-most", "token_recovery=0.001", "--evaluations", 1, "--public", texts)
    done = calibrate(run, texts, tiny_model, tmp_path, *options)
    assert done.code == 12
    found = done.result
    assert found["chosen"] is found["command"] is None
    assert "The nearest" in done.err


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (("--at-most", "label_recovery=0.1"), "token_recovery"),
        (("--at-most", "token_recovery=2"), "between 0 and 1"),
        (("--mechanism", "magic"), "magic"),
        (("--mechanism", "activations", "--cti", "yes"), "cti"),
        (("--mechanism", "clipped", "--cti", "yes"), "clip = True: must be left out with cti"),
        (("--bottom", "text"), "goes with mechanism words alone"),
        (("--bottom", "0", "--bottom", "1", "--evaluations", "1"), "evaluations"),
    ],
)
def test_what_has_no_meaning_is_refused(
    run: Run,
    texts: Path,
    tiny_model: Path,  # noqa: F811
    tmp_path: Path,
    options: tuple[str, ...],
    named: str,
) -> None:
    done = calibrate(run, texts, tiny_model, tmp_path, *options)
    assert done.code in (2, 3)
    assert named in done.err + done.out
    assert not (tmp_path / "out/evaluations").exists()


@pytest.mark.parametrize(
    "arm",
    [
        Arm(),
        Arm(cti=True, bottom=2),
        Arm(mechanism="vector", place=Place.ACTIVATIONS, bottom=3),
        Arm(mechanism="vector", clip=True),
        Arm(mechanism="words", words=Words(eta=1, words=("noun", "adj"), draw="exponential", space="starter:16")),
    ],
    ids=lambda arm: arm.label,
)
def test_what_is_recommended_can_be_run(arm: Arm, tmp_path: Path, run: Run) -> None:
    """Every option is one that `finetune` knows: it stops at the vendor that is not there."""
    (tmp_path / "notes.csv").write_text("text,label\na b,x\nc d,y\n")
    line = command(
        Setting(arm=arm, eta=42.5), str(tmp_path / "notes.csv"), DataSpec(), Training(epochs=3, learning_rate=1e-3)
    )
    words = shlex.split(line)[1:]
    vendor = ["--vendor", "http://127.0.0.1:9", "--api-key", "k", "--home", str(tmp_path / "home")]
    assert run(*words, *vendor).code == 7


@pytest.mark.usefixtures("known_secret")
@pytest.mark.slow
def test_clipped_rows_are_searched_to_the_command_line(
    run: Run,
    texts: Path,
    tiny_model: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    options = ("--at-most", "token_recovery=0.9", "--evaluations", 1, "--public", texts, "--mechanism", "clipped")
    done = calibrate(run, texts, tiny_model, tmp_path, *options)
    assert done.code == 0, done.err
    assert "--clip" in shlex.split(done.result["command"])
    report = read_audit(tmp_path / "out/report")
    assert report.settings.clip
    assert report.frontier is not None
    assert "vector, clipped" in report.frontier.points[0].label
