"""A share with the number of trials behind it and its standard error."""

from __future__ import annotations

import math

from pydantic import BaseModel, ConfigDict, Field


class Proportion(BaseModel):
    """`successes` of `n` independent trials.

    Tokens of one text are not independent; where `clusters` differ, the caller passes the standard
    error it computed.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    value: float = Field(ge=0, le=1)
    n: int = Field(ge=1)
    standard_error: float = Field(ge=0)

    @classmethod
    def of(cls, successes: int, n: int) -> Proportion:
        """The binomial share and its standard error sqrt(p (1 - p) / n)."""
        value = successes / n
        return cls(value=value, n=n, standard_error=math.sqrt(value * (1 - value) / n))

    def complement(self) -> Proportion:
        """1 - value: empirical privacy from an attack's success (SAP §5.1)."""
        return self.model_copy(update={"value": 1 - self.value})

    def __str__(self) -> str:
        return f"{100 * self.value:.2f} % ± {100 * self.standard_error:.2f} (n = {self.n})"
