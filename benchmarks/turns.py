"""A split run and what it is held against, turn by turn, so that a machine's slow moments meet both."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Protocol


class Reference(Protocol):
    """The same training in one process."""

    def step(self) -> float:
        """One step; returns its seconds."""
        ...


class Turns:
    """Progress of the split run that stops its clock while the references take their turns.

    Args:
        references: What takes as many steps, one after the other.
        steps: In a row on one side.

    Attributes:
        split: Seconds a step over the wire, a number for each turn.
        whole: The same of each reference.
    """

    def __init__(self, references: Sequence[Reference], *, steps: int) -> None:
        self._references = references
        self._steps = steps
        self.split: list[float] = []
        self.whole: list[list[float]] = [[] for _ in references]
        self._turn: list[float] = []
        self._last = time.perf_counter()

    def update(self, stage: str, done: int, total: int, note: str = "") -> None:
        """Called after each step of the split run."""
        if not stage.startswith("epoch"):
            return
        self._turn.append(time.perf_counter() - self._last)
        if len(self._turn) == self._steps:
            self.split.append(sum(self._turn) / self._steps)
            self._turn.clear()
            for reference, seconds in zip(self._references, self.whole, strict=True):
                seconds.append(sum(reference.step() for _ in range(self._steps)) / self._steps)
        self._last = time.perf_counter()
