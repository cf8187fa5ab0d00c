"""A time by which work must be done: what works long asks now and then, and stops where it is past."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass


class OutOfTime(Exception):  # noqa: N818 - an answer to whoever set the time, not a fault of anybody's
    """Raised in the midst of work whose time is up; what it had done is lost."""


@dataclass
class Deadline:
    """When work must be done.

    Attributes:
        end: By `time.monotonic`.
        outer: Of the work that this is a part of.
    """

    end: float
    outer: Deadline | None = None

    def over(self) -> None:
        """Ends the time now, for work in other threads too that was given it."""
        self.end = -math.inf

    @property
    def past(self) -> bool:
        """Whether it is over, or that of the whole is."""
        return time.monotonic() > self.end or (self.outer is not None and self.outer.past)


_DEADLINE: ContextVar[Deadline | None] = ContextVar("deadline", default=None)


@contextmanager
def within(seconds: float) -> Iterator[Deadline]:
    """Gives the work inside so many seconds, or fewer where it has fewer already.

    Args:
        seconds: From now on; infinite for as long as it takes.

    Raises:
        OutOfTime: The time is up, and the work asked.
    """
    deadline = Deadline(time.monotonic() + seconds, _DEADLINE.get())
    before = _DEADLINE.set(deadline)
    try:
        yield deadline
    finally:
        _DEADLINE.reset(before)


def check_time() -> None:
    """Asks whether there is time left; it costs next to nothing.

    Raises:
        OutOfTime: There is none.
    """
    deadline = _DEADLINE.get()
    if deadline is not None and deadline.past:
        raise OutOfTime
