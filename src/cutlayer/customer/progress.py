"""How long work shows where it stands, whatever shows it."""

from __future__ import annotations

from typing import Protocol


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
