"""Words in the place of tokens: what they are called, which of them are drawn, and where they stand in a space.

A word is drawn by what it is and by its part of speech. Its *name* is a number that follows from how it is written, its
tag and the blanks before it, so that what is derived from names (draws, accounts, identities) is the same in every
process, as it is of token ids.
"""

from __future__ import annotations

import hashlib
import re
import threading
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple, Protocol, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cutlayer.core import ConfigError, PrivacyError, Ragged
from cutlayer.privacy.context import Spellings
from cutlayer.privacy.distances import table_fingerprint
from cutlayer.privacy.neighbours import NeighbourSearch
from cutlayer.privacy.replacement import ABSENT, CLEAR
from cutlayer.privacy.spec import CATEGORIES


class Word(NamedTuple):
    """A word as it stands in a text.

    Attributes:
        before: What separates it from the word before it: nothing, a blank, or a line's end.
        form: The word, as it is written.
        tag: Its part of speech, a tag of Universal Dependencies.
    """

    before: str
    form: str
    tag: str


def folded(form: str) -> str:
    """A word as vocabularies have it: in lower case, and one Unicode form."""
    return unicodedata.normalize("NFKC", form).casefold()


class Lexicon(Spellings):
    """The words that were met, by name. Texts hold names; only here does one become a word again."""

    def __init__(self) -> None:
        super().__init__()
        self._words: dict[int, Word] = {}
        self._names: dict[Word, int] = {}

    def __len__(self) -> int:
        return len(self._words)

    def names(self, words: Iterable[Word]) -> list[int]:
        """Names of words, by which they are known from now on.

        Raises:
            PrivacyError: Two words have one name: the one would leave in the place of the other.
        """
        known = self._names
        return [known[word] if word in known else self._add(word) for word in words]

    def _add(self, word: Word) -> int:
        name = _number("\0".join(word))
        if self._words.setdefault(name, word) != word:
            raise PrivacyError("Two words have one name.", remedy="Change one of the texts that hold them.")
        self._names[word] = name
        return name

    def word(self, name: int) -> Word:
        """The word of that name."""
        return self._words[name]

    def __getitem__(self, token: int) -> bytes:
        """How a word reads, as of `Spellings`; its tag is not read."""
        word = self._words[token]
        return (" " * bool(word.before) + folded(word.form)).encode()


def _number(told: str) -> int:
    digest = hashlib.blake2b(told.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1  # int64 is signed


_MARKS: Final = (
    ("URL", re.compile(r"://|^(?i:www)\.|^[\w-]{2,}(\.[\w-]{2,})*\.[a-z]{2,}(?=[/:?#]|$)")),
    ("e-mail address", re.compile(r".@.")),
    ("number", re.compile(r"\d")),
)
IDENTIFYING: Final = tuple(kind for kind, _ in _MARKS)
"""Kinds of words in clear that tell who or what is meant, more often than others."""
_CATEGORY_OF: Final = {tag: name for name, tags in CATEGORIES.items() for tag in tags}


def clear_kind(word: Word) -> str:
    """What a word that leaves as it is is counted under: its category, or what identifies people more often."""
    for kind, mark in _MARKS:
        if mark.search(word.form):
            return kind
    return _CATEGORY_OF.get(word.tag, "other")


@dataclass(frozen=True)
class Grouping:
    """Which words are drawn, and among which others.

    Attributes:
        names: What groups of words are called.
        of_tag: The group of words with a tag; words with other tags leave as they are.
        constrained: Whether a word becomes one of its own group; else any word of the vocabulary.
    """

    names: tuple[str, ...]
    of_tag: dict[str, int]
    constrained: bool

    @classmethod
    def of(cls, chosen: Sequence[str], *, constrained: bool) -> Self:
        """Groups by their names: categories, or tags of Universal Dependencies."""
        tags = [CATEGORIES.get(name, (name.upper(),)) for name in chosen]
        return cls(tuple(chosen), {tag: group for group, own in enumerate(tags) for tag in own}, constrained)

    def group(self, tag: str) -> int:
        """The group of words with a tag within which they are replaced; `CLEAR` of those that leave as they are."""
        group = self.of_tag.get(tag, CLEAR)
        return group if self.constrained else min(group, 0)

    @property
    def all_tags(self) -> bool:
        """Whether every word is drawn."""
        return self.of_tag.keys() >= _CATEGORY_OF.keys()


class WordSpace:
    """A public vocabulary with a vector for each word, and the same vectors for any other word.

    A vector is the mean of the rows of a word's pieces in a token-embedding table, for words of the vocabulary and of
    private texts alike (RAPT §III-A2). Of several groups a word may be a member, with the same vector.

    Args:
        vocabulary: Words of each group, in lower case and without repetitions; of all groups together where a word may
            become any other.
        grouping: Which words are drawn, and among which others.
        embed: Vectors `[n, width]` float32 of words.
        unit: Names what the vectors are made of, whichever words there are.
        fingerprint: Names what else a draw follows from.

    Raises:
        ConfigError: A group has no words.
    """

    def __init__(
        self,
        vocabulary: Sequence[Sequence[str]],
        grouping: Grouping,
        *,
        embed: Callable[[Sequence[str]], Tensor],
        unit: str,
        fingerprint: str,
    ) -> None:
        for name, own in zip(grouping.names, vocabulary, strict=False):
            if not own:
                raise ConfigError(
                    f"The vocabulary has no word of category {name!r}.",
                    remedy="Leave the category out of --words, or give a --vocabulary that has some.",
                )
        self.grouping = grouping
        self.unit = unit
        """Names the unit of distances here. Etas of one unit are added, whatever words were drawn with each."""
        self.words = np.array([word for own in vocabulary for word in own], dtype=object)
        """`[vocabulary]`, the words."""
        self.groups = torch.tensor([group for group, own in enumerate(vocabulary) for _ in own])
        """`[vocabulary]` int64, of each word its group."""
        self._embed = embed
        self._lock = threading.Lock()
        distinct, place = np.unique(self.words.astype(str), return_inverse=True)
        self._place = {word: number for number, word in enumerate(distinct.tolist())}
        self._vectors = embed(distinct.tolist())
        self.table = self._vectors[torch.from_numpy(place)]
        """`[vocabulary, width]`, their vectors."""
        listed = "\n".join(f"{group} {word}" for group, word in zip(self.groups.tolist(), self.words, strict=True))
        digest = hashlib.sha256(f"{unit} {fingerprint} {table_fingerprint(self.table)}\n{listed}".encode())
        self.fingerprint = digest.hexdigest()
        """Names what draws follow from: vectors, and which of them may be released for which."""

    @cached_property
    def numbers(self) -> dict[tuple[str, int], int]:
        """Of each word and its group the place in the vocabulary; not to be changed."""
        members = zip(self.words.tolist(), self.groups.tolist(), strict=True)
        return {member: number for number, member in enumerate(members)}

    def number(self, form: str, group: int) -> int:
        """Where a word of a group stands in the vocabulary; `ABSENT` of one that it does not have."""
        return self.numbers.get((form, group), ABSENT)

    def vectors(self, words: Sequence[str]) -> Tensor:
        """`[n, width]`: vectors of any words, in lower case."""
        with self._lock:
            unknown = sorted({word for word in words if word not in self._place})
            if unknown:
                self._vectors = torch.cat([self._vectors, self._embed(unknown)])
                self._place |= {word: len(self._place) + number for number, word in enumerate(unknown)}
            return self._vectors[[self._place[word] for word in words]]

    @cached_property
    def search(self) -> NeighbourSearch:
        """The nearest of these words, or of one group of them; made at the first text, for all who draw from here."""
        return NeighbourSearch(self.table, torch.ones(len(self.table), dtype=torch.bool), groups=self.groups)

    @cached_property
    def joins(self) -> NDArray[np.bool_]:
        """`[vocabulary, 2]`: see `joins`."""
        return joins(self.words.tolist())


def joins(forms: Sequence[str]) -> NDArray[np.bool_]:
    """`[n, 2]`: whether each word begins, and ends, as words do within, and would run into a neighbour's."""
    return np.array([(_within(form[:1]), _within(form[-1:])) for form in forms], dtype=bool).reshape(-1, 2)


def _within(character: str) -> bool:
    """Whether it is a letter, a digit, or a mark that belongs to one, as vowels of Indian scripts are."""
    return character.isalnum() or unicodedata.category(character or " ").startswith("M")


def written(pieces: NDArray[np.object_], lengths: Tensor) -> list[str]:
    """Texts that words and the blanks between them make.

    Args:
        pieces: `[total, 2]` strings: before each word, and the word.
        lengths: `[n]` int64, words of each text.
    """
    ends = (2 * lengths.cumsum(0)).tolist()
    flat = pieces.reshape(-1).tolist()
    return ["".join(flat[start:stop]) for start, stop in zip([0, *ends], ends, strict=False)]


class Pieces(Protocol):
    """Ids of each segment's texts, as the vendor's model reads them."""

    def __call__(self, columns: tuple[list[str], ...], *, preceding: Tensor | None = None) -> tuple[Ragged, ...]:
        """Tokenises texts; those that are too long lose their end.

        Args:
            columns: `n` texts of each segment.
            preceding: `[n]` int64, how many ids at the start of each first text are of plain words. A text's own ids
                are cut where they are without these, unless the model has no positions for both.
        """


PieceEnds = Callable[[list[str]], Ragged]
"""Behind which character each piece of each text ends, `[pieces]` int64, of texts that are not cut."""


@dataclass(frozen=True)
class PlainWords:
    """Public words that stand before texts that are trained on, and are drawn as the texts' own words are.

    Ref: RAPT §III-B2.

    Attributes:
        names: `[sequences, m]` int64, by which the lexicon knows them.
        numbers: The same words by the numbers that the reconstruction head has for them.
        vocabulary: Outputs of the head; by default one for each public word.
    """

    names: Tensor
    numbers: tuple[tuple[int, ...], ...]
    vocabulary: int

    @property
    def count(self) -> int:
        """Words of a sequence."""
        return self.names.shape[1]

    @property
    def context(self) -> bytes:
        """Tells releases behind these words from others."""
        return b"behind plain words " + hashlib.blake2b(self.names.numpy().tobytes(), digest_size=16).digest()


@dataclass(frozen=True)
class Dictionary:
    """What words are drawn with.

    Attributes:
        vocabulary: Words that may come out, and vectors.
        lexicon: The words of texts, by the names that stand for them.
        pieces: Tokenises what was written.
        piece_ends: Tells where its pieces end.
        written_as: Names what `pieces` makes of a text: by which tokenizer, and how much of it.
    """

    vocabulary: WordSpace
    lexicon: Lexicon
    pieces: Pieces
    piece_ends: PieceEnds
    written_as: str

    def member(self, name: int) -> tuple[str, int]:
        """A word in lower case, and its group in the vocabulary; `CLEAR` if it leaves as it is."""
        word, grouping = self.lexicon.word(name), self.vocabulary.grouping
        return folded(word.form), grouping.group(word.tag)

    def drawn_as(self, name: int) -> int:
        """The name of a word's draws: words of one vector and group share it, whatever their case or blanks."""
        form, group = self.member(name)
        return _number(f"{group}\0{form}")
