"""Controls: an attack must work where nothing is hidden, fail where nothing is shown, and do both twice.

Without them a broken attack reads as privacy and a cheating one as a leak, so no number is printed
unless all of them hold (design, promise 4).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum
from typing import Self

import torch
from pydantic import BaseModel, ConfigDict, model_validator
from torch import Tensor

from cutlayer.attacks.attack import Attack, Guess
from cutlayer.attacks.evaluation.labels import LabelTruth
from cutlayer.attacks.evaluation.scoring import allowance
from cutlayer.attacks.evaluation.tokens import TokenTruth
from cutlayer.attacks.evaluation.traffic import Traffic
from cutlayer.attacks.evaluation.truth import Truth
from cutlayer.attacks.knowledge import Inapplicable, Knowledge
from cutlayer.attacks.view import Transcript, View
from cutlayer.core import Tokens
from cutlayer.core.deadline import check_time

_STANDARD_ERRORS = 5.0
_RISK = 3e-7
"""That an attack as good as the simplest one is held to be weaker: five standard errors, of many texts."""
_COPIES = 3
"""Of each text in the graded traffic of an attack that reads several releases together."""
_SEED = 2026
"""Controls hide nothing, so their noise may repeat: the same run is checked in the same way."""


class Check(StrEnum):
    """What a control asks of an attack."""

    UNPROTECTED = "unprotected"
    """Where nothing is hidden it recovers what can be guessed."""
    NOISE = "noise"
    """Where nothing is shown it is at chance."""
    SHUFFLED = "shuffled"
    """Where each answer stands at another's place it is at chance."""
    REPEATED = "repeated"
    """The same traffic gives the same guesses."""
    GRADED = "graded"
    """Where as much is hidden as in the run itself it reads what the simplest attack reads, or more."""
    NONLINEAR = "nonlinear"
    """Where the answer follows by no linear map it recovers more than the best linear map does."""


class Control(BaseModel):
    """One check of an attack on traffic whose answer is known.

    Attributes:
        check: What was checked.
        recovered: The share that the attack recovered; of repeated traffic, that was guessed alike. `None` where the
            check has no meaning.
        bound: The least (unprotected, repeated, graded) or the most (noise, shuffled) that it may be.
        n: Of how many.
        passed: Whether it is; what has no meaning stops nothing.
        reason: Why the check has no meaning here.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    check: Check
    recovered: float | None
    bound: float | None
    n: int
    passed: bool
    reason: str | None = None

    @model_validator(mode="after")
    def _has_numbers_or_a_reason(self) -> Self:
        told = {self.recovered is None, self.bound is None, self.reason is not None}
        if len(told) != 1 or (self.reason is not None and not self.passed):
            raise ValueError("a check has its two numbers, or a reason why there are none")
        return self

    @classmethod
    def without_meaning(cls, check: Check, reason: str) -> Control:
        """A check that has no meaning for what was sent."""
        return cls(check=check, recovered=None, bound=None, n=0, passed=True, reason=reason)

    @property
    def relation(self) -> str:
        """Whether the bound is the most or the least."""
        return "at most" if self.check in (Check.NOISE, Check.SHUFFLED) else "at least"

    def __str__(self) -> str:
        if self.recovered is None or self.bound is None:
            return f"{self.check}: {self.reason}"
        told = f"{100 * self.recovered:.2f} % of {self.n}, must be {self.relation} {100 * self.bound:.2f} %"
        return f"{self.check}: {told}"


def run_controls(
    attack: Attack, truth: Truth, transcript: Transcript, knowledge: Knowledge, *, looks: int
) -> tuple[Control, ...]:
    """Runs an attack on unprotected, noise, shuffled and graded traffic in the form of a transcript.

    Unprotected traffic must be recovered up to the attack's floor. Noise and shuffled traffic may exceed chance by five
    standard errors of a coincidence. Graded traffic is what the run's own settings make of the same texts: of it the
    attack must read what the simplest attack reads, less five standard errors of the difference between the two: both
    guess the same items.

    Args:
        attack: The attack.
        truth: A sample of the truth.
        transcript: What is under attack; only its form is taken.
        knowledge: What the attacker is granted.
        looks: How many looks each text gets, as in the transcript.
    """
    rng = torch.Generator().manual_seed(_SEED)
    controls = []
    for kind in Traffic:
        check_time()
        seen, known = truth.traffic(kind, transcript, knowledge, looks=looks, rng=rng)
        view = View(seen, known.granted(seen, knowledge if kind is Traffic.NOISE else knowledge.unprotected()))
        guesses = list(attack(view))
        score = known.score(guesses)
        n = score.success.n
        if kind is Traffic.UNPROTECTED:
            bound = attack.floor * truth.ceiling(knowledge)
            passed = score.success.value >= bound
            controls.append(_repeated(guesses, list(attack(view))))
        else:
            # a coincidence of one or two tokens in a short sample is no leak either
            spread = math.sqrt(score.chance * (1 - score.chance) / n)
            bound = min(1.0, score.chance + _STANDARD_ERRORS * (spread + 1 / n))
            passed = score.success.value <= bound
        controls.append(
            Control(check=Check(kind.value), recovered=score.success.value, bound=bound, n=n, passed=passed)
        )
    controls.append(_graded(attack, truth, transcript, knowledge))
    return tuple(controls)


def _graded(attack: Attack, truth: Truth, transcript: Transcript, knowledge: Knowledge) -> Control:
    """What an attack reads beside the simplest one where as much is hidden as in the run.

    Of texts that were released several times, if it reads these together: the simplest one is told which are copies,
    and it is not. Where it is told which releases are of one text, it has nothing to find.
    """
    if attack.joint and isinstance(truth, TokenTruth) and not knowledge.links:
        truth = truth.repeated(_COPIES)
    try:
        made = truth.graded(transcript, knowledge, rng=torch.Generator().manual_seed(_SEED))
        guesses = list(attack(View(made.transcript, made.truth.granted(made.transcript, knowledge))))
    except Inapplicable as answer:
        return Control.without_meaning(Check.GRADED, answer.reason)
    own = made.truth.score(guesses)
    simplest = replace(made.truth, named=True) if isinstance(made.truth, LabelTruth) else made.truth
    other = simplest.score(made.simplest)
    bound = max(0.0, attack.par * other.success.value - allowance(own, other, share=attack.par, risk=_RISK))
    value = own.success.value
    passed = value >= bound or math.isclose(value, bound)
    return Control(check=Check.GRADED, recovered=value, bound=bound, n=own.success.n, passed=passed)


def _repeated(first: Sequence[Guess], second: Sequence[Guess]) -> Control:
    """How much of what was guessed once is guessed again."""
    alike = total = 0
    for (*where, guess), (*again, other) in zip(first, second, strict=False):
        values, others = _values(guess), _values(other)
        total += values.numel()
        if where == again and values.shape == others.shape:
            alike += int((values == others).sum())
    whole = len(first) == len(second) and alike == total
    return Control(check=Check.REPEATED, recovered=alike / max(1, total), bound=1.0, n=total, passed=whole)


def _values(guess: Tokens | Tensor) -> Tensor:
    return torch.cat([side.values for side in guess.segments]) if isinstance(guess, Tokens) else guess
