"""Controls: an attack must work where nothing is hidden, fail where nothing is shown, and do both twice.

Without them a broken attack reads as privacy and a cheating one as a leak, so no number is printed
unless all of them hold (design, promise 4).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import StrEnum

import torch
from pydantic import BaseModel, ConfigDict
from torch import Tensor

from cutlayer.attacks.attack import Attack, Guess
from cutlayer.attacks.knowledge import Knowledge
from cutlayer.attacks.truth import Traffic, Truth
from cutlayer.attacks.view import Transcript, View
from cutlayer.core import Tokens

_STANDARD_ERRORS = 5.0
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


class Control(BaseModel):
    """One check of an attack on traffic whose answer is known.

    Attributes:
        check: What was checked.
        recovered: The share that the attack recovered; of repeated traffic, that was guessed alike.
        bound: The least (unprotected, repeated) or the most (noise, shuffled) that it may be.
        n: Of how many.
        passed: Whether it is.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    check: Check
    recovered: float
    bound: float
    n: int
    passed: bool

    def __str__(self) -> str:
        relation = "at most" if self.check in (Check.NOISE, Check.SHUFFLED) else "at least"
        return f"{self.check}: {100 * self.recovered:.2f} % of {self.n}, must be {relation} {100 * self.bound:.2f} %"


def run_controls(
    attack: Attack, truth: Truth, transcript: Transcript, knowledge: Knowledge, *, looks: int
) -> tuple[Control, ...]:
    """Runs an attack on unprotected, noise and shuffled traffic in the form of a transcript.

    Unprotected traffic must be recovered up to the attack's floor. The other two may exceed chance by
    five standard errors of a coincidence.

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
    return tuple(controls)


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
