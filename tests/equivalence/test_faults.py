"""Each trap of cutting, planted: the checks that pass for the real cut must fail for the broken one."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cutlayer.core import Cut
from cutlayer.models import Head, Part, Seq2SeqParts, cutting
from cutlayer.models.adapters import lora
from cutlayer.models.cutting import block_list
from tests.equivalence.checks import (
    FP32,
    Case,
    check_step,
    compare_adapters,
    compare_training,
    generate_split,
    generate_whole,
)
from tests.equivalence.zoo import make_model, shared_model

Plant = Callable[[pytest.MonkeyPatch], Callable[[Any], None] | None]
"""Breaks something; what it returns damages finished parts."""


def keep_block_numbers(_: pytest.MonkeyPatch) -> Callable[[Any], None]:
    """Caches then count the blocks of the whole model."""

    def damage(parts: Any) -> None:
        for part in (parts.top, parts.tail):
            for number, block in block_list(part.model, part.stack).named_children():
                for module in block.modules():
                    if hasattr(module, "layer_idx"):
                        module.layer_idx = int(number)
            part.runner.config.num_hidden_layers = 4

    return damage


def keep_layer_types(_: pytest.MonkeyPatch) -> Callable[[Any], None]:
    def damage(parts: Any) -> None:
        types = shared_model("qwen2-mixed", Head.LANGUAGE).config.layer_types
        for part in (parts.top, parts.tail):
            part.runner.config.layer_types = list(types)

    return damage


def add_positions_twice(_: pytest.MonkeyPatch) -> Callable[[Any], None]:
    def damage(parts: Any) -> None:
        for name in ("wpe", "embed_positions"):
            table = getattr(parts.bottom.runner, name, None)
            if table is not None:
                setattr(parts.top.runner, name, table)

    return damage


def embed_twice(_: pytest.MonkeyPatch) -> Callable[[Any], None]:
    def damage(parts: Any) -> None:
        parts.top.runner.embeddings = parts.bottom.runner.embeddings

    return damage


def drop_token_types(patch: pytest.MonkeyPatch) -> None:
    run = Part._run

    def without(self: Part, inputs: Any, *arguments: Any, **source: Any) -> Tensor:
        object.__setattr__(inputs, "token_type_ids", None)
        return run(self, inputs, *arguments, **source)

    patch.setattr(Part, "_run", without)


def norm_below_the_cut(_: pytest.MonkeyPatch) -> Callable[[Any], None]:
    def damage(parts: Any) -> None:
        parts.bottom.runner.norm = parts.top.runner.norm

    return damage


def rescale_by_local_number(_: pytest.MonkeyPatch) -> Callable[[Any], None]:
    """What building a part from a sliced configuration does to GPT-2's inverse-index scale."""

    def damage(parts: Any) -> None:
        for local, block in enumerate(block_list(parts.top.model, parts.top.stack).children()):
            block.attn.scaling *= (local + 2) / (local + 1)  # the cut is at block 1

    return damage


def forget_the_position_bias(_: pytest.MonkeyPatch) -> Callable[[Any], None]:
    def damage(parts: Seq2SeqParts) -> None:
        first = next(block_list(parts.top.model, parts.top.stack).children())
        first.layer[0].SelfAttention.has_relative_attention_bias = False

    return damage


def project_in_twice(_: pytest.MonkeyPatch) -> Callable[[Any], None]:
    def damage(parts: Any) -> None:
        parts.top.runner.project_in = parts.bottom.runner.project_in

    return damage


def pool_the_last_column(patch: pytest.MonkeyPatch) -> None:
    """What Hugging Face's own heads do without ids."""
    patch.setattr(cutting, "pool_last", lambda scores, inputs: scores[:, -1])


def count_positions_from_the_left_edge(patch: pytest.MonkeyPatch) -> None:
    def count(self: Part, inputs: Any) -> Tensor:
        start = inputs.attention_mask.shape[1] - inputs.position_ids.shape[1]
        return torch.arange(inputs.position_ids.shape[1])[None, :].expand_as(inputs.position_ids) + start

    patch.setattr(Part, "_position_ids", count)


def start_roberta_at_zero(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Part, "_position_ids", lambda self, inputs: inputs.position_ids)


STEP_FAULTS: list[tuple[Plant, Case]] = [
    (keep_layer_types, Case("qwen2-mixed", Head.LANGUAGE, Cut(bottom=1, tail=1), lengths=(9, 8))),
    (add_positions_twice, Case("gpt2", Head.LANGUAGE, Cut(bottom=1))),
    (add_positions_twice, Case("opt", Head.LANGUAGE, Cut(bottom=2))),
    (embed_twice, Case("bert", Head.CLASSIFICATION, Cut(bottom=1))),
    (embed_twice, Case("distilbert", Head.CLASSIFICATION, Cut(bottom=3))),
    (drop_token_types, Case("bert", Head.CLASSIFICATION, Cut(bottom=0))),
    (norm_below_the_cut, Case("llama", Head.LANGUAGE, Cut(bottom=1))),
    (project_in_twice, Case("opt-projected", Head.LANGUAGE, Cut(bottom=1))),
    (rescale_by_local_number, Case("gpt2-inverse-scale", Head.LANGUAGE, Cut(bottom=1))),
    (forget_the_position_bias, Case("t5", Head.LANGUAGE, Cut(bottom=1))),
    (pool_the_last_column, Case("llama", Head.CLASSIFICATION, Cut(bottom=0))),
    (pool_the_last_column, Case("gpt2", Head.CLASSIFICATION, Cut(bottom=2))),
    (count_positions_from_the_left_edge, Case("gpt2", Head.LANGUAGE, Cut(bottom=0), padding="left")),
    (start_roberta_at_zero, Case("roberta", Head.CLASSIFICATION, Cut(bottom=0))),
]


@pytest.mark.parametrize(("plant", "case"), STEP_FAULTS, ids=lambda value: getattr(value, "__name__", None))
def test_a_broken_cut_fails_the_step_check(plant: Plant, case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    model = shared_model(case.name, case.head)
    check_step(model, case)
    damage = plant(monkeypatch)
    with pytest.raises((AssertionError, IndexError, RuntimeError)):
        check_step(model, case, fault=damage)


GENERATION_FAULTS: list[tuple[Plant, Case]] = [
    (keep_block_numbers, Case("llama", Head.LANGUAGE, Cut(bottom=1, tail=1), padding="left")),
    (keep_block_numbers, Case("gpt2", Head.LANGUAGE, Cut(bottom=1, tail=1), padding="left")),
    (keep_layer_types, Case("qwen2-mixed", Head.LANGUAGE, Cut(bottom=1, tail=1), padding="left")),
    (count_positions_from_the_left_edge, Case("gpt2", Head.LANGUAGE, Cut(bottom=0, tail=1), padding="left")),
]


@pytest.mark.parametrize(("plant", "case"), GENERATION_FAULTS, ids=lambda value: getattr(value, "__name__", None))
def test_a_broken_cut_generates_other_tokens(plant: Plant, case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    model = shared_model(case.name, case.head)
    expected = generate_whole(model, case, tokens=24)
    assert torch.equal(generate_split(model, case, tokens=24), expected)
    damage = plant(monkeypatch)
    try:
        found = generate_split(model, case, tokens=24, fault=damage)
    except (IndexError, RuntimeError):
        return
    assert not torch.equal(found, expected)


def test_a_broken_tie_is_seen_within_twenty_steps() -> None:
    case = Case("llama-tied", Head.LANGUAGE, Cut(bottom=0, tail=0))
    model = make_model(case.name, case.head)

    def untie(parts: Any) -> None:
        head = parts.tail.model.lm_head
        head.weight = nn.Parameter(head.weight.detach().clone())

    assert max(compare_training(model, case).values()) <= FP32
    assert max(compare_training(model, case, fault=untie).values()) > FP32


def test_adapters_drawn_from_one_stream_do_not_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case("llama", Head.CLASSIFICATION, Cut(bottom=1))
    model = make_model(case.name, case.head)
    assert max(compare_adapters(model, case, steps=3).values()) <= FP32
    stream = copy.deepcopy(torch.default_generator)
    monkeypatch.setattr(lora, "seeded", lambda seed, name: stream)
    assert max(compare_adapters(model, case, steps=3).values()) > FP32
