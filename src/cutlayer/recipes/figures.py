"""Figures of the long table: rows are grouped by axes and drawn with their intervals, as PNG and as CSV beside it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import cycle, product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pandas as pd

from cutlayer.core import StorageError
from cutlayer.recipes.long_table import Where, select
from cutlayer.recipes.study import Results
from cutlayer.recipes.tables import SOURCES, Axis, Column

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

PALETTE = ("#1f77b4", "#d95f02", "#1b9e77", "#7b3294", "#e7298a", "#666666", "#a6761d", "#66a61e", "#a6cee3", "#000000")
"""Told apart by colour-blind readers too; further lines begin again with other marks."""
MARKS = ("o", "s", "^", "D", "v", "P", "X")
STYLES: tuple[Literal[":", "--", "-."], ...] = (":", "--", "-.")
"""Of levels drawn across."""
SHARES = (-2, 102)
"""Limits of an axis of per cent."""
WIDTH, HEIGHT, LOW = 5.2, 4.4, 3.2
"""Inches of a panel, which is lower where there are several rows of them."""
_LETTERS = 70
"""Of names side by side below a panel; more of them run into each other, and are slanted."""
_SOURCE = "source"


@dataclass(frozen=True)
class Reference:
    """A level that lines are compared with: of the rows that are pooled for it, beside the panel's own place."""

    label: str
    metric: str
    where: Where = field(default_factory=dict)


@dataclass(frozen=True)
class Figure:
    """Numbers over an axis, a line for each place on others.

    Attributes:
        name: Of its files, without ending.
        title: Above it.
        x: The axis along.
        y: What is drawn, for its axis: "tokens read, %".
        where: Which rows of the long table.
        colour: The axis whose places are lines; `attack` and `metric` are axes, too.
        panel: The axis whose places are panels beside each other; `metric` may be one.
        row: The axis whose places are rows of panels.
        below: A number of each place along, told below its tick.
        stands: Where a number of a paper stands among the places along, counted from 0; by default at its own. For
            papers whose places do not compare with ours; `None` leaves a number out.
        value: What of a number is drawn; per cent by default.
        logarithmic: Whether the axis along is numbers on a logarithmic scale, else places in their order.
        scale: Of the y axis: `linear` or `log`.
        limits: Of the y axis; of per cent by default, and `None` leaves them to what is drawn.
        references: Levels drawn across.
        about: What was measured, for the title, where it is not the recipe's model.
    """

    name: str
    title: str
    x: Axis
    y: str
    where: Where
    colour: Axis = field(default_factory=lambda: Axis("attack"))
    panel: Axis | None = None
    row: Axis | None = None
    below: Column | None = None
    stands: Callable[[Results, Mapping[str, Any]], float | None] | None = None
    value: Callable[[float], float] = lambda value: 100 * value
    logarithmic: bool = False
    scale: str = "linear"
    limits: tuple[float, float] | None = SHARES
    references: Sequence[Reference] = ()
    about: str = ""

    def rows(self, results: Results) -> pd.DataFrame:
        """What is drawn, pooled over seeds, with the ends of its error bars; what stands nowhere along is not."""
        used = (self.row, self.panel, self.colour, self.x)
        axes = list(dict.fromkeys(axis.name for axis in used if axis is not None))
        wanted = select(results.frame, {"source": SOURCES, **self.where})
        wanted = wanted.reindex(columns=[*wanted.columns, *(name for name in axes if name not in wanted)])
        wanted = wanted.dropna(subset=[self.x.name])
        found: list[dict[str, Any]] = []
        for place, group in wanted.groupby([*axes, _SOURCE], sort=False, dropna=False):
            number = results.pooled(group)
            if number.value is None:
                continue
            ends = [number.value - number.error, number.value + number.error]
            if number.lower is not None and number.upper is not None and number.runs == 1:
                ends = [number.lower, number.upper]
            row = dict(zip((*axes, _SOURCE), place, strict=True))
            drawn = sorted(map(self.value, ends))
            row |= {"y": self.value(number.value), "low": drawn[0], "high": drawn[1], "n": number.n}
            found.append({**row, "note": number.note})
        return pd.DataFrame(found, columns=[*axes, _SOURCE, "y", "low", "high", "n", "note"])

    def draw(self, results: Results, folder: Path, *, model: str) -> list[Path]:
        rows = self.rows(results)
        if not (rows[_SOURCE] == "here").any():
            return []  # a paper's points alone are no picture of ours
        pictures = [folder / f"{self.name}.png", folder / f"{self.name}.csv"]
        save_picture(self._drawn(rows, results, self.about or model), pictures[0])
        with written(pictures[1]):
            rows.to_csv(pictures[1], index=False)
        return pictures

    def _drawn(self, rows: pd.DataFrame, results: Results, model: str) -> Drawing:
        import seaborn.objects as so
        from matplotlib.figure import Figure as Drawing

        here, paper = (rows[rows[_SOURCE] == source] for source in ("here", "paper"))
        stars = "" if paper.empty else "the paper"
        notes = set(paper["note"])
        if len(notes) == 1 and (note := notes.pop()):  # told once, and not at each star
            stars = f"the paper ({note})"
            paper = paper.assign(note="")
        names = list(dict.fromkeys(here[self.colour.name].map(self.colour.text)))
        colours = {name: PALETTE[place % len(PALETTE)] for place, name in enumerate(names)}
        marks = {name: MARKS[(place // len(PALETTE)) % len(MARKS)] for place, name in enumerate(names)}
        down, along = (
            [None] if axis is None else list(dict.fromkeys(here[axis.name])) for axis in (self.row, self.panel)
        )
        width, height = max(7.0, WIDTH * len(along)), (HEIGHT if len(down) == 1 else LOW) * len(down)
        drawing = Drawing(figsize=(width, height + 0.22 * len(names)), layout="constrained")
        for number, levels in enumerate(product(down, along), start=1):
            facets = [(axis, level) for axis, level in zip((self.row, self.panel), levels, strict=True) if axis]
            place = {axis.name: level for axis, level in facets}
            stated = select(paper, place)
            ours = self._placed(select(here, place), stated, results.levels(self.x.name, **{**self.where, **place}))
            if ours.empty:
                continue
            axes = drawing.add_subplot(len(down), len(along), number)
            plot = (
                so.Plot(ours, x="at", y="y", color="line", marker="line")
                .add(so.Line(linewidth=1.4, pointsize=5), legend=False)
                .add(so.Range(linewidth=1.2), ymin="low", ymax="high", legend=False)
                .scale(color=colours, marker=marks, **({"x": "log"} if self.logarithmic else {}))
                .label(x=self.x.heading + (f" ({self.below.title})" if self.below else ""), y=self.y)
            )
            plot.on(axes).plot()
            axes.set_title(", ".join(axis.text(level) for axis, level in facets), fontsize=9)
            self._finish(axes, ours, stated, colours, results, place)
        told = {} if self.colour.name == self.x.name else colours  # names that stand below need no legend
        handles = _legend(told, marks, [each.label for each in self.references], stars)
        if handles:
            drawing.legend(handles=handles, loc="outside lower center", ncols=2, fontsize=8)
        drawing.suptitle(f"{self.title}\non {model}", fontsize=10)
        return drawing

    def _placed(self, ours: pd.DataFrame, stated: pd.DataFrame, levels: Sequence[Any]) -> pd.DataFrame:
        """A panel's rows with the line of each and its place along: a number, or a text in the scenarios' order."""
        ours = ours.assign(line=ours[self.colour.name].map(self.colour.text))
        if self.logarithmic:
            return ours.assign(at=ours[self.x.name])
        ours = ours.assign(at=ours[self.x.name].map(self.x.text))
        theirs = [] if self.stands else list(stated[self.x.name].map(self.x.text))
        order = dict.fromkeys([*map(self.x.text, levels), *theirs])
        places = [text for text in order if text in {*ours["at"], *theirs}]
        return ours.assign(at=pd.Categorical(ours["at"], categories=places, ordered=True)).sort_values(
            "at", kind="stable"
        )

    def _finish(
        self,
        axes: Any,
        ours: pd.DataFrame,
        stated: pd.DataFrame,
        colours: Mapping[str, str],
        results: Results,
        place: Where,
    ) -> None:
        """What a panel has beside its lines: the paper's numbers as stars, levels, ticks, a grid."""
        ticks = sorted(set(ours["at"])) if self.logarithmic else list(ours["at"].cat.categories)
        for row in ({str(name): value for name, value in each.items()} for each in stated.to_dict("records")):
            level = row[self.x.name]
            own = level if self.logarithmic else ticks.index(self.x.text(level)) if not self.stands else None
            at = self.stands(results, row) if self.stands else own
            if at is not None:
                colour = colours.get(self.colour.text(row[self.colour.name]), "0.3")
                axes.plot([at], [row["y"]], "*", color=colour, markersize=11)
                axes.annotate(row["note"], (at, row["y"]), xytext=(7, 5), textcoords="offset points", fontsize=7)
        where = {axis: level for axis, level in place.items() if axis != "metric"}
        for style, reference in zip(cycle(STYLES), self.references, strict=False):
            crossing = results.number(reference.metric, **{**where, **reference.where})
            if crossing.value is not None and place.get("metric", reference.metric) == reference.metric:
                axes.axhline(self.value(crossing.value), linestyle=style, color="0.4", linewidth=1)
        if self.below is not None:
            levels = dict(zip(ours["at"], ours[self.x.name], strict=True))
            told = [
                results.number(self.below.metric, **{**where, self.x.name: levels.get(tick), **self.below.where})
                for tick in ticks
            ]
            axes.set_xticks(
                range(len(ticks)),
                [f"{tick}\n({self.below.show(each)})" for tick, each in zip(ticks, told, strict=True)],
            )
        if self.logarithmic:
            axes.minorticks_off()
            axes.set_xticks(ticks, [self.x.text(tick) for tick in ticks])
        axes.tick_params(labelsize=8)
        if self.below is None and not self.logarithmic and sum(map(len, ticks)) > _LETTERS:
            axes.tick_params(axis="x", rotation=25)
        axes.grid(alpha=0.3)
        if self.scale != "linear":
            axes.set_yscale(self.scale)
        elif self.limits is not None:
            axes.set_ylim(*self.limits)


def _legend(colours: Mapping[str, str], marks: Mapping[str, str], levels: Sequence[str], stars: str) -> list[Any]:
    from matplotlib.lines import Line2D

    found = [Line2D([], [], color=colour, marker=marks[name], label=name) for name, colour in colours.items()]
    found += [
        Line2D([], [], color="0.4", linestyle=style, label=label)
        for style, label in zip(cycle(STYLES), levels, strict=False)
    ]
    if stars:
        found.append(Line2D([], [], color="0.3", marker="*", linestyle="", label=stars))
    return found


def save_picture(figure: Drawing, path: Path) -> None:
    """Writes a figure as PNG; the file depends on nothing but what is drawn.

    Raises:
        StorageError: It cannot be written.
    """
    with written(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=120, format="png", metadata={"Software": None})


@contextmanager
def written(path: Path) -> Iterator[None]:
    """Turns what goes wrong with a file into an error that names it.

    Raises:
        StorageError: It cannot be written.
    """
    try:
        yield
    except OSError as error:
        raise StorageError(f"{path} cannot be written: {error.strerror}.", remedy="Choose another folder.") from error
