"""The density that a mechanism states: its form, its normaliser, and what follows from it for draws."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
from scipy import integrate, stats

from cutlayer.core import Claim, ConfigError
from cutlayer.privacy.mechanisms import DChi, Mechanism
from cutlayer.privacy.mechanisms.mechanism import Float64, norm_of
from cutlayer.reports.conformance.check import ConformanceCheck, Tested, verdict, without_meaning
from cutlayer.reports.conformance.draws import Draws

MASS_TOLERANCE: Final = 1e-2
"""How far a density's integral may lie from 1: at a wall, where a density ends, the quadrature is off by half of it."""
RATIO_TOLERANCE: Final = 1e-6
"""Relative excess of a density ratio that counts as rounding."""
_RADII: Final = 4001
_RINGS: Final = 2001
_ANGLES: Final = 720
_SECTORS: Final = 16
_DRAWS_OF_A_CELL: Final = 10
"""Where draws are few there are fewer sectors: chi-square needs five in each."""
_REACH: Final = 50.0
"""Nats below the mode at which a density counts as zero."""
_STEP: Final = 1e-4
_SCALES: Final = np.array([0.01, 0.1, 1.0, 3.0, 10.0, 100.0])


@dataclass(frozen=True)
class Stated:
    """What a mechanism states of its noise at one width and eta.

    Attributes:
        mechanism: The mechanism.
        width: Coordinates of a row.
        eta: The privacy parameter.
    """

    mechanism: Mechanism
    width: int
    eta: float

    def log_density(self, points: Float64) -> Float64:
        """`[points]`: ln p at each row of `points` `[points, width]`."""
        return self.mechanism.log_density(points, etas=np.full(len(points), self.eta))

    @cached_property
    def is_dchi(self) -> bool:
        """Whether it states d_chi noise."""
        points = self._probes()
        own = DChi().log_density(points, etas=np.full(len(points), self.eta))
        return np.allclose(self.log_density(points), own, rtol=1e-9, atol=1e-9)

    @cached_property
    def is_spherical(self) -> bool:
        """Whether its density is a function of the norm alone, so that directions are uniform."""
        points = self._probes()
        turned = np.zeros_like(points)
        turned[:, 0] = np.linalg.norm(points, axis=1)
        return np.allclose(self.log_density(points), self.log_density(turned), rtol=1e-9, atol=1e-9)

    @cached_property
    def profile(self) -> tuple[Float64, Float64]:
        """Of a spherical density: ln of radii, and the mass below each; the last is its integral."""
        logs = self._window(np.eye(1, self.width))
        points = np.zeros((len(logs), self.width))
        points[:, 0] = np.exp(logs)
        surface = math.log(2) + self.width / 2 * math.log(math.pi) - math.lgamma(self.width / 2)
        # a normaliser so far off that its integral is no number fails as any other
        with np.errstate(over="ignore", invalid="ignore"):
            # dr = r d(ln r): radii of every size are met at the same step
            density = np.exp(self.log_density(points) + self.width * logs + surface)
            return logs, integrate.cumulative_simpson(density, x=logs, initial=0.0)

    def radial_cdf(self, radius: Float64) -> Float64:
        """Of a spherical density: the probability of a smaller radius."""
        if self.is_dchi:
            below: Float64 = stats.gamma(self.width).cdf(radius * self.eta)
            return below
        logs, mass = self.profile
        smaller: Float64 = np.interp(np.log(np.maximum(radius, 1e-300)), logs, mass / mass[-1])
        return smaller

    @cached_property
    def mass(self) -> float | None:
        """Its integral; `None` where it is not spherical and has more than two dimensions."""
        if self.is_spherical:
            return float(self.profile[1][-1])
        return float(self.polar[2].sum()) if self.width <= 2 else None

    @cached_property
    def polar(self) -> tuple[Float64, Float64, Float64]:
        """In one or two dimensions: directions as angles, ln of radii, and the mass around each pair of them."""
        if self.width == 1:
            angles, weight = np.array([0.0, math.pi]), 1.0
        else:
            angles, weight = (np.arange(_ANGLES) + 0.5) * 2 * math.pi / _ANGLES, 2 * math.pi / _ANGLES
        directions = np.stack([np.cos(angles), np.sin(angles)], axis=1)[:, : self.width]
        logs = self._window(directions)
        points = (directions[:, None, :] * np.exp(logs)[None, :, None]).reshape(-1, self.width)
        density = np.exp(self.log_density(points).reshape(len(angles), len(logs)) + self.width * logs)
        cells = 0.5 * (density[:, 1:] + density[:, :-1]) * np.diff(logs) * weight
        return angles, logs, np.concatenate([np.zeros((len(angles), 1)), cells], axis=1)

    @property
    def is_bounded(self) -> bool:
        """Whether it ends somewhere: then a derivative does not see the wall."""
        return bool(np.isneginf(self.log_density(self._probes() * 1e6)).any())

    def _probes(self) -> Float64:
        """Points of many sizes in no particular direction, the same each time."""
        rng = np.random.Generator(np.random.PCG64(self.width))  # nothing is hidden by them
        points = rng.standard_normal((8 * len(_SCALES), self.width))
        return points * np.repeat(_SCALES / self.eta, 8)[:, None]

    def _window(self, directions: Float64) -> Float64:
        """ln of the radii between which a density has its mass, along any of `directions`."""
        coarse = np.linspace(math.log(1e-12), math.log(1e12), 2000) - math.log(self.eta)
        few = directions[:: max(1, len(directions) // 8)]
        height = np.full(len(coarse), -np.inf)
        for direction in few:
            along = self.log_density(np.exp(coarse)[:, None] * direction[None, :]) + self.width * coarse
            height = np.maximum(height, along)
        inside = np.flatnonzero(height > np.nanmax(height) - _REACH)
        if not len(inside):
            raise ConfigError(
                f"Mechanism {self.mechanism.name!r} states a density that is zero, or no number, everywhere.",
                remedy="Mend its log_density.",
            )
        margin = coarse[1] - coarse[0]
        return np.linspace(
            coarse[inside[0]] - margin, coarse[inside[-1]] + margin, _RADII if len(directions) < 3 else _RINGS
        )


def check_normaliser(mechanism: Mechanism, *, etas: Sequence[float], widths: Sequence[int]) -> ConformanceCheck:
    """Whether the stated density integrates to one; by quadrature, at every width where that can be done."""
    name, asks = "normaliser", "Does the stated density integrate to one?"
    found = {
        (width, eta): mass
        for width in widths
        for eta in etas
        if (mass := Stated(mechanism, width, eta).mass) is not None
    }
    if not found:
        return without_meaning(
            name, asks, "The stated density has more than two dimensions and is not of the norm alone."
        )
    (width, eta), mass = max(found.items(), key=lambda item: _distance_from_one(item[1]))
    off = _distance_from_one(mass)
    return ConformanceCheck(
        name=name,
        asks=asks,
        statistic=off,
        bound=MASS_TOLERANCE,
        n=_RADII,
        passed=off <= MASS_TOLERANCE,
        found=f"Its integral is {mass:.6g} at width {width} and eta {eta:g}, the farthest from 1 of {len(found)}.",
    )


def _distance_from_one(mass: float) -> float:
    return abs(mass - 1) if math.isfinite(mass) else math.inf


def check_density(mechanism: Mechanism, draws: Sequence[Draws]) -> ConformanceCheck:
    """Whether draws are distributed as the mechanism states, whatever it states.

    In one and two dimensions draws are counted in cells of radius and direction. At every width
    E[d/ds ln p(s n)] = -width at s = 1 for n drawn from p (by partial integration), which any error
    of scale breaks.
    """
    tests: list[Tested] = []
    for each in draws:
        for eta, noise in each.by_eta():
            stated = Stated(mechanism, each.width, eta)
            where = f"eta {eta:g}, width {each.width}"
            if each.width <= 2:
                tests.append(_cells(stated, noise, where))
            if not stated.is_bounded:
                tests.append(_growth(stated, noise, where))
    return verdict(
        "density",
        "Are draws distributed as the stated density says?",
        tests,
        n=min(len(noise) for each in draws for _, noise in each.by_eta()),
        otherwise="The stated density ends somewhere, and there is no width below 3.",
    )


def _cells(stated: Stated, noise: Float64, where: str) -> Tested:
    """Chi-square of draws in cells of equal probability in radius, and equal angle."""
    angles, logs, mass = stated.polar
    total = mass.sum()
    below = np.cumsum(mass.sum(0)) / total
    sectors = 2 if stated.width == 1 else _SECTORS
    rings = 16 if stated.width == 1 else 8
    while sectors > 2 and sectors * rings * _DRAWS_OF_A_CELL > len(noise):
        sectors //= 2
    edges = np.interp(np.arange(1, rings) / rings, below, logs)
    ring_of_radius = np.searchsorted(edges, logs)
    sector_of_angle = (angles / (2 * math.pi) * sectors).astype(int) % sectors
    expected = np.zeros((sectors, rings))
    np.add.at(expected, (sector_of_angle[:, None], ring_of_radius[None, :]), mass / total * len(noise))
    if stated.width == 1:
        turns = np.where(noise[:, 0] < 0, 0.5, 0.0)
    else:
        turns = np.arctan2(noise[:, 1], noise[:, 0]) / (2 * math.pi) % 1.0
    ring = np.searchsorted(edges, np.log(np.maximum(np.linalg.norm(noise, axis=1), 1e-300)))
    counted = np.zeros_like(expected)
    np.add.at(counted, ((turns * sectors).astype(int) % sectors, ring), 1)
    few = expected < 5
    wanted = np.append(expected[~few], expected[few].sum())
    seen = np.append(counted[~few], counted[few].sum())
    if wanted[-1] < 5:  # too little to be counted by itself
        wanted, seen = np.append(wanted[:-2], wanted[-2:].sum()), np.append(seen[:-2], seen[-2:].sum())
    statistic = float(((seen - wanted) ** 2 / wanted).sum())
    return Tested(f"counts in cells, {where}", statistic, float(stats.chi2(len(wanted) - 1).sf(statistic)))


def _growth(stated: Stated, noise: Float64, where: str) -> Tested:
    growth = stated.log_density(noise * (1 + _STEP)) - stated.log_density(noise * (1 - _STEP))
    slope = growth / (2 * _STEP)
    what = f"growth of the density, {where}"
    if not np.ptp(slope) > 1e-6 * stated.width:
        return Tested(what, float(slope[0]), 0.0)  # no draws of noise grow alike
    test = stats.ttest_1samp(slope, -stated.width)
    return Tested(what, float(test.statistic), float(test.pvalue))


def check_ratio(
    mechanism: Mechanism, *, etas: Sequence[float], widths: Sequence[int], rng: np.random.Generator
) -> ConformanceCheck:
    """Whether the stated density keeps to the claim, exactly: |ln p(y - x) - ln p(y - x')| ≤ budget ‖x - x'‖."""
    name, asks = "ratio", "Does the stated density change by at most exp(claimed eta · distance)?"
    worst, where, points = 0.0, "", 0
    for width in widths:
        for eta in etas:
            claim = mechanism.guarantee(eta=eta, space="table", per="token")
            if claim.claim is not Claim.METRIC:
                return without_meaning(name, asks, "The mechanism claims nothing.")
            stated = Stated(mechanism, width, eta)
            noise = mechanism.noise(etas=np.full(256, eta), width=width, rng=rng)
            distance = np.exp(rng.uniform(math.log(1e-2), math.log(1e2), len(noise)))[:, None] / claim.budget
            for shift in _shifts(noise, rng, norm=norm_of(mechanism)):
                here, there = stated.log_density(noise), stated.log_density(noise + distance * shift)
                largest = float((_change(here, there) / (claim.budget * distance[:, 0])).max())
                points += len(noise)
                if largest > worst:
                    worst, where = largest, f"width {width}, eta {eta:g}"
    return ConformanceCheck(
        name=name,
        asks=asks,
        statistic=worst,
        bound=1 + RATIO_TOLERANCE,
        n=points,
        passed=worst <= 1 + RATIO_TOLERANCE,
        found=f"The largest change of {points} is {worst:.4g} of what the claim allows ({where}).",
    )


def _change(here: Float64, there: Float64) -> Float64:
    """|ln p - ln p'|; infinite where one of them is impossible, or no number."""
    with np.errstate(invalid="ignore"):
        change = np.abs(here - there)
    change[np.isneginf(here) & np.isneginf(there)] = 0.0
    return np.nan_to_num(change, nan=np.inf, posinf=np.inf)


def _shifts(noise: Float64, rng: np.random.Generator, *, norm: int) -> Iterator[Float64]:
    """Vectors of length 1 in a norm, along which densities of different norms change fastest.

    Along the noise, to its corner, along an axis, and any.
    """
    any_direction = rng.standard_normal(noise.shape)
    axis = np.zeros_like(noise)
    axis[np.arange(len(noise)), rng.integers(noise.shape[1], size=len(noise))] = 1.0
    for vectors in (noise, np.sign(noise), axis, any_direction):
        length = np.linalg.norm(vectors, ord=norm, axis=1, keepdims=True)
        yield vectors / np.where(length > 0, length, 1.0)
