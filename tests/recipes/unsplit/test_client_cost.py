"""The client's cost: what is measured on two blocks is what many blocks need, and counts are what arithmetic says."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch
import torch.nn.functional as F
from transformers import AutoModelForCausalLM

from cutlayer.core import Cut, ModelError
from cutlayer.models import Inputs, attach_lora, set_dropout, split
from cutlayer.recipes.measures.client_cost import (
    Bytes,
    CostCell,
    Costs,
    Curve,
    Piece,
    Setting,
    Tuning,
    costs,
    profile,
)
from cutlayer.recipes.measures.parameters import Architecture
from tests.recipes.unsplit.made_up import told

GPT = Architecture(
    title="small GPT",
    source="nowhere",
    family="gpt2",
    settings={
        "vocab_size": 101,
        "max_position_embeddings": 64,
        "hidden_size": 24,
        "num_hidden_layers": 5,
        "num_attention_heads": 3,
    },
    lora="query-value",
)
LLAMA = Architecture(
    title="small Llama",
    source="nowhere",
    family="llama",
    settings={
        "vocab_size": 101,
        "hidden_size": 24,
        "intermediate_size": 56,
        "num_hidden_layers": 5,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "tie_word_embeddings": False,
    },
    lora="all-linear",
)
BOTH = pytest.mark.parametrize("architecture", [GPT, LLAMA], ids=["gpt2", "llama"])
TUNINGS = pytest.mark.parametrize("tuning", list(Tuning))


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def setting(tuning=Tuning.FULL, **rest):
    return Setting(**{"tuning": tuning, "batch": 4, "length": 40, "rank": 2, **rest})


def whole_model(architecture, chosen):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(architecture.config())
    model.requires_grad_(chosen.tuning is Tuning.FULL)
    whole = split(model, Cut(bottom=None)).top
    if chosen.tuning is Tuning.LORA:
        whole = attach_lora(whole, rank=2, alpha=4, dropout=0.0, targets=architecture.lora, seed=0)
    set_dropout(whole, chosen.dropout)
    return whole.train()


def batch(chosen):
    ids = torch.randint(101, (chosen.batch, chosen.length), generator=generator(1))
    positions = torch.arange(chosen.length).expand_as(ids)
    return ids, Inputs(attention_mask=torch.ones_like(ids), position_ids=positions, input_ids=ids)


# ---------------------------------------------------------------- activations


@BOTH
@TUNINGS
@pytest.mark.parametrize("dropout", [False, True])
def test_two_blocks_at_short_lengths_tell_what_a_whole_model_keeps(architecture, tuning, dropout):
    chosen = setting(tuning, dropout=dropout)
    whole = whole_model(architecture, chosen)
    ids, inputs = batch(chosen)
    kept, weights = {}, {parameter.untyped_storage().data_ptr() for parameter in whole.parameters()}

    def keep(tensor):
        kept.setdefault(tensor.untyped_storage().data_ptr(), tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        F.cross_entropy(whole(inputs).flatten(0, 1), ids.roll(-1, 1).flatten())
    measured = sum(tensor.untyped_storage().nbytes() for place, tensor in kept.items() if place not in weights)
    told = profile(architecture, chosen, rng=generator()).activations(blocks=5, stem=True, tail=True)
    assert told == measured
    assert measured > 100_000


@TUNINGS
def test_blocks_below_the_first_adapter_keep_less(tuning):
    pieces = profile(LLAMA, setting(tuning), rng=generator()).pieces
    assert (pieces[Piece.STEM].text.linear == 0) == (tuning is Tuning.LORA)
    angles = 2 * 4 * 6  # of the rotation, which the first block keeps for all
    more = pieces[Piece.FURTHER].text.linear - (pieces[Piece.FIRST].text.linear - angles)
    assert (more > 0) == (tuning is Tuning.LORA)
    assert more >= 0


def test_dropout_of_attention_keeps_a_square_of_the_length():
    with_it, without = (
        profile(GPT, setting(dropout=on), rng=generator()).pieces[Piece.FURTHER].text for on in (True, False)
    )
    assert with_it.square > 0
    assert without.square == 0
    assert with_it.linear > without.linear


def test_measuring_draws_nothing_from_the_process():
    before = torch.get_rng_state()
    first = profile(GPT, setting(), rng=generator())
    assert torch.equal(torch.get_rng_state(), before)
    assert first == profile(GPT, setting(), rng=generator(1))  # bytes depend on no value


def test_a_polynomial_through_three_points():
    curve = Curve.through({4: 3 + 5 * 4 + 2 * 16, 8: 3 + 5 * 8 + 2 * 64, 6: 3 + 5 * 6 + 2 * 36})
    assert curve == Curve(fixed=Fraction(3), linear=Fraction(5), square=Fraction(2))
    assert curve.at(100) == 3 + 500 + 20_000
    assert Curve(fixed=Fraction(1, 3), linear=Fraction(0), square=Fraction(0)).at(9) == 1


def test_what_all_texts_share_is_not_multiplied():
    points = {(batch, length): 7 * length + batch * (3 + length**2) for batch in (2, 5) for length in (4, 6, 9)}
    kept = Bytes.through(points)
    assert kept.shared == Curve(fixed=Fraction(0), linear=Fraction(7), square=Fraction(0))
    assert kept.at(batch=10, length=100) == 700 + 10 * 10_003


# ---------------------------------------------------------------- parameters and operations


def maps(architecture):
    """Sizes of a block's linear maps, and how many numbers a key and a query have in all heads."""
    s = architecture.settings
    width = s["hidden_size"]
    if architecture.family == "gpt2":
        return [3 * width * width, width * width, 4 * width * width, 4 * width * width]
    return [width * width, width * width // 2, width * width // 2, width * width] + 3 * [width * 56]


@BOTH
@pytest.mark.parametrize("bottom", [1, 3])
def test_operations_of_full_tuning(architecture, bottom):
    """Twice the weights and four times length × width of attention forward, and twice as much backward."""
    chosen = setting()
    measured = profile(architecture, chosen, rng=generator())
    width, words = 24, 101
    block = 2 * sum(maps(architecture)) + 4 * chosen.length * width
    (with_tail,) = costs(measured, depths=[bottom], tail=1)
    (without,) = costs(measured, depths=[bottom], tail=None)
    assert without.flops == 3 * bottom * block
    assert with_tail.flops == 3 * ((bottom + 1) * block + 2 * width * words)
    assert with_tail.whole_flops == without.whole_flops == 3 * (5 * block + 2 * width * words)
    assert with_tail.flops_share == with_tail.flops / with_tail.whole_flops


def test_operations_of_lora():
    """No gradient of a frozen weight, none of what lies below the first adapter."""
    chosen = setting(Tuning.LORA)
    measured = profile(GPT, chosen, rng=generator())
    one, two = (row.flops for row in costs(measured, depths=[1, 2], tail=None))
    full = 3 * (2 * sum(maps(GPT)) + 4 * chosen.length * 24)
    fused, rest = 2 * maps(GPT)[0], 2 * sum(maps(GPT)[1:])
    attention, adapter = 4 * chosen.length * 24, 2 * 2 * (24 + 72)
    further = 2 * (fused + rest) + 3 * attention + 3 * adapter
    assert two - one == further < full
    assert one == further - fused - 2 * 2 * 24  # the first block needs no gradient of its fused map's input


@BOTH
def test_memory_of_weights(architecture):
    measured = profile(architecture, setting(), rng=generator())
    first, second = costs(measured, depths=[1, 2])
    assert first.trained == first.parameters
    assert first.weight_bytes == 4 * first.parameters
    assert first.training_bytes == 12 * first.parameters
    assert first.peak_bytes == 16 * first.parameters + first.activation_bytes
    block = sum(maps(architecture)) + ({"gpt2": 9 * 24 + 4 * 24, "llama": 2 * 24}[architecture.family])
    assert second.parameters - first.parameters == block
    tables = {"gpt2": (101 + 64) * 24 + 2 * 24, "llama": 2 * 101 * 24 + 24}[architecture.family]
    assert first.parameters == tables + block
    assert first.whole_bytes == 16 * (tables + 5 * block) + measured.activations(blocks=5, stem=True, tail=True)
    assert 0 < first.share < second.share < 1
    assert second.activation_bytes > first.activation_bytes


@BOTH
def test_memory_of_adapters(architecture):
    chosen = setting(Tuning.LORA)
    measured = profile(architecture, chosen, rng=generator())
    one, two = costs(measured, depths=[1, 2])
    (full,) = costs(profile(architecture, setting(), rng=generator()), depths=[1])
    adapter = two.trained - one.trained
    assert one.trained == adapter == one.parameters - full.parameters
    assert one.training_bytes == 12 * adapter
    assert one.weight_bytes == 4 * (full.parameters + adapter)
    assert one.peak_bytes < full.peak_bytes
    (bare,) = costs(measured, depths=[1], tail=None)
    assert bare.peak_bytes < one.peak_bytes
    assert bare.whole_bytes == one.whole_bytes


# ---------------------------------------------------------------- errors and what is shown


def test_the_vendor_keeps_a_block():
    with pytest.raises(ModelError, match="at least one"):
        costs(profile(GPT, setting(), rng=generator()), depths=[5])


def test_the_table_and_what_is_drawn():
    measured = [profile(GPT, setting(tuning), rng=generator()) for tuning in Tuning]
    rows = [row for each in measured for row in costs(each, depths=[2, 1], tail=None)]
    found = Costs(rows=tuple(rows))
    (table,), results = told("figure-22", lambda cell: found if isinstance(cell, CostCell) else None)
    assert [row[:4] for row in table.rows] == [
        ("small GPT", tuning, depth, "at the vendor") for tuning in ("full", "lora") for depth in ("2", "1")
    ]
    assert table.rows[0][8] == f"{100 * rows[0].share:.1f}"
    assert "4 × 1024 tokens, dropout on" in table.notes[0]
    peaks = {(row.setting.tuning.value, row.bottom): row.peak_bytes for row in rows}
    for (tuning, bottom), peak in peaks.items():
        assert results.number("peak", trained=tuning, bottom=bottom, tail="at the vendor").value == peak
    assert rows[0].model_dump(mode="json")["setting"]["tuning"] == "full"
