"""What stands where in the texts of a reading: kinds of words, sentences and names, told from the texts themselves."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from cutlayer.attacks import Reading
from cutlayer.attacks.evaluation.scoring import UNREAD
from cutlayer.core import Tokens
from cutlayer.data import Dataset

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from cutlayer.customer.recorded_words import WordNumbers

NAMES, NUMBERS, RARE, OTHER, MARKS = "names", "numbers", "rare words", "other words", "punctuation"
CLASSES = (NAMES, NUMBERS, RARE, OTHER, MARKS)
"""Kinds of tokens, in the order in which a report lists them."""
RARE_SHARE = 1e-5
"""A token is rare if it makes less than this share of the attacker's own text."""
NO_NAME = -1
"""In the place of a token that is part of no name."""
NO_KIND = -1
"""In the place of a guess that is of no kind: nothing was guessed, or a special token."""

WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)*")
"""A word: letters and digits, with apostrophes between them."""

_SENTENCE_END = re.compile(
    r"(?P<mark>[.!?…]+)['\"”’»)\]]*(?=\s)"  # of most scripts: a blank follows
    r"|[。！？]+[」』”’）]*"  # of Chinese and Japanese: none does
    r"|\n\s*\n"  # a heading or a greeting may have no mark
)
_SHOWN = re.compile(r"\S")
_LAST_LETTERS = re.compile(r"[^\W\d_]+$")
_TITLE = re.compile(
    "mr|mrs|ms|mx|messrs|dr|prof|rev|st|gen|col|capt|lt|sgt|sen|rep|gov|hon|vs|mme|mlle|hr|fr", re.IGNORECASE
)
"""Before a full stop: shortened words that hardly end a sentence, for a name follows."""
_LONGEST_TITLE = 8
_BEFORE_CAPITALS = frozenset(".!?…:;")
"""Behind these a capital may begin a sentence or a clause: it tells no name."""
_JOINT = re.compile(r"[^\S\n]*[-–&.]?[^\S\n]*")
"""What may stand between two words of one name: blanks, a hyphen, an ampersand, the stop of a title or an initial."""


@dataclass(frozen=True)
class Markup:
    """Marks of a reading's tokens; items are tokens, segment by segment, as there.

    Attributes:
        kinds: `[items]` int64, which of `CLASSES` the true token is of.
        sentences: `[items]` int64, the number of its sentence, counted through all texts.
        names: `[items]` int64, the number of the name that it is part of, counted through all texts; `NO_NAME`
            elsewhere.
        guessed: `[items]` int64, which of `CLASSES` the token that was read there is of; `NO_KIND` where it is of none.
    """

    kinds: Tensor
    sentences: Tensor
    names: Tensor
    guessed: Tensor


def mark_up(
    texts: Dataset, reading: Reading, tokenizer: PreTrainedTokenizerBase | WordNumbers, *, public: Tensor | None
) -> Markup:
    """Tells what stands where.

    *Sentences* end with a full stop, a question or an exclamation mark before a blank, with such a mark of Chinese or
    Japanese, and with an empty line. Where a text writes sentences with capitals, none begins with a small letter; the
    stop of a title (Dr.) or of an initial ends none. A text of one sentence is one sentence.

    *Names* are words written with a capital that begins neither a sentence nor a clause behind a colon or a semicolon.
    Where a sentence has no capitals, or nothing else, no name is told. Words of which one follows the other, with a
    hyphen, an ampersand or a stop between them at most, are one name.

    *Kinds* of true tokens: names; numbers have a digit; rare words are of tokens that the attacker's own text hardly
    has; marks are outside words. What a *guess* is of cannot be seen where it stands, for its place is the true
    token's, and may not show in how it is written. It is of the kind that its token most often has in these texts, a
    name where it is one as often as not. A token that these texts do not have is never a name: it is a number if it has
    a digit, a mark if it has no letter, and rare or not by the attacker's own text.

    Args:
        texts: The texts that the reading is of, in its order.
        reading: For how many tokens of each text there are, and what was read in their places.
        tokenizer: The model's.
        public: `[tokens]` int64, the attacker's own text; `None` where it has none, and no word is rare.
    """
    rare = _rare(public, size=1 + max(int(_flat(reading.tokens).max()), int(_flat(reading.read).max())))
    kinds: list[int] = []
    sentences: list[int] = []
    names: list[int] = []
    sentence = name = 0
    for side, segment in enumerate(reading.tokens.segments):
        for row, found in enumerate(segment.split()):
            text = _Text(texts.texts[row][side])
            spans: Sequence[tuple[int, int]] = tokenizer(
                text.text,
                add_special_tokens=False,
                split_special_tokens=True,
                return_offsets_mapping=True,
                verbose=False,
            )["offset_mapping"]
            for token, place in zip(found.tolist(), text.places(spans, count=len(found)), strict=True):
                if place.kind is None:
                    kinds.append(CLASSES.index(RARE if rare[token] else OTHER))
                else:
                    kinds.append(CLASSES.index(place.kind))
                sentences.append(sentence + place.sentence)
                names.append(NO_NAME if place.name == NO_NAME else name + place.name)
            sentence += text.sentences
            name += text.names
    told = torch.tensor(kinds, dtype=torch.int64)
    return Markup(
        kinds=told,
        sentences=torch.tensor(sentences, dtype=torch.int64),
        names=torch.tensor(names, dtype=torch.int64),
        guessed=_guessed(reading, told, tokenizer, rare),
    )


def sentence_starts(text: str) -> list[int]:
    """Where sentences begin, by character; see `mark_up`. The first begins with the text, whatever that is."""
    ends = [
        (end["mark"], end.start(), begin.start())
        for end in _SENTENCE_END.finditer(text)
        if (begin := _SHOWN.search(text, end.end())) is not None
    ]
    capitals = _first_letter(text, 0).isupper() or any(_first_letter(text, start).isupper() for _, _, start in ends)
    starts = [0]
    for mark, at, start in ends:
        goes_on = capitals and _first_letter(text, start).islower()
        if mark and (goes_on or (mark == "." and _shortened(text, at))):
            continue
        if start > starts[-1]:
            starts.append(start)
    return starts


def _first_letter(text: str, start: int) -> str:
    """What the first word from there begins with."""
    word = WORD.search(text, start)
    return "" if word is None else word[0][0]


def _shortened(text: str, stop: int) -> bool:
    """Whether the full stop there shortens the word before it."""
    before = _LAST_LETTERS.search(text, max(0, stop - _LONGEST_TITLE), stop)
    if before is None:
        return False
    word = before[0]
    return bool(_TITLE.fullmatch(word)) or (len(word) == 1 and word.isupper() and word != "I")


@dataclass(frozen=True)
class _Place:
    """Where a token stands.

    Attributes:
        kind: Its kind; `None` for a word that is no name.
        sentence: Its sentence's number in the text.
        name: Its name's.
    """

    kind: str | None
    sentence: int
    name: int


class _Text:
    """A text with its sentences, words and names.

    Attributes:
        text: The text.
        sentences: How many it has; one at least.
        names: How many names.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self._starts = sentence_starts(text)
        self._words = [match.span() for match in WORD.finditer(text)]
        self._name_of = list(self._names())
        self.sentences = len(self._starts)
        self.names = 1 + max(self._name_of, default=NO_NAME)

    def places(self, spans: Sequence[tuple[int, int]], *, count: int) -> Iterator[_Place]:
        """Where each token stands.

        Args:
            spans: First character of each token, and the one behind its last.
            count: How many tokens there are. A text that was cut has fewer than spans, and one with an end mark has one
                more.
        """
        at = 0
        for number in range(count):
            start, end = spans[number] if number < len(spans) else (len(self.text),) * 2
            while at < len(self._words) and self._words[at][1] <= start:
                at += 1
            inside = at < len(self._words) and self._words[at][0] < end and start < end
            name = self._name_of[at] if inside else NO_NAME
            kind: str | None = None
            if any(character.isdigit() for character in self.text[start:end]):
                kind = NUMBERS
            elif not inside:
                kind = MARKS
            elif name != NO_NAME:
                kind = NAMES
            # a token may begin with the blank before its word
            yield _Place(kind, self._sentence(max(start, end - 1)), name)

    def _sentence(self, character: int) -> int:
        return bisect_right(self._starts, character) - 1

    def _names(self) -> Iterator[int]:
        """The number of the name that each word is part of."""
        number = last = NO_NAME
        shouts = [
            not any(map(str.islower, self.text[start:end]))
            for start, end in zip(self._starts, [*self._starts[1:], len(self.text)], strict=True)
        ]
        before = -1
        for place, (start, end) in enumerate(self._words):
            sentence = self._sentence(start)
            opens = sentence != before or self._begins_clause(place)
            before = sentence
            word = self.text[start:end]
            if opens or not word[0].isupper() or re.split("['’]", word)[0] == "I" or shouts[sentence]:
                last = NO_NAME
            else:
                joined = last != NO_NAME and _JOINT.fullmatch(self.text, self._words[place - 1][1], start)
                number += not joined
                last = number
            yield last

    def _begins_clause(self, place: int) -> bool:
        """Whether a word stands behind a mark after which a capital tells nothing."""
        if not place:
            return True
        before, start = self._words[place - 1][1], self._words[place][0]
        marks = _BEFORE_CAPITALS.intersection(self.text[before:start])
        return bool(marks - {"."} if _shortened(self.text, before) else marks)


def _rare(public: Tensor | None, *, size: int) -> Tensor:
    """`[size]` bool: ids that the attacker's own text hardly has."""
    if public is None:
        return torch.zeros(size, dtype=torch.bool)
    return torch.bincount(public, minlength=size) < RARE_SHARE * len(public)


def _guessed(reading: Reading, kinds: Tensor, tokenizer: PreTrainedTokenizerBase | WordNumbers, rare: Tensor) -> Tensor:
    """`[items]` int64: the kinds of what was read; see `mark_up`."""
    true, read = _flat(reading.tokens), _flat(reading.read)
    counts = torch.zeros(len(rare), len(CLASSES), dtype=torch.int64)
    counts.index_put_((true, kinds), torch.ones_like(true), accumulate=True)
    kind_of = counts.argmax(1)  # of equals the first
    special = set(tokenizer.all_special_ids)
    for token in read[read != UNREAD].unique().tolist():
        if not counts[token].any():
            text = "" if token in special else str(tokenizer.decode([token])).strip()
            kind_of[token] = _kind_alone(text, rare=bool(rare[token]))
    return torch.where(read == UNREAD, NO_KIND, kind_of[read.clamp(min=0)])


def _kind_alone(text: str, *, rare: bool) -> int:
    """The kind of a token that no text has."""
    if not text:
        return NO_KIND
    if any(map(str.isdigit, text)):
        return CLASSES.index(NUMBERS)
    if not any(map(str.isalpha, text)):
        return CLASSES.index(MARKS)
    return CLASSES.index(RARE if rare else OTHER)


def _flat(tokens: Tokens) -> Tensor:
    return torch.cat([side.values for side in tokens.segments])
