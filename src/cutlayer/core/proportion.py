"""A share with the number of trials behind it and its standard error."""

from __future__ import annotations

import math

from pydantic import BaseModel, ConfigDict, Field

LEVEL = 0.95
"""Of intervals."""


class Proportion(BaseModel):
    """`successes` of `n` independent trials.

    Tokens of one text are not independent; where `clusters` differ, the caller passes the standard
    error it computed, and how many independent trials there are at least.

    Attributes:
        value: The share.
        n: Trials.
        standard_error: Of the share; 0 where none or all of the trials succeeded, which is no certainty: `interval`.
        independent: Independent trials among them, for what none or all of them tell; `None` for all of them.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    value: float = Field(ge=0, le=1)
    n: int = Field(ge=1)
    standard_error: float = Field(ge=0)
    independent: float | None = Field(default=None, ge=1)

    @classmethod
    def of(cls, successes: int, n: int) -> Proportion:
        """The binomial share and its standard error sqrt(p (1 - p) / n)."""
        value = successes / n
        return cls(value=value, n=n, standard_error=math.sqrt(value * (1 - value) / n))

    def complement(self) -> Proportion:
        """1 - value: empirical privacy from an attack's success (SAP §5.1)."""
        return self.model_copy(update={"value": 1 - self.value})

    @property
    def interval(self) -> tuple[float, float]:
        """95 %: of none or all of the trials exact, else by the standard error."""
        return interval(self.value, self.standard_error, self.independent or self.n)

    def percent(self, *, digits: int = 1, unit: str = "") -> str:
        """In per cent with its standard error; see `in_percent`."""
        return in_percent(self.value, self.standard_error, self.independent or self.n, digits=digits, unit=unit)

    def __str__(self) -> str:
        return f"{self.percent(digits=2, unit=' %')} (n = {self.n})"


def interval(value: float, standard_error: float, n: float) -> tuple[float, float]:
    """The 95 % interval of a share.

    Where none or all of n independent trials succeeded, the standard error is 0 and tells nothing: then it is Clopper's
    and Pearson's exact interval, which in these two cases is closed. With α = 0.05, none of n excludes every p with
    (1 - p)^n < α / 2.

    Args:
        value: The share.
        standard_error: Of it.
        n: Independent trials.
    """
    far = 1 - ((1 - LEVEL) / 2) ** (1 / n)
    if value <= 0:
        return 0.0, far
    if value >= 1:
        return 1 - far, 1.0
    return max(0.0, value - _NORMAL * standard_error), min(1.0, value + _NORMAL * standard_error)


def in_percent(value: float, standard_error: float, n: float, *, digits: int = 1, unit: str = "") -> str:
    """A share with its standard error, in per cent; with its exact interval where none or all of n trials succeeded.

    Args:
        value: The share.
        standard_error: Of it.
        n: Independent trials.
        digits: Behind the point.
        unit: Behind the share: " %".
    """
    told = f"{100 * value:.{digits}f}{unit}"
    if 0 < value < 1:
        return f"{told} ± {100 * standard_error:.{digits}f}"
    low, high = interval(value, standard_error, n)
    # rounded outwards: an interval that seems to have no width is none
    scale = 10**digits
    low, high = math.floor(100 * low * scale) / scale, math.ceil(100 * high * scale) / scale
    return f"{told} [{low:.{digits}f}, {high:.{digits}f}]"


_NORMAL = 1.959963984540054
"""Of the standard normal distribution, 97.5 % lie below."""
