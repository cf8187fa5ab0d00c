"""The setting with the best accuracy among those under which attacks read little enough: few evaluations, by bisection.

What is read falls as eta falls. So in each arm (mechanism, cut, with or without contributing-token identification) the
largest eta that passes is found by bisection on ln eta, and arms are then compared by accuracy. A setting passes if the
upper end of the interval of what was read is at most the target: a lucky sample does not pass.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import Field

from cutlayer.core import ConfigError, Fault, Place, Spec
from cutlayer.privacy import CtiSpec, PrivacySpec, TextToText, Vector, Words
from cutlayer.reports.audit import Evaluation

_FINE = 1.05
"""Two etas that differ by less are one."""


class Arm(Spec):
    """What is tried over eta.

    Attributes:
        mechanism: `text-to-text`, `vector` or `words`.
        place: Where noise acts.
        clip: Whether noisy rows are clipped to the table's largest norm.
        cti: Whether eta depends on the token.
        bottom: Blocks at the customer; `None` is the text cut.
        words: With `words`, which are drawn and how; of it all but eta counts.
    """

    mechanism: Literal["text-to-text", "vector", "words"] = "text-to-text"
    place: Place = Place.TOKENS
    clip: bool = Field(default=False, exclude_if=lambda clip: not clip)
    cti: bool = False
    bottom: int | None = 0
    words: Words | None = None

    @property
    def label(self) -> str:
        """For tables."""
        cut = "text" if self.bottom is None else f"bottom {self.bottom}"
        place = "" if self.place is Place.TOKENS else f" on {self.place.value}"
        return f"{self.mechanism}{', clipped' * self.clip}{place}, {cut}{', CTI' if self.cti else ''}"


class Setting(Spec):
    """An arm at an eta.

    Attributes:
        arm: The arm.
        eta: The parameter.
    """

    arm: Arm
    eta: float

    @property
    def privacy(self) -> PrivacySpec:
        """How texts are privatized."""
        if self.arm.words is not None:
            if self.arm.cti:
                raise ConfigError([Fault("cti", True, "means nothing with mechanism words: leave it out")])
            return self.arm.words.model_copy(update={"eta": self.eta})
        cti = CtiSpec() if self.arm.cti else None
        if self.arm.mechanism == "vector":
            return Vector(eta=self.eta, place=self.arm.place, clip=self.arm.clip, cti=cti)
        return TextToText(eta=self.eta, cti=cti)


@dataclass(frozen=True)
class Tried:
    """A setting that was evaluated."""

    setting: Setting
    found: Evaluation

    def passes(self, target: float) -> bool:
        """Whether no more is read than is allowed, the interval's upper end included."""
        return self.found.interval[1] <= target


def search(
    arms: Sequence[Arm],
    brackets: Sequence[tuple[float, float]],
    evaluate: Callable[[Setting], Evaluation],
    *,
    target: float,
    evaluations: int,
) -> list[Tried]:
    """Evaluates settings, arm by arm in turn, until evaluations are used up or every arm's border is known.

    Args:
        arms: What may be chosen.
        brackets: Of each arm, etas between which the border is looked for.
        evaluate: Measures a setting.
        target: The largest share that may be read.
        evaluations: How many settings at most.

    Raises:
        ConfigError: See `check_search`.
    """
    check_search(len(arms), target=target, evaluations=evaluations)
    borders = [_Border(*bracket) for bracket in brackets]
    tried: list[Tried] = []
    while len(tried) < evaluations and (open_arms := [n for n, border in enumerate(borders) if not border.known]):
        # each arm in its turn, so that none is left without an answer when evaluations end
        number = min(open_arms, key=lambda each: borders[each].steps)
        setting = Setting(arm=arms[number], eta=borders[number].next)
        made = Tried(setting, evaluate(setting))
        borders[number].narrow(setting.eta, passes=made.passes(target))
        tried.append(made)
    return tried


def check_search(arms: int, *, target: float, evaluations: int) -> None:
    """Refuses, before anything is run, what cannot be searched.

    Raises:
        ConfigError: The target is no share, or there are fewer evaluations than arms.
    """
    faults = []
    if not 0 < target < 1:
        faults.append(Fault("target", target, "must lie between 0 and 1, both excluded"))
    if evaluations < arms:
        faults.append(Fault("evaluations", evaluations, f"must be {arms} at least, one for each arm"))
    if faults:
        raise ConfigError(faults)


def best(tried: Sequence[Tried], target: float) -> list[Tried]:
    """Those that pass, the most accurate first; of equals the more private."""
    passing = [each for each in tried if each.passes(target)]
    return sorted(passing, key=lambda each: (-(each.found.utility or 0.0), each.found.interval[1]))


def nearest(tried: Sequence[Tried]) -> Tried:
    """The one under which least is read."""
    return min(tried, key=lambda each: each.found.interval[1])


class _Border:
    """Between etas that pass and those that do not."""

    def __init__(self, low: float, high: float) -> None:
        self._low, self._high = low, high
        self.steps = 0

    @property
    def next(self) -> float:
        """The eta to try, to three digits."""
        return float(f"{math.sqrt(self._low * self._high):.3g}")

    @property
    def known(self) -> bool:
        """Whether the border is known well enough."""
        return self._high / self._low < _FINE

    def narrow(self, eta: float, *, passes: bool) -> None:
        """Takes account of an evaluation."""
        self.steps += 1
        if passes:
            self._low = eta
        else:
            self._high = eta
