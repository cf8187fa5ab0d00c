"""Distances in a table: the largest, the worst case that it makes, and the name of the table they are counted in."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class WorstCase:
    """How well the vendor may tell the two tokens apart that differ most.

    Attributes:
        eta: The privacy parameter.
        distance: No two rows of the table are farther apart than this.
    """

    eta: float
    distance: float

    @property
    def exponent(self) -> float:
        """eta · distance: the odds of two tokens change by at most e to this."""
        return self.eta * self.distance

    def __str__(self) -> str:
        if math.isinf(self.eta):
            return "no privacy: eta = inf"
        return (
            f"worst case per token: e^{self.exponent:.0f} (eta {self.eta:g} x largest distance {self.distance:.2f}). "
            "This is a dial, not a small epsilon."
        )


def largest_distance(table: Tensor, norm: int = 2) -> float:
    """An upper bound of the distance, in the 1-norm or the 2-norm, of any two rows of `table` `[vocabulary, width]`.

    By the triangle inequality over the rows' mean: the two largest distances to it, added. Within a
    factor of √2 for rows that are about orthogonal, and computed in one pass instead of V².
    """
    centre = sum((rows.double().sum(0) for rows in torch.split(table, 4096)), torch.zeros(1)) / len(table)
    radii = torch.cat([(rows.double() - centre).norm(p=norm, dim=1) for rows in torch.split(table, 4096)])
    return float(radii.topk(min(2, len(radii))).values.sum())


def table_fingerprint(table: Tensor | None) -> str:
    """Hex sha256 of a table's shape, element type and bytes: it names the unit in which distances in it are counted.

    A vendor who changes other weights leaves it as it is, and with it what was drawn and what was charged.

    Args:
        table: `[vocabulary, width]`; `None` where there is none, which has an empty name.
    """
    if table is None:
        return ""
    digest = hashlib.sha256(f"{table.dtype} {list(table.shape)}\n".encode())
    digest.update(table.detach().cpu().contiguous().view(torch.uint8).numpy().data)
    return digest.hexdigest()
