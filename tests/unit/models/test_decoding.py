from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import DynamicCache

from cutlayer.core import Cut, Ragged
from cutlayer.models import Decoding, Head, Inputs, Part, cache_bytes, split, threads_of_pass, weights_of
from tests.equivalence import zoo

SLIDING = ("mistral", "qwen2-mixed", "qwen3-mixed")


def test_new_positions_are_aligned_on_the_right() -> None:
    texts = Decoding(3)
    inputs = texts.grow(torch.tensor([2, 4, 1]))
    assert inputs.attention_mask.tolist() == [[0, 0, 1, 1], [1, 1, 1, 1], [0, 0, 0, 1]]
    assert [row[real].tolist() for row, real in zip(inputs.position_ids, texts.new(inputs), strict=True)] == [
        [0, 1],
        [0, 1, 2, 3],
        [0],
    ]
    assert (inputs.position_ids >= 0).all(), "padding has a position that exists, too"
    inputs = texts.grow(torch.tensor([1, 0, 2]))
    assert inputs.attention_mask.shape == (3, 6)
    assert texts.new(inputs).tolist() == [[False, True], [False, False], [True, True]]
    assert inputs.position_ids[0, 1] == 2
    assert inputs.position_ids[2].tolist() == [1, 2]
    assert texts.positions.tolist() == [3, 4, 3]


growths = st.lists(st.lists(st.integers(0, 4), min_size=3, max_size=3).filter(any), min_size=1, max_size=6)


@given(growths)
def test_every_position_comes_once_and_in_order(lengths: list[list[int]]) -> None:
    texts = Decoding(3)
    seen: list[list[int]] = [[], [], []]
    written: list[list[int]] = [[], [], []]
    number = 0
    for new in lengths:
        items = []
        for text, count in enumerate(new):
            items.append(list(range(number + 1, number + count + 1)))
            written[text] += items[-1]
            number += count
        packed = Ragged.from_lists(items)
        inputs = texts.grow(packed.lengths)
        padded, real = texts.pad(packed, inputs), texts.new(inputs)
        assert padded.shape == real.shape == inputs.position_ids.shape
        assert not padded[~real].any()
        assert real[:, -1].tolist() == [count > 0 for count in new], "the newest share a column"
        for text in range(3):
            assert padded[text, real[text]].tolist() == items[text]
            seen[text] += inputs.position_ids[text, real[text]].tolist()
    assert seen == [list(range(len(each))) for each in written]
    assert texts.positions.tolist() == [len(each) for each in written]
    assert texts.mask.sum(1).tolist() == texts.positions.tolist()


def test_rows_are_padded_as_ids_are() -> None:
    texts = Decoding(2)
    inputs = texts.grow(torch.tensor([1, 2]))
    rows = Ragged(torch.arange(6.0).reshape(3, 2) + 1, torch.tensor([1, 2]))
    assert texts.pad(rows, inputs).tolist() == [[[0, 0], [1, 2]], [[3, 4], [5, 6]]]


def test_texts_that_go_on_from_others() -> None:
    texts = Decoding(3)
    texts.grow(torch.tensor([2, 4, 1]))
    texts.reorder(torch.tensor([1, 1, 0]))
    assert texts.positions.tolist() == [4, 4, 2]
    inputs = texts.grow(torch.tensor([1, 1, 1]))
    assert inputs.position_ids.tolist() == [[4], [4], [2]]
    assert inputs.attention_mask.tolist() == [[1, 1, 1, 1, 1], [1, 1, 1, 1, 1], [0, 0, 1, 1, 1]]


@torch.no_grad()
@pytest.mark.parametrize("name", ["gpt2", "opt", "llama", "qwen2-mixed"])
def test_texts_that_end_do_not_disturb_the_others(name: str) -> None:
    """Against each text alone, without cache and without padding; through the parts of a cut."""
    parts = split(zoo.shared_model(name, Head.LANGUAGE), Cut(bottom=1, tail=1))
    assert parts.bottom is not None
    assert parts.tail is not None
    held: tuple[Part, ...] = (parts.bottom, parts.top, parts.tail)
    caches = [part.new_cache() for part in held]
    texts, rng = Decoding(3), torch.Generator().manual_seed(1)
    written: list[list[int]] = [[], [], []]
    for new in ([5, 2, 1], [1, 1, 1], [1, 0, 1], [1, 0, 1], [0, 0, 1], [0, 0, 1]):
        items = [torch.randint(4, zoo.VOCAB, (count,), generator=rng).tolist() for count in new]
        packed = Ragged.from_lists(items)
        inputs = texts.grow(packed.lengths)
        ids = inputs.with_ids(texts.pad(packed, inputs))
        lower = parts.bottom(ids, caches[0])
        logits = parts.tail(parts.top(ids, lower, caches[1]), ids, caches[2])
        for text, item in enumerate(items):
            written[text] += item
            if item:
                alone = torch.tensor([written[text]])
                whole = zoo.shared_model(name, Head.LANGUAGE)(alone).logits[0, -1]
                torch.testing.assert_close(logits[text, -1], whole, rtol=1e-4, atol=1e-4)


@torch.no_grad()
@pytest.mark.parametrize("name", zoo.DECODERS)
def test_bytes_that_are_counted_are_those_of_the_cache(name: str) -> None:
    """Of every part; a cache of a sliding window holds less than was counted, never more."""
    parts = split(zoo.shared_model(name, Head.LANGUAGE), Cut(bottom=1, tail=1))
    inputs = Inputs(torch.ones(3, 11, dtype=torch.int64), torch.arange(11).expand(3, -1))
    ids = inputs.with_ids(torch.full((3, 11), 5))
    assert parts.bottom is not None
    assert parts.tail is not None
    caches = [part.new_cache() for part in (parts.bottom, parts.top, parts.tail)]
    hidden = parts.top(ids, parts.bottom(ids, caches[0]), caches[1])
    parts.tail(hidden, ids, caches[2])
    for part, cache in zip((parts.bottom, parts.top, parts.tail), caches, strict=True):
        assert isinstance(cache, DynamicCache)
        held = sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)  # type: ignore[operator, union-attr]
        counted = cache_bytes(part, sequences=3, positions=11)
        assert 0 < held <= counted
        assert held == counted or name in SLIDING


def test_weights_are_those_that_a_position_is_multiplied_with() -> None:
    """Of a table a position takes a row; the head it is multiplied with, all of it."""
    model = zoo.shared_model("gpt2", Head.LANGUAGE)
    parts = split(model, Cut(bottom=1, tail=0))
    assert parts.bottom is not None
    assert parts.tail is not None
    blocks = [sum(parameter.numel() for parameter in block.parameters()) for block in model.transformer.h]  # type: ignore[union-attr]
    assert weights_of(parts.bottom) == blocks[0]
    assert weights_of(parts.top) == sum(blocks[1:])
    assert weights_of(parts.tail) == model.lm_head.weight.numel()  # type: ignore[union-attr]


def test_small_passes_are_computed_in_one_thread() -> None:
    assert threads_of_pass(4_000_000, 1, most=8) == 1
    assert threads_of_pass(4_000_000, 32, most=8) == 8
    assert threads_of_pass(78_000_000, 1, most=8) == 8
    assert threads_of_pass(0, 0, most=1) == 1
