"""The frontier as a PNG, for documents: the page's own plot needs a browser."""

from __future__ import annotations

import io
import textwrap

from cutlayer.reports.page.plots import CALM, FAINT, LEAK, is_share, plotted, utility_title
from cutlayer.reports.schema import Frontier, FrontierPoint, Interval
from cutlayer.reports.wording import known, plain, visible

_WRAP = 44
"""Characters of an axis's title on a line."""


def draw_frontier(frontier: Frontier) -> bytes | None:
    """Utility over the share that was read, as a PNG that depends on nothing else.

    Args:
        frontier: The settings.

    Returns:
        The picture, or `None` where no setting has both.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    points = [point for point in plotted(frontier) if known(point.utility)]
    if not points:
        return None
    scale = 100 if is_share(frontier) else 1
    figure = Figure(figsize=(7, 4.6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.plot(*_places(points, scale), color=FAINT, linewidth=0.8, linestyle=":")
    for audited, name, colour, marker, size in (
        (False, "other settings", CALM, "o", 6),
        (True, "the audited setting", LEAK, "D", 9),
    ):
        some = [point for point in points if point.audited is audited]
        if not some:
            continue
        x, y = _places(some, scale)
        axes.errorbar(
            x,
            y,
            xerr=_lengths([point.recovered for point in some], [point.recovered_ci for point in some], 100),
            yerr=_lengths([point.utility for point in some], [point.utility_ci for point in some], scale),
            fmt=marker,
            color=colour,
            ecolor="0.25",
            elinewidth=1,
            capsize=2.5,
            markersize=size,
            label=name,
        )
    for point, across, up in zip(points, *_places(points, scale), strict=True):
        axes.annotate(f"eta {plain(point.eta)}", (across, up), xytext=(7, -12), textcoords="offset points", fontsize=8)
    # a name may hold what matplotlib would read as mathematics
    utility = "\n".join(textwrap.wrap(visible(utility_title(frontier)), _WRAP)).replace("$", r"\$")
    axes.set(xlabel="words that the attack read (%)", ylabel=utility)
    if frontier.lower_is_better:
        axes.invert_yaxis()
    axes.set_xlim(left=0, right=max(100 * point.recovered for point in points) * 1.12 + 1)
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right", fontsize=8)
    picture = io.BytesIO()
    figure.savefig(picture, dpi=120, format="png", metadata={"Software": None})
    return picture.getvalue()


def _places(points: list[FrontierPoint], scale: int) -> tuple[list[float], list[float]]:
    return [100 * point.recovered for point in points], [scale * (point.utility or 0) for point in points]


def _lengths(values: list[float | None], intervals: list[Interval | None], scale: int) -> list[list[float]]:
    """Down and up from each value, none where there is no interval."""
    pairs = [
        (max(0.0, value - ci[0]), max(0.0, ci[1] - value)) if known(value) and ci is not None else (0.0, 0.0)
        for value, ci in zip(values, intervals, strict=True)
    ]
    return [[scale * down for down, _ in pairs], [scale * up for _, up in pairs]]
