"""Where a command writes: results to standard output, everything else to standard error.

What is for readers may hold a vendor's words or what its model wrote, so control characters in it are written out. JSON
holds the exact text: its own escapes keep them from the terminal.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from cutlayer.core.jsonable import jsonable
from cutlayer.customer.progress import Bars, bars
from cutlayer.printable import printable


def _shown(text: object) -> str:
    """Text as rich takes it: neither markup nor control characters mean anything in it."""
    return escape(printable(str(text)))


def fields(record: Any) -> dict[str, Any]:
    """A typed record as plain values, by field."""
    if isinstance(record, Mapping):
        return {str(name): jsonable(value) for name, value in record.items()}
    # not pydantic's own JSON: each model has its own word for infinity there
    values = record.model_dump() if hasattr(record, "model_dump") else dataclasses.asdict(record)
    return {name: jsonable(value) for name, value in values.items()}


def percent(share: float | None, *, digits: int = 2) -> str:
    """A share for people, or a dash where there is none."""
    return "-" if share is None else f"{100 * share:.{digits}f} %"


PIPE_WIDTH = 160
QUIET_SECONDS = 60.0


class Lines:
    """Progress where nobody looks at a terminal: a line when a stage is done, and once a minute meanwhile.

    Bars are drawn at the very end there, and a run of hours would look dead in its log.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._last = time.monotonic()

    def update(self, stage: str, done: int, total: int, note: str = "") -> None:
        """Says that `done` of `total` parts of a stage are done."""
        if done >= total or time.monotonic() - self._last >= QUIET_SECONDS:
            self._last = time.monotonic()
            self._console.print(_shown(" ".join(f"{stage} {done}/{total} {note}".split())))


class Output:
    """A command's output.

    Args:
        as_json: Standard output holds one JSON object and nothing else.

    Attributes:
        on_terminal: What is shown for readers stands on a terminal and is kept nowhere: it may hold private text.
    """

    def __init__(self, *, as_json: bool = False) -> None:
        self.as_json = as_json
        out = sys.stderr if as_json else sys.stdout
        # not rich's own word for it, which FORCE_COLOR turns into yes for a file, too
        self.on_terminal = out.isatty()
        # a pipe has no width, and identifiers in a table must not be cut for one
        self._out = Console(file=out, width=None if self.on_terminal else PIPE_WIDTH, highlight=False, soft_wrap=True)
        self._messages = Console(file=sys.stderr, highlight=False, soft_wrap=True)

    def say(self, message: str) -> None:
        """A message while the command works."""
        self._messages.print(_shown(message))

    def warn(self, message: str) -> None:
        """A message that must not be overlooked."""
        self._messages.print(f"[bold yellow]warning:[/] {_shown(message)}")

    def show(self, text: str) -> None:
        """A line of the result for readers."""
        self._out.print(_shown(text))

    def stream(self, piece: str) -> None:
        """A part of the result for readers, as it comes."""
        # not by rich, which reads markup, emoji codes and tabs into what a model wrote
        self._out.file.write(printable(piece))
        self._out.file.flush()

    def facts(self, title: str, rows: Sequence[tuple[str, object]]) -> None:
        """One thing's fields, a line each, whole: what is shown here is copied."""
        self._out.print(f"[bold]{_shown(title)}[/]")
        width = max(len(name) for name, _ in rows)
        for name, value in rows:
            self._out.print(_shown(f"  {name:<{width}}  {value}"))

    def table(
        self, title: str, columns: Sequence[str], rows: Sequence[Sequence[object]], *, lines: bool = False
    ) -> None:
        """A table of the result for readers; `lines` tells rows of several lines apart."""
        self._out.print(f"[bold]{_shown(title)}[/]")
        table = Table(show_lines=lines)
        for number, column in enumerate(columns):
            table.add_column(_shown(column), no_wrap=number == 0 and not lines, overflow="fold")
        for row in rows:
            table.add_row(*map(_shown, row))
        self._out.print(table, soft_wrap=False)

    def result(self, content: Mapping[str, Any]) -> None:
        """The result for machines: printed last, and only where it was asked for."""
        if self.as_json:
            sys.stdout.write(json.dumps(jsonable(content), allow_nan=False) + "\n")
            sys.stdout.flush()

    @contextmanager
    def progress(self) -> Iterator[Bars | Lines]:
        """Bars on standard error while a block runs, or lines where it is no terminal."""
        if not self._messages.is_terminal:
            yield Lines(self._messages)
            return
        with bars(self._messages) as drawn:
            yield drawn


def fail(message: str, *, remedy: str, exit_code: int, as_json: bool) -> int:
    """Prints an error in one line, and as JSON where that was asked for; returns the exit code."""
    sentence = message if not remedy or message.endswith((".", "?", "!")) else f"{message}."
    line = " ".join(f"{sentence} {remedy}".split())
    Console(file=sys.stderr, highlight=False, soft_wrap=True).print(f"[bold red]error:[/] {_shown(line)}")
    Output(as_json=as_json).result({"error": message, "remedy": remedy, "exit_code": exit_code})
    return exit_code
