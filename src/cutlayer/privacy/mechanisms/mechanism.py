"""What a mechanism is: noise, its density, and the promise that belongs to it."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from cutlayer.core import Guarantee, Registry

Float64 = NDArray[np.float64]


class Mechanism(Protocol):
    """Additive noise for rows of numbers, together with what it guarantees.

    The noise and the claim about it are one object, so that neither can be changed without the
    other. `tests/contract/test_mechanisms.py` runs over every registered mechanism.
    """

    @property
    def name(self) -> str:
        """Its name in the registry, in ledgers and reports."""
        ...

    def noise(self, *, etas: Float64, width: int, rng: np.random.Generator) -> Float64:
        """Independent noise, one row per token.

        Args:
            etas: `[tokens]`, the privacy parameter of each token.
            width: Coordinates per row.
            rng: A cryptographically secure generator; there is no default.

        Returns:
            `[tokens, width]` float64.
        """
        ...

    def log_density(self, noise: Float64, *, etas: Float64) -> Float64:
        """ln of the density at each row of `noise` `[tokens, width]`, normaliser included."""
        ...

    def guarantee(self, *, eta: float, space: str, per: str) -> Guarantee:
        """What one release promises when every row has the same `eta`.

        Args:
            eta: The privacy parameter.
            space: In which space distances are measured, for example `table sha256:ab12…`.
            per: What one eta covers: `token` or `row`.
        """
        ...


MECHANISMS: Registry[Mechanism] = Registry("mechanism")
"""Closed on purpose: a part that mints a guarantee is added here, with its tests, or not at all."""
