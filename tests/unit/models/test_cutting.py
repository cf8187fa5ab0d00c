from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from cutlayer.core import Cut, ModelError, UnsupportedArchitectureError
from cutlayer.models import (
    Head,
    Parts,
    attach_lora,
    seed_dropout,
    set_checkpointing,
    set_dropout,
    split,
    split_seq2seq,
    twin,
)
from tests.equivalence.checks import Case, cut_up, make_batch
from tests.equivalence.zoo import CONFIGURATIONS, ENCODERS, SEQ2SEQ, configuration, make_model, shared_model


def head_of(name: str) -> Head:
    return Head.CLASSIFICATION if name in ENCODERS else Head.LANGUAGE


def held(part: nn.Module | None) -> set[str]:
    """A part's own parameter names, as its model has them."""
    return set() if part is None else {name.removeprefix("module.") for name, _ in part.named_parameters()}


@pytest.mark.parametrize("name", [name for name in CONFIGURATIONS if name not in SEQ2SEQ])
def test_names_in_a_part_are_names_in_the_whole_and_nothing_is_lost(name: str) -> None:
    model = shared_model(name, head_of(name))
    names = {alias for alias, _ in model.named_parameters(remove_duplicate=False)}
    parts = split(model, Cut(bottom=1, tail=1))
    assert isinstance(parts, Parts)
    pieces = [held(part) for part in (parts.bottom, parts.top, parts.tail)]
    assert set().union(*pieces) == names
    assert all(not (left & right) for at, left in enumerate(pieces) for right in pieces[at + 1 :])
    by_id = {id(value) for value in model.parameters()}
    assert all(id(value) in by_id for part in (parts.bottom, parts.top, parts.tail) for value in part.parameters())


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_depth_zero_hands_out_the_table_alone(name: str) -> None:
    model = shared_model(name, head_of(name))
    bottom = cut_up(model, Cut(bottom=0), name).bottom
    assert bottom is not None
    (only,) = {id(value): value for value in bottom.parameters()}.values()
    assert only is model.get_input_embeddings().weight
    assert bottom.table is only
    assert not list(bottom.block_parameters())


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_cutting_leaves_the_model_as_it_was(name: str) -> None:
    model = make_model(name, head_of(name))
    before = repr(model), model.config.to_dict(), sorted(model.state_dict())
    parts = cut_up(model, Cut(bottom=1, tail=1), name)
    parts.top.train()
    parts.top.model.config.num_labels = 17
    assert (repr(model), model.config.to_dict(), sorted(model.state_dict())) == before
    assert not model.training


@pytest.mark.parametrize(
    "cut", [Cut(bottom=4), Cut(bottom=0, tail=4), Cut(bottom=2, tail=2), Cut(bottom=None, tail=4), Cut(bottom=99)]
)
def test_a_cut_that_leaves_the_vendor_nothing_is_refused(cut: Cut) -> None:
    with pytest.raises(ModelError, match="of the model's 4 blocks"):
        split(shared_model("llama", Head.LANGUAGE), cut)


def test_each_function_refuses_the_other_kind_by_name() -> None:
    with pytest.raises(ModelError, match="target = 1: a llama model has one stack"):
        split(shared_model("llama", Head.LANGUAGE), Cut(bottom=1, target=1))
    with pytest.raises(ModelError, match="A text cut has no bottom"):
        split_seq2seq(shared_model("t5", Head.LANGUAGE), Cut(bottom=None, target=1))
    with pytest.raises(ModelError, match="takes 3 of the model's 3 blocks"):
        split_seq2seq(shared_model("t5", Head.LANGUAGE), Cut(bottom=1, target=2, tail=1))
    with pytest.raises(UnsupportedArchitectureError, match="split_seq2seq"):
        split(shared_model("t5", Head.LANGUAGE), Cut())
    with pytest.raises(UnsupportedArchitectureError, match="with split"):
        split_seq2seq(shared_model("llama", Head.LANGUAGE), Cut())
    with pytest.raises(ModelError, match="of the model's 3 blocks"):
        split_seq2seq(shared_model("t5", Head.LANGUAGE), Cut(bottom=1, tail=3))


@pytest.mark.parametrize(
    ("name", "cut", "tied"),
    [
        ("llama-tied", Cut(bottom=0), ("model.embed_tokens.weight",)),
        ("llama-tied", Cut(bottom=2), ("model.embed_tokens.weight",)),
        ("llama-tied", Cut(bottom=None, tail=0), ("model.embed_tokens.weight",)),
        ("llama-tied", Cut(bottom=0, tail=0), ()),
        ("llama-tied", Cut(bottom=None), ()),
        ("llama", Cut(bottom=0), ()),
        ("gpt2", Cut(bottom=1), ("transformer.wte.weight",)),
        ("gpt2", Cut(bottom=1, tail=1), ()),
        ("t5", Cut(bottom=0), ("shared.weight",)),
        ("t5", Cut(bottom=0, tail=0), ()),
    ],
)
def test_ties_that_a_cut_would_break_are_refused_by_name(name: str, cut: Cut, tied: tuple[str, ...]) -> None:
    parts = cut_up(shared_model(name, Head.LANGUAGE), cut, name)
    assert parts.tied == tied
    parts.check_trainable(customer=False, vendor=False)
    for customer, vendor in ((True, False), (False, True)):
        if not tied:
            parts.check_trainable(customer=customer, vendor=vendor)
            continue
        with pytest.raises(ModelError, match=tied[0]):
            parts.check_trainable(customer=customer, vendor=vendor)


def test_the_copied_position_bias_counts_as_tied() -> None:
    parts = split_seq2seq(shared_model("t5", Head.LANGUAGE), Cut(bottom=1, tail=1))
    assert [name.split(".")[0] for name in parts.tied] == ["encoder", "decoder"]
    assert all("relative_attention_bias" in name for name in parts.tied)


def test_ids_never_reach_a_top_without_a_table() -> None:
    case = Case("llama", Head.LANGUAGE, Cut(bottom=0))
    parts = split(shared_model("llama", Head.LANGUAGE), case.cut)
    with pytest.raises(RuntimeError, match="held by the other party"):
        parts.top(make_batch(case).inputs)
    encoder = split(shared_model("bert", Head.CLASSIFICATION), Cut(bottom=1))
    with pytest.raises(RuntimeError, match="not ids"):
        encoder.top(make_batch(Case("bert", Head.CLASSIFICATION, Cut(bottom=1))).inputs)


def test_encoders_have_no_cache() -> None:
    with pytest.raises(ModelError, match="no cache"):
        split(shared_model("bert", Head.CLASSIFICATION), Cut()).top.new_cache()


def test_twins_share_weights_and_nothing_else() -> None:
    model = make_model("gpt2", Head.LANGUAGE)
    other = twin(model)
    assert {id(value) for value in other.parameters()} == {id(value) for value in model.parameters()}
    assert other.config is not model.config
    other.train()
    other.transformer.ln_f = nn.Identity()
    assert not model.training
    assert isinstance(model.transformer.ln_f, nn.LayerNorm)
    assert other.lm_head.weight is other.transformer.wte.weight


# ---------------------------------------------------------------- dropout


def dropping(name: str, rate: float) -> Any:
    rates = {
        "bert": {"hidden_dropout_prob": rate, "attention_probs_dropout_prob": rate},
        "gpt2": {"embd_pdrop": rate, "attn_pdrop": rate, "resid_pdrop": rate},
    }[name]
    model = make_model(name, Head.CLASSIFICATION)
    fresh = type(model)(configuration(name, num_labels=3, **rates))
    fresh.load_state_dict(model.state_dict())
    return fresh.requires_grad_(False).eval()


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_dropout_of_the_blocks_acts_only_when_asked_for(name: str) -> None:
    case = Case(name, Head.CLASSIFICATION, Cut(bottom=1))
    inputs = make_batch(case).inputs
    parts = split(dropping(name, 0.5), case.cut)
    assert parts.bottom is not None
    up = parts.bottom(inputs)
    calm = parts.top(inputs, up)
    parts.top.train()
    assert not torch.equal(parts.top(inputs, up), calm)
    set_dropout(parts.top, False)
    assert parts.top.training
    assert torch.equal(parts.top(inputs, up), calm)
    parts.top.eval()
    parts.top.train()
    assert torch.equal(parts.top(inputs, up), calm)
    set_dropout(parts.top, True)
    assert not torch.equal(parts.top(inputs, up), calm)


def test_an_adapters_dropout_follows_its_own_rate() -> None:
    case = Case("bert", Head.CLASSIFICATION, Cut(bottom=1))
    inputs = make_batch(case).inputs
    parts = split(dropping("bert", 0.5), case.cut)
    assert parts.bottom is not None
    up = parts.bottom(inputs)
    for rate in (0.0, 0.5):
        part = attach_lora(parts.top, rank=2, alpha=8, dropout=rate, num_labels=3, seed=0)
        for name, value in part.named_parameters():
            if "lora_B" in name:
                nn.init.ones_(value)
        calm = part(inputs, up)
        set_dropout(part, False)
        part.train()
        assert torch.equal(part(inputs, up), calm) == (rate == 0.0)


def test_a_steps_dropout_depends_on_the_job_and_the_step_alone() -> None:
    case = Case("bert", Head.CLASSIFICATION, Cut(bottom=0))
    inputs = make_batch(case).inputs
    parts = split(dropping("bert", 0.5), case.cut)
    assert parts.bottom is not None
    up = parts.bottom(inputs)
    parts.top.train()

    def output(seed: int, step: int) -> torch.Tensor:
        seed_dropout(seed, step)
        return parts.top(inputs, up)

    first = output(1, 1)
    others = [output(1, 2), output(2, 1)]
    assert torch.equal(output(1, 1), first)
    assert not any(torch.equal(first, other) for other in others)


def test_encoder_decoders_train_without_their_own_dropout() -> None:
    top = split_seq2seq(shared_model("t5", Head.LANGUAGE), Cut()).top
    top.train()
    assert not top.model.training
    with pytest.raises(UnsupportedArchitectureError, match="t5"):
        set_dropout(top, True)


def kept_bytes(part: Any, inputs: Any, hidden: torch.Tensor) -> tuple[int, torch.Tensor]:
    """Bytes that a forward pass keeps for the backward one beside weights, and the gradient of what came in."""
    own = {value.untyped_storage().data_ptr() for value in part.parameters()}
    kept: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    hidden = hidden.clone().requires_grad_()
    seed_dropout(3, 1)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        output = part(inputs, hidden)
    output.square().sum().backward()
    assert hidden.grad is not None
    return sum(kept.values()), hidden.grad


@pytest.mark.parametrize("dropout", [True, False])
@pytest.mark.parametrize("name", ["gpt2", "opt", "llama"])
def test_checkpointing_keeps_what_goes_into_each_block(name: str, dropout: bool) -> None:
    """Also where dropout is off and the part is not in training mode, in which transformers' own switch acts."""
    case = Case(name, Head.LANGUAGE, Cut(bottom=1, tail=0), lengths=(40, 40))
    part = twin(split(shared_model(name, Head.LANGUAGE), case.cut).top)
    set_dropout(part, dropout)
    part.requires_grad_(False)
    part.train()
    inputs = make_batch(case).inputs
    hidden = torch.randn(2, 40, 16, generator=torch.Generator().manual_seed(1))
    plain, expected = kept_bytes(part, inputs, hidden)
    set_checkpointing(part, True)
    less, gradient = kept_bytes(part, inputs, hidden)
    assert torch.equal(gradient, expected)
    assert less <= 4 * hidden.nbytes + 2**14 < plain
    set_checkpointing(part, False)
    again, gradient = kept_bytes(part, inputs, hidden)
    assert again == plain
    assert torch.equal(gradient, expected)
