"""What became of words, and of texts that were drawn before they leave."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cutlayer.core import PrecededTokens, Ragged, Tokens
from cutlayer.privacy.words import written

if TYPE_CHECKING:
    from cutlayer.privacy.privatizers.naming import Named

_KEPT_IDS = 2**26
"""Token ids of texts whose length was asked for, which are about to leave and are then audited: drawn once."""
_OF_A_TEXT = 200
"""Ids that take as much memory as a text does besides its ids."""


@dataclass(frozen=True)
class Written:
    """Texts after the draw.

    Attributes:
        payload: Token ids of `n` texts, those of plain words among them.
        replaced: `[n]` int64, words of each that are others than before.
    """

    payload: Tokens = field(repr=False)
    replaced: Tensor = field(repr=False)


@dataclass(frozen=True)
class DrawnWords:
    """What became of words.

    Attributes:
        places: `[total]` int64, of each word the place in the vocabulary of what it became; `CLEAR` where it left as it
            is.
        changed: `[total]` bool, whether it became another word.
        pieces: `[total, 2]` strings, before each word, and what it became.
        lengths: `[texts]` int64, words of each text; of pairs one text behind the other.
        own: `[total]` bool: which of them are the texts' own, and no plain words before them.
    """

    places: Tensor = field(repr=False)
    changed: Tensor = field(repr=False)
    pieces: NDArray[np.object_] = field(repr=False)
    lengths: Tensor = field(repr=False)
    own: Tensor = field(repr=False)

    @cached_property
    def texts(self) -> list[str]:
        """The texts that they make."""
        return written(self.pieces, self.lengths)

    @cached_property
    def of_text(self) -> Tensor:
        """`[total]` int64: the text that each word stands in."""
        return torch.arange(len(self.lengths)).repeat_interleave(self.lengths)

    @cached_property
    def spans(self) -> Tensor:
        """`[total, 2]` int64: at which character of its text each word begins, and behind which it ends."""
        sizes = torch.tensor([[len(before), len(word)] for before, word in self.pieces.tolist()]).long().reshape(-1, 2)
        ends = torch.cat([sizes.new_zeros(1), sizes.sum(1).cumsum(0)])
        first = ends[self.lengths.cumsum(0) - self.lengths][self.of_text]
        return torch.stack([ends[1:] - sizes[:, 1] - first, ends[1:] - first], dim=1)

    @property
    def own_lengths(self) -> Tensor:
        """`[texts]` int64: each text's own words."""
        return torch.zeros_like(self.lengths).index_add(0, self.of_text, self.own.long())

    def within(self, characters: Tensor) -> Tensor:
        """`[texts]` int64: how many own words of each text end within its first characters `[texts]`."""
        whole = (self.own & (self.spans[:, 1] <= characters[self.of_text])).long()
        return torch.zeros_like(self.lengths).index_add(0, self.of_text, whole)


_Told = tuple[Tensor, Tensor]
"""Of a text the pieces `[m]` of each plain word before it, and the number of their sequence, `[]`."""


class Kept:
    """Texts that were drawn for their length, for when they leave, and are measured."""

    def __init__(self) -> None:
        self._texts: OrderedDict[bytes, tuple[tuple[Tensor, ...], int, _Told | None]] = OrderedDict()
        self._ids = 0
        self._lock = threading.Lock()

    def written(self, named: Named, written: Written) -> Written:
        """Keeps what was drawn; the oldest goes where it becomes too much."""
        payload = written.payload
        columns = [segment.split() for segment in payload.segments]
        told: Sequence[_Told | None] = [None] * len(payload)
        if isinstance(payload, PrecededTokens):
            told = list(zip(payload.preceding, payload.sequences, strict=True))
        texts = zip(named.release.identities, written.replaced.tolist(), told, *columns, strict=True)
        with self._lock:
            for identity, replaced, preceding, *ids in texts:
                if identity not in self._texts:
                    self._texts[identity] = tuple(each.int() for each in ids), replaced, preceding
                    self._ids += _OF_A_TEXT + sum(map(len, ids))
            while self._ids > _KEPT_IDS:
                _, (oldest, _, _) = self._texts.popitem(last=False)
                self._ids -= _OF_A_TEXT + sum(map(len, oldest))
        return written

    def found(self, named: Named) -> Written | None:
        """What was drawn of all of these texts, if it is here."""
        with self._lock:
            found = [self._texts.get(identity) for identity in named.release.identities]
        if not found or any(each is None for each in found):
            return None
        kept = [each for each in found if each is not None]
        columns = zip(*(ids for ids, _, _ in kept), strict=True)
        segments = tuple(
            Ragged(torch.cat(column).long(), torch.tensor([len(ids) for ids in column])) for column in columns
        )
        replaced = torch.tensor([replaced for _, replaced, _ in kept])
        told = [each for _, _, each in kept if each is not None]
        if not told:
            return Written(Tokens(segments), replaced)
        preceding, sequences = (torch.stack(column) for column in zip(*told, strict=True))
        return Written(PrecededTokens(segments, preceding, sequences), replaced)
