"""Rows of tables that are in memory: data frames, Arrow tables, data sets, lists of dicts.

They are known by what they can do, so that none of the packages that make them is needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from cutlayer.core.extras import require

Row = Mapping[str, Any]


@runtime_checkable
class ArrowTable(Protocol):
    """What hands out an Arrow stream, as data frames of pandas and polars and tables of pyarrow do."""

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        """A PyCapsule of the stream."""


@runtime_checkable
class HubDataset(Protocol):
    """A `datasets.Dataset`."""

    @property
    def features(self) -> Mapping[str, Any]:
        """The columns and their types."""

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Its rows."""


Table = ArrowTable | HubDataset | Sequence[Row]
"""A table in memory: a DataFrame of pandas or polars, a pyarrow Table, a `datasets.Dataset`, or a list of dicts."""


def is_table(source: object) -> bool:
    """Whether an object is a table in memory.

    Args:
        source: Any object.
    """
    if isinstance(source, str | bytes):
        return False
    if isinstance(source, Sequence):
        return bool(source) and all(isinstance(row, Mapping) for row in source)
    return isinstance(source, ArrowTable | HubDataset) or hasattr(source, "__dataframe__")


def table_rows(source: Any) -> Iterator[Row]:
    """The rows of a table in memory; what is missing is `None`.

    Args:
        source: The table.

    Raises:
        MissingExtraError: It can be read by pyarrow alone, which is not installed.
    """
    if isinstance(source, HubDataset) and not hasattr(source, "columns"):
        return named_classes(source)
    if isinstance(source, Sequence):
        return iter(source)
    if hasattr(source, "to_pylist"):  # pyarrow
        return iter(source.to_pylist())
    if hasattr(source, "iter_rows"):  # polars
        return iter(source.iter_rows(named=True))
    if hasattr(source, "notna"):  # pandas
        return iter(source.astype(object).where(source.notna(), None).to_dict("records"))
    require("parquet")
    import pyarrow
    import pyarrow.interchange

    arrow = isinstance(source, ArrowTable)
    return iter((pyarrow.table(source) if arrow else pyarrow.interchange.from_dataframe(source)).to_pylist())


def named_classes(table: HubDataset) -> Iterator[Row]:
    """Rows of a data set of the hub, whose class labels are numbers, with the names that it gives them.

    Args:
        table: The data set.
    """
    classes = {name: feature.names for name, feature in table.features.items() if hasattr(feature, "names")}
    for row in table:
        named = dict(row)
        for column, names in classes.items():
            number = row[column]
            # the hub writes -1, or nothing, where the label is withheld
            named[column] = None if number is None or number < 0 else names[number]
        yield named
