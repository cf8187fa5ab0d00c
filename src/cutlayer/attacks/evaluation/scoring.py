"""What guesses came to: how many were right, how many would have been by chance, and what was read in each place."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from pydantic import BaseModel, ConfigDict
from scipy.special import stdtrit
from torch import Tensor

from cutlayer.attacks.evaluation.statistics import bootstrap, clustered, p_value
from cutlayer.core import Proportion, Tokens

UNREAD = -1
"""In the place of a token about which nothing was guessed."""


class SecondaryMetric(BaseModel):
    """A number beside the share that was right, of the same guesses.

    Attributes:
        name: For machines: `auc`, `majority`, `mse`, `precision`.
        title: For readers.
        value: The number.
        interval: 95 % of it, over resampled texts; `None` for what no guess changes.
        n: Trials behind it.
        unit: `share` (0 to 1), or what else it is in.
        higher_is_leak: Whether more of it means that more leaks.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    title: str
    value: float
    interval: tuple[float, float] | None = None
    n: int
    unit: str = "share"
    higher_is_leak: bool = True


@dataclass(frozen=True)
class Score:
    """How guesses compare with the truth.

    Attributes:
        hits: `[texts]` int64, right guesses about each text; or about each group of texts that are not
            independent, as those of one author.
        trials: `[texts]` int64, all of them.
        chance: The share that would be right if guesses had nothing to do with the truth.
        looks: The most looks that any one text gave.
        further: Other numbers of the same guesses.
        reading: What was read, token by token; `None` where guesses are no tokens.
    """

    hits: Tensor
    trials: Tensor
    chance: float
    looks: int
    further: tuple[SecondaryMetric, ...] = ()
    reading: Reading | None = None

    @property
    def success(self) -> Proportion:
        """The share that was right, with its standard error over texts."""
        return clustered(self.hits, self.trials)

    @property
    def interval(self) -> tuple[float, float]:
        """95 % of the share over resampled texts."""
        return bootstrap(self.hits, self.trials)

    @property
    def p_value(self) -> float:
        """How probable as many right guesses are by chance."""
        return p_value(self.success, self.chance)


@dataclass(frozen=True)
class Reading:
    """What an attack made of texts, beside what they were; items are tokens, segment by segment.

    Attributes:
        tokens: The texts.
        read: What was read in the place of each token; `UNREAD` where nothing was.
        right: `[items]` bool, whether any look read the token.
        seen: `[items]` bool, whether the token counts: it was looked at, and something can be guessed of it.
        looks: `[items]` int64, how often.
        chance: The share of tokens that would be read by chance.
        texts: `[n]` int64, which of a run's texts these are.
        further: Other numbers of the same guesses.
        originals: `[n]` int64, as of a `TokenTruth`: which texts are copies of one.
    """

    tokens: Tokens
    read: Tokens
    right: Tensor
    seen: Tensor
    looks: Tensor
    chance: float
    texts: Tensor
    further: tuple[SecondaryMetric, ...] = ()
    originals: Tensor | None = None

    @property
    def owners(self) -> Tensor:
        """`[items]` int64: each token's text."""
        return self.tokens.owners

    @property
    def score(self) -> Score:
        """The share of tokens that was read."""
        right, seen = self.per_text(self.right), self.per_text(self.seen)
        if self.originals is not None:
            right, seen = (torch.zeros_like(each).index_add(0, self.originals, each) for each in (right, seen))
        return Score(right, seen, self.chance, int(self.looks.max()), self.further, reading=self)

    def per_text(self, items: Tensor) -> Tensor:
        """`[texts]` int64: how many of a text's tokens are marked in `items` `[items]` bool."""
        return torch.zeros(len(self.tokens), dtype=torch.int64).index_add(0, self.owners, items.long())


def allowance(one: Score, other: Score, *, share: float, risk: float) -> float:
    """By how much a score may lie below a share of another, about the same texts, where it is as good as that.

    What a text adds to h / t, to first order, is (h_i - (h / t) t_i) / t; the variance of the difference is m / (m - 1)
    times the sum of squares of what m texts add to it. Few texts tell their own spread badly: the difference is
    compared as Student's t with m - 1 degrees of freedom. Of one text nothing is known, and all is allowed.

    Args:
        one: Its hits and trials are by text.
        other: Of the same texts.
        share: Of the other.
        risk: Probability that one that is as good lies lower still.
    """
    added = torch.zeros(len(one.hits), dtype=torch.float64)
    for score, times in ((one, 1.0), (other, -share)):
        total = float(score.trials.sum())
        value = float(score.hits.sum()) / total
        added += times * (score.hits - value * score.trials).double() / total
    m = int(((one.trials > 0) | (other.trials > 0)).sum())
    if m == 1:
        return 1.0
    error = math.sqrt(m / (m - 1) * float(added.square().sum()))
    return float(-stdtrit(m - 1, risk)) * error if error else 0.0
