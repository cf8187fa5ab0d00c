"""Seeds of an alignment: pairs of places where one token alone makes it likely that both are of one original.

Ref: Altschul et al., BLAST, 1990.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

_SEED = math.log(50.0)
"""The least that a pair of places must tell for being related, to be a seed."""
_UNSURE = math.log(0.05)
"""A token that is less probable in a place is not looked up for it."""
_JOINS = 2**23
"""Pairs of places that are looked up at a time: tokens that stand at too many of them are no seeds."""


def seeds(
    known: NDArray[np.int64],
    sure: NDArray[np.float32],
    asked: NDArray[np.int64],
    told: NDArray[np.float32],
    *,
    before: NDArray[np.int64],
    here: NDArray[np.int64],
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]:
    """Pairs of an earlier and a later place that a token makes a seed, and what it tells.

    Args:
        known: `[originals, k]`, likeliest tokens.
        sure: `[originals, k]`, ln of how probable each is.
        asked: `[places, k]`, tokens that explain a place best.
        told: `[places, k]`, ln of how much more probable each makes it.
        before: `[originals]`, their first places.
        here: `[places]`, ascending.
    """
    # what no partner makes a seed is not looked up
    kept = (sure.ravel() >= _UNSURE).nonzero()[0]
    order = kept[np.argsort(known.ravel()[kept], kind="stable")]
    token, sure = known.ravel()[order], sure.ravel()[order]
    place = np.repeat(before, known.shape[1])[order]
    low, high = np.searchsorted(token, asked.ravel(), "left"), np.searchsorted(token, asked.ravel(), "right")
    count = np.where(told.ravel() >= _SEED, high - low, 0)
    # the commonest tokens are left out where looking all up would be too much
    by_size = np.argsort(count, kind="stable")
    kept = np.sort(by_size[: np.searchsorted(np.cumsum(count[by_size]), _JOINS, "right")])
    query = np.repeat(kept, count[kept])
    ends = np.cumsum(count[kept])
    item = np.arange(len(query)) - np.repeat(ends - count[kept], count[kept]) + low[query]
    vote = sure[item] + told.ravel()[query]
    left, right = place[item], here[query // asked.shape[1]]
    good = (vote >= _SEED) & (left < right)
    return left[good], right[good], vote[good]


def summed(keys: NDArray[np.int64], values: NDArray[np.float32]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Each key once, with the sum of its values."""
    found, inverse = np.unique(keys, return_inverse=True)
    return found, np.bincount(inverse, weights=values, minlength=len(found)).astype(np.float64)
