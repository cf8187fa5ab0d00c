"""What `finetune`, `predict` and `privatize` hand to the SDK, and what they print."""

from __future__ import annotations

import csv
import inspect
import json
import math
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cutlayer.cli.command import arguments
from cutlayer.cli.finetune import classifier_rows, finetune
from cutlayer.cli.settings import settings_of
from cutlayer.core import Claim, Cut, CutlayerWarning, Guarantee, Place
from cutlayer.customer import (
    Client,
    FinetuneResult,
    Prediction,
    PrivatizedText,
    RunSpec,
    TrainBottom,
    TrainSpec,
)
from cutlayer.customer.columns import DataSpec
from cutlayer.customer.settings import FinetuneSpec, LabelsAt, Lora, Training
from cutlayer.data import Dataset
from cutlayer.privacy.spec import CtiSpec, NoPrivacy, TextToText, Vector
from cutlayer.wire import Precision, WireType
from tests.unit.cli.conftest import Run, Streamed

EARLY = SystemExit(0)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Arguments of the call to the SDK, which is not made."""
    calls: dict[str, Any] = {}

    def record(_: Client, train: object, **options: Any) -> None:
        calls.update(options, train=train)
        raise EARLY

    monkeypatch.setattr(Client, "finetune", record)
    return calls


def test_defaults_are_those_of_the_sdk(asked: dict[str, Any], run: Run) -> None:
    run("finetune", "--train", "x.csv", "--eta", "80")
    sdk = inspect.signature(inspect.unwrap(Client.__init__)).parameters
    assert "home" in sdk
    assert asked["privacy"] == TextToText(eta=80)
    said = {name for name, value in asked.items() if value is not None}
    assert said == {"train", "privacy", "progress"}, "what is not said is left to the SDK"


def test_every_setting_reaches_the_sdk(asked: dict[str, Any], run: Run, tmp_path: Path) -> None:
    settings = {
        "--dev": "dev.csv",
        "--test": "test.csv",
        "--text-column": "a",
        "--text-pair-column": "b",
        "--label-column": "c",
        "--mechanism": "vector",
        "--place": "activations",
        "--bottom": "3",
        "--train-bottom": "cached",
        "--privacy-budget": "160",
        "--label-epsilon": "1.5",
        "--label-budget": "3",
        "--model": "house",
        "--epochs": "7",
        "--patience": "4",
        "--batch-size": "16",
        "--learning-rate": "0.001",
        "--weight-decay": "0.1",
        "--lora-r": "4",
        "--lora-alpha": "8",
        "--lora-dropout": "0.2",
        "--target-modules": "all-linear",
        "--dev-share": "0.05",
        "--max-length": "64",
        "--precision": "bf16",
        "--wire-type": "fp32",
        "--seed": "5",
        "--unsafe-noise-seed": "6",
        "--out": str(tmp_path),
    }
    flags = [word for pair in settings.items() for word in pair]
    flags += ["--no-dropout", "--no-group-by-length"]
    ran = run("finetune", "--train", "x.csv", "--eta", "60", *flags)
    assert "whoever knows it can undo it" in ran.err
    given = {name: asked[name] for name in ("dev", "test", "text_column", "text_pair_column", "label_column")}
    assert list(given.values()) == ["dev.csv", "test.csv", "a", "b", "c"]
    assert asked["privacy"] == Vector(eta=60, place=Place.ACTIVATIONS)
    assert asked["cut"] == Cut(bottom=3)
    assert asked["tuning"] == Lora(
        r=4, lora_alpha=8, lora_dropout=0.2, target_modules="all-linear", train_bottom=TrainBottom.CACHED
    )
    assert WireType(asked["wire_type"]) is WireType.FP32
    assert (asked["privacy_budget"], asked["model"], asked["seed"], asked["unsafe_noise_seed"]) == (160, "house", 5, 6)
    assert (asked["label_epsilon"], asked["label_budget"]) == (1.5, 3)
    assert asked["out"] == tmp_path
    assert asked["training"] == Training(
        epochs=7,
        patience=4,
        batch_size=16,
        learning_rate=0.001,
        weight_decay=0.1,
        dev_share=0.05,
        max_length=64,
        precision=Precision.BF16,
        dropout=False,
        group_by_length=False,
    )


def test_the_command_has_every_setting_of_a_run() -> None:
    """A setting of the SDK that the command line cannot reach would be found here."""
    reached = {each.path for argument in arguments(finetune) for each in argument.settings}
    for spec in (FinetuneSpec, DataSpec):
        assert {each.path for each in settings_of(spec)} <= reached


def test_the_choices_of_cti_reach_the_sdk(asked: dict[str, Any], run: Run) -> None:
    given = {"frequency": "texts", "smoothing": "0.5", "c0": "-1", "pair": "first", "unlabelled": "mean"}
    flags = [word for name, value in given.items() for word in (f"--cti-{name}", value)]
    run("finetune", "--train", "x.csv", "--eta", "80", "--cti", "--cti-class-free", *flags)
    assert asked["privacy"].cti == CtiSpec(
        frequency="texts", smoothing=0.5, c0=-1, pair="first", unlabelled="mean", class_free=True
    )
    assert set(given) | {"class_free"} == set(CtiSpec.model_fields)


@pytest.mark.parametrize(
    ("flags", "code", "said"),
    [
        (("--cti-pair", "first"), 2, "Add --cti"),
        (("--cti", "--cti-option", "pair"), 2, "--cti-option is now --cti-NAME"),
        (("--cti", "--cti-smooth", "1"), 2, "--cti-smoothing"),
        (("--cti", "--cti-frequency", "words"), 2, "--cti-frequency: words must be one of tokens, texts"),
        (("--cti", "--cti-smoothing", "-1"), 3, "error: --cti-smoothing = -1.0: must be above 0"),
        (("--place", "activations"), 3, "add --mechanism vector"),
        (("--clip-norm", "1"), 2, "--clip-norm is now --max-grad-norm"),
        (("--budget=160",), 2, "--budget is now --privacy-budget"),
    ],
)
def test_what_cannot_be_is_said_in_one_line(flags: tuple[str, ...], code: int, said: str, run: Run) -> None:
    failed = run("finetune", "--train", "x.csv", "--eta", "80", *flags)
    assert failed.code == code
    assert said in failed.err
    assert len(failed.err.strip().splitlines()) == 1


def test_what_is_promised_of_labels_stands_beside_what_is_read() -> None:
    here, there = (SimpleNamespace(labels_at=side) for side in LabelsAt)
    plain = FinetuneResult.model_construct(
        ua=0.5, ua_on="test", ua_n=4, ua_standard_error=0.25, label_recovery=1.0, spec=here
    )
    assert dict(classifier_rows(plain))["guarantee of labels"] == "none"
    assert dict(classifier_rows(plain))["labels readable from gradients"] == "100.00 %"
    sent = plain.model_copy(update={"spec": there})
    assert dict(classifier_rows(sent))["labels sent to the vendor"] == "100.00 %", "no gradient crossed"
    promise = Guarantee(claim=Claim.LABEL, budget=2, unit="epsilon", per="label")
    drawn = plain.model_copy(update={"label_guarantee": promise, "label_keep": 0.7311})
    said = str(dict(classifier_rows(drawn))["guarantee of labels"])
    assert said.startswith("label-dp, epsilon 2 per label")
    assert "73.1 %" in said


def test_the_result_has_one_word_for_infinity(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    spec = RunSpec(
        privacy=NoPrivacy(),
        training=TrainSpec(epochs=5, patience=2, batch_size=32, learning_rate=3e-4, dropout=True, packing=False),
        tuning=Lora(train_bottom=TrainBottom.FROZEN),
        model="house",
        cut=Cut(bottom=0),
        public_iterations=0,
        seed=1,
    )
    result = FinetuneResult.model_construct(
        eta=math.inf,
        guarantee=Guarantee.nothing("No noise."),
        spec=spec,
        folder=tmp_path,
        n_dev=2,
        advice=("Learn more.",),
    )

    def finetuned(*_: object, **__: object) -> FinetuneResult:
        warnings.warn("2 texts of dev will choose the epoch", CutlayerWarning, stacklevel=2)
        return result

    monkeypatch.setattr(Client, "finetune", finetuned)
    monkeypatch.setattr("cutlayer.cli.finetune.classifier_rows", lambda _: [])
    monkeypatch.setattr("cutlayer.cli.finetune._show", lambda *_, **__: None)
    ran = run("finetune", "--train", "x.csv", "--eta", "inf", "--json")
    assert "warning: 2 texts of dev will choose the epoch" in ran.err
    assert "warning: Learn more." in ran.err
    assert (ran.result["eta"], ran.result["guarantee"]["budget"]) == ("inf", "inf")
    assert ran.result["spec"]["privacy"] == {"mechanism": "none"}
    assert "nfinity" not in ran.out
    assert ran.result["folder"] == str(tmp_path)
    assert RunSpec.model_validate_json(json.dumps(ran.result["spec"])) == spec


def test_infinite_eta_is_said(asked: dict[str, Any], run: Run) -> None:
    ran = run("finetune", "--train", "x.csv", "--eta", "inf")
    assert asked["privacy"] == NoPrivacy()
    assert "no privacy" in ran.err


def test_the_text_cut(asked: dict[str, Any], run: Run) -> None:
    run("finetune", "--train", "x.csv", "--eta", "inf", "--bottom", "text")
    assert asked["cut"] == Cut(bottom=None)
    assert run("finetune", "--train", "x.csv", "--eta", "inf", "--bottom", "-1").code == 3


def test_a_device_that_is_not_there_is_refused(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    failed = run("finetune", "--train", "x.csv", "--eta", "80", "--device", "cuda")
    assert failed.code == 3
    assert "device = 'cuda'" in failed.err


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    path = tmp_path / "notes.csv"
    path.write_text('text,label\n"one, two",a\nthree,b\n')
    return path


def test_predictions_stand_beside_their_texts(
    notes: Path, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    profile = SimpleNamespace(
        spec=SimpleNamespace(privacy=SimpleNamespace(eta=80.0, noise="d-chi"), unsafe_noise_seed=None)
    )
    monkeypatch.setattr("cutlayer.customer.profile.Profile.load", lambda *_: profile)
    answers = [Prediction(label="a", probability=0.75), Prediction(label="b", probability=0.5)]
    monkeypatch.setattr(Client, "predict", lambda *_, **__: answers)
    output = tmp_path / "labelled.csv"
    ran = run("predict", "--adapter", "0f", "--input", notes, "--output", output, "--json")
    assert ran.result["n"] == 2
    assert ran.result["no_privacy"] is False
    with output.open() as file:
        rows = list(csv.DictReader(file))
    assert rows == [
        {"text": "one, two", "predicted_label": "a", "probability": "0.75"},
        {"text": "three", "predicted_label": "b", "probability": "0.5"},
    ]


def test_columns_that_are_kept_stand_first_and_are_not_sent(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes = tmp_path / "notes.csv"
    notes.write_text('record,text,probability\n17,"one, two",x\n18,three,y\n')
    profile = SimpleNamespace(
        spec=SimpleNamespace(privacy=SimpleNamespace(eta=80.0, noise="d-chi"), unsafe_noise_seed=None)
    )
    monkeypatch.setattr("cutlayer.customer.profile.Profile.load", lambda *_: profile)
    asked = []

    def predict(_: Client, __: str, texts: Dataset, **___: object) -> list[Prediction]:
        asked.append(texts.texts)
        return [Prediction(label="a", probability=0.5)] * 2

    monkeypatch.setattr(Client, "predict", predict)
    output = tmp_path / "labelled.csv"
    flags = ("predict", "--adapter", "0f", "--input", notes, "--output", output)
    assert run(*flags, "--keep", "record").code == 0
    with output.open() as file:
        assert list(csv.DictReader(file)) == [
            {"record": number, "text": text, "predicted_label": "a", "probability": "0.5"}
            for number, text in (("17", "one, two"), ("18", "three"))
        ]
    for taken in ("probability", "text"):
        refused = run(*flags, "--keep", taken)
        assert refused.code == 2
        assert f"a column {taken} of its own" in refused.err
    assert asked == [(("one, two",), ("three",))]


def test_kept_columns_are_copied_as_they_are(tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    notes = tmp_path / "notes.jsonl"
    notes.write_text('{"text": "one", "id": 7, "codes": ["a", 1]}\n{"text": "two", "id": null, "codes": ""}\n')
    profile = SimpleNamespace(
        spec=SimpleNamespace(privacy=SimpleNamespace(eta=80.0, noise="d-chi"), unsafe_noise_seed=None)
    )
    monkeypatch.setattr("cutlayer.customer.profile.Profile.load", lambda *_: profile)
    monkeypatch.setattr(Client, "predict", lambda *_, **__: [Prediction(label="a", probability=0.5)] * 2)
    output = tmp_path / "labelled.csv"
    flags = ("predict", "--adapter", "0f", "--input", notes, "--output", output)
    assert run(*flags, "--keep", "id", "--keep", "codes").code == 0
    with output.open() as file:
        kept = [(row["id"], row["codes"]) for row in csv.DictReader(file)]
    assert kept == [("7", '["a", 1]'), ("", "")]


@pytest.mark.parametrize("name", ["predicted_label", "probability", "unsafe_noise_seed"])
@pytest.mark.parametrize("option", ["--text-column", "--text-pair-column"])
def test_a_text_is_not_overwritten_by_what_predict_adds(name: str, option: str, tmp_path: Path, run: Run) -> None:
    output = tmp_path / "labelled.csv"
    refused = run("predict", "--adapter", "0f", "--input", "missing.csv", "--output", output, option, name)
    assert refused.code == 2
    assert f"{option}: the output has a column {name} of its own. Rename the input's" in refused.err
    assert len(refused.err.strip().splitlines()) == 1


def test_a_setting_that_is_refused_is_called_by_its_option(run: Run) -> None:
    refused = run("finetune", "--train", "x.csv", "--eta", "80", "--learning-rate", "-1", "--epochs", "0", "--json")
    assert refused.code == 3
    assert refused.result["error"] == ("--epochs = 0: must be at least 1; --learning-rate = -1.0: must be above 0")
    assert refused.result["remedy"] == "See `cutlayer finetune --help`."


def test_predictions_with_noise_from_a_seed_are_marked(
    notes: Path, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    profile = SimpleNamespace(
        spec=SimpleNamespace(privacy=SimpleNamespace(eta=80.0, noise="d-chi"), unsafe_noise_seed=0)
    )
    monkeypatch.setattr("cutlayer.customer.profile.Profile.load", lambda *_: profile)
    monkeypatch.setattr(Client, "predict", lambda *_, **__: [Prediction(label="a", probability=0.5)] * 2)
    output = tmp_path / "labelled.csv"
    ran = run("predict", "--adapter", "0f", "--input", notes, "--output", output, "--json")
    assert ran.result["unsafe_noise"] is True
    with output.open() as file:
        assert [row["unsafe_noise_seed"] for row in csv.DictReader(file)] == ["0", "0"]


def test_an_output_of_unknown_kind_is_refused_before_anything_is_asked(notes: Path, run: Run) -> None:
    assert run("predict", "--adapter", "0f", "--input", notes, "--output", "x.xlsx").code == 2
    assert run("privatize", "--input", notes, "--output", "x.xlsx", "--eta", "80").code == 2


def test_privatize_counts_what_was_replaced(
    notes: Path, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = (
        PrivatizedText(original=("one, two",), released=("one, six",), replaced=1, tokens=3),
        PrivatizedText(original=("three",), released=("three",), replaced=0, tokens=1),
    )
    monkeypatch.setattr(Client, "privatize_stream", lambda *_, **__: Streamed(shown, 2.5, cut_texts=1, clear={}))
    output = tmp_path / "seen.jsonl"
    assert "worst case per token: e^200" in run("privatize", "--input", notes, "--output", output, "--eta", "80").out
    ran = run("privatize", "--input", notes, "--output", output, "--eta", "80", "--unsafe-noise-seed", "1", "--json")
    for words in ("one", "three"):
        assert words not in ran.out + ran.err, "what machines run is logged"
    assert (ran.result["replaced"], ran.result["tokens"], ran.result["unsafe_noise"]) == (0.25, 4, True)
    assert '"text_released": "one, six"' in output.read_text()
    assert output.read_text().count('"unsafe_noise_seed": 1') == 2


@pytest.mark.parametrize("name", ["tokens", "replaced", "unsafe_noise_seed"])
def test_a_text_column_that_the_preview_would_replace_is_refused(name: str, tmp_path: Path, run: Run) -> None:
    refused = run(
        "privatize", "--input", "x.csv", "--output", tmp_path / "y.jsonl", "--eta", "80", "--text-column", name
    )
    assert refused.code == 2
    assert f"--text-column: the output has a column {name} of its own" in refused.err
