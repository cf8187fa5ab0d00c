"""Runs by every method: what they publish, what they go on with, and what is refused before anything leaves."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cutlayer import vendor
from cutlayer.core import ConfigError, Cut, ModelError, Stopped
from cutlayer.core.embedding import EmbeddingSpec
from cutlayer.core.tuning import FullSpec, LoraSpec
from cutlayer.customer import (
    Client,
    FullTuning,
    Lora,
    Objective,
    Prefix,
    Prompt,
    Sampling,
    Silent,
    TrainBottom,
    TuningSpec,
)
from cutlayer.customer.profile import Profile
from cutlayer.customer.results import FinetuneResult
from cutlayer.customer.validate import check_model, validate
from cutlayer.data import Dataset
from cutlayer.models import METHODS, Head
from cutlayer.wire.messages import ModelInfo
from tests.promises.runs import SEED, TEST, TRAIN, TRAINING, customer
from tests.promises.test_encoder_decoders import pairs
from tests.promises.test_families import write_model
from tests.quick import slow_but
from tests.service.fixtures import api_key, blank_vendor, data_dir, tiny_model  # noqa: F401 - fixtures by name
from tests.settings import run_spec

KINDS: dict[str, TuningSpec] = {
    "lora": Lora(r=2),
    "full": FullTuning(),
    "prompt": Prompt(prompt_length=4),
    "prompt, sequence": Prompt(prompt_length=4, pooling="sequence"),
    "prompt, text": Prompt(prompt_length=4, pooling="text"),
    "prefix": Prefix(prefix_length=3),
    "prefix, mean": Prefix(prefix_length=3, pooling="mean"),
}
SHORT = Sampling(max_new_tokens=4, greedy=True)
PAIRS = pairs(16, 3)
MODEL = ModelInfo(
    name="tiny", family="bert", fingerprint="0" * 64, blocks=4, width=32, vocab_size=300, max_length=64, max_bottom=2,
    embedding=EmbeddingSpec(width=32, pooling="mean"), max_tail=None, parameters=1,
)  # fmt: skip


@pytest.fixture
def client(data_dir: Path, api_key: str, tmp_path: Path) -> Iterator[Client]:  # noqa: F811
    with customer(data_dir, api_key, tmp_path / "home") as opened:
        yield opened


def finetune(client: Client, *, training: dict[str, Any] | None = None, **settings: Any) -> FinetuneResult:
    """A run over 40 texts."""
    how = TRAINING.model_copy(update=training or {})
    return client.finetune(TRAIN, test=TEST, eta=6.0, training=how, seed=SEED, **settings)


class Interrupts(Silent):
    """Ctrl-C in the second epoch."""

    def update(self, stage: str, done: int, total: int, note: str = "") -> None:
        if stage.startswith("epoch 2"):
            raise KeyboardInterrupt


def test_every_method_can_be_chosen() -> None:
    assert set(TuningSpec.kinds) == set(METHODS)
    assert Lora(r=2, train_bottom="cached").told == LoraSpec(r=2)
    assert FullTuning().told == FullSpec()


@pytest.mark.parametrize("bottom", [0, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", KINDS)
def test_a_stopped_run_goes_on_and_its_adapter_answers(client: Client, kind: str, bottom: int, tmp_path: Path) -> None:
    """Checkpoints of each method and each optimiser, to the same bits; dropout on."""
    optim = {"full": "adafactor", "prompt": "adafactor", "prefix": "adam"}.get(kind, "adamw")
    settings: dict[str, Any] = {
        "tuning": KINDS[kind], "cut": Cut(bottom=bottom), "training": {"optim": optim, "lr_scheduler_type": "constant"}
    }  # fmt: skip
    with pytest.raises(Stopped):
        finetune(client, progress=Interrupts(), out=tmp_path / "run", **settings)
    resumed = finetune(client, out=tmp_path / "run", **settings)
    straight = finetune(client, out=tmp_path / "straight", **settings)
    assert resumed.adapter_sha256 == straight.adapter_sha256
    assert resumed.spec.training.optim == optim
    answers = client.predict(resumed.adapter_id, TEST.texts[:3])
    assert [answer.label for answer in answers] == [
        answer.label for answer in client.predict(straight.adapter_id, TEST.texts[:3])
    ]


@pytest.mark.parametrize("kind", slow_but(["lora"], ["lora", "prompt", "prefix"]))
def test_optimisers_and_schedules_are_not_one(client: Client, kind: str) -> None:
    """Planted: a setting that reaches no optimiser would end at the same weights."""
    ended = {
        (optim, schedule): finetune(
            client, tuning=KINDS[kind], training={"optim": optim, "lr_scheduler_type": schedule}
        ).adapter_sha256
        for optim in ("adamw", "adam", "adafactor")
        for schedule in ("linear", "constant")
    }
    assert len(set(ended.values())) == 6


def test_a_text_that_a_prompt_leaves_no_room_for_is_cut_shorter(client: Client) -> None:
    long = Prompt(prompt_length=50)
    result = finetune(client, tuning=long)
    assert Profile.load(client.home, result.adapter_id).max_content == 64 - 50 - 2


@pytest.mark.parametrize(
    ("tuning", "changes", "named"),
    [
        (Prompt(), {"train_bottom": TrainBottom.CACHED}, r"train_bottom = .*must be frozen: `method` 'prompt'"),
        (Prefix(), {"train_bottom": TrainBottom.RESAMPLE}, r"train_bottom = .*must be frozen: `method` 'prefix'"),
    ],
    ids=str,
)
def test_a_bottom_is_not_trained_by_what_is_the_vendors_alone(
    tuning: TuningSpec, changes: dict[str, Any], named: str
) -> None:
    plain = run_spec(objective="lm", eta=60.0, bottom=1, tail=0)
    validate(plain.model_copy(update={"tuning": tuning.model_copy(update={"train_bottom": TrainBottom.FROZEN})}))
    with pytest.raises(ConfigError, match=named):
        validate(plain.model_copy(update={"tuning": tuning.model_copy(update=changes)}))


def test_a_method_that_the_family_ignores_is_refused_by_name() -> None:
    spec = run_spec(eta=60.0).model_copy(update={"tuning": Prefix()})
    check_model(spec, MODEL)
    with pytest.raises(ModelError, match="Method prefix trains nothing on a distilbert model") as error:
        check_model(spec, MODEL.model_copy(update={"family": "distilbert"}))
    assert error.value.exit_code == 5


def test_weights_that_the_vendor_keeps_in_4_bits_are_not_tuned_themselves() -> None:
    spec, packed = run_spec(eta=60.0), MODEL.model_copy(update={"quantization": "nf4"})
    for tuning in (Lora(), Prompt(prompt_length=4), Prefix()):
        check_model(spec.model_copy(update={"tuning": tuning}), packed)
    whole = spec.model_copy(update={"tuning": FullTuning()})
    check_model(whole, MODEL)
    with pytest.raises(ConfigError, match=r"method = 'full'.*keeps tiny in nf4") as error:
        check_model(whole, packed)
    assert error.value.exit_code == 3
    assert "lora" in error.value.remedy


def test_virtual_positions_beyond_the_models_are_refused() -> None:
    spec = run_spec(eta=60.0)
    assert spec.objective is Objective.CLASSIFICATION
    for tuning in (Prompt(prompt_length=60), Prefix(prefix_length=60)):
        with pytest.raises(ConfigError, match=rf"{tuning.method}_length = 60: leaves no room for a text"):
            check_model(spec.model_copy(update={"tuning": tuning}), MODEL)


@pytest.mark.parametrize("kind", slow_but(["prompt"], ["prompt", "prefix"]))
@pytest.mark.parametrize(
    ("family", "cut"),
    [
        ("gpt2", Cut(bottom=1, tail=1)),
        pytest.param("gpt2", Cut(bottom=0, tail=0), marks=pytest.mark.slow),
        ("t5", Cut(bottom=1, target=1, tail=1)),
    ],
)
def test_texts_are_learnt_and_written_behind_virtual_positions(
    family: str, cut: Cut, kind: str, tmp_path: Path
) -> None:
    """Nothing of the customer's is trained, and what is generated does not depend on how it is asked for."""
    source = str(write_model(family, tmp_path / "model", head=Head.LANGUAGE))
    vendor.init(tmp_path / "data", models=[source], threads=1, max_bottom=1, max_tail=1)
    objective, train = (
        (Objective.SEQ2SEQ, PAIRS)
        if family == "t5"
        else (Objective.LM, Dataset(tuple((source,) for source, _ in PAIRS.texts)))
    )
    how = TRAINING.model_copy(update={"max_length": 12, "dropout": False})
    with customer(tmp_path / "data", vendor.keys.create(tmp_path / "data", "clinic"), tmp_path / "home") as client:
        result = client.finetune(
            train,
            dev=train,
            test=train,
            objective=objective,
            eta=math.inf,
            training=how,
            seed=SEED,
            cut=cut,
            tuning=KINDS[kind],
        )
        assert result.spec.train_bottom is TrainBottom.FROZEN
        assert not Profile.load(client.home, result.adapter_id).trained(client.home)
        asked = ["a b c", "d e f g"]
        both = client.generate(result.adapter_id, asked, sampling=SHORT)
        alone = [client.generate(result.adapter_id, [text], sampling=SHORT)[0] for text in asked]
    assert [one.text for one in both] == [one.text for one in alone]
