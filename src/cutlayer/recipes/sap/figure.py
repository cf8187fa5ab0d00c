"""Figures 2 and 4 as PNG."""

from __future__ import annotations

import math
from itertools import cycle, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cutlayer.recipes.cells import Steering
from cutlayer.recipes.picture import save_picture
from cutlayer.recipes.sap.findings import Findings, Point
from cutlayer.recipes.tasks import Task
from cutlayer.reports import Estimate, percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_STEERINGS = {
    Steering.NONE: ("SAP", "#1f77b4"),
    Steering.BY_CLASS: ("SAP-CTI", "#d95f02"),
    Steering.CLASS_FREE: ("SAP-CTI class-free", "#1b9e77"),
}
"""Names, and colours that are told apart by colour-blind readers too."""
_PAPER = "#7b3294"


def draw_figure_2(findings: Findings, path: Path, *, model: str) -> None:
    """Draws UA and EP over eta0 in per cent, error bars of one standard error.

    The paper's eta0 are of another table than ours, so a point of its stands where as much is hidden:
    at the place on our axis where plain SAP's EP is the paper's.

    Raises:
        StorageError: The file cannot be written.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    tasks = findings.tasks
    lines = -(-len(tasks) // 2)
    figure = Figure(figsize=(12, 4.2 * lines + 1.4), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(f"SAP, Figure 2, on {model}")
    named: dict[str, Any] = {}
    for number, task in enumerate(tasks, start=1):
        axes = figure.add_subplot(lines, min(2, len(tasks)), number)
        _draw_ours(axes, findings, task)
        _draw_papers(axes, findings, task)
        axes.set(title=task.title, xlabel="eta0 (tokens replaced)", ylabel="%", ylim=(-2, 102))
        axes.grid(alpha=0.3)
        handles, labels = axes.get_legend_handles_labels()
        named |= dict(zip(labels, handles, strict=True))
    # one legend below: in a panel it would hide points
    figure.legend(list(named.values()), list(named), loc="outside lower center", ncols=3, fontsize=8)
    save_picture(figure, path)


def _draw_ours(axes: Axes, findings: Findings, task: Task) -> None:
    plain = findings.curves[task.name, Steering.NONE]
    for steering, (name, colour) in _STEERINGS.items():
        points = findings.curves[task.name, steering]
        _draw_curve(axes, [point.ua for point in points], f"UA, {name}", colour, "o-")
        _draw_curve(axes, [point.ep for point in points], f"EP, {name}", colour, "s--")
    axes.axhline(100 * findings.centralised[task.name].value, color="0.5", linewidth=1, label="centralised accuracy")
    ticks = ["∞" if math.isinf(point.eta) else f"{point.eta:g}\n({percent(point.replaced, 0)} %)" for point in plain]
    axes.set_xticks(range(len(ticks)), ticks, fontsize=8)


def _draw_curve(axes: Axes, values: list[Estimate | None], name: str, colour: str, style: str) -> None:
    known = [(at, value) for at, value in enumerate(values) if value is not None]
    axes.errorbar(
        [at for at, _ in known],
        [100 * value.value for _, value in known],
        yerr=[100 * value.standard_error for _, value in known],
        fmt=style,
        label=name,
        color=colour,
        markersize=4,
        capsize=2,
    )


def _draw_papers(axes: Axes, findings: Findings, task: Task) -> None:
    paper = findings.config.paper
    source = f"the paper ({paper.model})"
    accuracy = paper.table_1[task.name].accuracy
    axes.axhline(accuracy, color=_PAPER, linewidth=1, linestyle=":", label=f"centralised accuracy, {source}")
    for point in paper.figure_2:
        at = _place(findings.curves[task.name, Steering.NONE], point.ep / 100) if point.task == task.name else None
        if at is None:
            continue
        utility = accuracy - point.ua_loss
        cti = {True: ", CTI", False: "", None: ", CTI not stated"}[point.cti]
        axes.plot([at, at], [point.ep, utility], color=_PAPER, linewidth=0.8, linestyle=":")
        axes.plot(
            [at], [utility], "*", color=_PAPER, markersize=11, label=f"UA, {source}, where SAP's EP here is as high"
        )
        axes.plot([at], [point.ep], "D", color=_PAPER, markersize=5, label=f"EP, {source}")
        axes.annotate(
            f"eta0 {point.eta:g}{cti}",
            (at, point.ep),
            xytext=(7, 5),
            textcoords="offset points",
            color=_PAPER,
            fontsize=8,
        )


def _place(points: list[Point], ep: float) -> float | None:
    """Where a curve's EP is so high, along straight lines between its ticks; `None` if nowhere."""
    for at, (left, right) in enumerate(pairwise(point.ep for point in points)):
        if left is not None and right is not None and right.value <= ep <= left.value:
            width = left.value - right.value
            return at + (left.value - ep) / width if width else float(at)
    return None


_ATTACK_COLOURS = ("#1f77b4", "#d95f02", "#1b9e77", "#7b3294")


def draw_figure_4(findings: Findings, path: Path, *, model: str) -> None:
    """Draws EP over the depth of the bottom, a line an attack, error bars of one standard error.

    Raises:
        StorageError: The file cannot be written.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    depths = findings.config.depths
    points = [findings.by_depth[bottom] for bottom in depths.figure_4]
    for attack, colour in zip(depths.without_noise, cycle(_ATTACK_COLOURS), strict=False):
        known = [(point.bottom, ep) for point in points if (ep := point.ep.get(attack)) is not None]
        axes.errorbar(
            [bottom for bottom, _ in known],
            [100 * ep.value for _, ep in known],
            yerr=[100 * ep.standard_error for _, ep in known],
            fmt="o-",
            label=attack,
            color=colour,
            markersize=4,
            capsize=2,
        )
    title = findings.config.task(depths.task).title
    axes.set(
        title=f"SAP, Figure 4, {title}, without noise, on {model}",
        xlabel="blocks at the customer (weights handed out)",
        ylabel="EP, %",
        ylim=(-2, 102),
    )
    ticks = [f"{point.bottom}\n({percent(findings.handed_out[point.bottom], 0)} %)" for point in points]
    axes.set_xticks(list(depths.figure_4), ticks)
    axes.grid(alpha=0.3)
    axes.legend(title="EP against", fontsize=8)
    save_picture(figure, path)
