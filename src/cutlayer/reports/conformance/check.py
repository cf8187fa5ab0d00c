"""What a check of a mechanism tells, and what all of them tell together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from cutlayer.core import ConformanceError, Guarantee
from cutlayer.reports.schema import Interval, Part

ALPHA: Final = 1e-6
"""Chance at most that a check fails a mechanism that does what it states: tests in a check share it."""


class ConformanceCheck(Part):
    """One question to a mechanism, and the answer.

    Attributes:
        name: For machines and tests: `radius`, `privacy loss`.
        asks: What it asks.
        statistic: What was computed; of several tests, that of the one with the smallest p.
        p_value: How probable as extreme a value is if the mechanism does what it states, times the number of tests
            in the check; `None` where nothing was left to chance.
        bound: The most (of `scale`: the least) that the statistic may be; `None` where something else decides.
        n: Draws that one test looked at; of exact checks, points.
        passed: Whether it is as it should be; `None` where the question has no meaning for this mechanism.
        found: The answer, as a sentence.
    """

    name: str
    asks: str
    statistic: float | None = None
    p_value: float | None = None
    bound: float | None = None
    n: int = 0
    passed: bool | None
    found: str


class Replacement(Part):
    """How many tokens text-to-text privatization replaces at one eta.

    Attributes:
        eta: The privacy parameter.
        replaced: The share of the sample that came out as another token.
        ci: Its interval (Clopper and Pearson), over draws of noise and of tokens.
        n: Tokens in the sample.
    """

    eta: float
    replaced: float
    ci: Interval
    n: int


class Conformance(Part):
    """What a mechanism was asked, and what it answered.

    Attributes:
        mechanism: Its name.
        origin: Package and version of a plug-in; `None` for cutlayer's own.
        guarantee: What it promises, at the first of the etas.
        etas: Privacy parameters of the draws, which take turns.
        widths: Coordinates of a row, one set of draws for each.
        samples: Draws at each width.
        loss_samples: Draws for the privacy loss, at each width and of each of two inputs.
        checks: The answers.
        replacement: Tokens replaced over eta; empty where no table was given.
        passed: Whether no check failed.
    """

    mechanism: str
    origin: str | None
    guarantee: Guarantee
    etas: tuple[float, ...]
    widths: tuple[int, ...]
    samples: int
    loss_samples: int
    checks: tuple[ConformanceCheck, ...]
    replacement: tuple[Replacement, ...] = ()
    passed: bool

    @property
    def failed(self) -> tuple[str, ...]:
        """Names of the checks that it failed."""
        return tuple(check.name for check in self.checks if check.passed is False)

    def require(self) -> None:
        """Does nothing if every check passed.

        Raises:
            ConformanceError: The mechanism does not do what it states.
        """
        if not self.passed:
            failed = ", ".join(self.failed)
            raise ConformanceError(
                f"Mechanism {self.mechanism!r} does not do what it states: {len(self.failed)} of {len(self.checks)} "
                f"checks fail ({failed}).",
                remedy="Do not release anything with it before it is mended.",
            )


@dataclass(frozen=True)
class Tested:
    """One statistical test in a check.

    Attributes:
        where: What was tested, and where: `cosine with an axis, width 384`.
        statistic: Its statistic.
        p_value: Its p under what the mechanism states.
    """

    where: str
    statistic: float
    p_value: float


NOT_SPHERICAL: Final = "The mechanism states a density that is no function of the norm."


def verdict(
    name: str, asks: str, tests: Sequence[Tested], *, n: int, otherwise: str = NOT_SPHERICAL
) -> ConformanceCheck:
    """A check of several tests, which fails where the smallest p, times their number, lies below `ALPHA`.

    Args:
        name: The check's name.
        asks: What it asks.
        tests: Its tests; none where the question has no meaning.
        n: Draws that each looked at.
        otherwise: Why there are none.
    """
    if not tests:
        return without_meaning(name, asks, otherwise)
    # what cannot be computed (all radii equal) is as improbable as can be
    least = min(tests, key=lambda test: test.p_value if test.p_value >= 0 else 0.0)
    p = min(1.0, len(tests) * least.p_value) if least.p_value >= 0 else 0.0
    failed = sum(not len(tests) * test.p_value >= ALPHA for test in tests)
    found = (
        f"Of {len(tests)} tests the least probable is {least.where}, p = {least.p_value:.2g}."
        if not failed
        else f"{failed} of {len(tests)} tests fail; of {least.where} p = {least.p_value:.1e}."
    )
    return ConformanceCheck(
        name=name, asks=asks, statistic=least.statistic, p_value=p, n=n, passed=not failed, found=found
    )


def without_meaning(name: str, asks: str, why: str) -> ConformanceCheck:
    """A check that asks what cannot be asked of this mechanism."""
    return ConformanceCheck(name=name, asks=asks, passed=None, found=why)
