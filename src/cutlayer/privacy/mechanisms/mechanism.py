"""What a mechanism is: noise, its density, and the promise that belongs to it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from cutlayer.core import Guarantee, Registry

if TYPE_CHECKING:
    from cutlayer.privacy.randomness import Streams

Float64 = NDArray[np.float64]
Rng: TypeAlias = "np.random.Generator | Streams"
"""Where noise comes from: one secure generator for all rows, or a stream for each."""


class Mechanism(Protocol):
    """Additive noise for rows of numbers, together with what it guarantees.

    The noise and the claim about it are one object, so that neither can be changed without the
    other. `tests/contract/test_mechanisms.py` runs over every registered mechanism, and
    `cutlayer conformance` over any, a plug-in included. A mechanism whose promise is in L1 distances has a `norm` of 1,
    one that promises nothing of narrow rows a `least_width`.
    """

    @property
    def name(self) -> str:
        """Its name in the registry, in ledgers and reports."""
        ...

    def noise(self, *, etas: Float64, width: int, rng: Rng) -> Float64:
        """Independent noise, one row per token.

        Args:
            etas: `[tokens]`, the privacy parameter of each token.
            width: Coordinates per row.
            rng: Cryptographically secure; there is no default. All noise comes from it: a token's draw is made again
                from its key. A plug-in gets a numpy generator, in releases one for each row, which it is then asked
                for by itself.

        Returns:
            `[tokens, width]` float64, the same for the same state of the generator.
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


def norm_of(mechanism: Mechanism) -> int:
    """The norm of the distances in a mechanism's promise: 2, unless it has a `norm` of 1."""
    return int(getattr(mechanism, "norm", 2))


def least_width_of(mechanism: Mechanism) -> int:
    """Coordinates of a row at least: with fewer than its `least_width` a mechanism promises nothing."""
    return int(getattr(mechanism, "least_width", 1))


MECHANISMS: Registry[Mechanism] = Registry(
    "mechanism", package="cutlayer.privacy.mechanisms", plugins="cutlayer.mechanisms"
)
"""An installed package names further mechanisms under the entry points `cutlayer.mechanisms`.

Closed to claims: what cutlayer itself promises is added here, with its tests. Take a mechanism from
`find_mechanism`, which marks what another package promises as that package's.
"""
