"""The noise that SnD's released code draws: other noise than its paper's, with a promise in another distance."""

from __future__ import annotations

import math
from functools import cache
from typing import Final

import numpy as np
from scipy import special

from cutlayer.core import Claim, ConfigError, Fault, Guarantee
from cutlayer.privacy.mechanisms.dchi import LARGEST_RADIUS, ROUNDED, check_etas
from cutlayer.privacy.mechanisms.mechanism import MECHANISMS, Float64, Rng

SND_CODE: Final = "snd-code"
_TINY: Final = 1e-200
"""Probabilities from which on the continued fraction is used: floats end soon below."""
_TERMS: Final = 200


class SndCode:
    """Noise whose coordinates are independent: each is a Gamma radius of its own, times a uniform number in (-1, 1).

    n_i = G_i · U_i,  G_i ~ Gamma(shape width, scale 1 / eta)
    p(n) = ∏ eta / (2 (width - 1)) · Pr[Gamma(width - 1, scale 1 / eta) > |n_i|]

    The hazard rate of a Gamma distribution of shape 1 or more never exceeds eta, so that a step of |Δ| in one
    coordinate changes p by at most e^(eta |Δ|): eta times the *L1* distance. In Euclidean distances that is √width
    times as much, and the noise is √(width / 3) times as long as d_chi noise of the same number. At width 1 its density
    has no bound at 0.

    Ref: github.com/NusIoraPrivacy/eaas-privacy, data/load_data.py, `sample_noise_Chi`; the derivation is ours.
    """

    name = SND_CODE
    norm = 1
    least_width = 2

    def noise(self, *, etas: Float64, width: int, rng: Rng) -> Float64:
        """Independent noise, one row per token; see `Mechanism.noise`.

        Raises:
            ConfigError: An eta is not a positive finite number, or so small that the noise would drown the lattice; or
                rows have a single coordinate.
        """
        if width < self.least_width:
            raise ConfigError([Fault("width", width, f"must be at least {self.least_width} for noise {self.name}")])
        check_etas(etas, smallest=width * math.sqrt(width) / LARGEST_RADIUS, width=width)
        drawn = np.empty((len(etas), width))
        for coordinate in range(width):
            drawn[:, coordinate] = rng.standard_gamma(width, size=len(etas)) / etas
        for coordinate in range(width):
            drawn[:, coordinate] *= 1 - 2 * rng.random(len(etas))
        return drawn

    def log_density(self, noise: Float64, *, etas: Float64) -> Float64:
        """See `Mechanism.log_density`; `noise` is `[tokens, width]`."""
        width = noise.shape[1]
        if width < self.least_width:
            raise ConfigError([Fault("width", width, f"must be at least {self.least_width} for noise {self.name}")])
        above = log_survival(width - 1, np.abs(noise) * etas[:, None]).sum(1)
        density: Float64 = width * (np.log(etas) - math.log(2 * (width - 1))) + above
        return density

    def guarantee(self, *, eta: float, space: str, per: str) -> Guarantee:
        """Eta times the L1 distance; see `Mechanism.guarantee`."""
        return Guarantee(
            claim=Claim.METRIC,
            budget=eta,
            unit=f"1/L1 distance in {space}",
            per=per,
            caveats=(
                f"Distances are sums of absolute differences of coordinates. eta is per {per}: for two texts that "
                f"differ in m {per}s, m terms eta · L1 distance add up.",
                "eta · L1 distance is far larger than eta · Euclidean distance: this is a dial, not a small epsilon. "
                "Its etas are never added to those of other noise, and do not compare with them.",
                "Another release of the same text under another identity is another look: budgets add.",
                "How many tokens a text has, and where special tokens stand, is not hidden.",
                ROUNDED,
            ),
        )


def log_survival(shape: int, x: Float64) -> Float64:
    """ln Pr[Gamma(shape, scale 1) > x] to 1e-8, for x >= 0 of any size.

    An attacker asks for a coordinate of each candidate: up to 8 times the shape it comes from a table, by cubics that
    have the function's values and slopes at both ends, which takes a seventeenth of the time of the special function.
    """
    step, cubics = _tabulated(shape)
    place = x / step
    near = place < len(cubics[0])
    if not near.all():
        found: Float64 = np.empty_like(x)
        found[near] = log_survival(shape, x[near])
        found[~near] = _log_survival(shape, x[~near])
        return found
    cell = place.astype(np.intp)
    place -= cell
    found = cubics[0][cell]
    for cubic in cubics[1:]:
        found *= place
        found += cubic[cell]
    return found


@cache
def _tabulated(shape: int) -> tuple[float, tuple[Float64, ...]]:
    """The table's step, and its cells' coefficients, the highest power's first: Hermite's cubics."""
    step = math.sqrt(shape) / 64
    ends = np.arange(0, 8 * shape + 64, step)
    value = _log_survival(shape, ends)
    slope = -np.exp(special.xlogy(shape - 1, ends) - ends - special.gammaln(shape) - value) * step  # the hazard
    rise = np.diff(value)
    return step, (
        slope[:-1] + slope[1:] - 2 * rise,
        3 * rise - 2 * slope[:-1] - slope[1:],
        slope[:-1],
        value[:-1],
    )


def _log_survival(shape: int, x: Float64) -> Float64:
    tail = special.gammaincc(shape, x)
    found: Float64 = np.log(np.maximum(tail, _TINY))
    far = tail < _TINY
    if far.any():
        found[far] = _log_tail(shape, x[far])
    return found


def _log_tail(shape: int, x: Float64) -> Float64:
    """The same function far out, x > shape + 1, by Legendre's continued fraction (Lentz's algorithm)."""
    b = x + 1 - shape
    c, d = np.full_like(x, 1e300), 1 / b
    h = d.copy()
    for term in range(1, _TERMS):
        factor = -term * (term - shape)
        b = b + 2
        d = 1 / (factor * d + b)
        c = b + factor / c
        step = c * d
        h *= step
        if np.all(np.abs(step - 1) < 1e-15):
            break
    tail: Float64 = shape * np.log(x) - x - special.gammaln(shape) + np.log(h)
    return tail


MECHANISMS.add(SndCode.name)(SndCode())
