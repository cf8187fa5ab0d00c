from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cutlayer.core import PrecededTokens, Ragged, Rows, Tokens

sequences = st.lists(st.lists(st.integers(0, 2**31), max_size=5), max_size=6)


@given(sequences)
def test_items_come_back_in_order(lists: list[list[int]]) -> None:
    packed = Ragged.from_lists(lists)
    assert len(packed) == len(lists)
    assert [packed[index].tolist() for index in range(len(packed))] == lists


@given(sequences.filter(bool), st.data())
def test_select_is_indexing(lists: list[list[int]], data: st.DataObject) -> None:
    packed = Ragged.from_lists(lists)
    chosen = data.draw(st.lists(st.integers(0, len(lists) - 1), max_size=8))
    selected = packed.select(chosen)
    assert [selected[place].tolist() for place in range(len(selected))] == [lists[index] for index in chosen]


@given(sequences.filter(any))
def test_padding_and_mask_agree(lists: list[list[int]]) -> None:
    packed = Ragged.from_lists(lists)
    padded, mask = packed.padded(fill=-1), packed.mask()
    assert padded.shape == mask.shape
    assert [row[kept.bool()].tolist() for row, kept in zip(padded, mask, strict=True)] == lists
    assert (padded[mask == 0] == -1).all()


@given(sequences, sequences)
def test_concatenate_is_list_addition(left: list[list[int]], right: list[list[int]]) -> None:
    both = Ragged.concatenate([Ragged.from_lists(left), Ragged.from_lists(right)])
    assert [both[index].tolist() for index in range(len(both))] == left + right


def test_lengths_must_describe_the_values() -> None:
    with pytest.raises(ValueError, match="add up to 3, values has 2"):
        Ragged(torch.zeros(2), torch.tensor([1, 2]))
    with pytest.raises(ValueError, match="int64"):
        Ragged(torch.zeros(2), torch.tensor([2], dtype=torch.int32))


def test_tokens_have_one_or_two_segments_of_equal_count() -> None:
    one, two = Ragged.from_lists([[1]]), Ragged.from_lists([[1], [2, 3]])
    assert Tokens((two, two)).total == 6
    for segments in ((), (one, two), (one, one, one)):
        with pytest.raises(ValueError, match="one or two segments"):
            Tokens(segments)


def test_values_of_tokens_go_out_and_come_back_segment_by_segment() -> None:
    tokens = Tokens((Ragged.from_lists([[1], [2, 3], []]), Ragged.from_lists([[4, 5], [], [6]])))
    assert tokens.values.tolist() == [1, 2, 3, 4, 5, 6]
    assert tokens.owners.tolist() == [0, 1, 1, 0, 0, 2]
    doubled = tokens.with_values(2 * tokens.values)
    assert doubled.segments[1][0].tolist() == [8, 10]
    assert torch.equal(doubled.segments[0].lengths, tokens.segments[0].lengths)


def test_rows_are_counted_by_segment() -> None:
    packed = Ragged(torch.arange(10.0).reshape(5, 2), torch.tensor([2, 3]))
    rows = Rows(packed, torch.tensor([[1, 1], [2, 1]]))
    assert rows.total == 5
    last = rows.select([1])
    assert last.packed.values.tolist() == [[4.0, 5.0], [6.0, 7.0], [8.0, 9.0]]
    assert last.segment_lengths.tolist() == [[2, 1]]
    with pytest.raises(ValueError, match="do not add up"):
        Rows(packed, torch.tensor([[1, 1], [1, 1]]))


def test_words_before_texts_go_with_them() -> None:
    segment = Ragged.from_lists([[1, 2, 3], [4, 5], [6]])
    tokens = PrecededTokens((segment,), torch.tensor([[1, 1], [0, 2], [1, 0]]), torch.tensor([0, 1, 1]))
    chosen = tokens.select([2, 0])
    assert isinstance(chosen, PrecededTokens)
    assert chosen.preceding.tolist() == [[1, 0], [1, 1]]
    assert chosen.sequences.tolist() == [1, 0]
    assert chosen.values.tolist() == [6, 1, 2, 3]
    with pytest.raises(ValueError, match="more tokens are of preceding words"):
        PrecededTokens((segment,), torch.tensor([[1, 1], [1, 2], [1, 0]]), torch.tensor([0, 1, 1]))
    with pytest.raises(ValueError, match="its own preceding words"):
        PrecededTokens((segment,), torch.tensor([[1, 1], [1, 1]]), torch.tensor([0, 1]))


def test_words_and_the_texts_behind_them_are_parted_as_they_were_joined() -> None:
    words = Ragged.from_lists([[7, 8], [7], []])
    texts = Tokens((Ragged.from_lists([[1], [2, 3], [4]]), Ragged.from_lists([[5], [], [6]])))
    joined = PrecededTokens.of(words, texts, sequences=torch.tensor([0, 1, 0]))
    assert joined.segments[0].split()[0].tolist() == [7, 8, 1]
    assert joined.preceding.tolist() == [[1, 1], [1, 0], [0, 0]]
    changed = joined.with_values(10 * joined.values)
    assert isinstance(changed, PrecededTokens)
    before, own = changed.parted()
    assert [part.tolist() for part in before.split()] == [[70, 80], [70], []]
    assert own.values.tolist() == [10, 20, 30, 40, 50, 60]
    assert [side.lengths.tolist() for side in own.segments] == [[1, 2, 1], [1, 0, 1]]
    pieces = PrecededTokens((Ragged.from_lists([[1, 2, 3, 4]]),), torch.tensor([[2, 0, 1]]), torch.tensor([0]))
    assert [part.values.tolist() for part in (pieces.parted()[0], pieces.parted()[1].segments[0])] == [[1, 2, 3], [4]]
