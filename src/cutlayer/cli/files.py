"""Files that commands write: one row a text, in the order of the input."""

from __future__ import annotations

import csv
import errno
import gzip
import hashlib
import itertools
import json
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, cast

import typer

KINDS = (".csv", ".tsv", ".jsonl")

UNSAFE = "unsafe_noise_seed"
"""The column that marks every row whose noise came from a seed."""

WriteRows = Callable[[Sequence[str], Iterable[Sequence[object]]], None]
"""Takes the names of columns, and the rows."""
Finish = Callable[[Callable[[IO[bytes]], None]], None]
"""Takes what fills a file."""


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


@contextmanager
def rows_file(path: Path) -> Iterator[WriteRows]:
    """A table's place; see `whole_file`.

    Args:
        path: Where the table will be; `.gz` behind the ending compresses it.

    Yields:
        What writes it, row by row.
    """
    with whole_file(path) as finish:

        def write(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
            def fill(file: IO[bytes]) -> None:
                packed = path.suffix == ".gz"
                content = cast(IO[bytes], gzip.GzipFile("", "wb", fileobj=file, mtime=0)) if packed else file
                for line in _table(_kind(path), columns, rows):
                    with _reported(path):
                        content.write(line.encode())
                if packed:
                    with _reported(path):
                        content.close()

            finish(fill)

        yield write


@contextmanager
def whole_file(path: Path) -> Iterator[Finish]:
    """A result's place, tried before the work whose result it takes: nothing is sent for a result that has no place.

    What the block writes takes the file's place whole. Until then, and where the block fails or is interrupted, the
    file is as it was. A new file can be read by its owner only, for it holds private text; one that is replaced hands
    on its mode. What a process that was killed had written is removed by the next one that writes the same file.

    Args:
        path: Where the file will be. Folders on the way are made.

    Yields:
        What puts it there, given what fills it.

    Raises:
        StorageError: The file cannot be written.
        ConfigError: Another process began to write the same file meanwhile.
    """
    with _reported(path):
        target = Path(os.path.realpath(path))  # a link stays a link
        target.parent.mkdir(parents=True, exist_ok=True)
        replaced = _replaced(target)
    draft = target.with_name(f".cutlayer-{hashlib.sha256(os.fsencode(target.name)).hexdigest()[:16]}.draft")
    with _reported(path):
        draft.unlink(missing_ok=True)
        file = open(draft, "xb", opener=_private)  # noqa: SIM115 - closed below, once it is renamed
    own = os.fstat(file.fileno())

    def finish(fill: Callable[[IO[bytes]], None]) -> None:
        fill(file)
        with _reported(path):
            file.flush()
            if replaced is not None:
                _hand_on(replaced, file.fileno())
            os.fsync(file.fileno())
            if not _is(draft, own):
                raise _taken(path)
            os.replace(draft, target)

    try:
        yield finish
    finally:
        if _is(draft, own):
            draft.unlink()
        with suppress(OSError):  # what a full disk did not take
            file.close()


def _is(path: Path, file: os.stat_result) -> bool:
    try:
        return os.path.samestat(path.stat(), file)
    except FileNotFoundError:
        return False


def _taken(path: Path) -> Exception:
    from cutlayer.core import ConfigError

    return ConfigError(
        f"Another process began to write {path}, too, and took its place.", remedy="Write one file at a time."
    )


@contextmanager
def _reported(path: Path) -> Iterator[None]:
    from cutlayer.core import StorageError

    try:
        yield
    except OSError as error:
        raise StorageError(
            f"{path} could not be written: {error.strerror}.", remedy="Free some space or choose another place."
        ) from error


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _replaced(target: Path) -> os.stat_result | None:
    """The file that is there already, if any; opened, for what may not be written may not be replaced either."""
    try:
        descriptor = os.open(target, os.O_WRONLY | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    try:
        found = os.fstat(descriptor)
    finally:
        os.close(descriptor)
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "it is a pipe or a device")
    return found


def _hand_on(found: os.stat_result, file: int) -> None:
    """Gives a file another one's mode, group and owner, as far as this user may and the disk knows of such."""
    for owner, group in ((-1, found.st_gid), (found.st_uid, -1)):
        with suppress(OSError):
            os.fchown(file, owner, group)
    with suppress(OSError):
        os.fchmod(file, stat.S_IMODE(found.st_mode))


def _table(kind: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Iterator[str]:
    """Lines, each as its row comes."""
    if kind == ".jsonl":
        for row in rows:
            yield json.dumps(dict(zip(columns, row, strict=True)), ensure_ascii=False) + "\n"
        return
    line = _Line()
    # not lineterminator="\n": before Python 3.13 a lone "\r" is quoted only where it is one of the terminator's
    table = csv.writer(line, delimiter="\t" if kind == ".tsv" else ",", lineterminator="\r\n")
    for row in itertools.chain([columns], rows):
        table.writerow(row)
        yield line.text


class _Line:
    """A row of a CSV writer, which writes it in one piece, ended by a line feed alone."""

    text = ""

    def write(self, row: str) -> None:
        self.text = row.removesuffix("\r\n") + "\n"


def _kind(path: Path) -> str:
    return (Path(path.stem) if path.suffix == ".gz" else path).suffix.lower()
