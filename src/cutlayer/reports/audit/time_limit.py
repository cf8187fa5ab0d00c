"""A limit on the time of an audit: it counts from the command's start, and all that follows shares what is left."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

from cutlayer.reports.wording import plain


@dataclass(frozen=True)
class TimeLimit:
    """How long an audit may take.

    Attributes:
        seconds: In all; `None` for as long as it takes.
        began: From when they count, by `time.monotonic`.
    """

    seconds: float | None
    began: float

    @property
    def left(self) -> float:
        """Seconds that are left, below 0 where more were taken; infinite without a limit."""
        return math.inf if self.seconds is None else self.seconds - (time.monotonic() - self.began)

    def share(self, parts: int) -> float:
        """Seconds for one of several parts that share what is left alike; 0 where nothing is."""
        return max(0.0, self.left / parts)

    def __str__(self) -> str:
        return f"the time limit of {plain(self.seconds or 0.0)} s"
