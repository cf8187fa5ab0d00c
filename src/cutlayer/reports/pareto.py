"""Settings by what they hide and what they leave useful: which are worth choosing, and how two ways compare."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, pairwise
from typing import Any

from cutlayer.core.extras import require

_COLOURS = ("#1f77b4", "#d95f02", "#1b9e77", "#7b3294", "#e7298a", "#666666", "#a6761d")
_MARKS = "osD^vPX"
_WIDTH, _HEIGHT = 5.2, 4.4
"""Inches of a panel."""


@dataclass(frozen=True)
class Point:
    """A setting.

    Attributes:
        name: For readers.
        privacy: What it hides, as a share.
        utility: What it leaves useful, as a share.
        privacy_error: Standard error of the first.
        utility_error: Of the second.
    """

    name: str
    privacy: float
    utility: float
    privacy_error: float = 0.0
    utility_error: float = 0.0


@dataclass(frozen=True)
class Lead:
    """By how much one way is more useful than another one's setting where as much is hidden.

    Attributes:
        over: The setting of the other way.
        value: The difference of utilities; `None` where the first way hides less than that at all of its settings.
        error: Its standard error, in which how sure the places on both axes are is counted.
    """

    over: Point
    value: float | None
    error: float = 0.0


def frontier(points: Sequence[Point]) -> list[Point]:
    """Those than which no other is better in one respect and no worse in the other; the most useful one first."""
    found: list[Point] = []
    for point in sorted(points, key=lambda each: (-each.utility, -each.privacy)):
        if not found or point.privacy > found[-1].privacy:
            found.append(point)
    return found


def leads(ours: Sequence[Point], theirs: Sequence[Point]) -> list[Lead]:
    """Compares the frontier of one way with each setting of another.

    Between two settings of a frontier lie mixtures of them: a text is released by either at random. So utility runs
    along a straight line. What hides more counts where as much is asked for.

    Args:
        ours: Settings of the first way; at least one.
        theirs: Of the other.
    """
    return [_lead(frontier(ours), point) for point in theirs]


def _lead(best: Sequence[Point], over: Point) -> Lead:
    if over.privacy <= best[0].privacy:
        return Lead(over, best[0].utility - over.utility, math.hypot(best[0].utility_error, over.utility_error))
    for left, right in pairwise(best):
        if over.privacy <= right.privacy:
            part = (over.privacy - left.privacy) / (right.privacy - left.privacy)
            slope = (right.utility - left.utility) / (right.privacy - left.privacy)
            places = (over.privacy_error, (1 - part) * left.privacy_error, part * right.privacy_error)
            heights = (over.utility_error, (1 - part) * left.utility_error, part * right.utility_error)
            value = (1 - part) * left.utility + part * right.utility - over.utility
            return Lead(over, value, math.hypot(*heights, *(slope * place for place in places)))
    return Lead(over, None)


def draw_pareto(panels: Mapping[str, Mapping[str, Sequence[Point]]], *, title: str, hidden: str, useful: str) -> Any:
    """Utility over privacy with the standard errors of both, a line for each way.

    Args:
        panels: By title, settings by way.
        title: Above all.
        hidden: What privacy is, for the axis along.
        useful: What utility is.

    Returns:
        A figure of matplotlib.
    """
    require("audit")
    from matplotlib.figure import Figure

    names = list(dict.fromkeys(way for ways in panels.values() for way in ways))
    styles = dict(zip(names, zip(cycle(_COLOURS), cycle(_MARKS), strict=False), strict=False))
    figure = Figure(figsize=(max(7.0, _WIDTH * len(panels)), _HEIGHT + 0.22 * len(names)), layout="constrained")
    drawn = {}
    for number, (about, ways) in enumerate(panels.items(), start=1):
        axes = figure.add_subplot(1, len(panels), number)
        for way, points in ways.items():
            colour, mark = styles[way]
            line = sorted(points, key=lambda point: point.privacy)
            drawn[way] = axes.errorbar(
                [100 * point.privacy for point in line],
                [100 * point.utility for point in line],
                xerr=[100 * point.privacy_error for point in line],
                yerr=[100 * point.utility_error for point in line],
                color=colour,
                marker=mark,
                markersize=5,
                linewidth=1.2,
                elinewidth=0.8,
                label=way,
            )
            for point in line:
                place = (100 * point.privacy, 100 * point.utility)
                axes.annotate(point.name, place, xytext=(4, 4), textcoords="offset points", fontsize=6, color=colour)
        axes.set(xlabel=hidden, ylabel=useful)
        axes.set_title(about, fontsize=9)
        axes.grid(alpha=0.3)
    figure.legend(handles=list(drawn.values()), loc="outside lower center", ncols=3, fontsize=8)
    figure.suptitle(title, fontsize=10)
    return figure
