"""A vocabulary that was made from the texts is told from a public one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast
from unittest.mock import Mock

import numpy as np
import pytest

from cutlayer.core import PrivacyError, Ragged, Tokens
from cutlayer.customer.reading import WordReading
from cutlayer.privacy import Dictionary, Lexicon, Word, WordSpace


def lettered(first: int, count: int) -> list[str]:
    """Words that no list has."""
    return ["qz" + "".join(chr(ord("a") + int(digit)) for digit in f"{n:05}") for n in range(first, first + count)]


def checked(rare: list[str], vocabulary: list[str], *, own: bool = True) -> None:
    """Texts that have a rare word each, beside one that all have."""
    lexicon = Lexicon()
    names = [lexicon.names([Word("", "the", "DET"), Word(" ", word, "NOUN")]) for word in rare]
    space = cast("WordSpace", SimpleNamespace(words=np.array(vocabulary, dtype=object)))
    dictionary = Dictionary(space, lexicon, Mock(), Mock(), "")
    WordReading(Mock(), dictionary, own_vocabulary=own).check_vocabulary(Tokens((Ragged.from_lists(names),)))


TEXTS = lettered(0, 300)
ELSEWHERE = lettered(1000, 20_000)


@pytest.mark.parametrize(
    ("rare", "vocabulary"),
    [
        (TEXTS, TEXTS),
        (TEXTS[:40], ["the", *TEXTS[:40]]),
        (TEXTS, [*TEXTS[:270], *ELSEWHERE[:1000]]),  # nine of ten, a fifth of the list
        (TEXTS, [*TEXTS, *ELSEWHERE]),  # all, beside a public list
    ],
)
def test_one_that_was_made_from_the_texts_is_refused(rare: list[str], vocabulary: list[str]) -> None:
    with pytest.raises(PrivacyError, match=f"of the {len(rare)} words") as refused:
        checked(rare, vocabulary)
    assert "qz" not in str(refused.value)
    checked(rare, vocabulary, own=False)


@pytest.mark.parametrize(
    ("rare", "vocabulary"),
    [
        (TEXTS, ELSEWHERE),
        (TEXTS, [*TEXTS[:270], *ELSEWHERE]),  # nine of ten, a hundredth of the list
        (TEXTS[:100], [*TEXTS[:100], *ELSEWHERE]),  # of few texts a long list may have all
        (TEXTS[:10], TEXTS[:10]),
    ],
)
def test_a_public_list_is_taken(rare: list[str], vocabulary: list[str]) -> None:
    checked(rare, vocabulary)
