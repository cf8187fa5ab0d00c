"""Tables that are in memory, each by what it can do."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, ClassVar

import pandas
import pyarrow
import pytest

from cutlayer.core import DataError
from cutlayer.data import has_column, is_table, read_dataset

ROWS = [{"text": "one", "ward": "a", "age": 1}, {"text": "two", "ward": "b", "age": 2}]


class Hub:
    """What a `datasets.Dataset` can do."""

    features: ClassVar = {"text": object(), "ward": SimpleNamespace(names=["a", "b"])}

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter([{"text": "one", "ward": 0}, {"text": "two", "ward": 1}])


class Polars:
    """What a polars DataFrame can do."""

    columns: ClassVar = ["text", "ward"]

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        raise AssertionError("it hands out rows without pyarrow")

    def iter_rows(self, *, named: bool) -> Iterator[dict[str, Any]]:
        assert named
        return iter(ROWS)


class Stream:
    """What hands out an Arrow stream and nothing else."""

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return pyarrow.Table.from_pylist(ROWS).__arrow_c_stream__(requested_schema)


TABLES = [ROWS, pandas.DataFrame(ROWS), pyarrow.Table.from_pylist(ROWS), Hub(), Polars(), Stream()]


@pytest.mark.parametrize("table", TABLES, ids=lambda table: type(table).__name__)
def test_a_table_is_read(table: Any) -> None:
    assert is_table(table)
    assert has_column(table, "ward")
    data = read_dataset(table, text_column="text", label_column="ward")
    assert (data.texts, data.labels) == ((("one",), ("two",)), ("a", "b"))


def test_what_is_missing_is_said_by_its_row_and_never_shown() -> None:
    table = pandas.DataFrame({"text": ["a secret", "another"], "ward": ["a", None]})
    with pytest.raises(DataError, match="The table: row 2 has nothing in column 'ward'") as refused:
        read_dataset(table, text_column="text", label_column="ward")
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("source", [[], ["a text"], 3, object()])
def test_what_is_no_table_is_refused(source: Any) -> None:
    assert not is_table(source)
    with pytest.raises(DataError, match="is no table of texts"):
        read_dataset(source, text_column="text")
