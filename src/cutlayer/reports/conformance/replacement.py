"""How many tokens text-to-text privatization replaces, over eta, in one model's table."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from cutlayer.privacy import NeighbourSearch
from cutlayer.privacy.mechanisms import Mechanism
from cutlayer.privacy.replacement import replacements
from cutlayer.reports.conformance.check import ALPHA, ConformanceCheck, Replacement, without_meaning
from cutlayer.reports.conformance.draws import Draws
from cutlayer.reports.schema import Interval

SAMPLE_TOKENS: Final = 1536
LENGTHS: Final = tuple(2 ** (step / 2) for step in range(8, -1, -1))
"""Noise this many times as long as a row: from where most tokens are replaced to where few are."""
_TAIL: Final = 0.025
_NAME: Final = "replacement"
_ASKS: Final = "Are fewer tokens replaced as eta grows?"


@dataclass(frozen=True, eq=False)
class TokenSample:
    """Tokens on which the share that is replaced is measured.

    Attributes:
        search: Nearest neighbours in the model's table.
        ids: `[n]`: tokens of texts.
    """

    search: NeighbourSearch
    ids: Tensor


def replacement_etas(mechanism: Mechanism, table: Tensor, rng: np.random.Generator) -> tuple[float, ...]:
    """Etas from noise sixteen times as long as a row of `table` `[vocabulary, width]` to noise as long as one.

    From the noise that the mechanism draws at eta 1, as if it shrank in proportion. No eta compares over
    tables or mechanisms, but this does.
    """
    drawn = Draws.of(mechanism, width=table.shape[1], etas=[1.0], samples=256, rng=rng)
    as_long = float(np.median(drawn.radius)) / float(table.double().norm(dim=1).mean())
    return tuple(float(f"{as_long / times:.3g}") for times in LENGTHS)


def replacement_curve(mechanism: Mechanism, tokens: TokenSample, *, rng: np.random.Generator) -> Iterator[Replacement]:
    """The share of tokens that come out as another, eta by eta, by exact search and on the lattice, as they leave.

    Nothing is released.

    Args:
        mechanism: Whose noise.
        tokens: Of which `SAMPLE_TOKENS` are drawn at most.
        rng: Draws them, and gives keys of generators.
    """
    ids = tokens.ids[torch.from_numpy(rng.permutation(len(tokens.ids))[:SAMPLE_TOKENS])]
    table = tokens.search.table
    for eta in replacement_etas(mechanism, table, rng):
        drawn = Draws.of(mechanism, width=table.shape[1], etas=[eta], samples=len(ids), rng=rng)
        found = replacements(ids, drawn.noise, tokens.search)
        replaced = int((found != ids).sum())
        yield Replacement(eta=eta, replaced=replaced / len(ids), ci=interval(replaced, len(ids)), n=len(ids))


def interval(successes: int, n: int) -> Interval:
    """The 95 % interval of a share, after Clopper and Pearson."""
    low = float(stats.beta.ppf(_TAIL, successes, n - successes + 1)) if successes else 0.0
    high = float(stats.beta.ppf(1 - _TAIL, successes + 1, n - successes)) if successes < n else 1.0
    return low, high


def check_replacement(curve: Sequence[Replacement]) -> ConformanceCheck:
    """Whether the share falls from the smallest eta to the largest, and nowhere rises but by chance."""
    if len(curve) < 2:
        return without_meaning(_NAME, _ASKS, "No embedding table was given.")
    ordered = sorted(curve, key=lambda point: point.eta)
    first, last = ordered[0], ordered[-1]
    fell = _rises(last, first) < ALPHA
    # one more than they are, so that pairs share what may go wrong by chance
    rises = [pair for pair in pairwise(ordered) if _rises(*pair) * len(ordered) < ALPHA]
    where = "; ".join(f"it rises from eta {a.eta:g} to {b.eta:g}" for a, b in rises) or "it rises nowhere"
    return ConformanceCheck(
        name=_NAME,
        asks=_ASKS,
        statistic=first.replaced - last.replaced,
        n=first.n,
        passed=fell and not rises,
        found=f"From {100 * first.replaced:.1f} % at eta {first.eta:g} to {100 * last.replaced:.1f} % at "
        f"{last.eta:g}; {where}.",
    )


def _rises(left: Replacement, right: Replacement) -> float:
    """How probable as much of a rise is if both shares are the same: Fisher's exact test, one-sided."""
    a, b = (round(point.replaced * point.n) for point in (left, right))
    p = stats.fisher_exact([[b, right.n - b], [a, left.n - a]], alternative="greater").pvalue
    return float(p) if math.isfinite(p) else 1.0
