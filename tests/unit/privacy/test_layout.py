"""Text by text and back."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from cutlayer.core import Ragged, Tokens
from cutlayer.privacy.layout import TextMajor

lists = st.lists(st.lists(st.integers(0, 99), max_size=4), min_size=1, max_size=6)


@given(first=lists, data=st.data())
def test_round_trip(first: list[list[int]], data: st.DataObject) -> None:
    second = data.draw(
        st.none() | st.lists(st.lists(st.integers(0, 99), max_size=4), min_size=len(first), max_size=len(first))
    )
    segments = [first] if second is None else [first, second]
    tokens = Tokens(tuple(Ragged.from_lists(segment) for segment in segments))
    texts = TextMajor.of(tokens)
    assert texts.values.tolist() == [item for parts in zip(*segments, strict=True) for part in parts for item in part]
    assert texts.per_text.tolist() == [sum(map(len, parts)) for parts in zip(*segments, strict=True)]
    assert torch.equal(texts.align(tuple(segment.values for segment in tokens.segments)), texts.values)
    for segment, back in zip(tokens.segments, texts.tokens(texts.values).segments, strict=True):
        assert torch.equal(segment.values, back.values)
        assert torch.equal(segment.lengths, back.lengths)
    rows = texts.values[:, None].float().repeat(1, 3)
    assert torch.equal(texts.tokens(rows).segments[-1].values[:, 0].long(), tokens.segments[-1].values)
