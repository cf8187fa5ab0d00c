"""How many guesses were right, how sure that is, and how many would have been right by chance."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from cutlayer.core import DataError, Proportion


@dataclass(frozen=True)
class Score:
    """How guesses compare with the truth.

    Attributes:
        success: The share that was right, with its standard error over texts.
        chance: The share that would be right if guesses had nothing to do with the truth.
        looks: The most looks that any one text gave.
    """

    success: Proportion
    chance: float
    looks: int


def clustered(successes: Tensor, trials: Tensor) -> Proportion:
    """A share whose trials come in clusters (the tokens of a text), which are not independent.

    The variance is the ratio estimator's, m / (m - 1) · Σ (s_i - p n_i)² / (Σ n_i)² over m clusters;
    a single cluster gets the binomial one.

    Args:
        successes: `[m]`, successes in each cluster.
        trials: `[m]`, trials in each cluster; clusters without trials do not count.

    Raises:
        DataError: There is no trial at all.
    """
    hits, counts = successes[trials > 0].double(), trials[trials > 0].double()
    n, m = int(counts.sum()), len(counts)
    if n == 0:
        raise DataError("There is nothing to score: no text that was released has a token.")
    share = float(hits.sum()) / n
    if m == 1:
        return Proportion.of(int(hits.sum()), n)
    variance = m / (m - 1) * float(((hits - share * counts) ** 2).sum()) / n**2
    return Proportion(value=share, n=n, standard_error=math.sqrt(variance))


def chance_of_match(truth: Tensor, guesses: Tensor, *, looks: Tensor) -> float:
    """The share of items that guesses would hit if they were dealt out at random.

    An item of value w that is looked at E times is hit by chance with probability 1 - (1 - q(w))^E,
    where q(w) is how often w stands among all guesses.

    Args:
        truth: `[items]` int64, true values.
        guesses: `[guesses]` int64, all guesses of all looks.
        looks: `[items]` int64, how often each item was looked at.
    """
    size = 1 + int(torch.cat([truth, guesses]).max())
    share = torch.bincount(guesses, minlength=size).double() / len(guesses)
    return float((1 - (1 - share[truth]) ** looks).mean())
