"""Which texts share a batch: one way for whoever trains, so that a job is the same whoever takes its steps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import torch
from torch import Tensor

EVALUATION_POSITIONS: Final = 2**15
"""Positions of one evaluation batch, padding included, where the vendor takes as many: enough to hide headers."""
_POOL: Final = 50
"""Batches' worth of texts that are sorted by length together: a random part of a large corpus."""


def epoch_batches(lengths: Tensor, *, batch_size: int, rng: np.random.Generator, group_by_length: bool) -> list[Tensor]:
    """The batches of an epoch: a function of lengths and generator alone, so that a resume repeats them.

    Labels have no part in it: two runs that differ in labels send the same frames in the same order.

    Args:
        lengths: `[n]` positions of each text.
        batch_size: Texts per batch; the last batch holds what is left.
        rng: The epoch's generator.
        group_by_length: Batches of texts of about one length, in random order. Short phrases among
            a few long ones are mostly padding; on SST-2's phrases a step takes 0.4 of the time.

    Returns:
        Numbers of texts, each once.
    """
    order = torch.from_numpy(rng.permutation(len(lengths)))
    if not group_by_length:
        return list(order.split(batch_size))
    pools = order.split(batch_size * _POOL)
    batches = torch.cat([pool[lengths[pool].argsort(descending=True, stable=True)] for pool in pools]).split(batch_size)
    full = len(lengths) // batch_size
    return [batches[number] for number in rng.permutation(full)] + list(batches[full:])


def padded_batches(lengths: Tensor, most: int) -> Iterator[Tensor]:
    """Consecutive texts' numbers, `[batch]` int64, whose padded batch stays within `most` positions, or is one text.

    Args:
        lengths: `[n]` int64, positions of each text.
        most: Positions of a batch, padding included.
    """
    start = longest = 0
    for number, length in enumerate(lengths.tolist()):
        longest = max(longest, length)
        if number > start and longest * (number + 1 - start) > most:
            yield torch.arange(start, number)
            start, longest = number, length
    if start < len(lengths):
        yield torch.arange(start, len(lengths))
