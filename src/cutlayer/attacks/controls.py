"""Controls: an attack must work where nothing is hidden, and fail where nothing is shown.

Without them a broken attack reads as privacy and a cheating one as a leak, so no number is printed
unless all of them hold (design, promise 4).
"""

from __future__ import annotations

import math

import torch
from pydantic import BaseModel, ConfigDict

from cutlayer.attacks.attack import Attack
from cutlayer.attacks.truth import Traffic, Truth
from cutlayer.attacks.view import Knowledge, Transcript, View

_CEILING_SLACK = 0.01
_STANDARD_ERRORS = 5.0
_SEED = 2026
"""Controls hide nothing, so their noise may repeat: the same run is checked in the same way."""


class Control(BaseModel):
    """One check of an attack on traffic whose answer is known.

    Attributes:
        traffic: What the traffic held.
        recovered: The share that the attack recovered.
        bound: The least (unprotected) or the most (noise, shuffled) that it may be.
        n: Of how many.
        passed: Whether it is.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    traffic: Traffic
    recovered: float
    bound: float
    n: int
    passed: bool

    def __str__(self) -> str:
        relation = "at least" if self.traffic is Traffic.UNPROTECTED else "at most"
        return f"{self.traffic}: {100 * self.recovered:.2f} % of {self.n}, must be {relation} {100 * self.bound:.2f} %"


def run_controls(
    attack: Attack, truth: Truth, transcript: Transcript, knowledge: Knowledge, *, looks: int
) -> tuple[Control, ...]:
    """Runs an attack on unprotected, noise and shuffled traffic in the form of a transcript.

    Unprotected traffic must be recovered up to the share that may be guessed at all, less one point.
    The other two may exceed chance by five standard errors of a coincidence.

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
        score = known.score(attack(View(seen, knowledge)))
        n = score.success.n
        if kind is Traffic.UNPROTECTED:
            bound = truth.ceiling(knowledge) - _CEILING_SLACK
            passed = score.success.value >= bound
        else:
            # a coincidence of one or two tokens in a short sample is no leak either
            spread = math.sqrt(score.chance * (1 - score.chance) / n)
            bound = min(1.0, score.chance + _STANDARD_ERRORS * (spread + 1 / n))
            passed = score.success.value <= bound
        controls.append(Control(traffic=kind, recovered=score.success.value, bound=bound, n=n, passed=passed))
    return tuple(controls)
