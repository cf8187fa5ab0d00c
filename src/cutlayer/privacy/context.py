"""Where a token stands: what its noise follows from, and which account its noise is charged to.

A text that is cut elsewhere, packed elsewhere or extended must not be drawn again where it is the same: every fresh
draw is another look. So a token's draw is named after the tokens before it, not after the whole text, and its account
after how the text reads up to it.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import torch
from torch import Tensor

from cutlayer.core import Ragged

NAME_BYTES: Final = 16

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
        """The items at `indices`, in that order."""
        return replace(self, parts=tuple(self.parts[int(index)] for index in indices))

    def compact(self) -> Excerpts:
        """The same over no more texts than the items are parts of."""
        used = sorted({text for parts in self.parts for text, _, _ in parts})
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


def contexts(ids: Sequence[int], spellings: Spellings, *, window: int | None, first: int = 0) -> Iterator[Context]:
    """Each token of a text with what stands before it.

    Args:
        ids: The text's tokens from its beginning.
        spellings: How they read.
        window: How many tokens before it a token's noise follows from; `None` for all of them.
        first: The token to begin with; those before it are read and not yielded.
    """
    text = bytearray()
    ends = [0]
    reading = hashlib.blake2b(digest_size=NAME_BYTES)
    blanks = 0
    for place, token in enumerate(ids):
        before = b""
        if place >= first:
            since = 0 if window is None else max(0, place - window)
            name = reading.digest() if window is None else bytes(text[ends[since] :])
            before = struct.pack("<?q", since == 0, blanks) + name
        piece = spellings[token]
        if piece[:1] == b" " and (not text or text[-1:] == b" "):
            piece = piece[1:]
        # a token that adds nothing but another blank has an account of its own, or a page of blank lines would be
        # charged to the word before it
        blanks = 0 if piece else blanks + 1
        text += piece
        ends.append(len(text))
        reading.update(piece)
        if place >= first:
            read = reading.copy()
            read.update(struct.pack("<Bq", 0xFE, blanks))
            yield Context(before, read.digest())


def token_lists(texts: Ragged) -> list[list[int]]:
    """Ids of each text."""
    return [ids.tolist() for ids in torch.split(texts.values, texts.lengths.tolist())]
