"""Encoder-decoders over the wire: the whole model's numbers and texts, and nothing lost at any frame."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from cutlayer import vendor
from cutlayer.core import ConfigError, Cut, ModelError, VendorError
from cutlayer.customer import (
    Client,
    LanguageResult,
    Lora,
    Objective,
    Sampling,
    Silent,
    TrainBottom,
)
from cutlayer.customer.defaults import settle_training
from cutlayer.customer.link import Exchange
from cutlayer.data import Dataset
from cutlayer.models import Head, load_model, load_tokenizer
from cutlayer.models.joint import JointGradients
from cutlayer.recipes.reference.fit import ReferenceRun
from cutlayer.recipes.reference.language import CentralisedLanguage, train_centralised_language_model
from cutlayer.vendor import VendorSettings, create_app
from cutlayer.wire import Frame, Reply, WireType
from cutlayer.wire.transports import LocalTransport
from tests.equivalence.zoo import SEQ2SEQ, VOCAB
from tests.promises.conftest import measure_at_most
from tests.promises.runs import clear_order, give_secret
from tests.promises.test_families import write_model
from tests.promises.test_language_models import check_equal, losses
from tests.quick import slow_but
from tests.settings import specs

CUTS = (Cut(bottom=1, target=1, tail=0), Cut(bottom=0, target=0, tail=0), Cut(bottom=1, target=1, tail=1))


def pairs(n: int, seed: int) -> Dataset:
    """Sequences that go up by one; the target is the source, one up."""
    rng = random.Random(seed)
    rows = []
    for _ in range(n):
        start, length = rng.randrange(VOCAB - 4), rng.randint(2, 12)
        source, target = (" ".join(f"w{(start + k + up) % (VOCAB - 4)}" for k in range(length)) for up in (0, 1))
        rows.append((source, target))
    return Dataset(tuple(rows))


TRAIN, DEV, TEST = pairs(47, 1), pairs(8, 2), pairs(6, 3)
TRAIN = Dataset((*TRAIN.texts, TRAIN.texts[0]))  # a pair that stands twice


METHODS = ("lora", "full")


def training(method: str = "lora", **changes: Any) -> dict[str, Any]:
    settings: dict[str, Any] = {"epochs": 2, "batch_size": 4, "max_length": 20, "save_steps": 3}
    settings["learning_rate"] = 2e-3 if method == "lora" else 2e-4
    return {"method": method, **settings, **changes}


def start_vendor(source: str, folder: Path) -> str:
    vendor.init(folder, models=[source], threads=torch.get_num_threads(), max_bottom=1, max_tail=1)
    return vendor.keys.create(folder, "clinic")


@contextmanager
def customer(source: str, folder: Path) -> Iterator[Client]:
    key = start_vendor(source, folder / "vendor")
    transport = LocalTransport(create_app(VendorSettings.load(folder / "vendor")), key)
    client = Client(transport=transport, home=give_secret(folder / "home"), device="cpu")
    try:
        yield client
    finally:
        client.close()


def tune(client: Client, settings: dict[str, Any], cut: Cut = CUTS[0], **changes: Any) -> LanguageResult:
    given = {"dev": DEV, "test": TEST, "eta": math.inf, "wire_type": WireType.FP32, "seed": 4}
    given |= {"bottom": cut.bottom, "target_bottom": cut.target, "tail": cut.tail}
    return client.finetune(TRAIN, objective="seq2seq", **specs({**given, **settings, **changes}))


def whole(source: str, settings: dict[str, Any]) -> CentralisedLanguage:
    chosen = specs(settings)
    tuning = chosen.get("tuning", Lora())
    settled = settle_training(chosen["training"], Objective.SEQ2SEQ, tuning)
    run = ReferenceRun(TRAIN, DEV, TEST, source, settled, tuning, 4, clear_order(4))
    return train_centralised_language_model(run, progress=Silent(), device="cpu")


@pytest.fixture(scope="module")
def t5(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_model("t5", tmp_path_factory.mktemp("t5") / "model", head=Head.LANGUAGE))


# ---------------------------------------------------------------- promise 2

ALL_THREE = {"max_grad_norm": 0.5, "gradient_accumulation_steps": 3, "gradient_checkpointing": True}
EVERY = [
    pytest.param("t5", "lora", {}, CUTS[2:], id="t5 lora at one cut"),
    pytest.param("t5", "full", ALL_THREE, CUTS[2:], id="t5 full at one cut, all three"),
    *(
        pytest.param(name, method, changes, CUTS, id=f"{name} {method} {' '.join(changes)}", marks=pytest.mark.slow)
        for name in SEQ2SEQ
        for method in METHODS
        for changes in ({}, ALL_THREE)
        if name == "t5" or not changes
    ),
]


@pytest.mark.usefixtures("unmeasured")
@pytest.mark.parametrize(("name", "method", "changes", "cuts"), EVERY)
def test_a_split_encoder_decoder_is_the_whole_one(
    name: str, method: str, changes: dict[str, Any], cuts: tuple[Cut, ...], tmp_path: Path
) -> None:
    source = str(write_model(name, tmp_path / "model", head=Head.LANGUAGE))
    settings = training(method, **changes)
    expected = whole(source, settings)
    prompts = [source for source, _ in TEST.texts]
    tokenizer = load_tokenizer(source)
    batch = tokenizer(prompts, return_tensors="pt", padding=True, return_token_type_ids=False)
    with customer(source, tmp_path) as client:
        for cut in cuts:
            result = tune(client, settings, cut)
            check_equal(result, expected)
            for beams in (1, 3):
                asked = Sampling(greedy=True, num_beams=beams, max_new_tokens=64)
                told = client.generate(result.adapter_id, prompts, sampling=asked)
                with torch.no_grad():
                    ids = expected.model.eval().generate(
                        **batch, max_new_tokens=64, num_beams=beams, do_sample=False,
                        eos_token_id=tokenizer.eos_token_id,
                    )  # fmt: skip
                assert [each.text for each in told] == tokenizer.batch_decode(ids, skip_special_tokens=True)
                assert told[0].round_trips <= 1 + 64


@pytest.mark.usefixtures("unmeasured")
def test_the_customers_share_of_the_encoders_gradient_counts(t5: str, tmp_path: Path) -> None:
    """Planted fault: what the customer's decoder blocks add to it is left out; the curves must not agree then."""
    settings = training("full")
    expected = whole(t5, settings)
    honest = Exchange.backward

    def planted(ctx: Any, *gradients: torch.Tensor) -> Any:
        first = ctx.after is None
        return honest(ctx, *(gradient * 0 if first else gradient for gradient in gradients))

    with pytest.MonkeyPatch.context() as patch, customer(t5, tmp_path) as client:
        patch.setattr(Exchange, "backward", staticmethod(planted))
        assert losses(tune(client, settings)) != pytest.approx(expected.losses, abs=1e-5)


@pytest.mark.usefixtures("unmeasured")
def test_both_parties_train_the_position_biases_as_one(t5: str, tmp_path: Path) -> None:
    """Copies end bit by bit alike; planted fault: where each takes its own gradients alone, nothing agrees."""
    settings = training("full", max_grad_norm=0.5, gradient_accumulation_steps=2)
    expected = whole(t5, settings)
    with customer(t5, tmp_path / "honest") as client:
        result = tune(client, settings, CUTS[2])
        assert losses(result) == pytest.approx(expected.losses, abs=1e-5)
    (published,) = (tmp_path / "honest" / "vendor").rglob(f"{result.adapter_id}/weights.safetensors")
    ours = biases(load_file(tmp_path / "honest" / "home" / "adapters" / result.adapter_id / "trained.safetensors"))
    theirs = biases(load_file(published))
    assert ours.keys() == theirs.keys() == {"encoder", "decoder"}
    handed_out = biases(dict(load_model(t5, head=None).named_parameters()))
    for stack, value in ours.items():
        assert torch.equal(value, theirs[stack])
        assert not torch.equal(value, handed_out[stack])
        one = dict(expected.model.named_parameters())[f"{stack}.block.0.layer.0.SelfAttention.{BIAS}"]
        torch.testing.assert_close(value, one, rtol=0, atol=1e-6)
    with customer(t5, tmp_path / "planted") as client, pytest.MonkeyPatch.context() as patch:
        honest = JointGradients.join

        def alone(self: JointGradients, *, copied: torch.Tensor, **given: Any) -> None:
            honest(self, copied=0 * copied, **given)

        patch.setattr(JointGradients, "join", alone)
        planted = tune(client, settings, CUTS[2])
        assert losses(planted) != pytest.approx(expected.losses, abs=1e-5)


BIAS = "relative_attention_bias.weight"


def biases(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Position biases by stack, wherever they stand in it."""
    return {name.partition(".")[0]: value for name, value in tensors.items() if name.endswith(BIAS)}


# ---------------------------------------------------------------- what can be read


def test_what_the_vendor_reads_all_the_same(t5: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measure_at_most(100, monkeypatch)  # fewer than the run has, as in any longer run
    settings = training("full")
    with customer(t5, tmp_path) as client:
        bare = tune(client, settings, CUTS[1], train_bottom=TrainBottom.FROZEN)
        deeper = tune(client, settings, CUTS[0])
    # embeddings alone below the target: a table lookup reads every label
    assert bare.ep == 0
    for result in (bare, deeper):
        assert result.token_recovery_from_boundary is not None, result.token_recovery_from_boundary_note
        assert result.token_recovery_from_boundary.value > 0.99
    # a run with blocks tells what there would be without
    assert bare.token_recovery_without_blocks is None
    assert deeper.token_recovery_without_blocks is not None
    assert deeper.token_recovery_without_blocks.value == 1
    for result in (bare, deeper):
        assert any("enclave" in line for line in result.advice)
        assert result.token_recovery_first_steps is not None
        assert result.token_recovery_first_steps.value > 0.99
        assert result.token_recovery_last_steps is not None
        assert result.token_recovery_last_steps.value > 0.9
        assert result.token_recovery_from_answers is not None
        assert result.token_recovery_from_answers.value > 0.9


# ---------------------------------------------------------------- crashes


class Restarted:
    """A vendor whose process is gone before some frames, and back.

    Args:
        folder: Its data.
        key: The tenant's.
        dies: Before which frames, counted from 1.
        fails_at: The frame whose answer is lost, and after which nothing answers.
    """

    def __init__(
        self, folder: Path, key: str, *, dies: Callable[[int], bool] = lambda frame: False, fails_at: int | None = None
    ) -> None:
        self._folder = folder
        self._key = key
        self._dies = dies
        self._fails_at = fails_at
        self.count = 0
        self._inner = self._started()

    def _started(self) -> LocalTransport:
        return LocalTransport(create_app(VendorSettings.load(self._folder)), self._key)

    @property
    def peer(self) -> str:
        return self._inner.peer

    def send(self, frame: Frame) -> Reply:
        self.count += 1
        if self._dies(self.count):
            self._inner.close()
            self._inner = self._started()
        reply = self._inner.send(frame)
        if self._fails_at is not None and self.count >= self._fails_at:
            raise VendorError("gone")
        return reply

    def close(self) -> None:
        self._inner.close()


Kept = tuple[list[float], str, dict[str, torch.Tensor]]
"""Losses, the digest of the vendor's adapter, and the customer's own weights."""


def kept(home: Path, result: LanguageResult) -> Kept:
    file = home / "adapters" / result.adapter_id / "trained.safetensors"
    return losses(result), result.adapter_sha256, load_file(file) if file.exists() else {}


def check_same(calm: Kept, restless: Kept) -> None:
    """Both runs ended at the same weights, bit by bit, on both sides."""
    assert calm[:2] == restless[:2]
    assert calm[2].keys() == restless[2].keys()
    for name, value in calm[2].items():
        assert torch.equal(value, restless[2][name]), name


@pytest.mark.usefixtures("barely_measured")
@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({}, id="plain"),
        pytest.param({"max_grad_norm": 0.5, "gradient_accumulation_steps": 2}, id="clipped"),
    ],
)
@pytest.mark.slow
def test_a_vendor_that_dies_between_any_two_frames(changes: dict[str, Any], t5: str, tmp_path: Path) -> None:
    settings = training("full", **changes)
    found = []
    for name, dies in (("calm", lambda frame: False), ("restless", lambda frame: frame % 3 == 0)):
        key, home = start_vendor(t5, tmp_path / name), tmp_path / f"{name}-home"
        client = Client(transport=Restarted(tmp_path / name, key, dies=dies), home=give_secret(home), device="cpu")
        found.append(kept(home, tune(client, settings)))
        client.close()
    check_same(*found)


FRAMES = slow_but([(26, "full")], itertools.product((25, 26, 27, 28), METHODS))


@pytest.mark.usefixtures("unmeasured")
@pytest.mark.parametrize(("fails_at", "method"), FRAMES)
def test_a_customer_that_dies_after_any_frame_of_a_step(fails_at: int, method: str, t5: str, tmp_path: Path) -> None:
    settings = training(method)
    trained = TrainBottom.CACHED if method == "full" else TrainBottom.FROZEN  # then it has no weights to keep
    found = []
    for name in ("calm", "cut off"):
        key = start_vendor(t5, tmp_path / name)
        home = tmp_path / f"{name}-home"
        if name == "cut off":
            torn = Client(
                transport=Restarted(tmp_path / name, key, fails_at=fails_at), home=give_secret(home), device="cpu"
            )
            with pytest.raises(VendorError, match="gone"):
                tune(torn, settings, train_bottom=trained)
            torn.close()
        client = Client(transport=Restarted(tmp_path / name, key), home=give_secret(home), device="cpu")
        result = tune(client, settings, train_bottom=trained)
        found.append(kept(home, result))
        client.close()
    check_same(*found)


@pytest.mark.usefixtures("unmeasured")
def test_generation_outlives_the_vendor(t5: str, tmp_path: Path) -> None:
    key = start_vendor(t5, tmp_path / "vendor")
    texts = []
    for lives in (True, False):
        dead: set[int] = set()
        transport = Restarted(tmp_path / "vendor", key, dies=dead.__contains__)
        client = Client(transport=transport, home=give_secret(tmp_path / "home"), device="cpu")
        adapter = texts[0][0] if texts else tune(client, training()).adapter_id
        prompts = [source for source, _ in TEST.texts]
        for beams in (1, 2):
            if not lives:
                dead.add(transport.count + 8)  # behind what is asked of the vendor first
            told = client.generate(adapter, prompts, sampling=Sampling(greedy=True, num_beams=beams, max_new_tokens=8))
            texts.append((adapter, beams, [each.text for each in told], told[0].replays))
        client.close()
    assert [each[:3] for each in texts[:2]] == [each[:3] for each in texts[2:]]
    assert not any(each[3] for each in texts[:2])
    assert all(each[3] for each in texts[2:])


# ---------------------------------------------------------------- refused


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"dropout": True}, "dropout = True: must be off"),
        ({"packing": True}, "packing = True: must be off"),
        ({"bottom": 2}, "at most 1 of the 4 blocks"),
        ({"target_bottom": 2}, "at most 1 of the 3 decoder blocks"),
        ({"tail": 2}, "tails of at most 1 of the 3 blocks"),
        ({"bottom": 0, "target_bottom": 0, "train_bottom": TrainBottom.CACHED}, "trains blocks"),
    ],
)
def test_what_an_encoder_decoder_refuses(changes: dict[str, Any], said: str, t5: str, tmp_path: Path) -> None:
    with customer(t5, tmp_path) as client, pytest.raises((ConfigError, ModelError)) as error:
        client.finetune(TRAIN, objective="seq2seq", **specs({"eta": math.inf, **training(), **changes}))
    assert said in str(error.value)


def test_an_encoder_decoder_continues_no_text(t5: str, tmp_path: Path) -> None:
    alone = Dataset(tuple((source,) for source, _ in TRAIN.texts))
    with customer(t5, tmp_path) as client, pytest.raises(ModelError, match="is an encoder-decoder"):
        client.finetune(alone, objective="lm", eta=math.inf)


def test_other_models_have_no_target_texts(tmp_path: Path) -> None:
    source = str(write_model("gpt2", tmp_path / "model", head=Head.LANGUAGE))
    with customer(source, tmp_path) as client, pytest.raises(ModelError, match="is no encoder-decoder"):
        tune(client, training())


def test_sampling_that_means_nothing(t5: str, tmp_path: Path) -> None:
    with customer(t5, tmp_path) as client:
        adapter = tune(client, training(epochs=1)).adapter_id
        for sampling, said in (
            (Sampling(num_beams=2, stop_strings=("w1",)), "stop"),
            (Sampling(num_beams=2, temperature=0.5), "temperature = 0.5: must be left out with `num_beams`"),
            (Sampling(num_beams=2, top_k=3, seed=1), "top_k = 3.*seed = 1"),
            (Sampling(num_beams=VOCAB, max_new_tokens=4), "half the vocabulary"),
            (Sampling(max_new_tokens=96), "the model takes 96"),
        ):
            with pytest.raises(ConfigError, match=said):
                client.generate(adapter, TEST.texts[0][0], sampling=sampling)
