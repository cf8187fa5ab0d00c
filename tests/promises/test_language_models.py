"""Promise 2 over the wire for language models in three parts: training and generation are the whole model's."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from cutlayer.core import Cut
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
from cutlayer.customer.run import Run, RunState
from cutlayer.data import Dataset
from cutlayer.models import Head, Tail, Template, load_tokenizer
from cutlayer.recipes.reference.fit import ReferenceRun
from cutlayer.recipes.reference.language import CentralisedLanguage, train_centralised_language_model
from cutlayer.wire import Precision, WireType
from tests.equivalence.zoo import DECODERS, VOCAB
from tests.promises.runs import clear_order, served
from tests.promises.test_families import write_model
from tests.quick import slow_but
from tests.settings import specs

STEPS = 20
CUTS = (Cut(bottom=1, tail=0), Cut(bottom=1, tail=1))


def texts(n: int, seed: int) -> Dataset:
    """Sequences that go up by one, which can be learnt."""
    rng = random.Random(seed)
    rows = []
    for _ in range(n):
        start = rng.randrange(VOCAB - 4)
        rows.append((" ".join(f"w{(start + k) % (VOCAB - 4)}" for k in range(rng.randint(3, 30))),))
    return Dataset(tuple(rows))


TRAIN, DEV, TEST = texts(48, 1), texts(8, 2), texts(8, 3)


METHODS = ("lora", "full")


def training(method: str, **changes: object) -> dict[str, object]:
    settings = {"epochs": 2, "max_length": 20, "dropout": False, "learning_rate": 2e-3 if method == "lora" else 2e-4}
    return {"method": method, **settings, **changes}


def tune(client: Client, settings: dict[str, object], cut: Cut, **changes: object) -> LanguageResult:
    return client.finetune(
        TRAIN,
        objective="lm",
        dev=DEV,
        test=TEST,
        eta=math.inf,
        wire_type=WireType.FP32,
        seed=4,
        cut=Cut(bottom=cut.bottom, tail=cut.tail or 0),
        **specs(settings | changes),
    )


def losses(result: LanguageResult) -> list[float]:
    state = RunState.model_validate_json((result.folder / "run.json").read_bytes())
    return Run(result.folder, state).losses()


def check_equal(result: LanguageResult, expected: CentralisedLanguage) -> None:
    found = losses(result)
    assert len(found) == len(expected.losses) >= STEPS
    assert found == pytest.approx(expected.losses, abs=1e-5)
    assert result.dev_before == pytest.approx(expected.before, rel=1e-5)
    assert result.dev == pytest.approx(expected.dev, rel=1e-5)
    assert result.perplexity == pytest.approx(expected.perplexity.value, rel=1e-5)
    assert result.perplexity_n == expected.perplexity.n
    assert result.perplexity_standard_error == pytest.approx(expected.perplexity.standard_error, rel=1e-3)


def whole(source: str, settings: dict[str, object]) -> CentralisedLanguage:
    chosen = specs(settings)
    tuning = chosen.get("tuning", Lora())
    settled = settle_training(chosen["training"], Objective.LM, tuning)
    run = ReferenceRun(TRAIN, DEV, TEST, source, settled, tuning, 4, clear_order(4))
    return train_centralised_language_model(run, progress=Silent(), device="cpu")


EVERY = {f"{name} {method}": (name, method) for name in DECODERS for method in METHODS}
QUICK = ("llama full", *(f"gpt2 {method}" for method in METHODS))


@pytest.mark.usefixtures("unmeasured")
@pytest.mark.parametrize(("name", "method"), slow_but(QUICK, EVERY.values(), ids=EVERY))
def test_a_split_language_model_is_the_whole_one(name: str, method: str, tmp_path: Path) -> None:
    source = str(write_model(name, tmp_path / "model", head=Head.LANGUAGE))
    settings = training(method)
    expected = whole(source, settings)
    with served(source, tmp_path, max_bottom=2, max_tail=1) as client:
        for cut in CUTS:
            check_equal(tune(client, settings, cut), expected)


@pytest.mark.usefixtures("unmeasured")
@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"gradient_accumulation_steps": 3}, id="gradient_accumulation_steps", marks=pytest.mark.slow),
        pytest.param({"max_grad_norm": 0.5}, id="clipping", marks=pytest.mark.slow),
        pytest.param(
            {"max_grad_norm": 0.5, "gradient_accumulation_steps": 2, "gradient_checkpointing": True}, id="all three"
        ),
        pytest.param({"packing": False}, id="texts by themselves"),
    ],
)
@pytest.mark.parametrize("method", METHODS)
def test_how_updates_are_made_changes_nothing(method: str, changes: dict[str, object], tmp_path: Path) -> None:
    source = str(write_model("gpt2", tmp_path / "model", head=Head.LANGUAGE))
    settings = training(method, **changes)
    with served(source, tmp_path, max_bottom=2, max_tail=1) as client:
        check_equal(tune(client, settings, Cut(bottom=1, tail=1)), whole(source, settings))


@pytest.mark.usefixtures("unmeasured")
def test_clipping_acts_and_is_joint(tmp_path: Path) -> None:
    """Planted fault: each party clips by its own norm alone; the curves must not agree then."""
    source = str(write_model("gpt2", tmp_path / "model", head=Head.LANGUAGE))
    settings = training("full", max_grad_norm=0.5)
    expected = whole(source, settings)
    assert expected.losses != pytest.approx(whole(source, training("full")).losses, abs=1e-5)
    with served(source, tmp_path, max_bottom=2, max_tail=1) as client, pytest.MonkeyPatch.context() as patch:
        patch.setattr("cutlayer.models.joint.squared_norm", lambda parameters: torch.zeros(1))
        with pytest.raises(AssertionError):
            check_equal(tune(client, settings, Cut(bottom=1, tail=1)), expected)


@pytest.mark.usefixtures("unmeasured")
def test_bf16_products_are_used_on_both_sides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In what is trained, while it is; the curve is the whole model's, to what bf16's 8 bits explain."""
    source = str(write_model("gpt2", tmp_path / "model", head=Head.LANGUAGE))
    used: dict[bool, set[bool]] = {True: set(), False: set()}
    honest = Tail.forward

    def noting(tail: Tail, *given: Any) -> Any:
        used[tail.training].add(torch.is_autocast_enabled("cpu"))
        return honest(tail, *given)

    monkeypatch.setattr(Tail, "forward", noting)
    with served(source, tmp_path, max_bottom=2, max_tail=1) as client:
        half = losses(tune(client, training("full", precision=Precision.BF16), CUTS[1]))
        single = losses(tune(client, training("full"), CUTS[1]))
    assert used == {True: {True, False}, False: {False}}  # the second run is in fp32
    expected = whole(source, training("full", precision=Precision.BF16)).losses
    assert half == pytest.approx(expected, rel=5e-3)
    assert half != single


@pytest.mark.usefixtures("barely_measured")
@pytest.mark.parametrize("bottom", [0, 1])
def test_what_a_frozen_bottom_shows_has_a_number(tmp_path: Path, bottom: int) -> None:
    """Its texts are stored once, before the first step; behind blocks nearest neighbours do not apply."""
    source = str(write_model("gpt2", tmp_path / "model", head=Head.LANGUAGE))
    with served(source, tmp_path, max_bottom=2, max_tail=1) as client, pytest.MonkeyPatch.context() as patch:
        patch.setattr("cutlayer.customer.measure._SEARCHED_TOKENS", 100)
        settings = training("lora", epochs=1)
        result = tune(client, settings, Cut(bottom=bottom, tail=0), train_bottom=TrainBottom.FROZEN)
    if not bottom:
        assert (result.ep, result.token_recovery_from_boundary) == (0, None)
        assert "empirical privacy says" in result.token_recovery_from_boundary_note
        return
    assert result.ep is None
    assert result.token_recovery_from_boundary is not None, result.token_recovery_from_boundary_note
    assert result.token_recovery_from_boundary.value > 0.99
    assert 80 <= result.token_recovery_from_boundary.n < result.tokens_released
    assert any("Rows that go up are read" in line for line in result.advice)


PROMPTS = ("w5 w6 w7", "w40", "w80 w81 w82 w83 w84 w85 w86")


@pytest.mark.usefixtures("unmeasured")
@pytest.mark.parametrize("name", slow_but(["gpt2"], DECODERS))
def test_generation_over_the_wire_is_the_whole_models(name: str, tmp_path: Path) -> None:
    """After training, greedy, prompts of unequal length together: token for token."""
    source = str(write_model(name, tmp_path / "model", head=Head.LANGUAGE))
    settings = training("lora", epochs=1)
    tokens = 64
    expected = generated(whole(source, settings).model, source, tokens=tokens)
    with served(source, tmp_path, max_bottom=2, max_tail=1) as client:
        for cut in (*CUTS, *((Cut(bottom=0, tail=0), Cut(bottom=None, tail=1)) if name == "gpt2" else ())):
            result = tune(client, settings, cut)
            written = client.generate(result.adapter_id, PROMPTS, sampling=Sampling(greedy=True, max_new_tokens=tokens))
            assert [each.text for each in written] == expected, cut
            assert written[0].round_trips <= tokens


@torch.no_grad()
def generated(model: torch.nn.Module, source: str, *, tokens: int) -> list[str]:
    """Hugging Face's own greedy generation, prompts padded on the left."""
    tokenizer = load_tokenizer(source)
    opening = Template.from_tokenizer(tokenizer).opening
    ids = [[*opening, *tokenizer(prompt, add_special_tokens=False)["input_ids"]] for prompt in PROMPTS]
    longest = max(map(len, ids))
    pad = tokenizer.pad_token_id
    model.generation_config.pad_token_id = pad  # type: ignore[union-attr]
    produced = model.generate(  # type: ignore[operator]
        input_ids=torch.tensor([[pad] * (longest - len(row)) + row for row in ids]),
        attention_mask=torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in ids]),
        max_new_tokens=tokens,
        do_sample=False,
        eos_token_id=tokenizer.eos_token_id,
    )
    texts = []
    for row, prompt in zip(produced[:, longest:].tolist(), ids, strict=True):
        kept = row[: row.index(tokenizer.eos_token_id)] if tokenizer.eos_token_id in row else row
        before, after = (tokenizer.decode([*prompt, *more], skip_special_tokens=True) for more in ([], kept))
        texts.append(after.removeprefix(before))
    return texts
