"""Draws of a mechanism at one width."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy import stats

from cutlayer.privacy import generator
from cutlayer.privacy.mechanisms import MECHANISMS, Mechanism
from cutlayer.privacy.mechanisms.mechanism import Float64, Rng
from cutlayer.privacy.randomness import KEY_BYTES, Streams


def source(mechanism: Mechanism, key: bytes, rows: int) -> Rng:
    """What a mechanism draws from: one of this package's as in a release, a stream for each row.

    A plug-in has one generator for all rows: in a release it draws them one by one, which hides what it makes alike.

    Args:
        mechanism: The mechanism.
        key: `KEY_BYTES` bytes.
        rows: How many.
    """
    if mechanism.name not in MECHANISMS or mechanism is not MECHANISMS[mechanism.name]:
        return generator(key)
    names = np.zeros((rows, 2), dtype="<u8")
    names[:, 0] = np.arange(rows)
    return Streams(key, names.view(np.uint8))


@dataclass(frozen=True)
class Draws:
    """Noise for many tokens, of etas that take turns.

    Attributes:
        width: Coordinates of a row.
        etas: `[tokens]`.
        noise: `[tokens, width]`.
        key: It was drawn with.
    """

    width: int
    etas: Float64
    noise: Float64
    key: bytes

    @classmethod
    def of(
        cls, mechanism: Mechanism, *, width: int, etas: Sequence[float], samples: int, rng: np.random.Generator
    ) -> Draws:
        """Draws in one call, as a privatizer does for a long text.

        Args:
            mechanism: The mechanism.
            width: Coordinates of a row.
            etas: The first token has the first of them, and so on, again and again.
            samples: Tokens.
            rng: Gives the key that the mechanism draws with.
        """
        key = rng.bytes(KEY_BYTES)
        each = np.tile(np.asarray(etas, dtype=np.float64), -(-samples // len(etas)))[:samples]
        return cls(width, each, mechanism.noise(etas=each, width=width, rng=source(mechanism, key, samples)), key)

    def __len__(self) -> int:
        return len(self.noise)

    @cached_property
    def radius(self) -> Float64:
        """`[tokens]`: Euclidean norms."""
        norms: Float64 = np.linalg.norm(self.noise, axis=1)
        return norms

    @cached_property
    def unit(self) -> Float64:
        """`[tokens, width]`: directions."""
        return self.noise / np.where(self.radius > 0, self.radius, 1.0)[:, None]

    @cached_property
    def rank(self) -> Float64:
        """`[tokens]`: how many radii of the same eta are smaller; so etas that take turns are no pattern."""
        ranks = np.empty(len(self))
        for eta in np.unique(self.etas):
            ranks[self.etas == eta] = stats.rankdata(self.radius[self.etas == eta]) / (self.etas == eta).sum()
        return ranks

    def by_eta(self) -> Iterator[tuple[float, Float64]]:
        """Each eta with its part of the noise."""
        for eta in np.unique(self.etas):
            yield float(eta), self.noise[self.etas == eta]
