"""What an experiment is: scenarios that are run, and what is made of their numbers.

A part of a paper is a set of scenarios (cells with the axes that they stand at). What they measured is one long table:
tables are pivots of it, figures are group-bys, claims are comparisons.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, Self, TypeAlias, TypeVar

import pandas as pd

from cutlayer.core import Spec
from cutlayer.recipes.lab import Cell
from cutlayer.recipes.long_table import NONE, NUMBERS, Level, Measure, Number, pool, select
from cutlayer.reports import Table

C = TypeVar("C", bound=Cell)


@dataclass(frozen=True)
class Scenario:
    """A cell, and where it stands on the axes of its part; axes of measures (`attack`, `metric`) are theirs."""

    cell: Cell
    axes: Mapping[str, Level] = field(default_factory=dict)

    @staticmethod
    def each(seeds: int, cell: Cell, **axes: Level) -> list[Scenario]:
        """The same place for so many seeds."""
        return [Scenario(cell.model_copy(update={"seed": seed}), axes) for seed in range(seeds)]


@dataclass(frozen=True)
class Stated:
    """A number that a paper prints, in the unit of ours: a share where it prints per cent."""

    metric: str
    value: float
    axes: Mapping[str, Level] = field(default_factory=dict)
    attack: str = ""
    note: str = ""

    @classmethod
    def lines(
        cls, lines: Iterable[Mapping[str, Any]], *, percent: Collection[str], plain: Collection[str] = ()
    ) -> list[Self]:
        """Lines of a paper's table.

        Args:
            lines: Metrics, axes and `note` by name. Lists hold a line's cells from left to right.
            percent: Metrics that the paper prints in per cent.
            plain: Other metrics.
        """
        found = []
        for line in lines:
            for cell in range(max(len(each) if isinstance(each, list) else 1 for each in line.values())):
                here = {name: each[cell] if isinstance(each, list) else each for name, each in line.items()}
                note = here.pop("note", "")
                axes = {name: level for name, level in here.items() if name not in {*percent, *plain}}
                found += [cls(name, here[name] / 100, axes, note=note) for name in percent if name in here]
                found += [cls(name, here[name], axes, note=note) for name in plain if name in here]
        return found


class Verdict(Spec):
    """Whether a claim holds here, which it may leave undecided, by which numbers, and what was stated of it."""

    claim: str
    here: str
    held: bool | None
    stated: str = ""

    @property
    def word(self) -> str:
        return {True: "yes", False: "NO", None: "not decided"}[self.held]


Claim: TypeAlias = "Callable[[Results], Iterable[Verdict]]"
"""Judges results; it may say nothing where the results lack what it is about."""
Derived: TypeAlias = "Callable[[Results], Iterable[Measure]]"
"""Makes numbers of those of several cells."""
Told: TypeAlias = "Callable[[Results], Iterable[Table]]"
"""Tables made of results: a `tables.Pivot`, or a named function for what is no pivot."""


class Picture(Protocol):
    """What is drawn from a part's rows, such as a `Figure`."""

    def draw(self, results: Results, folder: Path, *, model: str) -> list[Path]:
        """Writes PNG and CSV into a folder, nothing where there is nothing to draw; the title names the model.

        Raises:
            StorageError: A file cannot be written.
        """
        ...


@dataclass(frozen=True)
class Part:
    """A table or figure of a paper, or one beside it.

    Attributes:
        title: What it is about.
        scenarios: What is run.
        stated: What the paper prints.
        derived: Makes numbers of those of several cells; they become rows of the long table, too.
        tables: Pivots of the part's rows, and tables that are none.
        figures: Drawn from the part's rows.
        claims: What must hold of its numbers, or what a paper says of them.
        same_texts: Whether runs of several seeds are measured on the same texts: then these add no independent texts.
        details: Further content of the report's JSON.
    """

    title: str
    scenarios: Sequence[Scenario] = ()
    stated: Sequence[Stated] = ()
    derived: Derived = lambda _: ()
    tables: Sequence[Told] = ()
    figures: Sequence[Picture] = ()
    claims: Sequence[Claim] = ()
    same_texts: bool = True
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Results:
    """Finished cells, and the long table of what they measured.

    Attributes:
        frame: The long table: axes and `COLUMNS`, a row for each number.
        cells: Results by cell, as the cell returned them.
        scenarios: Of the part, or of all parts.
        same_texts: As of the part.
    """

    frame: pd.DataFrame
    cells: Mapping[Cell, Any]
    scenarios: Sequence[Scenario] = ()
    same_texts: bool = True

    def rows(self, **where: Any) -> pd.DataFrame:
        """Rows of the long table; those of papers only where `source` asks for them."""
        return select(self.frame, {"source": "here", **where})

    def number(self, metric: str, **where: Any) -> Number:
        """One number of one place, pooled over seeds.

        Raises:
            ValueError: The rows are of several places, so that pooling them would mix settings.
        """
        return self.pooled(self.rows(metric=metric, **where))

    def pooled(self, rows: pd.DataFrame) -> Number:
        """Rows that differ in their seed alone, as one number."""
        if rows.empty:
            return NONE
        if rows["seed"].duplicated().any():
            raise ValueError("these rows are of several places")
        found = []
        for *numbers, note in rows.reindex(columns=[*NUMBERS, "note"]).itertuples(index=False, name=None):
            value, se, n, lower, upper, trials = (None if pd.isna(each) else float(each) for each in numbers)
            found.append(
                Number(value, se, n, lower, upper, note=note if isinstance(note, str) else "", independent=trials)
            )
        return found[0] if len(found) == 1 else pool(found, same_texts=self.same_texts)

    def of(self, kind: type[C]) -> list[tuple[C, Any]]:
        """The finished cells of one kind among the scenarios, with their results."""
        cells = dict.fromkeys(scenario.cell for scenario in self.scenarios)
        return [(cell, self.cells[cell]) for cell in cells if isinstance(cell, kind) and cell in self.cells]

    def levels(self, axis: str, **where: Any) -> list[Any]:
        """The places on an axis, in the order of the scenarios."""
        rows = self.rows(**where)
        return [] if axis not in rows else list(dict.fromkeys(rows[axis].dropna()))
