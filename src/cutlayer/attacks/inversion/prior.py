"""What texts look like before any look at the traffic: a bigram model of the attacker's own text."""

from __future__ import annotations

import torch
from torch import Tensor

from cutlayer.core import Ragged

_DISCOUNT = 0.75
_BUCKETS = 2**23
_SPREAD = 0.1
"""Pseudo-counts that every allowed token has among the unigrams' continuations."""


class Bigram:
    """P(token | token before), by absolute discounting over Kneser-Ney continuation counts.

    p(w | v) = max(c(v, w) - D, 0) / c(v) + D · N(v) / c(v) · p(w), with N(v) the number of tokens seen
    behind v, and p(w) proportional to the number of tokens seen before w. Texts begin and end with marks
    of their own, which are no tokens.

    Args:
        texts: What it is fitted on.
        allowed: `[vocab]` bool, tokens that have a probability though they were never seen.

    Attributes:
        begin: The mark before a text's first token.
        end: The mark behind its last.
        unigram: `[vocab]` float64, ln of how often each token stands; smoothed.

    Ref: Kneser and Ney, "Improved backing-off for m-gram language modeling", ICASSP 1995.
    """

    def __init__(self, texts: Ragged, *, allowed: Tensor) -> None:
        size = len(allowed)
        self.begin, self.end = size, size + 1
        self._size = size + 2
        before, behind = _neighbours(texts, self.begin, self.end)
        self._keys, counts = (before * self._size + behind).unique(return_counts=True)
        first, second = self._keys // self._size, self._keys % self._size
        zeros = torch.zeros(self._size, dtype=torch.float64)
        ones = torch.ones(len(self._keys), dtype=torch.float64)
        total = zeros.index_add(0, first, counts.double())
        kinds = zeros.index_add(0, first, ones)
        continuations = zeros.index_add(0, second, ones)
        continuations[:size] += _SPREAD * allowed
        continuations[self.end] += _SPREAD
        self._base = continuations / continuations.sum()
        self._seen = ((counts.double() - _DISCOUNT) / total[first]).float()
        self._rest = torch.where(total > 0, _DISCOUNT * kinds / total.clamp(min=1), 1.0).float()
        self._base = self._base.float()
        # most pairs that are asked for were never seen: one look here instead of a search through all that were
        self._maybe = torch.zeros(_BUCKETS, dtype=torch.bool)
        self._maybe[_bucket(self._keys)] = True
        stand = torch.bincount(texts.values, minlength=size).double() + _SPREAD * allowed
        self.unigram = (stand / stand.sum()).log()

    def probability(self, before: Tensor, behind: Tensor) -> Tensor:
        """How probable tokens are behind others.

        Args:
            before: `[..., a, 1]` int64, tokens or the mark of a text's beginning.
            behind: `[..., 1, b]` int64, tokens or the mark of its end.

        Returns:
            `[..., a, b]` float32, P(behind | before).
        """
        found = self._rest[before] * self._base[behind]
        keys = (before * self._size + behind).flatten()
        maybe = self._maybe[_bucket(keys)].nonzero()[:, 0]
        asked = keys[maybe]
        at = torch.searchsorted(self._keys, asked).clamp_(max=len(self._keys) - 1)
        seen = self._keys[at] == asked
        found.view(-1).index_add_(0, maybe[seen], self._seen[at[seen]])
        return found


def _bucket(keys: Tensor) -> Tensor:
    return (keys ^ (keys >> 17)) & (_BUCKETS - 1)


def _neighbours(texts: Ragged, begin: int, end: int) -> tuple[Tensor, Tensor]:
    """Each token and what stands before it, and each text's end mark and its last token."""
    kept = texts.select(texts.lengths.nonzero()[:, 0])
    count = len(kept)
    shift = torch.arange(count).repeat_interleave(kept.lengths)
    behind = torch.full((len(kept.values) + count,), end)
    behind[torch.arange(len(kept.values)) + shift] = kept.values
    before = behind.roll(1)
    before[kept.offsets[:-1] + torch.arange(count)] = begin
    return before, behind
