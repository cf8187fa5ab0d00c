"""How words are read and written: which vocabularies are refused, and how much of a text leaves."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from cutlayer.core import ConfigError, Cut, PrivacyError, Ragged, Tokens
from cutlayer.customer.handout import local_archive
from cutlayer.customer.home import Home
from cutlayer.customer.reading import WordReading, reading_of
from cutlayer.privacy import Dictionary, Lexicon, Word, Words, WordSpace
from tests.service.tiny import MAX_LENGTH, write_tiny_gpt2


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


def lengths(columns: tuple[Ragged, ...]) -> list[list[int]]:
    return [column.lengths.tolist() for column in columns]


@pytest.mark.parametrize("longest", [6, 20, None])
@pytest.mark.parametrize(
    ("columns", "ways"),
    [(1, {}), (2, {}), (1, {"closed": True}), (2, {"closed": True}), (2, {"sides": True})],
    ids=["texts", "pairs", "closed texts", "closed pairs", "sides"],
)
def test_plain_words_take_no_room_of_a_text_that_the_model_has_room_for(
    columns: int, ways: dict[str, bool], longest: int | None, tmp_path: Path
) -> None:
    """Whatever stands before it, a text loses its end where it loses it without, or where the positions end."""
    pytest.importorskip("spacy", reason="the tagger needs spaCy: pip install 'cutlayer[words]'")
    model = str(write_tiny_gpt2(tmp_path / "model"))
    vocabulary = tmp_path / "words.tsv"
    vocabulary.write_text("w1\tNOUN\t1\n")
    home = Home(tmp_path / "home")
    sides = (longest or 20, 7) if ways.get("sides") else None
    pieces = reading_of(
        Words(eta=1.0, words="noun", vocabulary=vocabulary, space=model),
        local_archive(home, model, Cut(bottom=0)),
        home,
        max_length=longest,
        **{**ways, "sides": sides},
    ).dictionary.pieces  # type: ignore[union-attr, arg-type]
    counts = [1, 3, 5, 9, 30, 70]
    texts = [[f"w{number % 50}" for number in range(count)] for count in counts]
    second = [["w77"] * count for count in reversed(counts)]
    both = tuple([" ".join(text) for text in side] for side in (texts, second)[:columns])
    alone = pieces(both)
    with pytest.raises(ConfigError, match="leave no room for a text"):
        pieces(both, preceding=torch.full((len(counts),), MAX_LENGTH - (sides[1] if sides else 0)))
    most = max(sum(rows) for rows in zip(*lengths(alone), strict=True))
    for before in (2, 10, 40):
        plain = torch.full((len(counts),), before)
        first, *others = pieces((["w88 " * before + text for text in both[0]], *both[1:]), preceding=plain)
        rows = torch.stack([each.lengths for each in (first, *others)]).sum(0)
        assert int(rows.max()) <= MAX_LENGTH
        for number, ids in enumerate(first.split()):
            assert ids[:before].tolist() == [90] * before
            own, whole = ids[before:].tolist(), alone[0][number].tolist()
            if before + most <= MAX_LENGTH:
                assert own == whole
                assert [each[number].tolist() for each in others] == [each[number].tolist() for each in alone[1:]]
            elif before + sum(len(each[number]) for each in alone) > MAX_LENGTH:
                assert int(rows[number]) == MAX_LENGTH, "it has all that the model has left"
