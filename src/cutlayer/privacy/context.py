"""Where a token stands: what its noise follows from, and which account its noise is charged to.

A text that is cut elsewhere, packed elsewhere or extended must not be drawn again where it is the same: every fresh
draw is another look. So a token's draw is named after the tokens before it, not after the whole text, and its account
after how the text reads up to it.
"""

from __future__ import annotations

import copy
import hashlib
import struct
import threading
from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import torch
from torch import Tensor

from cutlayer.core import Ragged

NAME_BYTES: Final = 16
_STRIDE = 256
"""Tokens from one place where reading can go on to the next."""
_KEPT_TOKENS = 2**22
"""Of texts whose readings are kept, with a stride more for each: 20 to 30 MB at the default window."""

Part = tuple[int, int, int]
"""A text's number, and where a part of it starts and stops."""


@dataclass(frozen=True)
class Excerpts:
    """Items that are made of parts of texts: blocks of a packed corpus, or what growing texts grow by.

    Attributes:
        texts: Ids of `m` texts, each from its beginning.
        parts: For each of `n` items, the parts that it is made of, in order.
    """

    texts: Ragged
    parts: tuple[tuple[Part, ...], ...]

    def __len__(self) -> int:
        return len(self.parts)

    @classmethod
    def blocks(cls, texts: Ragged, lengths: Sequence[int]) -> Excerpts:
        """Texts joined one behind the other, and cut into blocks of these lengths."""
        ends = texts.offsets[1:].tolist()
        text = start = 0
        blocks = []
        for length in lengths:
            stop, parts = start + length, []
            while start < stop:
                while ends[text] <= start:
                    text += 1
                end = min(ends[text], stop)
                first = int(texts.offsets[text])
                parts.append((text, start - first, end - first))
                start = end
            blocks.append(tuple(parts))
        return cls(texts, tuple(blocks))

    def select(self, indices: Tensor | Sequence[int]) -> Excerpts:
        """The items at `indices`, `[chosen]` int64, in that order."""
        return replace(self, parts=tuple(self.parts[int(index)] for index in indices))

    def compact(self) -> Excerpts:
        """The same over no more texts than the items are parts of."""
        used = sorted({text for parts in self.parts for text, _, _ in parts})
        if len(used) == len(self.texts):
            return self
        number = {text: place for place, text in enumerate(used)}
        parts = tuple(tuple((number[text], start, stop) for text, start, stop in each) for each in self.parts)
        return Excerpts(self.texts.select(used), parts)


class Spellings:
    """How a vocabulary's tokens read: in one case and Unicode form, with one blank for any number of them.

    Texts that differ in blanks, case or Unicode form are one text to whoever reads them, so they share accounts.

    Args:
        spelled: UTF-8 of each id, with a blank before it where it begins a word. `None` where no tokenizer is known:
            then ids are taken for words.
    """

    def __init__(self, spelled: Sequence[bytes] | None = None) -> None:
        self._spelled = spelled

    def __getitem__(self, token: int) -> bytes:
        if self._spelled is not None and 0 <= token < len(self._spelled):
            return self._spelled[token]
        return struct.pack("<Bq", 0xFF, token)  # no UTF-8


@dataclass(frozen=True)
class Context:
    """A token and what stands before it.

    Attributes:
        before: Names what its noise follows from: all of the text before it, or a window of it.
        read: Names the text up to and with it, as it reads.
    """

    before: bytes
    read: bytes


class Reader:
    """Reads a text token by token, and can be copied to go on from the middle.

    Args:
        spellings: How tokens read.
        window: How many tokens before it a token's noise follows from; `None` for all of them.
    """

    def __init__(self, spellings: Spellings, window: int | None) -> None:
        self._spellings = spellings
        self._recent: deque[bytes] | None = None if window is None else deque(maxlen=window)
        self._reading = hashlib.blake2b(digest_size=NAME_BYTES)
        self._taken = self._blanks = 0
        self._spaced = True

    def copy(self) -> Reader:
        """Another reader of what was read so far."""
        other = copy.copy(self)
        other._recent = None if self._recent is None else self._recent.copy()
        other._reading = self._reading.copy()
        return other

    @property
    def before(self) -> bytes:
        """Names what the noise of the next token follows from."""
        recent = self._recent
        whole = recent is None or recent.maxlen is None or self._taken <= recent.maxlen
        name = self._reading.digest() if recent is None else b"".join(recent)
        return struct.pack("<?q", whole, self._blanks) + name

    @property
    def read(self) -> bytes:
        """Names the text so far, as it reads."""
        reading = self._reading.copy()
        reading.update(struct.pack("<Bq", 0xFE, self._blanks))
        return reading.digest()

    def take(self, token: int) -> None:
        """Reads the next token."""
        piece = self._spellings[token]
        if self._spaced and piece[:1] == b" ":
            piece = piece[1:]
        # a token that adds nothing but another blank has an account of its own, or a page of blank lines would be
        # charged to the word before it
        self._blanks = 0 if piece else self._blanks + 1
        if piece:
            self._spaced = piece[-1:] == b" "
        self._taken += 1
        self._reading.update(piece)
        if self._recent is not None:
            self._recent.append(piece)


def contexts(ids: Sequence[int], reader: Reader) -> Iterator[Context]:
    """Tokens with what stands before each of them.

    Args:
        ids: A text's tokens, from its beginning or from where the reader stands.
        reader: Reads them, too.
    """
    for token in ids:
        before = reader.before
        reader.take(token)
        yield Context(before, reader.read)


class Reading:
    """A text that was read once, so that parts of it can be named without reading all that precedes them again.

    Args:
        ids: The text's tokens from its beginning.
        begun: A reading of its beginning, with which it goes on.
        spellings: How they read.
        window: As of a `Reader`.
    """

    def __init__(
        self, ids: Sequence[int], spellings: Spellings, *, window: int | None, begun: Reading | None = None
    ) -> None:
        reader = Reader(spellings, window) if begun is None else begun._end.copy()
        self._begun = 0 if begun is None else begun._stop
        self._middle = reader.copy()
        self._marks: list[Reader] = [] if begun is None else begun._marks.copy()
        for place, token in enumerate(ids[self._begun :], start=self._begun):
            if place % _STRIDE == 0:
                self._marks.append(reader.copy())
            reader.take(token)
        self._end: Reader = reader
        self._stop: int = len(ids)
        self.read = reader.read
        """Names the whole text, as it reads."""

    def contexts(self, ids: Sequence[int], start: int, stop: int) -> Iterator[Context]:
        """The tokens from `start` to `stop` with what stands before them.

        Args:
            ids: The text that was read.
            start: The first of them.
            stop: Behind the last.
        """
        if start == self._begun:
            return contexts(ids[start:stop], self._middle.copy())
        reader = self._marks[start // _STRIDE].copy()
        for token in ids[start - start % _STRIDE : start]:
            reader.take(token)
        return contexts(ids[start:stop], reader)


class Readings:
    """Texts that were read lately: a long one is privatized block by block, and in every epoch.

    Args:
        spellings: How tokens read.
        window: As of a `Reader`.
    """

    def __init__(self, spellings: Spellings, *, window: int | None) -> None:
        self._spellings, self._window = spellings, window
        self._kept: OrderedDict[bytes, tuple[int, Reading]] = OrderedDict()
        self._tokens = 0
        self._lock = threading.Lock()

    def of(self, key: bytes, ids: Sequence[int], *, beginning: bytes) -> Reading:
        """A text's reading.

        Args:
            key: Tells it from other texts.
            ids: Its tokens.
            beginning: Tells the text that it may have been before it grew; that one's reading is gone on with.
        """
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key][1]
            _, begun = self._kept.get(beginning, (0, None))
        reading = Reading(ids, self._spellings, window=self._window, begun=begun)
        with self._lock:
            if key not in self._kept:
                counted = len(ids) + _STRIDE  # a short text has a mark, too
                self._kept[key] = counted, reading
                self._tokens += counted
            while self._tokens > _KEPT_TOKENS and len(self._kept) > 1:
                _, (count, _) = self._kept.popitem(last=False)
                self._tokens -= count
        return reading


def token_lists(texts: Ragged) -> list[list[int]]:
    """Ids of each text."""
    return [ids.tolist() for ids in torch.split(texts.values, texts.lengths.tolist())]
