"""Promise 1 for encoder-decoders: both texts of a pair, and both gradients of a step, are what is due and no more."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch import Tensor
from transformers import PreTrainedTokenizerFast, T5ForConditionalGeneration

from cutlayer import vendor
from cutlayer.core import Ragged, Rows, Tokens
from cutlayer.customer import Client, Gate, LanguageResult, Sampling, Training
from cutlayer.customer.gate import NO_TENSORS, StepTensors
from cutlayer.customer.seq2seq import Seq2SeqSession
from cutlayer.customer.session import Texts
from cutlayer.data import Dataset
from cutlayer.privacy import Release
from cutlayer.vendor import VendorSettings
from cutlayer.wire import Route, WireType, routes
from tests.equivalence.zoo import configuration
from tests.promises.accounts import Watched, canary_ids, check_accounted, check_kept_home
from tests.promises.runs import CANARIES, SEED, Sent, corpus, customer
from tests.promises.test_families import SPECIALS
from tests.promises.test_one_door import check_no_canary
from tests.quick import slow_but
from tests.service.tiny import MAX_LENGTH, VOCAB
from tests.settings import specs

pytestmark = pytest.mark.usefixtures("barely_measured")


def pairs(n: int, *, seed: int, repeated: int) -> Dataset:
    """Pairs of random texts, the first of which stand twice."""
    sides = (corpus(n, seed=each).texts for each in (seed, seed + 10))
    found = tuple((source, target) for (source,), (target,) in zip(*sides, strict=True))
    return Dataset(found + found[:repeated])


TRAIN, DEV, TEST = pairs(24, seed=1, repeated=10), pairs(7, seed=2, repeated=3), pairs(7, seed=3, repeated=3)
POSITIONS = 128
"""Of one frame at most: a batch of the longest texts fits, all of dev does not."""
SHALLOW, DEEP, BARE = (
    {"bottom": bottom, "target_bottom": bottom, "tail": tail} for bottom, tail in ((1, 0), (1, 1), (0, 0))
)
FULL = {"method": "full"}
CLIPPED = {"max_grad_norm": 0.5, "gradient_accumulation_steps": 2}
SETTINGS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "adapters": (SHALLOW, {}),
    "all weights, clipped and accumulated": (DEEP, FULL | CLIPPED),
    "frozen embeddings": (BARE | {"train_bottom": "frozen"}, {}),
    "other tokens below blocks": (SHALLOW | {"eta": 6.0}, {}),
    "adapters that drop out": (DEEP, {"lora_dropout": 0.3, "gradient_accumulation_steps": 3}),
    "all weights in fp32": (DEEP | {"wire_type": WireType.FP32}, FULL),
    "a head alone": (SHALLOW | {"train_bottom": "frozen"}, FULL | CLIPPED),
    "nothing of the customer's, clipped": (BARE | {"train_bottom": "frozen"}, CLIPPED),
    "a trained table": (BARE | {"train_bottom": "resample"}, FULL),
    "embeddings of other tokens": (BARE | {"train_bottom": "frozen", "eta": 6.0}, {}),
    "other tokens each epoch": (DEEP | {"train_bottom": "resample", "eta": 6.0}, CLIPPED),
    "noisy embeddings": (BARE | {"train_bottom": "frozen", "eta": 6.0, "mechanism": "vector"}, {}),
    "blocks above the source alone": (DEEP | {"bottom": 0}, {}),
    "blocks above the target alone": (BARE | {"bottom": 1}, FULL),
    "blocks computed again": (DEEP, {"gradient_checkpointing": True, "lora_dropout": 0.3}),
}  # fmt: skip
QUICK = ("all weights, clipped and accumulated", "other tokens below blocks")


@pytest.fixture(scope="module")
def t5(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny encoder-decoder whose tokenizer numbers words as the tiny BERT's does, for the canaries' sake."""
    folder = tmp_path_factory.mktemp("t5") / "tiny"
    torch.manual_seed(13)
    T5ForConditionalGeneration(configuration("t5", vocab_size=VOCAB)).save_pretrained(folder)
    first = canary_ids()[0] - int(CANARIES[0][1:])
    vocabulary = [*SPECIALS, *(f"spare{number}" for number in range(first - len(SPECIALS)))]
    vocabulary += [f"w{number}" for number in range(VOCAB - first)]
    numbers = {word: number for number, word in enumerate(vocabulary)}
    tokenizer = Tokenizer(models.WordLevel(numbers, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 2)])
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token="[UNK]",
        eos_token="</s>",
        pad_token="<pad>",
        model_max_length=MAX_LENGTH,
    ).save_pretrained(folder)
    return folder


@pytest.fixture
def data_dir(t5: Path, tmp_path: Path) -> Path:
    vendor.init(tmp_path / "data", models=[str(t5)], threads=1, max_bottom=1, max_tail=1)
    settings = VendorSettings.load(tmp_path / "data")
    limits = settings.limits.model_copy(update={"max_rows_per_step": POSITIONS})
    settings.model_copy(update={"limits": limits}).save()
    return tmp_path / "data"


def tune(client: Client, name: str, **changes: Any) -> tuple[LanguageResult, Training]:
    cut, settings = SETTINGS[name]
    stated = {"epochs": 2, "max_length": 16, "learning_rate": 2e-3, "save_steps": 3}
    given = specs({"eta": math.inf} | cut | stated | settings | changes)
    result = client.finetune(TRAIN, objective="seq2seq", dev=DEV, test=TEST, seed=SEED, **given)
    return result, given["training"]


def check(client: Client, name: str, watched: Watched, **changes: Any) -> LanguageResult:
    result, training = tune(client, name, **changes)
    check_accounted(client, result, watched, train=TRAIN, dev=DEV, test=TEST, training=training)
    return result


@pytest.mark.parametrize("name", slow_but(QUICK, SETTINGS))
def test_every_byte_is_accounted_for(name: str, data_dir: Path, api_key: str, tmp_path: Path, watched: Watched) -> None:
    with customer(data_dir, api_key, tmp_path / "home") as client:
        result = check(client, name, watched)
        frames = Sent.by(result).frames
        crossed = {
            route: [len(frame.tensors()["lengths"]) for frame in frames if frame.route is route]
            for route in (routes.SOURCE, routes.STEP, routes.JOB_INFER, routes.ADAPTER_INFER)
        }
        # what these runs are to show: pairs that stand twice in a batch or an evaluation, and evaluations in two frames
        assert crossed[routes.SOURCE] == crossed[routes.STEP]
        assert sum(crossed[routes.STEP]) < result.epochs * len(TRAIN)
        assert len(crossed[routes.JOB_INFER]) > 2 * (result.epochs + 1)
        assert sum(crossed[routes.ADAPTER_INFER]) < 2 * len(TEST)
        cut, _ = SETTINGS[name]
        added = [frame.tensors()["gradient"] for frame in frames if frame.route is routes.SOURCE_GRADIENT]
        assert any(bool(gradient.any()) for gradient in added) == bool(cut["target_bottom"] or cut["tail"])
        # one fresh draw in each of two epochs, also of a pair that stands in two batches
        assert result.looks == (2 if cut.get("train_bottom") == "resample" else 1)
        if "eta" in cut:
            assert result.replaced is None or result.replaced > 0
            check_no_canary(frames, client)


# ---------------------------------------------------------------- planted faults

Fault = Callable[[pytest.MonkeyPatch], None]


def changing(role: str, route: Route, change: Callable[[Tensor], Tensor]) -> Fault:
    """Sends something else than is due on one of the ways back."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        honest = Gate.send

        def sending(gate: Gate, to: Route, *given: Any, tensors: StepTensors = NO_TENSORS, **named: Any) -> Any:
            if to is route:
                changed = change(tensors.by_role()[role].clone())
                if to is routes.UPDATE:
                    tensors = replace(tensors, gradient_stats={**(tensors.gradient_stats or {}), role: changed})
                else:
                    tensors = replace(tensors, **{role: changed})
            return honest(gate, to, *given, tensors=tensors, **named)

        patch.setattr(Gate, "send", sending)

    return plant


def with_a_bit_flipped(tensor: Tensor) -> Tensor:
    """The lowest bits of a number spell out ids."""
    tensor.view(torch.int16).view(-1)[0] ^= 1
    return tensor


def of_ids(gradient: Tensor) -> Tensor:
    """Rows that spell out ids."""
    return torch.arange(gradient.numel()).reshape(gradient.shape).remainder(VOCAB).to(gradient)


def plant_true_labels_of_others(patch: pytest.MonkeyPatch) -> None:
    """The loss is of other target texts than it should: what goes up is the gradient of something else."""
    honest = Seq2SeqSession.loss

    def planted(session: Seq2SeqSession, texts: Any, labels: Tokens, **given: Any) -> Tensor:
        source, target = labels.segments
        return honest(session, texts, Tokens((source, target.with_values(target.values.roll(1)))), **given)

    patch.setattr(Seq2SeqSession, "loss", planted)


def plant_the_true_tokens(patch: pytest.MonkeyPatch) -> None:
    """The road goes round the privatizer."""
    honest = Seq2SeqSession.forward

    def planted(session: Seq2SeqSession, texts: Texts, **given: Any) -> Tensor:
        return honest(session, replace(texts, public=True), **given)

    patch.setattr(Seq2SeqSession, "forward", planted)


def plant_true_tokens_below(patch: pytest.MonkeyPatch) -> None:
    """Draws as it should, and feeds the blocks below the cuts the texts all the same."""
    forward, once = Seq2SeqSession.forward, Seq2SeqSession._once
    true: dict[bytes, Tokens] = {}

    def remembering(session: Seq2SeqSession, texts: Texts, **given: Any) -> Tensor:
        names = session.privatizer.tokens(texts.tokens, labels=None, look=given.get("look")).identities
        true.update({name: texts.tokens.select([place]) for place, name in enumerate(names)})
        return forward(session, texts, **given)

    def betraying(session: Seq2SeqSession, drawn: Release) -> Tensor:
        sides = zip(*(true[name].segments for name in drawn.identities), strict=True)
        texts = Tokens(tuple(Ragged.concatenate(parts) for parts in sides))
        return once(session, replace(drawn, payload=texts))

    patch.setattr(Seq2SeqSession, "forward", remembering)
    patch.setattr(Seq2SeqSession, "_once", betraying)


def plant_rows_of_another_text(patch: pytest.MonkeyPatch) -> None:
    """Target texts leave with the rows of the one before them."""
    honest = Gate.send

    def sending(gate: Gate, route: Route, *given: Any, release: Release | None = None, **named: Any) -> Any:
        if release is not None and route is routes.STEP:
            assert isinstance(release.payload, Rows)
            packed = release.payload.packed
            moved = packed.with_values(packed.values.roll(int(packed.lengths[0]), 0))
            release = replace(release, payload=Rows(moved, release.payload.segment_lengths))
        return honest(gate, route, *given, release=release, **named)

    patch.setattr(Gate, "send", sending)


FAULTS: dict[str, tuple[Fault, str, str]] = {
    "a bit of a gradient": (
        changing("gradient", routes.GRADIENT, with_a_bit_flipped), "adapters", "gradient: another value",
    ),
    "a bit of the source's gradient": (
        changing("gradient", routes.SOURCE_GRADIENT, with_a_bit_flipped), "adapters", "gradient: another value",
    ),
    "ids in place of the source's gradient": (
        changing("gradient", routes.SOURCE_GRADIENT, of_ids), "frozen embeddings", "gradient: another value",
    ),
    "labels of other texts": (plant_true_labels_of_others, "adapters", "gradient: another value"),
    "a bit of the norm": (
        changing("norm", routes.UPDATE, with_a_bit_flipped), "all weights, clipped and accumulated",
        "norm: another value",
    ),
    "a bit of the gradient of copies": (
        changing("shared_gradient", routes.UPDATE, with_a_bit_flipped), "all weights in fp32",
        "shared_gradient: another value",
    ),
    "round the privatizer": (
        plant_the_true_tokens, "other tokens below blocks", "a text is due that no privatizer was given",
    ),
    "true tokens below": (
        plant_true_tokens_below, "other tokens below blocks", "a text left with other content",
    ),
    "rows of another text": (plant_rows_of_another_text, "adapters", "a text left with other content"),
}  # fmt: skip
"""What is planted, in which run, and what the checks say of it."""


PLANTED_QUICK = (
    "ids in place of the source's gradient", "labels of other texts", "a bit of the norm", "round the privatizer",
    "true tokens below",
)  # fmt: skip


@pytest.mark.parametrize("planted", slow_but(PLANTED_QUICK, FAULTS))
def test_a_planted_leak_is_caught(
    planted: str, data_dir: Path, api_key: str, tmp_path: Path, watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault, name, said = FAULTS[planted]
    fault(monkeypatch)
    with customer(data_dir, api_key, tmp_path / "home") as client, pytest.raises(Exception, match=said):
        check(client, name, watched, epochs=1)


# ---------------------------------------------------------------- what the vendor gets and keeps


@pytest.mark.parametrize(
    "name", ["all weights, clipped and accumulated", pytest.param("adapters", marks=pytest.mark.slow)]
)
def test_the_vendor_gets_and_keeps_no_token_and_no_weight_of_the_customers(
    name: str, data_dir: Path, api_key: str, tmp_path: Path, watched: Watched
) -> None:
    with customer(data_dir, api_key, tmp_path / "home") as client:
        result, _ = tune(client, name)
        before = len(watched.requests)
        client.generate(result.adapter_id, [TRAIN.texts[0][0]], sampling=Sampling(max_new_tokens=9, seed=1))
        assert len(watched.requests) > before
        sent = b"\n".join(f"{request.line}\n".encode() + request.body for request in watched.requests)
        check_kept_home(client, result, [text for pair in TRAIN.texts for text in pair], sent=sent, vendor=data_dir)
