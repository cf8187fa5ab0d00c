"""Files that commands write: one row a text, in the order of the input."""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import typer

KINDS = (".csv", ".tsv", ".jsonl")

UNSAFE = "unsafe_noise_seed"
"""The column that marks every row whose noise came from a seed."""


def check_kind(path: Path) -> Path:
    """Refuses an output whose ending says nothing, before any work is done.

    Raises:
        typer.BadParameter: The ending is not known.
    """
    if _kind(path) not in KINDS:
        endings = ", ".join(KINDS)
        raise typer.BadParameter(
            f"{path} must end in one of {endings}, each also with .gz behind it", param_hint="--output"
        )
    return path


def check_columns(given: Mapping[str, Sequence[str]], added: Sequence[str]) -> None:
    """Refuses, before any work is done, columns of the input that the output's own would replace.

    Args:
        given: Columns by the option that names them.
        added: What the output has besides.

    Raises:
        typer.BadParameter: One is among them.
    """
    for option, columns in given.items():
        for column in columns:
            if column in added:
                raise typer.BadParameter(
                    f"the output has a column {column} of its own. Rename the input's", param_hint=option
                )


def check_not_input(input_file: str, output_file: Path) -> None:
    """Refuses, before any work is done, to write over the input, whose other columns would be lost.

    Args:
        input_file: A file or a hub data set.
        output_file: Where the command will write.

    Raises:
        ConfigError: Both are one file, whatever they are called.
    """
    try:
        same = os.path.samefile(input_file, output_file)
    except OSError:  # one of them is not there, or is no file
        return
    if same:
        from cutlayer.core import ConfigError

        raise ConfigError(
            f"--output {output_file} is the file that --input names, and would replace it.",
            remedy="Choose another name for --output.",
        )


def write_rows(path: Path, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Writes a table; `.gz` behind the ending compresses it.

    Raises:
        StorageError: The file could not be written.
    """
    from cutlayer.core import StorageError

    text = io.StringIO(newline="")
    if _kind(path) == ".jsonl":
        for row in rows:
            text.write(json.dumps(dict(zip(columns, row, strict=True)), ensure_ascii=False) + "\n")
    else:
        table = csv.writer(text, delimiter="\t" if _kind(path) == ".tsv" else ",", lineterminator="\n")
        table.writerow(columns)
        table.writerows(rows)
    content = text.getvalue().encode()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress(content, mtime=0) if path.suffix == ".gz" else content)
    except OSError as error:
        raise StorageError(
            f"{path} could not be written: {error.strerror}.", remedy="Free some space or choose another place."
        ) from error


def _kind(path: Path) -> str:
    return (Path(path.stem) if path.suffix == ".gz" else path).suffix.lower()
