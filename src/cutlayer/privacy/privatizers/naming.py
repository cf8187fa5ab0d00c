"""What a release is called before any noise is drawn: its texts, and the parts of texts that it is made of."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from cutlayer.core import PrivacyError, Ragged
from cutlayer.privacy.context import NAME_BYTES, Excerpts, token_lists
from cutlayer.privacy.layout import TextMajor
from cutlayer.privacy.release import Release

_ID_BYTES = 8


@dataclass(frozen=True)
class NamedText:
    """A text in a release: its names, its content tokens there, what they are charged, draws, and largest eta."""

    content: bytes
    draw: bytes
    tokens: int
    charges: bytearray
    drawn: bytearray
    eta: float


@dataclass(frozen=True)
class Named:
    """A release before its noise.

    Attributes:
        release: Its names and charges.
        texts: Its tokens, item by item.
        etas: `[total]` float64, in that order.
        names: `[total, NAME_BYTES]` uint8: of each token's draw, in that order.
    """

    release: Release
    texts: TextMajor
    etas: Tensor
    names: NDArray[np.uint8]


class Source:
    """A text that is named, or of which parts are.

    Args:
        ids: All of it that is known.
        settings: As `Privatizer._settings` returns them.
    """

    def __init__(self, ids: list[int], settings: bytes) -> None:
        self.ids = ids
        self._settings = settings

    @cached_property
    def _packed(self) -> bytes:
        return np.asarray(self.ids, dtype=f"<i{_ID_BYTES}").tobytes()

    @cached_property
    def name(self) -> bytes:
        """Tells it from other texts, in memory and nowhere else."""
        return self.name_of(len(self.ids))

    def name_of(self, tokens: int) -> bytes:
        """Tells the text that its first tokens are from other texts."""
        return hashlib.blake2b(self._packed[: tokens * _ID_BYTES], digest_size=NAME_BYTES).digest()

    @cached_property
    def draw(self) -> bytes:
        """Names the draw of all of it."""
        return hashlib.blake2b(self._packed, key=self._settings, digest_size=NAME_BYTES).digest()


def sources_of(
    texts: TextMajor, excerpts: Excerpts | None, settings: bytes
) -> tuple[list[Source], Sequence[Sequence[tuple[int, int, int]]]]:
    """Texts, and the parts of them that each item is made of.

    Raises:
        PrivacyError: The items are not made of these parts: their noise would go by a wrong name.
    """
    if excerpts is None:
        sources = token_lists(Ragged(texts.values, texts.lengths.flatten()))
        segments = texts.lengths.shape[1]
        numbers = range(len(sources))
        return [Source(ids, settings) for ids in sources], [
            [(text, 0, len(sources[text])) for text in numbers[at : at + segments]]
            for at in range(0, len(sources), segments)
        ]
    compact = excerpts.compact()
    sources = token_lists(compact.texts)
    made = [[token for text, start, stop in own for token in sources[text][start:stop]] for own in compact.parts]
    if made != token_lists(Ragged(texts.values, texts.per_text)):
        raise PrivacyError("These tokens are not the parts of texts that they are said to be.")
    return [Source(ids, settings) for ids in sources], compact.parts
