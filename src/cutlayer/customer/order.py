"""Which texts a training step sees."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

_POOL: Final = 50
"""Batches' worth of texts that are sorted by length together: a random part of a large corpus."""


def epoch_batches(lengths: Tensor, *, batch_size: int, seed: int, epoch: int, group_by_length: bool) -> list[Tensor]:
    """The batches of an epoch: a function of lengths and seed alone, so that a resume repeats them.

    Labels have no part in it: two runs that differ in labels send the same frames in the same order.

    Args:
        lengths: `[n]` positions of each text.
        batch_size: Texts per batch; the last batch holds what is left.
        seed: The run's seed.
        epoch: The epoch, from 0.
        group_by_length: Batches of texts of about one length, in random order. Short phrases among
            a few long ones are mostly padding; on SST-2's phrases a step takes 0.4 of the time.

    Returns:
        Numbers of texts, each once.
    """
    generator = torch.Generator().manual_seed((seed * 1_000_003 + epoch) % 2**63)
    order = torch.randperm(len(lengths), generator=generator)
    if not group_by_length:
        return list(order.split(batch_size))
    pools = order.split(batch_size * _POOL)
    batches = torch.cat([pool[lengths[pool].argsort(descending=True, stable=True)] for pool in pools]).split(batch_size)
    full = len(lengths) // batch_size
    shuffled = torch.randperm(full, generator=generator).tolist()
    return [batches[number] for number in shuffled] + list(batches[full:])
