"""How surprised a language model is by a text, with the number of tokens behind it and its standard error."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, Field

if TYPE_CHECKING:
    from torch import Tensor


class Perplexity(BaseModel):
    """exp of the mean negative log-likelihood, per predicted token.

    Attributes:
        value: The perplexity.
        n: How many tokens were predicted.
        standard_error: Of the value, from the spread between texts, whose tokens are not independent.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=True, ser_json_inf_nan="strings")

    value: float = Field(ge=0)
    n: int = Field(ge=1)
    standard_error: float = Field(ge=0)

    @classmethod
    def of(cls, losses: Tensor, counts: Tensor) -> Perplexity:
        """From sums by text.

        The variance of the mean is the ratio estimator's over m texts, m / (m - 1) · Σ (l_i - mean · n_i)² / (Σ n_i)²,
        and the value's standard error follows from it by the delta method. A single text has none: 0.

        Args:
            losses: `[m]`, summed negative log-likelihoods in nats.
            counts: `[m]`, predicted tokens.
        """
        losses, counts = losses.double(), counts.double()
        total, m = float(counts.sum()), len(losses)
        mean = float(losses.sum()) / total
        value = math.exp(min(mean, 700.0))
        spread = float((losses - mean * counts).square().sum())
        error = math.sqrt(m / (m - 1) * spread) / total if m > 1 else 0.0
        return cls(value=value, n=int(total), standard_error=value * error)

    def __str__(self) -> str:
        return f"{self.value:.2f} ± {self.standard_error:.2f} (n = {self.n} tokens)"
