"""Noise on rows, the lattice that they are rounded to, and the token that is nearest: one piece for all who need it.

A release, an attacker's own draws and measurements that release nothing do the same, and differ in where their noise
comes from: a release has streams of the customer's secret, all others a generator of their own.

Ref: SAP §4.3, eq. (3), (4).
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from cutlayer.privacy.mechanisms import round_to_lattice
from cutlayer.privacy.mechanisms.mechanism import Float64
from cutlayer.privacy.neighbours import NeighbourSearch

CLEAR: Final = -1
"""The group of words that leave as they are."""


def noisy_rows(rows: Tensor, noise: Float64 | Tensor, *, on_lattice: bool = True) -> Tensor:
    """Rows with noise, added in float64.

    Args:
        rows: `[n, width]`, of any floating type.
        noise: `[n, width]` float64, as `Mechanism.noise` returns it.
        on_lattice: Whether they are rounded to multiples of `LATTICE`, as all that is released is. Rows that nobody
            sees need not be.

    Returns:
        `[n, width]` float64; neither argument is changed.
    """
    sums = torch.add(rows.detach(), torch.as_tensor(noise))
    return round_to_lattice(sums) if on_lattice else sums


def replacements(ids: Tensor, noise: Float64 | Tensor, search: NeighbourSearch, *, on_lattice: bool = True) -> Tensor:
    """What each token becomes: the candidate that is nearest to its noisy row, of its group where there are groups.

    Args:
        ids: `[n]` int64; where there are groups, none of those that leave as they are (`drawn`).
        noise: As for `noisy_rows`, in the width of the table.
        search: Of the token-embedding table, among the candidates.
        on_lattice: As for `noisy_rows`.

    Returns:
        `[n]` int64.
    """
    rows = noisy_rows(search.table[ids], noise, on_lattice=on_lattice)
    return search.nearest(rows, None if search.groups is None else search.groups[ids])


def drawn(ids: Tensor, search: NeighbourSearch) -> Tensor:
    """`[n]` bool: which of these tokens are drawn at all; those of group `CLEAR` leave as they are."""
    return torch.ones_like(ids, dtype=torch.bool) if search.groups is None else search.groups[ids] != CLEAR
