"""Checkers of noise: each takes a sampler, and must pass the true one and fail a planted wrong one.

A sampler is called like `Mechanism.noise`. All tests are two-sided at `ALPHA`, so that a run of the
whole suite fails by chance less than once in ten thousand; seeds are fixed besides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from cutlayer.privacy import LATTICE, generator

Array = NDArray[np.float64]
Sampler = Callable[..., Array]
"""noise(*, etas [n], width, rng) -> [n, width]"""

ALPHA = 1e-6
WIDTHS = (1, 2, 3, 8, 384)


def stream(number: int) -> np.random.Generator:
    """A generator for tests: fixed, and another for each number."""
    return generator(number.to_bytes(16, "little"))


def failures(sampler: Sampler, *, n: int = 4000) -> list[str]:
    """Names of the distribution checks that the sampler fails, over all widths."""
    failed = []
    for width in WIDTHS:
        for name, p in p_values(sampler, width=width, n=n):
            if not p >= ALPHA:
                failed.append(f"{name} at width {width}: p = {p:.1e}")
    return failed


def p_values(sampler: Sampler, *, width: int, n: int) -> Iterator[tuple[str, float]]:
    """Radius, direction and independence of `n` draws against the closed forms."""
    rng = stream(1000 + width)
    etas = np.where(np.arange(n) % 2, 3.0, 50.0)  # each token has its own parameter
    noise = sampler(etas=etas, width=width, rng=rng)
    radius = np.linalg.norm(noise, axis=1) * etas
    yield "radius (Kolmogorov-Smirnov)", stats.kstest(radius, stats.gamma(width).cdf).pvalue
    yield "radius, eta 3", stats.kstest(radius[1::2], stats.gamma(width).cdf).pvalue
    yield "radius, eta 50", stats.kstest(radius[::2], stats.gamma(width).cdf).pvalue
    yield "repeated rows", float(len(np.unique(noise, axis=0)) == n)
    yield "radius of neighbours", stats.kendalltau(radius[:-1], radius[1:]).pvalue if np.ptp(radius) > 0 else 0.0
    if width == 1:
        yield "sign", stats.binomtest(int((noise[:, 0] > 0).sum()), n).pvalue
        return
    unit = noise / np.linalg.norm(noise, axis=1, keepdims=True)
    fixed = stream(7).standard_normal(width)
    fixed /= np.linalg.norm(fixed)
    cosine = stats.beta((width - 1) / 2, (width - 1) / 2).cdf
    yield "mean direction (Rayleigh)", stats.chi2(width).sf(n * width * float((unit.mean(0) ** 2).sum()))
    yield "mean direction, other side", stats.chi2(width).cdf(n * width * float((unit.mean(0) ** 2).sum()))
    scatter = unit.T @ unit / n
    freedom = (width - 1) * (width + 2) / 2
    bingham = n * width * (width + 2) / 2 * (float((scatter**2).sum()) - 1 / width)
    yield "axes (Bingham)", stats.chi2(freedom).sf(bingham)
    yield "axes, other side", stats.chi2(freedom).cdf(bingham)
    yield "cosine with a fixed vector", stats.kstest((1 + unit @ fixed) / 2, cosine).pvalue
    yield "cosine with an axis", stats.kstest((1 + unit[:, 0]) / 2, cosine).pvalue
    yield "cosine of neighbours", stats.kstest((1 + (unit[::2] * unit[1::2]).sum(1)) / 2, cosine).pvalue
    yield "cosine of halves", stats.kstest((1 + (unit[: n // 2] * unit[n // 2 :]).sum(1)) / 2, cosine).pvalue
    fourth = (unit**4).sum(1)
    yield "fourth moment", stats.ttest_1samp(fourth, 3 / (width + 2)).pvalue if width > 2 else 1.0
    yield "radius against direction", stats.kendalltau(radius, unit @ fixed).pvalue if np.ptp(radius) > 0 else 0.0


def privacy_loss_bound(sampler: Sampler, *, width: int, n: int) -> float:
    """A certified lower bound of the privacy loss at eta · distance = 1; at most 1 for true noise.

    Looks for the event {log-likelihood ratio above t}, chosen on one half of the draws, and bounds
    its two probabilities by Clopper and Pearson at `ALPHA` on the other half.
    """
    step = np.zeros(width)
    step[0] = 1.0
    rng = stream(2000 + width)
    ones = np.ones(n)
    here, there = (sampler(etas=ones, width=width, rng=rng) for _ in range(2))
    # of two inputs at distance 1, on the lattice as they are released: the last bits of a float give it away
    outputs = np.rint(here / LATTICE) * LATTICE, np.rint((there + step) / LATTICE) * LATTICE
    events = (
        lambda y: np.linalg.norm(y - step, axis=1) - np.linalg.norm(y, axis=1),  # the likelihood ratio
        lambda y: np.linalg.norm(y, axis=1),  # the noise's centre
        lambda y: np.abs(y).max(1),  # a wall of its support
    )
    cells = [tuple(event(output) for output in outputs) for event in events]
    half, best = n // 2, 0.0
    for first, second in cells:
        for a, b in ((first, second), (second, first)):
            for sign in (1, -1):
                best = max(best, _certified(sign * a, sign * b, half))
    return best


def _certified(often: Array, seldom: Array, half: int) -> float:
    grid = np.quantile(np.concatenate([often[:half], seldom[:half]]), np.linspace(0.005, 0.995, 199))
    hits = [((often[:half] >= t).sum(), (seldom[:half] >= t).sum()) for t in grid]
    threshold = grid[int(np.argmax([_log_ratio(k, m, half) for k, m in hits]))]
    return _log_ratio(
        int((often[half:] >= threshold).sum()), int((seldom[half:] >= threshold).sum()), len(often) - half
    )


def _log_ratio(often: int, seldom: int, n: int) -> float:
    low = stats.beta.ppf(ALPHA, often, n - often + 1) if often else 0.0
    high = stats.beta.ppf(1 - ALPHA, seldom + 1, n - seldom) if seldom < n else 1.0
    return float(np.log(low / high)) if low > 0 else -np.inf


def tokens_named_by_their_floats(outputs: Array, table: Array, truth: NDArray[np.int64]) -> int:
    """How many fp32 outputs only their true token could have produced, if fp32 sums were released.

    The support attack: keeps the tokens with fl(row + fl(output - row)) == output in all coordinates.
    """
    rows, named = table.astype(np.float32), 0
    for output, token in zip(outputs.astype(np.float32), truth, strict=True):
        possible = np.flatnonzero((rows + (output - rows) == output).all(1))
        named += possible.tolist() == [token]
    return named


def off_lattice(outputs: Array, spacing: float) -> int:
    """How many numbers are no multiples of `spacing`."""
    scaled = outputs / spacing
    return int((scaled != np.rint(scaled)).sum())


def shared_rows(parts: list[Array]) -> int:
    """How many rows of noise occur in more than one part (process, thread, text), or twice in one."""
    rows = np.concatenate(parts)
    return len(rows) - len(np.unique(rows, axis=0))
