"""Columns of numbers as bins of about equally many rows: attributes that are learnt and scored as classes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

from cutlayer.core import ConfigError, DataError, Fault
from cutlayer.data.dataset import Dataset


def bin_columns(data: Dataset, columns: Sequence[str], bins: int) -> Dataset:
    """Texts whose attributes that are numbers are bins of these; attributes that are words stay as they are.

    Args:
        data: The texts.
        columns: Attributes; one of them at least holds numbers.
        bins: How many bins.

    Raises:
        ConfigError: There are less than two bins, no column holds numbers, or one holds fewer different ones than bins.
        DataError: A column holds numbers in some rows only.
    """
    numbers = {name: found for name in columns if (found := _numbers(data.attributes[name], name)) is not None}
    if not numbers:
        raise ConfigError(
            [Fault("bins", bins, f"none of the columns {', '.join(columns)} holds numbers")],
            remedy="Name a column of numbers, or leave bins out: words are classes as they are.",
        )
    binned = {name: equal_bins(values, bins, column=name) for name, values in numbers.items()}
    return replace(data, attributes={**data.attributes, **binned})


def equal_bins(values: Sequence[float], bins: int, *, column: str) -> tuple[str, ...]:
    """The bin that each number falls into; equal numbers are never in two.

    Each bin ends behind the value that comes next to its share of rows, so that bins hold about equally many, and
    exactly as many where no value that is held by several rows lies across a quantile.

    Args:
        values: Finite numbers, one a row.
        bins: How many bins.
        column: What errors call them.

    Returns:
        Names such as "1955-1963", one a row: a bin's least and greatest value.

    Raises:
        ConfigError: There are less than two bins, or fewer different numbers than bins.
    """
    if bins < 2:
        raise ConfigError([Fault("bins", bins, "must be at least 2")])
    counts = Counter(map(float, values))
    different = sorted(counts)
    if len(different) < bins:
        raise ConfigError(
            [Fault("bins", bins, f"column {column!r} has {len(different)} different values")],
            remedy="Ask for as many bins at most, or leave bins out.",
        )
    upto = list(accumulate(counts[value] for value in different))
    starts = [0]
    for number in range(1, bins):
        # one value at least for this bin, and for each behind it
        ends = range(starts[-1] + 1, len(different) - (bins - number) + 1)
        share = number * len(values) / bins
        starts.append(min(ends, key=lambda end: abs(upto[end - 1] - share)))
    names: dict[float, str] = {}
    for start, end in zip(starts, [*starts[1:], len(different)], strict=True):
        name = _name(different[start], different[end - 1])
        names |= dict.fromkeys(different[start:end], name)
    return tuple(names[value] for value in values)


def _numbers(values: Sequence[str], column: str) -> tuple[float, ...] | None:
    """A column's numbers; `None` where it holds words alone."""
    found = [_number(value) for value in values]
    if all(number is None for number in found):
        return None
    if None in found:
        raise DataError(
            f"Row {found.index(None) + 1} has no number in column {column!r}, where others have.",
            remedy="Leave such rows out, or ask without bins.",
        )
    return tuple(number for number in found if number is not None)


def _number(value: str) -> float | None:
    try:
        number = float(value)
    except ValueError:
        return None
    return number if math.isfinite(number) and "_" not in value else None


def _name(least: float, greatest: float) -> str:
    ends = [str(int(end)) if end.is_integer() else repr(end) for end in (least, greatest)]
    if least == greatest:
        return ends[0]
    # a hyphen beside a minus sign, or inside 1e-07, would be misread
    return (" to " if any("-" in end for end in ends) else "-").join(ends)
