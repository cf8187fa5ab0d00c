"""d_chi noise: the multivariate Laplace distribution of metric privacy."""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from cutlayer.core import Claim, ConfigError, Fault, Guarantee
from cutlayer.privacy.mechanisms.mechanism import MECHANISMS, Float64, Rng
from cutlayer.privacy.spec import D_CHI

LARGEST_RADIUS: Final = 2.0**28
"""Up to this expected norm fp64 is at least 2^14 times finer than the lattice at every coordinate."""
ROUNDED: Final = "Holds up to the precision of the fp64 sampler, whose sums are rounded to a fixed lattice."
"""Of noise that is added; what draws without any says how exact that is."""


def check_etas(etas: Float64, *, smallest: float, width: int) -> None:
    """Refuses etas, shape `[tokens]`, whose noise would drown the lattice, or that are no positive finite numbers.

    Raises:
        ConfigError: One is below `smallest`, or is not finite.
    """
    if not np.all(np.isfinite(etas) & (etas >= smallest)):
        raise ConfigError(
            [
                Fault(
                    "eta", float(np.min(etas)), f"must be finite and at least {smallest:.3g} for rows of width {width}"
                )
            ],
            remedy="Choose a larger eta; below this the noise is beyond the precision of the generator.",
        )


class DChi:
    """Noise of density p(n) ∝ exp(-eta ‖n‖₂) in `width` dimensions.

    Drawn as radius times direction: the radius is Gamma(shape width, scale 1 / eta), the direction
    is uniform on the sphere (a normalised standard normal vector). Each row has its own radius. The
    mean norm is width / eta.

    Public tools differ here by more than an order of magnitude for the same parameter: a radius per
    coordinate gives noise √(width / 3) times too large and a guarantee in the wrong norm, one radius
    per batch makes rows dependent.

    Ref: Feyisetan et al. 2020, §2.6, arXiv:1910.08902; SAP §4.3, eq. (3).
    """

    name = D_CHI

    def noise(self, *, etas: Float64, width: int, rng: Rng) -> Float64:
        """Independent noise, one row per token; see `Mechanism.noise`.

        Raises:
            ConfigError: An eta is not a positive finite number, or so small that the noise would
                drown the lattice.
        """
        check_etas(etas, smallest=width / LARGEST_RADIUS, width=width)
        radius = rng.standard_gamma(width, size=len(etas)) / etas
        direction = rng.standard_normal((len(etas), width))
        norm = np.sqrt(np.einsum("td,td->t", direction, direction))
        direction *= (radius / norm)[:, None]
        return direction

    def log_density(self, noise: Float64, *, etas: Float64) -> Float64:
        """ln p(n) = width ln eta + ln Γ(width/2) - ln 2 - (width/2) ln π - ln Γ(width) - eta ‖n‖."""
        width = noise.shape[1]
        constant = math.lgamma(width / 2) - math.log(2) - width / 2 * math.log(math.pi) - math.lgamma(width)
        density: Float64 = width * np.log(etas) + constant - etas * np.linalg.norm(noise, axis=1)
        return density

    def guarantee(self, *, eta: float, space: str, per: str) -> Guarantee:
        """eta d_chi-privacy, SAP §2.2, eq. (1); see `Mechanism.guarantee`."""
        return Guarantee(
            claim=Claim.METRIC,
            budget=eta,
            unit=f"1/distance in {space}",
            per=per,
            caveats=(
                f"eta is per {per}: for two texts that differ in m {per}s, m terms eta · distance add up.",
                "eta · distance is large at useful settings: this is a dial, not a small epsilon. Read it beside the "
                "worst case and the share of tokens replaced.",
                "Another release of the same text under another identity is another look: budgets add.",
                "How many tokens a text has, and where special tokens stand, is not hidden.",
                ROUNDED,
            ),
        )


MECHANISMS.add(DChi.name)(DChi())
