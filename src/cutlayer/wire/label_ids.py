"""Ids of the words of labels, which a classifier without a head of its own writes."""

from __future__ import annotations

from typing import Annotated

from annotated_types import Ge
from pydantic import AfterValidator, Field

MAX_LABEL_PIECES = 32
"""Of the words of one label."""
MAX_LABEL_IDS = 1024
"""Of the words of all labels: each is computed for each text."""


def _label_words(words: tuple[tuple[int, ...], ...]) -> tuple[tuple[int, ...], ...]:
    if not all(1 <= len(ids) <= MAX_LABEL_PIECES for ids in words) or sum(map(len, words)) > MAX_LABEL_IDS:
        raise ValueError(f"words of a label are 1 to {MAX_LABEL_PIECES} ids, all together {MAX_LABEL_IDS}")
    if len(set(words)) < len(words):
        raise ValueError("two labels have the same words")
    return words


LabelIds = Annotated[
    tuple[tuple[Annotated[int, Ge(0)], ...], ...],
    Field(min_length=2, max_length=MAX_LABEL_IDS),
    AfterValidator(_label_words),
]
"""Of each label the ids that a decoder writes for it, what closes them among them."""
