"""The long table: one row for each number that was measured, and how runs of several seeds become one number."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self, TypeAlias

import numpy as np
import pandas as pd

from cutlayer.attacks import Measured, NotApplicable, Outcome, SecondaryMetric
from cutlayer.core import Perplexity, Proportion
from cutlayer.reports import Estimate

Level: TypeAlias = str | int | float | None
"""Where a cell stands on an axis."""
Where: TypeAlias = Mapping[str, Any]
"""Selects rows: by column of the long table, a value or a tuple of those allowed."""

COLUMNS = ("part", "source", "seed", "attack", "metric", "value", "se", "n", "lower", "upper", "independent", "note")
"""Of the long table, beside its axes. `source` is `here`, or `paper` for a number that a paper prints."""


@dataclass(frozen=True)
class Measure:
    """A number that a cell measured.

    Attributes:
        value: `None` where there is no number; `note` then says why.
        se: Standard error, in the unit of the value.
        n: Trials behind it.
        lower: Lower end of its 95 % interval; `upper` its upper end.
        attack: Whose number it is; empty for one that no attack made.
        note: What a reader has to know of it.
        independent: Independent trials among the n, where these come in clusters as the tokens of a text do.
        axes: Where it stands, beyond the place of its cell: of a cell that measures several things.
    """

    metric: str
    value: float | None
    se: float | None = None
    n: float | None = None
    lower: float | None = None
    upper: float | None = None
    attack: str = ""
    note: str = ""
    independent: float | None = None
    axes: Mapping[str, Level] = field(default_factory=dict)

    @classmethod
    def share(cls, metric: str, share: Proportion | None, *, attack: str = "", note: str = "") -> Self:
        """A share with its standard error and the trials behind it; no number where there is none."""
        if share is None:
            return cls(metric, None, attack=attack, note=note)
        error, among = share.standard_error, share.independent
        return cls(metric, share.value, error, share.n, attack=attack, note=note, independent=among)

    @classmethod
    def fields(cls, found: object, names: Mapping[str, str], *, attack: str = "") -> Iterator[Self]:
        """Fields of a result as numbers: shares and perplexities with their errors, others as they are.

        Args:
            found: The result.
            names: Fields, by the names that they have in the long table.
            attack: Whose numbers they are.
        """
        for metric, field_ in names.items():
            value = getattr(found, field_)
            if isinstance(value, Proportion | Perplexity):
                among = value.independent if isinstance(value, Proportion) else None
                error, n = value.standard_error, value.n
                yield cls(metric, value.value, error, n, attack=attack, independent=among)
            else:
                yield cls(metric, value, attack=attack)

    def row(self) -> dict[str, Any]:
        columns = vars(self)
        return {**self.axes, **{name: columns[name] for name in columns if name != "axes"}}

    @classmethod
    def outcome(cls, outcome: Outcome, *, attack: str | None = None) -> Iterator[Self]:
        """All that an attack's outcome says: success, chance, p, secondary metrics, and what controls read."""
        name = outcome.attack if attack is None else attack
        if not isinstance(outcome, Measured):
            yield cls("success", None, attack=name, note=f"{outcome.status}: {outcome.reason}")
        else:
            low, high = outcome.interval
            success = outcome.success
            yield cls("success", success.value, success.standard_error, success.n, low, high, attack=name)
            yield cls("chance", outcome.chance, n=success.n, attack=name)
            yield cls("p", outcome.p_value, n=success.n, attack=name)
            for other in outcome.further:
                yield cls.secondary(other, attack=name)
        if not isinstance(outcome, NotApplicable):
            for control in outcome.controls:
                yield cls(f"control: {control.check}", control.recovered, attack=name)

    @classmethod
    def secondary(cls, metric: SecondaryMetric, *, attack: str) -> Self:
        """A further number of an attack, with its interval where it has one."""
        low, high = metric.interval or (None, None)
        return cls(metric.name, metric.value, None, metric.n, low, high, attack=attack, note=metric.title)


@dataclass(frozen=True)
class Number:
    """A number of the long table, pooled over seeds; `value` is `None` where there is none, and `note` says why."""

    value: float | None
    se: float | None = None
    n: float | None = None
    lower: float | None = None
    upper: float | None = None
    runs: int = 1
    note: str = ""
    independent: float | None = None

    @property
    def error(self) -> float:
        """The standard error; 0 where none was measured."""
        return self.se or 0.0

    @property
    def trials(self) -> float:
        """Independent trials, as far as known: what none or all of them tell depends on these."""
        return self.independent or self.n or 1


NONE = Number(None)


def select(frame: pd.DataFrame, where: Where) -> pd.DataFrame:
    """The rows of a table whose columns have the values asked for; a tuple or list allows several."""
    kept = np.arange(len(frame))  # copying all columns at each step is what would take the time
    for column, wanted in where.items():
        if column not in frame:
            return frame.iloc[:0]
        allowed = wanted if isinstance(wanted, tuple | list) else (wanted,)
        kept = kept[frame[column].iloc[kept].isin(list(allowed))]
    return frame.iloc[kept]


NUMBERS = ("value", "se", "n", "lower", "upper", "independent")


class _Run(NamedTuple):
    value: float
    n: int
    standard_error: float


def pool(found: Sequence[Number], *, same_texts: bool) -> Number:
    """Runs of several seeds as one number; one run without a number leaves the setting without one."""
    values = [each.value for each in found]
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return next(each for each in found if each.value is None)
    runs, note = len(known), found[0].note
    sizes = [each.n or 1.0 for each in found]
    if any(each.se is None for each in found):
        return Number(math.fsum(known) / runs, n=min(sizes), runs=runs, note=note)
    if same_texts:
        errors = [each.error for each in found]
        estimate = Estimate.of([_Run(*run) for run in zip(known, map(int, sizes), errors, strict=True)])
        least = min(each.trials for each in found)
        return Number(estimate.value, estimate.standard_error, estimate.n, runs=runs, note=note, independent=least)
    total = math.fsum(sizes)
    value = math.fsum(size * value for size, value in zip(sizes, known, strict=True)) / total
    error = math.hypot(*(size * each.error for size, each in zip(sizes, found, strict=True))) / total
    trials = math.fsum(each.trials for each in found)
    return Number(value, error, total, runs=runs, note=note, independent=trials)
