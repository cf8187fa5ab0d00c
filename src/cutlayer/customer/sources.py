"""Where a customer's texts come from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import cast

from cutlayer.core import DataError
from cutlayer.customer.columns import DataSpec
from cutlayer.customer.settings import Objective
from cutlayer.data import Dataset, Table, is_table, read_dataset, read_fact_pairs

Source = str | Path | Dataset | Table
"""Where texts come from: a file, a hub data set (`hub:OWNER/NAME:SPLIT`), a `Dataset`, or a table in memory.

Tables are DataFrames of pandas and polars, pyarrow Tables, `datasets.Dataset`s and lists of dicts.
"""


Texts = Source | Sequence[str] | Sequence[tuple[str, str]]
"""The same, or texts themselves, or pairs of texts."""


def read_source(
    source: Source, data: DataSpec, objective: Objective, *, labelled: bool = True, attributes: Sequence[str] = ()
) -> Dataset:
    """Texts to train or measure on, with what is learnt of them.

    Args:
        source: Where they come from.
        data: Which columns they stand in.
        objective: What is learnt.
        labelled: Whether a classifier's texts have labels.
        attributes: Further columns to keep.
    """
    if isinstance(source, Dataset):
        return source
    if data.facts:
        return read_fact_pairs(source)
    classifies = objective is Objective.CLASSIFICATION
    return read_dataset(
        source,
        text_column=data.text_column,
        text_pair_column=data.second_column(objective),
        label_column=data.label_column if classifies and labelled else None,
        attribute_columns=attributes,
    )


def _row(given: object, number: int) -> tuple[str, ...]:
    """A text, or a pair of texts, as a row.

    Raises:
        DataError: It is neither.
    """
    row = (given,) if isinstance(given, str) else given
    if not isinstance(row, Sequence) or not all(isinstance(text, str) for text in row):
        raise DataError(
            f"Text {number} is of type {type(given).__name__}.", remedy="Give strings, or pairs of strings."
        )
    return tuple(row)


def read_texts(source: Texts, data: DataSpec) -> Dataset:
    """Texts to ask about.

    Args:
        source: Where they come from.
        data: Which columns they stand in.

    Raises:
        DataError: One is no text and no pair, or the file cannot be read.
    """
    if isinstance(source, Dataset):
        return source
    if not isinstance(source, str | Path) and not is_table(source) and isinstance(source, Iterable):
        return Dataset(tuple(_row(text, number) for number, text in enumerate(source, start=1)))
    return read_dataset(
        cast("str | Path | Table", source), text_column=data.text_column, text_pair_column=data.text_pair_column
    )
