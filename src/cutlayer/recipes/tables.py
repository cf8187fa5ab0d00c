"""Pivots of the long table for readers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeAlias

import pandas as pd

from cutlayer.core.proportion import in_percent
from cutlayer.recipes.long_table import Number, Where, select
from cutlayer.recipes.study import Results
from cutlayer.reports import Table, percent

DASH = "–"
SOURCES = ("here", "paper")
"""Whose numbers, as `source` of the long table says."""
Show: TypeAlias = Callable[[Number], str]
"""A number as text."""


def share(digits: int = 1, *, interval: bool = True) -> Show:
    """In per cent, with its 95 % interval, or over several seeds with its standard error; why there is no number."""

    def show(number: Number) -> str:
        if number.value is None:
            return _missing(number)
        if interval and (told := _within(number, lambda value: f"{100 * value:.{digits}f}")):
            return told
        if number.se is None:
            return percent(number.value, digits)
        return in_percent(number.value, number.se, number.trials, digits=digits)

    return show


error = partial(share, interval=False)
"""In per cent, with its standard error."""


def estimate(number: Number) -> str:
    """A share; a dash where there is none, which a note then explains."""
    return DASH if number.value is None else share()(number)


def complement(digits: int = 1) -> Show:
    """1 - a share, in per cent: empirical privacy from an attack's success (SAP §5.1)."""
    within = share(digits)

    def show(number: Number) -> str:
        value, low, high = (None if end is None else 1 - end for end in (number.value, number.lower, number.upper))
        return within(replace(number, value=value, lower=high, upper=low))

    return show


def plain(digits: int = 2) -> Show:
    """As it is, with its 95 % interval where there is one."""

    def show(number: Number) -> str:
        if number.value is None:
            return _missing(number)
        spread = "" if number.se is None else f" ± {number.se:.{digits}f}"
        return _within(number, lambda value: f"{value:.{digits}f}") or f"{number.value:,.{digits}f}{spread}"

    return show


def points(digits: int = 2) -> Show:
    """A difference of shares, in points, with its 95 % interval."""

    def show(number: Number) -> str:
        if number.value is None:
            return _missing(number)
        spread = "" if number.se is None else f" ± {100 * number.se:.{digits}f}"
        return (
            _within(number, lambda value: f"{100 * value:+.{digits}f}") or f"{100 * number.value:+.{digits}f}{spread}"
        )

    return show


def count(number: Number) -> str:
    """A whole number."""
    return _missing(number) if number.value is None else f"{number.value:,.0f}"


def scaled(power: int, digits: int = 1) -> Show:
    """In powers of ten: thousands (3), millions (6), GB (9)."""
    return lambda number: DASH if number.value is None else f"{number.value / 10**power:,.{digits}f}"


def significant(number: Number) -> str:
    """Three digits, of numbers of very different size."""
    return DASH if number.value is None else f"{number.value:.3g}"


def as_printed(number: Number) -> str:
    """A paper's number in its own digits."""
    return DASH if number.value is None else f"{number.value:g}"


def trials(number: Number) -> str:
    """The trials behind a number."""
    return DASH if number.value is None or number.n is None else f"{number.n:,.0f}"


def note(number: Number) -> str:
    """What a reader has to know of a number."""
    return number.note or DASH


def _missing(number: Number) -> str:
    return number.note.partition(":")[0] or DASH


def _within(number: Number, text: Callable[[float], str]) -> str:
    """A number of one run with the ends of its interval; empty where it has none."""
    if number.value is None or number.lower is None or number.upper is None or number.runs > 1:
        return ""
    return f"{text(number.value)} [{text(number.lower)}, {text(number.upper)}]"


def eta_text(eta: Any) -> str:
    """A privacy parameter for readers."""
    return "∞" if math.isinf(eta) else f"{eta:g}"


def share_text(share: Any) -> str:
    """A share of something as a level of an axis."""
    return f"{100 * share:g} %"


@dataclass(frozen=True)
class Axis:
    """An axis as readers see it.

    Attributes:
        name: Its column in the long table.
        title: Its heading; the name by default.
        show: Its levels as text: a function, or a table that may leave some out.
    """

    name: str
    title: str = ""
    show: Callable[[Any], str] | Mapping[Any, str] = str

    @property
    def heading(self) -> str:
        return self.title or self.name

    def text(self, level: Any) -> str:
        """A level for readers; nothing where the row stands nowhere on this axis."""
        if level is None or (isinstance(level, float) and math.isnan(level)):
            return ""
        if isinstance(level, float) and level.is_integer():
            level = int(level)
        return self.show(level) if callable(self.show) else self.show.get(level, str(level))


@dataclass(frozen=True)
class Column:
    """Numbers of a pivot.

    Attributes:
        title: Its heading; or of a row, where the columns are an axis.
        metric: Which numbers.
        where: Which rows of the long table, beside the line's own place; those of a paper where `source` is `paper`.
        show: Numbers as text.
    """

    title: str
    metric: str
    where: Where = field(default_factory=dict)
    show: Show = field(default_factory=share)


@dataclass(frozen=True)
class Pivot:
    """A table whose lines are the places on some axes, and whose columns are metrics or the places on another axis.

    Attributes:
        title: What it shows.
        lines: Axes whose places are the lines.
        columns: What is shown of each; with `across`, of each a line.
        across: The axis whose places are columns.
        where: Which rows of the long table.
        notes: Sentences below, or functions of the results that make them.
    """

    title: str
    lines: Sequence[Axis]
    columns: Sequence[Column]
    across: Axis | None = None
    where: Where = field(default_factory=dict)
    notes: Sequence[str | Callable[[Results], Iterable[str]]] = ()

    def __call__(self, results: Results) -> Iterable[Table]:
        yield self.table(results)

    def table(self, results: Results) -> Table:
        rows = select(results.frame, {"source": SOURCES, **self.where})
        places = [axis.name for axis in self.lines]
        for missing in (name for name in places if name not in rows):
            rows = rows.assign(**{missing: None})
        across, columns = self.across, [axis.heading for axis in self.lines]
        if across is None:
            columns += [column.title for column in self.columns]
        else:
            levels = results.levels(across.name, **self.where)
            columns += ["", *(f"{across.heading} {across.text(level)}" for level in levels)]
        lines: list[tuple[str, ...]] = []
        notes: list[str] = []
        # by place, in the order in which places first occur
        groups = rows.groupby(places, sort=False, dropna=False) if places else [((), rows)]
        for place, group in groups:
            heads = [axis.text(level) for axis, level in zip(self.lines, place, strict=True)]
            if across is None:
                found = [(heads, [self._cell(results, group, column) for column in self.columns])]
            else:
                parts = [select(group, {across.name: level}) for level in levels]
                found = [
                    ([*heads, column.title], [self._cell(results, part, column) for part in parts])
                    for column in self.columns
                ]
            # lines without any number are left out
            lines += [(*place, *texts) for place, texts in found if any(text != DASH for text in texts)]
        for each in self.notes:
            notes += [each] if isinstance(each, str) else each(results)
        return Table(title=self.title, columns=tuple(columns), rows=tuple(lines), notes=tuple(notes))

    def _cell(self, results: Results, group: pd.DataFrame, column: Column) -> str:
        source = self.where.get("source", "here")
        return column.show(results.pooled(select(group, {"source": source, "metric": column.metric, **column.where})))
