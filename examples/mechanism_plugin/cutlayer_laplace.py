"""A mechanism in one file: independent Laplace noise on each coordinate.

Laplace noise of scale b bounds the privacy loss by ‖x - x'‖₁ / b. A mechanism promises in Euclidean
distances, and ‖v‖₁ ≤ √width ‖v‖₂, so b = √width / eta gives the promise of d_chi noise at the same
eta; with b = 1 / eta, as public code has it, the promise is √width times weaker than it looks. The
price: its root mean square norm is √2 · width / eta, √2 times d_chi noise's.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from cutlayer.core import Claim, Guarantee

Float64 = NDArray[np.float64]


class Laplace:
    """Noise of density ∏ eta / (2√width) · exp(-eta |nᵢ| / √width)."""

    name = "laplace"

    def noise(self, *, etas: Float64, width: int, rng: np.random.Generator) -> Float64:
        """Independent rows `[tokens, width]`, in float64, all of them from `rng`."""
        noise: Float64 = rng.laplace(size=(len(etas), width)) * (np.sqrt(width) / etas)[:, None]
        return noise

    def log_density(self, noise: Float64, *, etas: Float64) -> Float64:
        """ln of the density at each row of `noise` `[tokens, width]`, normaliser included."""
        width = noise.shape[1]
        rate = etas / np.sqrt(width)
        density: Float64 = width * np.log(rate / 2) - rate * np.abs(noise).sum(axis=1)
        return density

    def guarantee(self, *, eta: float, space: str, per: str) -> Guarantee:
        """The loss is at most eta times the Euclidean distance; cutlayer shows it as this package's claim."""
        return Guarantee(claim=Claim.METRIC, budget=eta, unit=f"1/distance in {space}", per=per)


LAPLACE = Laplace()
