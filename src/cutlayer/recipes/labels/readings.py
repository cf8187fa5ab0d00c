"""What attacks read of recorded steps, under each option."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Self

import torch
from pydantic import BaseModel, ConfigDict
from torch import Tensor

from cutlayer.attacks import (
    Knowledge,
    LabelTruth,
    Measured,
    NotApplicable,
    Outcome,
    Score,
    SeenStep,
    TrainedTruth,
    View,
    examine,
)
from cutlayer.attacks.attack import ATTACKS, Guess
from cutlayer.core import Guarantee, Proportion
from cutlayer.recipes.labels.passes import Steps
from cutlayer.recipes.labels.recombination import combined, recombine, solve_from_labels, solve_from_update

ON_LABELS = ("gradient-sign", "output-gradient", "gradient-direction", "activation-clusters")
ON_TOKENS = "tail-gradient"
SOLVED = "combination solved"
"""The attack on recombined passes, of which the registry knows nothing: it has no meaning for what a run sends."""


NOTHING = Guarantee.nothing("The vendor finds which combination of passes is the gradient.")
"""Of recombined passes."""


class Reading(BaseModel):
    """An attack's number on one option.

    Attributes:
        attack: Its name.
        success: The share of labels that it read; `None` where there is no number.
        interval: 95 % of it over resampled texts.
        chance: The share that it would read by chance.
        reason: Why there is no number.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    attack: str
    success: Proportion | None
    interval: tuple[float, float] | None = None
    chance: float | None = None
    reason: str = ""

    @classmethod
    def of(cls, attack: str, outcome: Outcome) -> Self:
        """What an examined attack said."""
        if isinstance(outcome, Measured):
            return cls(attack=attack, success=outcome.success, interval=outcome.interval, chance=outcome.chance)
        return cls(attack=attack, success=None, reason=outcome.reason)

    @classmethod
    def scored(cls, attack: str, score: Score) -> Self:
        """What guesses came to."""
        return cls(attack=attack, success=score.success, interval=score.interval, chance=score.chance)


class Option(BaseModel):
    """One option, attacked.

    Attributes:
        name: `ordinary`, `randomised response`, `recombination` or `head at the customer`.
        epsilon: Of randomised response.
        passes: Backward passes a step.
        readings: What attacks read of it.
        rounds: Round trips of its steps.
        gradient_bytes: What gradients take up.
        output_bytes: What outputs take down.
        accuracy: Of the tuned classifier on test.
        perplexity: Of the tuned language model on test.
        guarantee: What is promised of labels.
        bound: The share of labels that reports alone let anybody guess right, with labels as frequent as they are;
            `None` where nothing bounds it.
        draws: Different labels that were drawn, each once; of next tokens, those that attacks were measured on.
        deviation: How far the combination of passes is from the gradient, in its largest entry.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")

    name: str
    epsilon: float | None = None
    passes: int = 1
    readings: tuple[Reading, ...]
    rounds: int
    gradient_bytes: int
    output_bytes: int
    accuracy: Proportion | None = None
    perplexity: float | None = None
    guarantee: Guarantee
    bound: float | None = None
    draws: int = 0
    deviation: float | None = None

    def recombined(self, passes: int, readings: tuple[Reading, ...], deviation: float) -> Option:
        """This option's steps with several passes in the place of each: learnt is the same, but for rounding.

        Args:
            passes: How many.
            readings: What attacks read of them.
            deviation: How far their combination is from the gradient.
        """
        changes = {
            "name": f"recombination, {self.name}",
            "passes": passes,
            "readings": readings,
            "gradient_bytes": passes * self.gradient_bytes,
            "guarantee": NOTHING,
            "deviation": deviation,
        }
        return self.model_copy(update=changes)


def read_labels(steps: Steps, truth: LabelTruth, knowledge: Knowledge) -> tuple[Reading, ...]:
    """What the attacks on labels read."""
    transcript = steps.transcript()
    return tuple(
        Reading.of(name, examine(name, transcript, knowledge=knowledge, truth=truth).outcome) for name in ON_LABELS
    )


def read_tokens(steps: Steps, truth: TrainedTruth, knowledge: Knowledge) -> tuple[Reading, ...]:
    """What the attack on next tokens reads."""
    outcome = examine(ON_TOKENS, steps.transcript(), knowledge=knowledge, truth=truth).outcome
    return (Reading.of(ON_TOKENS, outcome),)


class Recombined:
    """Recorded steps with several passes in the place of each.

    Args:
        steps: As they were.
        passes: How many.
        cover: How much larger covers are than gradients.
        seed: Of covers: they protect nothing here.
    """

    def __init__(self, steps: Steps, passes: int, *, cover: float, seed: int) -> None:
        rng = torch.Generator().manual_seed(seed)
        self._steps = steps
        self._drawn = {
            step.number: recombine(step.gradient.float(), passes, cover=cover, rng=rng) for step in steps.seen
        }

    @property
    def first(self) -> Steps:
        """What the vendor sees of the first pass of each step."""
        return self._steps.with_gradients(lambda step: self._drawn[step.number][0][0])

    @property
    def deviation(self) -> float:
        """How far what is applied is from the gradient, in the largest entry of the latter: rounding."""
        worst = 0.0
        for step in self._steps.seen:
            far = combined(*self._drawn[step.number]) - step.gradient.float()
            worst = max(worst, float(far.abs().max() / step.gradient.float().abs().max()))
        return worst

    def from_labels(self) -> Steps | None:
        """The gradients that the vendor finds without any update; `None` where it is too much work."""
        found: dict[int, Tensor] = {}
        for step in self._steps.seen:
            sent, _ = self._drawn[step.number]
            if step.output is None:
                return None
            coefficients = solve_from_labels(sent, torch.softmax(step.output.float(), 1))
            if coefficients is None:
                return None
            found[step.number] = combined(sent, coefficients)
        return self._steps.with_gradients(lambda step: found[step.number])

    def from_update(self) -> Steps:
        """The gradients that the vendor finds by what it applies to the bias in front: a sum over rows."""

        def solve(step: SeenStep) -> Tensor:
            sent, _ = self._drawn[step.number]
            return combined(sent, solve_from_update(sent.double().sum(1), step.gradient.double().sum(0)))

        return self._steps.with_gradients(solve)


def solved(steps: Steps | None, attack: str, truth: LabelTruth | TrainedTruth, knowledge: Knowledge) -> Reading:
    """What an attack reads of gradients that were solved for."""
    if steps is None:
        return Reading(attack=SOLVED, success=None, reason="More choices of labels would have to be tried than 2^16.")
    run, transcript = ATTACKS[attack], steps.transcript()
    if isinstance(truth, TrainedTruth) and run.tokens is not None:
        transcript, kept = truth.beginning(transcript, run.tokens)
        guesses: Iterable[Guess] = run(View(transcript, knowledge))
        return Reading.scored(SOLVED, kept.score(guesses))
    guesses = run(View(transcript, truth.granted(transcript, knowledge)))
    return Reading.scored(SOLVED, truth.score(guesses))


def not_asked(attack: str, reason: str) -> Reading:
    """An attack that has no meaning for an option."""
    return Reading.of(attack, NotApplicable(attack=attack, reason=reason))
