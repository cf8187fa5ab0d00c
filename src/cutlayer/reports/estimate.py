"""Numbers with a standard error, over seeds and over texts, and what two curves say about each other."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Literal, Protocol, Self

from pydantic import BaseModel, ConfigDict
from scipy.special import stdtrit
from torch import Tensor

from cutlayer.core.proportion import LEVEL, in_percent


class Sampled(Protocol):
    """A mean over n trials, such as a share, with its standard error."""

    @property
    def value(self) -> float:
        """The mean."""
        ...

    @property
    def n(self) -> int:
        """Trials."""
        ...

    @property
    def standard_error(self) -> float:
        """Of the mean, in its unit."""
        ...


class Estimate(BaseModel):
    """A mean over runs.

    Attributes:
        value: The mean.
        standard_error: From the spread over runs and from the texts that each was measured on, which
            are the same in all runs: sqrt(spread² / runs + mean(standard error²)).
        n: Trials in one run.
        runs: How many runs.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    value: float
    standard_error: float
    n: int
    runs: int

    @classmethod
    def of(cls, runs: Sequence[Sampled]) -> Self:
        """The mean of one quantity over runs of different seeds."""
        values = [each.value for each in runs]
        mean, count = math.fsum(values) / len(values), len(values)
        spread = math.fsum((value - mean) ** 2 for value in values) / (count - 1) if count > 1 else 0.0
        sampling = math.fsum(each.standard_error**2 for each in runs) / count
        return cls(
            value=mean,
            standard_error=math.sqrt(spread / count + sampling),
            n=min(each.n for each in runs),
            runs=count,
        )

    def __str__(self) -> str:
        return in_percent(self.value, self.standard_error, self.n)


class Gain(BaseModel):
    """How much higher one curve of utility over privacy lies than another.

    Attributes:
        value: Mean difference in UA at equal EP, over the points of the one that lie within the other.
        standard_error: Its standard error.
        points: How many points.
        verdict: `helps` or `hurts` if it is more than two standard errors from 0.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    value: float
    standard_error: float
    points: int
    verdict: Literal["helps", "hurts", "no clear difference"]

    @classmethod
    def of(
        cls, ours: Sequence[tuple[Estimate, Estimate]], baseline: Sequence[tuple[Estimate, Estimate]]
    ) -> Self | None:
        """Compares two curves of (UA, EP) points; `None` if they do not overlap.

        The baseline is read between its points along straight lines.
        """
        line = sorted(baseline, key=lambda point: point[1].value)
        differences, variances = [], []
        for utility, privacy in ours:
            for (left_ua, left_ep), (right_ua, right_ep) in pairwise(line):
                if left_ep.value <= privacy.value <= right_ep.value:
                    width = right_ep.value - left_ep.value
                    share = (privacy.value - left_ep.value) / width if width else 0.5
                    differences.append(utility.value - (1 - share) * left_ua.value - share * right_ua.value)
                    variances.append(
                        utility.standard_error**2
                        + ((1 - share) * left_ua.standard_error) ** 2
                        + (share * right_ua.standard_error) ** 2
                    )
                    break
        if not differences:
            return None
        m = len(differences)
        value, error = math.fsum(differences) / m, math.sqrt(math.fsum(variances)) / m
        clear = abs(value) > 2 * error
        verdict: Literal["helps", "hurts", "no clear difference"] = (
            "no clear difference" if not clear else "helps" if value > 0 else "hurts"
        )
        return cls(value=value, standard_error=error, points=m, verdict=verdict)


def standard_error(differences: Tensor) -> float:
    """Of the mean of `[runs, texts]`, over texts and runs, as another study would have other ones of both.

    Of one run it is over texts alone; of one text 0.

    Ref: Cameron, Gelbach & Miller, "Robust Inference With Multiway Clustering", JBES 2011, eq. (2.7).
    """
    return _spread(differences)[0]


def mean_interval(differences: Tensor) -> tuple[float, float, float]:
    """The standard error of the mean of `[runs, texts]`, and the ends of its 95 % interval, over texts and runs.

    Of a few runs little is known of how much runs differ. Where that prevails, the interval is wider than two standard
    errors: Student's, of Satterthwaite's degrees of freedom.

    Ref: Satterthwaite, "An Approximate Distribution of Estimates of Variance Components", Biometrics Bulletin 1946.
    """
    error, freedom = _spread(differences)
    mean, half = float(differences.double().mean()), float(stdtrit(freedom, (1 + LEVEL) / 2)) * error
    return error, mean - half, mean + half


def _spread(differences: Tensor) -> tuple[float, float]:
    """The standard error of the mean of `[runs, texts]`, and its degrees of freedom."""
    runs, texts = differences.shape
    if texts < 2:
        return 0.0, 1.0
    off = (differences - differences.mean()).double()
    by_text = float(off.mean(0).square().sum()) / (texts * (texts - 1))
    if runs == 1:
        return math.sqrt(by_text), texts - 1
    by_run = float(off.mean(1).square().sum()) / (runs * (runs - 1))
    twice = float(off.square().sum()) / (runs * texts) ** 2  # what one text adds in one run is in both
    variance = max(by_text + by_run - twice, by_text, by_run)
    uncertain = by_text**2 / (texts - 1) + by_run**2 / (runs - 1)
    return math.sqrt(variance), variance**2 / uncertain if uncertain else 1.0
