"""How much the utility (UA) of one curve over eta is above another's at equal privacy (EP)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from cutlayer.recipes.long_table import Measure, Number, Where
from cutlayer.recipes.study import Results
from cutlayer.reports import Estimate, Gain


def gain(results: Results, ours: Where, baseline: Where) -> Measure:
    """By how much the UA of one curve over eta is above another's at equal EP; its note is a verdict."""
    found = Gain.of(_curve(results, ours), _curve(results, baseline))
    if found is None:
        return Measure("UA gained", None, note="the curves do not overlap", axes=ours)
    return Measure("UA gained", found.value, found.standard_error, found.points, note=found.verdict, axes=ours)


def _curve(results: Results, where: Where) -> list[tuple[Estimate, Estimate]]:
    found = []
    for eta in results.levels("eta", **where):
        ua, ep = (results.number(metric, eta=eta, **where) for metric in ("UA", "EP"))
        if ua.value is not None and ep.value is not None:
            found.append((_estimate(ua), _estimate(ep)))
    return found


def _estimate(number: Number) -> Estimate:
    return Estimate(value=number.value or 0.0, standard_error=number.error, n=int(number.n or 1), runs=number.runs)


def place_of(height: float, curve: Sequence[float | None]) -> float | None:
    """Where a falling curve is so high, along straight lines between its places; `None` if nowhere."""
    for at, (left, right) in enumerate(pairwise(curve)):
        if left is not None and right is not None and right <= height <= left:
            return at + (left - height) / (left - right) if left > right else float(at)
    return None
