"""Options of `finetune` for language models: what reaches the SDK, and what means nothing for whom."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from cutlayer.cli.finetune import language_rows
from cutlayer.core import Cut, Proportion
from cutlayer.customer import Client, LanguageResult, Objective, RunSpec, TrainBottom
from cutlayer.customer.defaults import settle
from cutlayer.customer.settings import FinetuneSpec, FullTuning, Training
from cutlayer.data import Dataset
from tests.unit.cli.conftest import Run

EARLY = SystemExit(0)
LM = ("finetune", "--objective", "lm", "--train", "x.csv", "--eta", "80")
SEQ2SEQ = ("finetune", "--objective", "seq2seq", "--train", "x.csv", "--eta", "80")
CLASSIFIER = ("finetune", "--train", "x.csv", "--eta", "80")


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Arguments of the call to the SDK, which is not made."""
    calls: dict[str, Any] = {}

    def record(_: Client, train: object, **options: Any) -> None:
        calls.clear()
        calls.update(options, train=train)
        raise EARLY

    monkeypatch.setattr(Client, "finetune", record)
    return calls


def settled(asked: dict[str, Any]) -> RunSpec:
    """The run that is asked for, with nothing left open."""
    return settle(FinetuneSpec(**{name: asked[name] for name in FinetuneSpec.model_fields if name in asked}))


def test_defaults_are_those_of_the_sdk(asked: dict[str, Any], run: Run) -> None:
    run(*LM)
    said = {name for name, value in asked.items() if value is not None}
    assert said == {"train", "objective", "privacy", "progress"}, "what is not said is left to the SDK"
    assert Objective(asked["objective"]) is Objective.LM
    assert settled(asked).cut == Cut(bottom=1, tail=0)


def test_every_setting_reaches_the_sdk(asked: dict[str, Any], run: Run) -> None:
    run(
        *LM, "--bottom", "2", "--tail", "1", "--train-bottom", "resample", "--public-first", "open.txt",
        "--public-iterations", "7", "--method", "full", "--gradient-accumulation-steps", "3", "--max-grad-norm", "0.5",
        "--block-length", "256", "--no-packing", "--gradient-checkpointing", "--batch-size", "2", "--learning-rate",
        "0.001", "--json",
    )  # fmt: skip
    assert asked["cut"] == Cut(bottom=2, tail=1)
    assert asked["tuning"] == FullTuning(train_bottom=TrainBottom.RESAMPLE)
    assert (str(asked["public_first"]), asked["public_iterations"]) == ("open.txt", 7)
    assert asked["training"] == Training(
        gradient_accumulation_steps=3,
        max_grad_norm=0.5,
        max_length=256,
        packing=False,
        gradient_checkpointing=True,
        batch_size=2,
        learning_rate=1e-3,
    )


def test_rates_follow_the_method(asked: dict[str, Any], run: Run) -> None:
    run(*LM, "--method", "full")
    assert settled(asked).training.learning_rate == 5e-6
    run(*LM)
    assert settled(asked).training.learning_rate == 2e-4
    run(*CLASSIFIER)
    assert settled(asked).training.learning_rate == 3e-4


def test_an_encoder_decoder_has_defaults_of_its_own(asked: dict[str, Any], run: Run) -> None:
    run(*SEQ2SEQ)
    assert settled(asked).cut == Cut(bottom=1, tail=0, target=1)
    assert "text_column" not in asked
    run(
        *SEQ2SEQ, "--text-column", "body", "--target-column", "subject", "--bottom", "0", "--target-bottom", "0",
        "--tail", "2", "--max-length", "128", "--max-target-length", "16", "--method", "full", "--dropout",
    )  # fmt: skip
    assert asked["cut"] == Cut(bottom=0, target=0, tail=2)
    assert (asked["text_column"], asked["target_column"]) == ("body", "subject")
    assert asked["tuning"] == FullTuning()
    assert asked["training"] == Training(max_length=128, max_target_length=16, dropout=True)


def refused(run: Run, flags: tuple[str, ...], option: str, said: str) -> None:
    """The command says what is wrong by the option's name, before a file is read or a vendor asked: there are none."""
    failed = run(*flags)
    assert failed.code == 3
    assert f"{option} = " in failed.err
    assert said in failed.err
    assert len([line for line in failed.err.splitlines() if not line.startswith("warning: eta is inf")]) == 1


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--bottom", "text", "--eta", "inf"), "must be 0 or more"),
        (("--place", "activations", "--mechanism", "vector"), "change with each step"),
    ],
)
def test_what_an_encoder_decoder_does_not_take(run: Run, flags: tuple[str, ...], said: str) -> None:
    refused(run, (*SEQ2SEQ, *flags), flags[0], said)


@pytest.mark.parametrize("command", [LM, CLASSIFIER])
@pytest.mark.parametrize("flags", [("--target-bottom", "1"), ("--max-target-length", "9")], ids=" ".join)
def test_options_that_mean_nothing_but_for_an_encoder_decoder(
    run: Run, command: tuple[str, ...], flags: tuple[str, str]
) -> None:
    refused(run, (*command, *flags), flags[0], "must be")


def test_target_texts_are_not_a_classifiers_and_are_not_joined_to_blocks(run: Run) -> None:
    refused(run, (*CLASSIFIER, "--target-column", "b"), "--target-column", "must be")
    refused(run, (*LM, "--target-column", "b", "--packing"), "--packing", "must be off with target_column")


@pytest.mark.parametrize(
    ("flags", "iterations"),
    [(("--public-first", "sample"), 1), (("--public-iterations", "5"), 5)],
    ids=str,
)
def test_the_embedded_sample_goes_first_whatever_the_private_columns_are(
    asked: dict[str, Any], run: Run, flags: tuple[str, ...], iterations: int
) -> None:
    """It has a column of its own."""
    run(*LM, *flags, "--text-column", "body")
    first = asked["public_first"]
    assert isinstance(first, Dataset)
    assert len(first) > 100
    assert asked["text_column"] == "body"
    assert asked.get("public_iterations", 1) == iterations


def test_a_file_of_public_text_goes_first(asked: dict[str, Any], run: Run) -> None:
    run(*LM, "--public-first", "open.txt")
    assert asked["public_first"] == "open.txt"
    assert "public_iterations" not in asked


@pytest.mark.parametrize("flags", [("--public-first", "sample"), ("--public-iterations", "2")], ids=" ".join)
def test_the_embedded_sample_has_no_pairs(asked: dict[str, Any], run: Run, flags: tuple[str, ...]) -> None:
    failed = run(*SEQ2SEQ, *flags)
    assert failed.code == 2
    assert "--public-first: the embedded sample has single texts" in failed.err
    assert not asked


@pytest.mark.parametrize(
    "flags",
    [
        ("--tail", "0"),
        ("--tail", "2"),
        ("--public-first", "sample"),
        ("--public-iterations", "3"),
        ("--packing",),
    ],
    ids=" ".join,
)
def test_options_that_mean_nothing_for_a_classifier(run: Run, flags: tuple[str, ...]) -> None:
    option = "--public-first" if flags == ("--public-iterations", "3") else flags[0]
    refused(run, (*CLASSIFIER, *flags), option, "must be")


@pytest.mark.parametrize(
    ("flags", "option", "why"),
    [
        (("--cti",), "--cti", "contributing tokens are found by class labels, and there are none"),
        (("--cti", "--cti-pair", "first"), "--cti", "contributing tokens are found by class labels"),
        (("--text-pair-column", "b"), "--text-pair-column", "a language model is trained on single texts"),
        (("--label-epsilon", "1"), "--label-epsilon", "these labels are the text"),
        (("--label-budget", "1"), "--label-budget", "needs --label-epsilon"),
    ],
    ids=str,
)
def test_options_that_mean_nothing_for_a_language_model(
    run: Run, flags: tuple[str, ...], option: str, why: str
) -> None:
    refused(run, (*LM, *flags), option, why)


@pytest.mark.parametrize(
    ("flags", "code", "said"),
    [
        (("--tail", "-1"), 3, "--tail = -1"),
        (("--public-iterations", "-1"), 3, "--public-iterations = -1"),
        (("--max-grad-norm", "0"), 3, "--max-grad-norm = 0.0"),
        (("--gradient-accumulation-steps", "0"), 3, "--gradient-accumulation-steps = 0"),
        (("--block-length", "0"), 3, "--block-length = 0"),
        (("--block-length=0",), 3, "--block-length = 0"),
        (("--max-length", "0"), 3, "--max-length = 0"),
    ],
    ids=str,
)
def test_settings_out_of_bounds(asked: dict[str, Any], run: Run, flags: tuple[str, ...], code: int, said: str) -> None:
    failed = run(*LM, *flags)
    assert failed.code == code
    assert said in failed.err
    assert not asked


def result(**changes: Any) -> LanguageResult:
    usual: dict[str, Any] = {
        "perplexity": 12.5,
        "perplexity_on": "test",
        "perplexity_n": 300,
        "perplexity_standard_error": 0.25,
        "dev_before": 40.0,
        "dev": (20.0, 12.0),
        "token_recovery_first_steps": Proportion.of(98, 100),
        "token_recovery_first_steps_note": "",
        "token_recovery_last_steps": Proportion.of(97, 100),
        "token_recovery_last_steps_note": "",
        "token_recovery_from_answers": Proportion.of(70, 100),
        "token_recovery_from_answers_note": "",
        "token_recovery_from_boundary": Proportion.of(90, 100),
        "token_recovery_from_boundary_note": "",
    }
    return LanguageResult.model_construct(**(usual | changes))


def test_what_was_not_measured_before_training_is_not_shown() -> None:
    assert "dev perplexity before" in dict(language_rows(result()))
    assert "dev perplexity before" not in dict(language_rows(result(dev_before=None)))


def test_what_the_vendor_reads_stands_beside_the_perplexity() -> None:
    rows = dict(language_rows(result()))
    assert list(rows)[:4] == ["perplexity", "read from gradients", "the same in the last steps", "read from answers"]
    assert "97.00 %" in str(rows["the same in the last steps"])
    assert rows["perplexity"] == "12.50 ± 0.25 per token on test (n = 300 tokens)"
    assert "98.00 %" in str(rows["read from gradients"])
    assert "by the vendor" in str(rows["read from gradients"])
    assert "70.00 %" in str(rows["read from answers"])
    assert (rows["dev perplexity before"], rows["dev perplexity by epoch"]) == ("40.00", "20.00, 12.00")


def test_without_a_number_the_reason_stands_there() -> None:
    """Never a dash alone, which reads as nothing: a control that failed, or an attack that does not apply."""
    rows = dict(
        language_rows(
            result(
                token_recovery_first_steps=None, token_recovery_first_steps_note="control failed: noise",
                token_recovery_from_answers=None, token_recovery_from_answers_note="does not apply",
                perplexity_standard_error=None,
            )
        )
    )  # fmt: skip
    assert rows["read from gradients"] == "- (control failed: noise)"
    assert rows["read from answers"] == "- (does not apply)"
    assert rows["perplexity"] == "12.50 per token on test (n = 300 tokens)"


def test_the_result_has_every_number_in_json(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    told = result(folder=tmp_path, perplexity=math.inf)
    monkeypatch.setattr(Client, "finetune", lambda *_, **__: told)
    monkeypatch.setattr("cutlayer.cli.finetune._show", lambda *_, **__: None)
    found = run(*LM, "--json").result
    assert found["perplexity"] == "inf"
    assert found["token_recovery_first_steps"]["value"] == 0.98
    assert found["token_recovery_first_steps"]["n"] == 100
    assert found["dev"] == [20.0, 12.0]
