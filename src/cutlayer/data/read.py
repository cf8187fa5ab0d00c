"""Files and hub data sets to a `Dataset`.

Errors name files, columns and row numbers (the first row of data is row 1), never what a row holds.
"""

from __future__ import annotations

import csv
import difflib
import gzip
import io
import json
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO, Any, TypeVar, cast

from cutlayer.core import DataError
from cutlayer.core.extras import require
from cutlayer.data.dataset import Dataset, check_characters
from cutlayer.data.tables import Row, Table, is_table, named_classes, table_rows

HUB_PREFIX = "hub:"
_HUB = re.compile(r"hub:(?P<path>[\w.-]+/[\w.-]+)(?:/(?P<name>[\w.-]+))?:(?P<split>[\w.+-]+)")
_HUB_SYNTAX = "hub:OWNER/NAME:SPLIT, or hub:OWNER/NAME/CONFIGURATION:SPLIT, for example hub:nyu-mll/glue/sst2:train"

_LONGEST_NAME = 255

T = TypeVar("T")
Reader = Callable[[Path, IO[bytes]], Iterator[Row]]


def read_dataset(
    source: str | Path | Table,
    *,
    text_column: str,
    text_pair_column: str | None = None,
    label_column: str | None = None,
    attribute_columns: Sequence[str] = (),
    copied_columns: Sequence[str] = (),
) -> Dataset:
    """Reads texts and labels.

    Args:
        source: A file `.csv`, `.tsv`, `.jsonl` (or `.ndjson`) or `.parquet`, each also with `.gz`
            behind it, or a data set of the Hugging Face hub written as `hub:OWNER/NAME:SPLIT` or
            `hub:OWNER/NAME/CONFIGURATION:SPLIT` (needs the extra `cutlayer[datasets]`).
            Files are UTF-8; CSV and TSV have a header line and CSV's quoting rules. Or a table in memory: a
            DataFrame of pandas or polars, a pyarrow Table, a `datasets.Dataset`, a list of dicts.
        text_column: Column of the text.
        text_pair_column: Column of the second text of a pair.
        label_column: Column of the label. Numbers and truth values become their usual names, classes
            of a hub data set the names it gives them.
        attribute_columns: Further columns to keep; each row needs a value, as of the label.
        copied_columns: Further columns to keep as they are: what is empty stays empty, and what is no
            text becomes its JSON text.

    Raises:
        DataError: The file is missing, empty, of another kind or damaged; a column is missing; a row
            has no text, no label or no value of an attribute, or holds half of a surrogate pair.
    """
    called = source_name(source)
    columns = [text_column, *([text_pair_column] if text_pair_column else [])]
    rows: list[tuple[str, ...]] = []
    labels: list[str] = []
    attributes: dict[str, list[str]] = {name: [] for name in (*attribute_columns, *copied_columns)}
    wanted = [*columns, *([label_column] if label_column else []), *attributes]
    for number, row in enumerate(rows_with(source, wanted), start=1):
        rows.append(tuple(text_in(called, row, column, number) for column in columns))
        if label_column:
            labels.append(_value(called, row, label_column, number))
        for name in attribute_columns:
            attributes[name].append(_value(called, row, name, number))
        for name in copied_columns:
            attributes[name].append(_copied(row.get(name)))
    try:
        return Dataset(
            tuple(rows),
            tuple(labels) if label_column else None,
            {name: tuple(values) for name, values in attributes.items()},
        )
    except DataError as error:
        raise DataError(f"{called}: {error.message[0].lower()}{error.message[1:]}", remedy=error.remedy) from None


@dataclass(frozen=True)
class TextFile:
    """The texts of a file or hub data set of any size, a row at a time; read anew each time that they are asked for.

    Attributes:
        source: As for `read_dataset`, whose errors it raises too, row by row.
        text_column: Column of the text.
        text_pair_column: Column of the second text of a pair.
    """

    source: str | Path
    text_column: str = "text"
    text_pair_column: str | None = None

    def __iter__(self) -> Iterator[tuple[str, ...]]:
        columns = [self.text_column, *([self.text_pair_column] if self.text_pair_column else [])]
        for number, row in enumerate(rows_with(self.source, columns), start=1):
            texts = tuple(text_in(source_name(self.source), row, column, number) for column in columns)
            for text in texts:
                check_characters(text, f"{self.source}: row {number}")
            yield texts

    @cached_property
    def _count(self) -> int:
        return sum(1 for _ in self)

    def __len__(self) -> int:
        """How many rows there are: all of them are read, and so checked, when this is first asked for."""
        return self._count


def source_name(source: str | Path | Table) -> str:
    """What errors call a source: a table in memory has no name.

    Args:
        source: As for `read_dataset`.
    """
    return str(source) if isinstance(source, str | Path) else "The table"


def has_column(source: str | Path | Table, column: str) -> bool:
    """Whether the rows of a file, a hub data set or a table have a column.

    Args:
        source: As for `read_dataset`.
        column: Its name.

    Raises:
        DataError: The file is missing, of another kind or damaged.
    """
    return column in next(iter(_rows(source)), {})


def rows_with(source: str | Path | Table, columns: Iterable[str]) -> Iterator[Row]:
    """Rows that have these columns, one row at least, as they are.

    Args:
        source: As for `read_dataset`.
        columns: Their names.

    Raises:
        DataError: The file is missing, empty, of another kind or damaged, or has no such column.
    """
    empty = True
    for row in _rows(source):
        if empty:
            _check_columns(source_name(source), row, columns)
            empty = False
        yield row
    if empty:
        raise DataError(f"{source_name(source)} holds no rows.", remedy="Give a file with at least one row of data.")


def _rows(source: str | Path | Table) -> Iterator[Row]:
    if not isinstance(source, str | Path):
        if not is_table(source):
            raise DataError(
                f"A {type(source).__name__} is no table of texts, or an empty one.",
                remedy="Pass a file, a DataFrame, a pyarrow Table, a datasets.Dataset or a list of dicts.",
            )
        return table_rows(source)
    if isinstance(source, str) and source.startswith(HUB_PREFIX):
        return _hub_rows(source)
    path = Path(source)
    reader = _reader(path)
    try:
        is_folder, is_file = path.is_dir(), path.is_file()
    except (OSError, ValueError):  # longer than a name may be, or in a folder that is closed to this user
        is_folder = is_file = False
    if is_folder:
        raise DataError(f"{str(source)!r} is a folder, not a file.", remedy="Name the file in it.")
    if not is_file:
        if not _may_be_shown(source):
            raise DataError(
                f"{_unshown(source)} names no file.",
                remedy=f"Pass a path with its ending, or a list of texts. Hub data sets are written {_HUB_SYNTAX}.",
            )
        raise DataError(f"There is no file {str(source)!r}.", remedy="Check the path.")
    if reader is None:
        raise DataError(
            f"{source} is of no kind that can be read.",
            remedy=f"Known endings: {', '.join(sorted(_READERS))}, each also with .gz behind it.",
        )
    return _read_file(path, reader)


def _reader(path: Path) -> Reader | None:
    kind = path.suffixes[-2] if path.suffix == ".gz" and len(path.suffixes) > 1 else path.suffix
    return _READERS.get(kind.lower())


def _may_be_shown(source: str | Path) -> bool:
    """Whether what was given as a file's name, and names none, is no text that was passed in the place of one."""
    if isinstance(source, Path):
        return True
    # a text may be one word, and many scripts put no spaces between words: a name is what ends as one
    like_a_name = _reader(Path(source)) is not None or (source.startswith(HUB_PREFIX) and source.isascii())
    return like_a_name and len(source) <= _LONGEST_NAME and not any(map(str.isspace, source))


def _unshown(source: str | Path) -> str:
    return f"The text given as a file's name ({len(str(source))} characters)"


def read_lines(path: Path) -> Iterator[str]:
    """The lines of a UTF-8 file, each with its end; one ending in `.gz` is unpacked.

    Args:
        path: The file.

    Raises:
        DataError: It cannot be read, is no complete gzip file where its name says so, or is not UTF-8.
    """
    return _read_file(path, _decoded)


def _read_file(path: Path, reader: Callable[[Path, IO[bytes]], Iterator[T]]) -> Iterator[T]:
    try:
        with path.open("rb") as file:
            stream = cast(IO[bytes], gzip.GzipFile(fileobj=file)) if path.suffix == ".gz" else file
            yield from reader(path, stream)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{path} is no complete gzip file.", remedy="Fetch or write the file again.") from error
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or type(error).__name__}.") from error


# ---------------------------------------------------------------- file kinds


def _decoded(path: Path, stream: IO[bytes]) -> Iterator[str]:
    """Lines with their ends, which quoted CSV fields need; a byte-order mark is dropped."""
    lines = io.TextIOWrapper(stream, encoding="utf-8-sig", newline="")
    try:
        yield from lines
    except UnicodeDecodeError:
        # the error holds the bytes around the fault, hence no `from error`
        raise DataError(f"{path} is not UTF-8.", remedy="Convert it, for example with `iconv -t utf-8`.") from None


def _delimited(path: Path, stream: IO[bytes], delimiter: str) -> Iterator[Row]:
    # the default limit of 128 KiB a field would refuse long documents
    csv.field_size_limit(2**31 - 1)
    lines = csv.reader(_decoded(path, stream), delimiter=delimiter, strict=True)
    try:
        header = next(lines, None)
        if header is None:
            return
        if len(set(header)) != len(header):
            raise DataError(f"{path} has two columns of the same name.", remedy="Rename one of them.")
        for number, fields in enumerate((fields for fields in lines if fields), start=1):
            if len(fields) != len(header):
                raise DataError(
                    f"{path}: row {number} has {len(fields)} fields, the header has {len(header)}.",
                    remedy="Put fields that hold the delimiter or a line break in double quotes.",
                )
            yield dict(zip(header, fields, strict=True))
    except csv.Error as error:
        raise DataError(
            f"{path}: line {lines.line_num} breaks CSV's quoting rules ({error}).",
            remedy="Put fields that hold the delimiter or a line break in double quotes, and double those inside; "
            "the fault may lie some lines before.",
        ) from error


def _csv(path: Path, stream: IO[bytes]) -> Iterator[Row]:
    return _delimited(path, stream, ",")


def _tsv(path: Path, stream: IO[bytes]) -> Iterator[Row]:
    return _delimited(path, stream, "\t")


def _jsonl(path: Path, stream: IO[bytes]) -> Iterator[Row]:
    for number, line in enumerate((line for line in _decoded(path, stream) if line.strip()), start=1):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):  # a number may be too long for Python, which is no JSONDecodeError
            # the decoder's own message quotes the line, hence no `from error`
            raise DataError(f"{path}: row {number} is no JSON.", remedy="Write one JSON object a line.") from None
        if not isinstance(row, dict):
            raise DataError(f"{path}: row {number} is no JSON object.", remedy="Write one JSON object a line.")
        yield row


def _parquet(path: Path, stream: IO[bytes]) -> Iterator[Row]:
    require("parquet")
    import pyarrow
    import pyarrow.parquet

    try:
        # Parquet is read from its end, which a gzip stream can only reach by unpacking everything
        file = pyarrow.parquet.ParquetFile(io.BytesIO(stream.read()) if path.suffix == ".gz" else stream)
        for batch in file.iter_batches():
            yield from batch.to_pylist()
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{path} is no complete Parquet file.", remedy="Write or fetch the file again.") from error


_READERS: Mapping[str, Reader] = {
    ".csv": _csv,
    ".tsv": _tsv,
    ".jsonl": _jsonl,
    ".ndjson": _jsonl,
    ".parquet": _parquet,
}


# ---------------------------------------------------------------- the hub


def _hub_rows(source: str) -> Iterator[Row]:
    match = _HUB.fullmatch(source)
    if match is None:
        named = source if _may_be_shown(source) else _unshown(source)
        raise DataError(f"{named} names no hub data set.", remedy=f"Write {_HUB_SYNTAX}.")
    require("datasets")
    import datasets

    try:
        table = datasets.load_dataset(match["path"], match["name"], split=match["split"])
    except (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError) as error:
        # a missing data set, configuration or split, one that is a script, no network, offline mode
        raise DataError(
            f"{source} could not be loaded ({type(error).__name__}: {error}).",
            remedy="Check name, configuration and split, and that the hub can be reached; or give a file.",
        ) from error
    return named_classes(table)


# ---------------------------------------------------------------- values


def _check_columns(source: str, row: Row, wanted: Iterable[str]) -> None:
    for column in wanted:
        if column not in row:
            # a file without a header line has private text where names should stand
            close = difflib.get_close_matches(column, map(str, row))
            hint = f"Did you mean {' or '.join(map(repr, close))}? " if close else ""
            raise DataError(
                f"{source} has no column {column!r}; it has {len(row)} column{'' if len(row) == 1 else 's'}.",
                remedy=f"{hint}Name a column of the file. In CSV and TSV, the first row must hold the columns' names.",
            )


def text_in(source: str, row: Row, column: str, number: int) -> str:
    """The text in a row's column.

    Args:
        source: What errors call the rows' source.
        row: The row.
        column: The column's name.
        number: The row's, from 1 on.

    Raises:
        DataError: There is none.
    """
    value = row.get(column)
    if not isinstance(value, str):
        found = "nothing" if value is None else f"a value of type {type(value).__name__}"
        raise DataError(
            f"{source}: row {number} has {found} in column {column!r}, where a text is needed.",
            remedy="Put a text there, an empty one if need be, or leave the row out.",
        )
    return value


def _value(source: str, row: Row, column: str, number: int) -> str:
    value = row.get(column)
    if value is None or value == "":
        raise DataError(
            f"{source}: row {number} has nothing in column {column!r}.", remedy="Fill it in or leave the row out."
        )
    if not isinstance(value, str | int | float | bool):
        raise DataError(
            f"{source}: row {number} has a value of type {type(value).__name__} in column {column!r}, "
            "where a name or a number is needed.",
            remedy="Put one name or number there.",
        )
    return str(value)


def _copied(value: Any) -> str:
    if value is None:
        return ""
    # dates and the like, which Parquet holds and JSON has no form for, alone and inside lists
    if not isinstance(value, bool | int | float | list | dict):
        return str(value)
    return json.dumps(value, ensure_ascii=False, default=str)
