"""The lattice on which noisy numbers are released."""

from __future__ import annotations

from typing import Final

from torch import Tensor

LATTICE: Final = 2.0**-10
"""Spacing of the values a vector release can take, the same for every token and every model.

A sum of floats keeps traces of its terms in the last bits: noise added in fp32 let an attacker with
the table name 60 of 60 tokens at an eta where nearest neighbour names 7 % (the support attack).
Rounded to a lattice that does not depend on the token, every token can give every output.
"""


def round_to_lattice(values: Tensor) -> Tensor:
    """Rounds fp64 `values`, `[...]`, to multiples of `LATTICE`, in place; to be called before any cast."""
    return values.mul_(1 / LATTICE).round_().mul_(LATTICE)
