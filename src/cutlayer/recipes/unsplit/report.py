"""A study's numbers as table, plot and JSON, the paper's beside ours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cutlayer.core import Proportion
from cutlayer.recipes.picture import save_picture
from cutlayer.recipes.unsplit.cells import AttackCell, Attacked, Inverted, InverterCell
from cutlayer.recipes.unsplit.findings import Pooled, Verdict
from cutlayer.recipes.unsplit.paper import Scores
from cutlayer.recipes.unsplit.study import Key, Point, Study
from cutlayer.reports import Table

_COLOURS = (
    "#1f77b4",
    "#d95f02",
    "#1b9e77",
    "#7b3294",
    "#e7298a",
    "#666666",
    "#a6761d",
    "#66a61e",
    "#a6cee3",
    "#000000",
)
"""Told apart by colour-blind readers too."""
_DASH = "–"


@dataclass(frozen=True)
class PartReport:
    """What a part of the recipe gives.

    Attributes:
        tables: For readers.
        content: For machines.
        pictures: Files in the report's folder.
    """

    tables: tuple[Table, ...]
    content: Mapping[str, Any]
    pictures: tuple[str, ...] = ()


@dataclass(frozen=True)
class Results:
    """Finished cells."""

    attacked: Mapping[AttackCell, Attacked] = field(default_factory=dict)
    inverted: Mapping[InverterCell, Inverted] = field(default_factory=dict)

    def pooled(self, cells: Sequence[AttackCell]) -> Pooled:
        """One setting's, over seeds."""
        return Pooled.of([self.attacked[cell].reading for cell in cells])

    def stages(self, cells: Sequence[InverterCell]) -> dict[str, Pooled]:
        """What the inverter read at each stage, over seeds; nothing where it was not asked for."""
        names = self.inverted[cells[0]].stages if cells else {}
        return {name: Pooled.of([self.inverted[cell].stages[name] for cell in cells]) for name in names}


def report_study(study: Study, results: Results, folder: Path, *, model: str) -> PartReport:
    """A study's table, plot and JSON.

    Args:
        study: Which.
        results: Its finished cells.
        folder: Where the plot is written.
        model: What was attacked, for the heading.

    Raises:
        StorageError: The plot cannot be written.
    """
    found = {point.key: results.pooled(point.attacks) for point in study.points}
    inverted = {point.key: results.stages(point.inversions) for point in study.points}
    verdicts = (*study.judge(found), *study.judge_inverter(inverted))
    picture = f"{study.name}.png"
    draw_study(study, found, inverted, folder / picture, model=model)
    content = {
        "points": [
            {
                "series": point.series,
                "at": point.at,
                "unsplit": found[point.key].model_dump(mode="json"),
                "inverter": {name: pooled.model_dump(mode="json") for name, pooled in inverted[point.key].items()},
                "seconds": [results.attacked[cell].seconds for cell in point.attacks],
                "paper": None if point.paper is None else point.paper.model_dump(),
            }
            for point in study.points
        ],
        "verdicts": [verdict.model_dump() for verdict in verdicts],
        "notes": study.notes,
    }
    return PartReport((_table(study, found, inverted, verdicts),), content, (picture,))


# ---------------------------------------------------------------- tables


def _table(
    study: Study,
    found: Mapping[Key, Pooled],
    inverted: Mapping[Key, Mapping[str, Pooled]],
    verdicts: Sequence[Verdict],
) -> Table:
    stages = list(dict.fromkeys(name for each in inverted.values() for name in each))
    prints = any(point.paper for point in study.points)
    rows = [
        (
            point.series,
            point.at,
            *scores(found[point.key]),
            *(_optional(inverted[point.key].get(name)) for name in stages),
            *((printed(point.paper),) if prints else ()),
        )
        for point in study.points
    ]
    pooled = list(found.values())
    tokens = " or ".join(map(str, sorted({each.accuracy.n for each in pooled})))
    return Table(
        title=f"{study.title} (%)",
        columns=(
            "setting",
            study.axis,
            *SCORES,
            *(f"inverter, {name}" for name in stages),
            *(("the paper: accuracy; R-1 / R-2 / R-L / R-Lsum",) if prints else ()),
        ),
        rows=tuple(rows),
        notes=(
            f"n: {tokens} tokens of {' or '.join(map(str, sorted({each.texts for each in pooled})))} texts; ± is one "
            "standard error over texts. Chance: what guesses with the same frequencies hit.",
            *study.notes,
            *map(str, verdicts),
            *_inverter_range(inverted),
        ),
    )


def _inverter_range(inverted: Mapping[Key, Mapping[str, Pooled]]) -> tuple[str, ...]:
    """What the inverter ends with, from its worst setting to its best; no sentence where it was not asked for."""
    ends = sorted(
        (list(stages.values())[-1].accuracy for stages in inverted.values() if stages), key=lambda each: each.value
    )
    if not ends:
        return ()
    return (f"The inverter's last stage reads {share(ends[0])} % at worst and {share(ends[-1])} % at best of these.",)


SCORES = ("accuracy", "R-1", "R-2", "R-L", "R-Lsum", "chance")
"""Columns of what an attack read."""


def scores(pooled: Pooled) -> tuple[str, ...]:
    """What an attack read, in the columns of `SCORES`."""
    overlap = pooled.overlap
    kinds = () if overlap is None else (overlap.rouge1, overlap.rouge2, overlap.rouge_l, overlap.rouge_lsum)
    return (
        share(pooled.accuracy),
        *(f"{100 * kind.value:.1f}" for kind in kinds),
        *(_DASH for _ in range(4 - len(kinds))),
        f"{100 * pooled.chance:.2f}",
    )


def share(value: Proportion) -> str:
    """A share in per cent with its standard error."""
    return value.percent()


def printed(paper: Scores | None) -> str:
    """What the paper prints, in its digits."""
    if paper is None:
        return _DASH
    others = (paper.rouge_1, paper.rouge_2, paper.rouge_l, paper.rouge_lsum)
    return f"{paper.accuracy:g}; {' / '.join(f'{value:g}' for value in others)}"


def _optional(pooled: Pooled | None) -> str:
    return _DASH if pooled is None else share(pooled.accuracy)


# ---------------------------------------------------------------- plots


def draw_study(
    study: Study,
    found: Mapping[Key, Pooled],
    inverted: Mapping[Key, Mapping[str, Pooled]],
    path: Path,
    *,
    model: str,
) -> None:
    """Draws token accuracy, a line for each series, the paper's printed values as stars.

    Raises:
        StorageError: The file cannot be written.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    places = list(dict.fromkeys(point.at for point in study.points))
    series = list(dict.fromkeys(point.series for point in study.points))
    figure = Figure(figsize=(8, 5 + 0.18 * len(series)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for number, name in enumerate(series):
        points = [point for point in study.points if point.series == name]
        colour = _COLOURS[number % len(_COLOURS)]
        values = [found[point.key].accuracy for point in points]
        at = [places.index(point.at) for point in points]
        axes.errorbar(
            at,
            [100 * value.value for value in values],
            yerr=[100 * value.standard_error for value in values],
            fmt="o-" if number < len(_COLOURS) else "s--",
            color=colour,
            label=name,
            markersize=4,
            capsize=2,
        )
        _draw_others(axes, points, at, inverted, colour)
    axes.set_xticks(range(len(places)), places)
    axes.set(xlabel=study.axis, ylabel="tokens read (%)", ylim=(-2, 102))
    axes.set_title(f"{study.title}\non {model}", fontsize=10)
    axes.grid(alpha=0.3)
    axes.plot([], [], "*", color="0.3", label="the paper")
    if any(inverted.values()):
        axes.plot([], [], "x", color="0.3", label="inverter, last stage")
    figure.legend(loc="outside lower center", ncols=2, fontsize=8)
    save_picture(figure, path)


def _draw_others(
    axes: Any, points: Sequence[Point], at: Sequence[int], inverted: Mapping[Key, Mapping[str, Pooled]], colour: str
) -> None:
    for place, point in zip(at, points, strict=True):
        if point.paper is not None:
            axes.plot([place], [point.paper.accuracy], "*", color=colour, markersize=11)
        stages = list(inverted[point.key].values())
        if stages:
            axes.plot([place], [100 * stages[-1].accuracy.value], "x", color=colour, markersize=7)
