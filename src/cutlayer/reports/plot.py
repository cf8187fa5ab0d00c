"""Plots as PNG, without a display and without matplotlib's global state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cutlayer.core import StorageError
from cutlayer.reports.estimate import Estimate

_COLOURS = ("#1f77b4", "#d95f02", "#1b9e77", "#7570b3")
"""Told apart by colour-blind readers too; lines of one group share one."""


@dataclass(frozen=True)
class Curve:
    """A line with error bars.

    Attributes:
        name: In the legend.
        group: Curves of one group share a colour.
        values: One a tick; `None` leaves a gap.
        dashed: Whether it is dashed.
    """

    name: str
    group: str
    values: tuple[Estimate | None, ...]
    dashed: bool = False


@dataclass(frozen=True)
class Panel:
    """One plot of several.

    Attributes:
        title: Above it.
        ticks: Labels of the horizontal axis, evenly spaced.
        curves: What is drawn.
        level: A horizontal line, if there is one.
        level_name: Its name in the legend.
    """

    title: str
    ticks: tuple[str, ...]
    curves: tuple[Curve, ...]
    level: Estimate | None = None
    level_name: str = ""


def draw_panels(panels: Sequence[Panel], path: Path, *, title: str, axis: str = "eta0 (tokens replaced)") -> None:
    """Draws panels in rows of two, values in per cent, error bars of one standard error.

    Raises:
        StorageError: The file cannot be written.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    lines = -(-len(panels) // 2)
    figure = Figure(figsize=(12, 4.2 * lines + 0.8), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title)
    for number, panel in enumerate(panels, start=1):
        axes = figure.add_subplot(lines, min(2, len(panels)), number)
        groups = list(dict.fromkeys(curve.group for curve in panel.curves))
        for curve in panel.curves:
            points = [(at, value) for at, value in enumerate(curve.values) if value is not None]
            axes.errorbar(
                [at for at, _ in points],
                [100 * value.value for _, value in points],
                yerr=[100 * value.standard_error for _, value in points],
                label=curve.name,
                color=_COLOURS[groups.index(curve.group) % len(_COLOURS)],
                linestyle="--" if curve.dashed else "-",
                marker="s" if curve.dashed else "o",
                markersize=4,
                capsize=2,
            )
        if panel.level is not None:
            axes.axhline(100 * panel.level.value, color="0.5", linewidth=1, label=panel.level_name)
        axes.set(title=panel.title, xlabel=axis, ylabel="%", ylim=(-2, 102))
        axes.set_xticks(range(len(panel.ticks)), panel.ticks, fontsize=8)
        axes.grid(alpha=0.3)
        if panel.curves:
            axes.legend(fontsize=8)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # the file depends on nothing but what is drawn
        figure.savefig(path, dpi=120, format="png", metadata={"Software": None})
    except OSError as error:
        raise StorageError(f"{path} cannot be written: {error.strerror}.", remedy="Choose another folder.") from error
