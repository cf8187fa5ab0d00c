"""How long work shows where it stands, whatever shows it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from cutlayer.printable import printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID


class Progress(Protocol):
    """Something that shows progress: the command line's bars, a notebook, nothing."""

    def update(self, stage: str, done: int, total: int, note: str = "") -> None:
        """Says that `done` of `total` parts of a stage are done.

        Args:
            stage: For example `privatize`, `train epoch 1/5`, `evaluate`.
            done: Parts that are done.
            total: Parts there are.
            note: A short remark beside the bar, for example the loss. Never text or labels.
        """
        ...


class Silent:
    """Shows nothing."""

    def update(self, stage: str, done: int, total: int, note: str = "") -> None:
        """Does nothing."""


class Bars:
    """Progress bars, one for each stage, in the order in which the stages begin."""

    def __init__(self, bars: RichProgress) -> None:
        self._bars = bars
        self._stages: dict[str, TaskID] = {}

    def update(self, stage: str, done: int, total: int, note: str = "") -> None:
        """Says that `done` of `total` parts of a stage are done."""
        from rich.markup import escape

        if not self._stages:
            self._bars.start()  # not before: a call that fails at once leaves no empty line
        note = escape(printable(note))
        if stage not in self._stages:
            self._stages[stage] = self._bars.add_task(stage, total=total, note=note)
        self._bars.update(self._stages[stage], completed=done, total=total, note=note)


@contextmanager
def bars(console: Console) -> Iterator[Bars]:
    """Progress bars while a block runs.

    Args:
        console: Where they are drawn.
    """
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as RichProgress

    drawn = RichProgress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[note]}"),
        console=console,
    )
    try:
        yield Bars(drawn)
    finally:
        if drawn.live.is_started:
            drawn.stop()


Shows = Progress | bool | None
"""Where a call shows how far it is: bars on standard error for `True`, if that is a terminal; nothing for `None`."""


@contextmanager
def shown(progress: Shows) -> Iterator[Progress]:
    """What a call shows its progress by, while it runs.

    Args:
        progress: What the caller asked for.
    """
    if progress is None or isinstance(progress, bool):
        if not progress or not sys.stderr.isatty():
            yield Silent()
            return
        from rich.console import Console

        with bars(Console(file=sys.stderr, highlight=False)) as drawn:
            yield drawn
        return
    yield progress
