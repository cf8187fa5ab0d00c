"""A time by which work must be done: what works long asks now and then, and stops where it is past."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_END: ContextVar[float] = ContextVar("end", default=math.inf)


class OutOfTime(Exception):  # noqa: N818 - an answer to whoever set the time, not a fault of anybody's
    """Raised in the midst of work whose time is up; what it had done is lost."""


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Gives the work inside so many seconds, or fewer where it has fewer already.

    Args:
        seconds: From now on; infinite for as long as it takes.

    Raises:
        OutOfTime: The time is up, and the work asked.
    """
    before = _END.set(min(_END.get(), time.monotonic() + seconds))
    try:
        yield
    finally:
        _END.reset(before)


def check_time() -> None:
    """Asks whether there is time left; it costs next to nothing.

    Raises:
        OutOfTime: There is none.
    """
    if time.monotonic() > _END.get():
        raise OutOfTime
