"""Noise on rows, the lattice that they are rounded to, and the token that is nearest: one piece for all who need it.

A release, an attacker's own draws and measurements that release nothing do the same, and differ in where their noise
comes from: a release has streams of the customer's secret, all others a generator of their own.

Ref: SAP §4.3, eq. (3), (4).
"""

from __future__ import annotations

import torch
from torch import Tensor

from cutlayer.privacy.mechanisms import round_to_lattice
from cutlayer.privacy.mechanisms.mechanism import Float64
from cutlayer.privacy.neighbours import NeighbourSearch


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
    """What each token becomes: the candidate that is nearest to its noisy row.

    Args:
        ids: `[n]` int64.
        noise: As for `noisy_rows`, in the width of the table.
        search: Of the token-embedding table, among the candidates.
        on_lattice: As for `noisy_rows`.

    Returns:
        `[n]` int64.
    """
    return search.nearest(noisy_rows(search.table[ids], noise, on_lattice=on_lattice))
