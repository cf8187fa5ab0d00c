"""A certified lower bound of the privacy loss, from draws alone.

What draws show can only refute a claim: an event that was not looked at may show more. And an event
of odds e^t is seen only in about e^t draws, so the bound is tight where eta · distance is near 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
from scipy import stats

from cutlayer.core import Claim
from cutlayer.privacy.mechanisms import LATTICE, Mechanism
from cutlayer.privacy.mechanisms.mechanism import Float64, least_width_of, norm_of
from cutlayer.reports.conformance.check import ALPHA, ConformanceCheck, without_meaning
from cutlayer.reports.conformance.density import Stated
from cutlayer.reports.conformance.draws import Draws

LOSS_WIDTHS: Final = (1, 2, 4)
"""Widths at which the loss is looked for: the larger, the rarer are the outputs that show it."""
_GRID: Final = np.linspace(0.005, 0.995, 199)

Event = Callable[[Float64], Float64]
"""`[draws]` for outputs `[draws, width]`: the event is that it exceeds a threshold."""


def check_privacy_loss(
    mechanism: Mechanism, *, samples: int, rng: np.random.Generator, widths: Sequence[int] = LOSS_WIDTHS
) -> ConformanceCheck:
    """Whether some event is more telling than the claim allows, at claimed eta · distance = 1.

    Two inputs at that distance are released as they would be, rounded to the lattice. Several
    statistics of the output are tried as events {statistic ≥ T}: T is chosen on one half of the
    draws, and on the other half both probabilities are bounded after Clopper and Pearson, so that
    all bounds of this check together are wrong with probability `ALPHA` at most.

    Args:
        mechanism: The mechanism.
        samples: Draws for each of two inputs, at each width and in each direction; 0: it is not asked.
        rng: Gives keys.
        widths: Coordinates of a row.
    """
    name, asks = "privacy loss", "Does any event tell two inputs apart better than exp(claimed eta · distance) allows?"
    claim = mechanism.guarantee(eta=1.0, space="table", per="token")
    if claim.claim is not Claim.METRIC:
        return without_meaning(name, asks, "The mechanism claims nothing.")
    if not samples:
        return without_meaning(name, asks, "It was not asked.")
    best: dict[int, float] = {}
    widths = [width for width in widths if width >= least_width_of(mechanism)]
    for width in widths:
        steps = _steps(width, 1 / claim.budget, norm=norm_of(mechanism))
        for step in steps:
            here, there = (
                Draws.of(mechanism, width=width, etas=[1.0], samples=samples, rng=rng).noise + shift
                for shift in (np.zeros(width), step)
            )
            # as they are released: the last bits of a float would give an input away
            outputs = [np.rint(rows / LATTICE) * LATTICE for rows in (here, there)]
            events = _events(Stated(mechanism, width, 1.0), step)
            # each event from above and from below, with either input as the likelier, and two bounds each
            alpha = ALPHA / (len(widths) * len(steps) * len(events) * 2 * 2 * 2)
            for event in events:
                with np.errstate(invalid="ignore"):  # two outputs that are impossible both
                    first, second = (np.nan_to_num(event(rows)) for rows in outputs)
                best[width] = max(best.get(width, 0.0), _certified(first, second, alpha=alpha))
    largest = max(best.values())
    listed = ", ".join(f"{loss:.2f} at width {width}" for width, loss in best.items())
    relation = "no more" if largest <= 1 else "more"
    return ConformanceCheck(
        name=name,
        asks=asks,
        statistic=largest,
        bound=1.0,
        n=samples,
        passed=largest <= 1,
        found=f"Certified: a loss of at least {listed}; {relation} than the 1 that is claimed.",
    )


def _steps(width: int, distance: float, *, norm: int) -> list[Float64]:
    """From one input to the other: along an axis, and along the diagonal, where a claim in another norm breaks."""
    axis = np.zeros(width)
    axis[0] = distance
    return [axis] if width == 1 else [axis, np.full(width, distance / width ** (1 / norm))]


def _events(stated: Stated, step: Float64) -> tuple[Event, ...]:
    return (
        lambda rows: np.linalg.norm(rows - step, axis=1) - np.linalg.norm(rows, axis=1),  # d_chi's likelihood ratio
        lambda rows: stated.log_density(rows) - stated.log_density(rows - step),  # the stated one
        lambda rows: np.linalg.norm(rows, axis=1),  # the centre of the noise
        lambda rows: np.abs(rows).max(1),  # a wall of its support
        lambda rows: rows @ step,
    )


def _certified(first: Float64, second: Float64, *, alpha: float) -> float:
    """A lower bound of |ln(P / P')| for the events {value ≥ T} and {value ≤ T}.

    Each time T is chosen on the half of the draws that is not counted.
    """
    half = len(first) // 2
    chosen = [np.sort(values[:half]) for values in (first, second)]
    # quantiles of both, without a third sort
    grid = np.concatenate([values[(_GRID * (half - 1)).astype(int)] for values in chosen])
    above = [half - np.searchsorted(values, grid, side="left") + 0.5 for values in chosen]
    below = [np.searchsorted(values, grid, side="right") + 0.5 for values in chosen]
    best = 0.0
    for hits, holds in ((above, np.greater_equal), (below, np.less_equal)):
        # near enough to the bounds for a choice
        spread = stats.norm.isf(alpha) * np.sqrt(1 / hits[0] + 1 / hits[1])
        ratio = np.log(hits[0] / hits[1])
        for likelier, other, promise in ((first, second, ratio - spread), (second, first, -ratio - spread)):
            threshold = grid[int(np.argmax(promise))]
            often, seldom = (int(holds(values[half:], threshold).sum()) for values in (likelier, other))
            best = max(best, _log_ratio(often, seldom, len(first) - half, alpha=alpha))
    return best


def _log_ratio(often: int, seldom: int, n: int, *, alpha: float) -> float:
    """ln of Clopper and Pearson's lower bound of one probability over the upper bound of another."""
    low = float(stats.beta.ppf(alpha, often, n - often + 1)) if often else 0.0
    high = float(stats.beta.isf(alpha, seldom + 1, n - seldom)) if seldom < n else 1.0
    return math.log(low / high) if low > 0 else -math.inf
