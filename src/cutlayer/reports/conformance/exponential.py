"""The exponential mechanism, which draws words without noise: its probabilities and draws, exactly."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import torch
from torch import Tensor

from cutlayer.privacy import NeighbourSearch
from cutlayer.privacy.mechanisms import MECHANISMS, Mechanism
from cutlayer.privacy.mechanisms.mechanism import Float64
from cutlayer.privacy.replacement import Exponential
from cutlayer.privacy.spec import D_CHI
from cutlayer.reports.conformance.check import ConformanceCheck, without_meaning
from cutlayer.reports.conformance.density import RATIO_TOLERANCE

_NAME: Final = "exponential draw"
_ASKS: Final = "Does --draw exponential draw as it states, and change by at most exp(claimed eta · distance)?"
_FARTHEST: Final = 1e100
"""Distances of words whose squares float64 still holds."""
_EVEN: Final = 1000
"""Evenly spaced numbers that are drawn from: how many become a word is then known to one."""


def check_exponential(mechanism: Mechanism, *, etas: Sequence[float]) -> ConformanceCheck:
    """Whether Pr[w → w'] ∝ exp(-eta · d(w, w') / 2) within w's group, and |ln Pr[w → v] - ln Pr[w' → v]| ≤ budget · d.

    Nothing is left to chance: words are made up, the same each time, and are drawn from numbers that lie evenly.

    Args:
        mechanism: This package's d_chi, whose promise the draw makes; of others this is not asked.
        etas: Privacy parameters.
    """
    if mechanism is not MECHANISMS[D_CHI]:
        return without_meaning(_NAME, _ASKS, "That draw is cutlayer's own, and adds no noise.")
    asked = [eta for eta in etas if 1 / _FARTHEST <= eta <= _FARTHEST]
    if not asked:
        return without_meaning(_NAME, _ASKS, "At such etas float64 cannot tell words' distances.")
    worst, pairs, wrong = 0.0, 0, []
    for eta in asked:
        search, groups = _words(eta)
        distance = torch.cdist(search.table, search.table, compute_mode="donot_use_mm_for_euclid_dist").numpy()
        apart = groups[:, None] != groups
        stated = np.where(apart.numpy(), -np.inf, -eta * distance / 2)[:, search.candidates.numpy()]
        stated -= np.log(np.exp(stated).sum(1, keepdims=True))
        draw = Exponential(search, eta=eta)
        found = draw.scores(search.table, groups).log_softmax(1).numpy()
        if not (np.allclose(found, stated, rtol=0, atol=RATIO_TOLERANCE) and _draws(draw, search, groups, stated)):
            wrong.append(f"eta {eta:g}")
        with np.errstate(invalid="ignore"):  # what neither of two words becomes
            ratio = np.nan_to_num(np.abs(found[:, None] - found), nan=0.0).max(2)
        alike = ~apart.numpy() & (distance > 0)
        budget = mechanism.guarantee(eta=eta, space="table", per="word").budget
        worst = max(worst, float((ratio[alike] / (budget * distance[alike])).max()))
        pairs += int(alike.sum())
    said = f"Not at {', '.join(wrong)}." if wrong else "It draws as stated."
    return ConformanceCheck(
        name=_NAME,
        asks=_ASKS,
        statistic=worst,
        bound=1 + RATIO_TOLERANCE,
        n=pairs,
        passed=not wrong and worst <= 1 + RATIO_TOLERANCE,
        found=f"{said} The largest change, between {pairs} pairs of words, is {worst:.4g} of what the claim allows.",
    )


def _words(eta: float) -> tuple[NeighbourSearch, Tensor]:
    """Made-up words `[80, 4]`, and their groups, where eta tells them apart: some cannot come out.

    The first lies beside a crowd, which tells it apart about as well as is allowed.
    """
    rng = np.random.Generator(np.random.PCG64(1))  # nothing is hidden by them
    table = rng.standard_normal((80, 4))
    table[:50] *= 1e-3
    table[1:50, 0] += 2
    table[50:] *= rng.choice([0.1, 1.0, 10.0], size=(30, 1))
    words, groups = torch.from_numpy(table / eta), (torch.arange(80) >= 50).long()
    return NeighbourSearch(words, torch.arange(80) % 20 != 10, groups=groups), groups


def _draws(draw: Exponential, search: NeighbourSearch, groups: Tensor, stated: Float64) -> bool:
    """Whether numbers that lie evenly become words as often as ln of the probabilities says, `[words, candidates]`."""
    of = torch.arange(len(groups)).repeat_interleave(_EVEN)
    even = ((torch.arange(_EVEN, dtype=torch.float64) + 0.5) / _EVEN).repeat(len(groups))
    counts = np.zeros((len(groups), len(groups)))
    np.add.at(counts, (of.numpy(), draw.draw(search.table, groups, of, even).numpy()), 1)
    expected = np.zeros_like(counts)
    expected[:, search.candidates.numpy()] = _EVEN * np.exp(stated)
    return bool((np.abs(counts - expected) <= 1 + RATIO_TOLERANCE).all() and not counts[expected == 0].any())
