"""Words with a tag each to token ids with a tag each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from cutlayer.core import DataError, Ragged, Tokens

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

NO_TAG = -1
"""In the place of a token that has no tag of its own: a word's pieces behind its first."""


def tokenise_words(
    words: Sequence[Sequence[str]],
    tags: Sequence[Sequence[int]],
    tokenizer: PreTrainedTokenizerBase,
    *,
    max_content: int,
) -> tuple[Tokens, Tokens]:
    """Turns texts that are given word by word into ids, and keeps each word's tag.

    A word of which the tokenizer makes nothing is lost, and its tag with it.

    Args:
        words: The words of each text.
        tags: A number for each word.
        tokenizer: A fast Hugging Face tokenizer.
        max_content: Most content tokens of a text; longer ones lose their end.

    Returns:
        Ids, and in the place of each word's first piece its tag, elsewhere `NO_TAG`.

    Raises:
        DataError: A text has another number of tags than of words.
    """
    for number, (own, marks) in enumerate(zip(words, tags, strict=True), start=1):
        if len(own) != len(marks):
            raise DataError(f"Text {number} has {len(own)} words and {len(marks)} tags.", remedy="Give one tag a word.")
    ids, kept = [], []
    for own, marks in zip(words, tags, strict=True):
        encoded = tokenizer(
            list(own), is_split_into_words=True, add_special_tokens=False, split_special_tokens=True, verbose=False
        )
        places = encoded.word_ids()[:max_content]
        ids.append(encoded["input_ids"][:max_content])
        first = [place != before for place, before in zip(places, [None, *places], strict=False)]
        kept.append(
            [marks[place] if new and place is not None else NO_TAG for place, new in zip(places, first, strict=True)]
        )
    return Tokens((Ragged.from_lists(ids),)), Tokens((Ragged.from_lists(kept),))
