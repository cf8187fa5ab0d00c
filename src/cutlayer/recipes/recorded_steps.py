"""Training steps as a vendor saw them, what attacks read of them under each label protection, and what that costs.

The gradient that was sent may be another one than the run's: several recombined passes in its place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Self

import torch
from pydantic import BaseModel, ConfigDict
from torch import Tensor

from cutlayer.attacks import (
    ATTACKS,
    ControlFailed,
    Knowledge,
    LabelTruth,
    NotApplicable,
    Outcome,
    Score,
    SeenFrame,
    SeenStep,
    TrainedTruth,
    Transcript,
    View,
    examine,
)
from cutlayer.core import Claim, Guarantee, Proportion, Spec
from cutlayer.recipes.lab import Cell
from cutlayer.recipes.long_table import Measure
from cutlayer.recipes.measures.label_recombination import combined, recombine, solve_from_labels, solve_from_update
from cutlayer.wire import routes
from cutlayer.wire.recording import Direction

JOB = "recorded"


@dataclass(frozen=True)
class Steps:
    """Training steps, in order.

    Attributes:
        seen: What was seen of each.
        rounds: Round trips that they took.
    """

    seen: tuple[SeenStep, ...]
    rounds: int

    @classmethod
    def of(cls, transcript: Transcript) -> Steps:
        kinds = (routes.STEP, routes.GRADIENT)
        rounds = sum(frame.route in kinds and frame.direction is Direction.UP for frame in transcript)
        return cls(tuple(transcript.steps()), rounds)

    def with_gradients(self, change: Callable[[SeenStep], Tensor]) -> Steps:
        """The same steps with other gradients, in the shape `[rows, width]` of their own."""
        return replace(self, seen=tuple(replace(step, gradient=change(step)) for step in self.seen))

    def transcript(self) -> Transcript:
        """The steps as a vendor saw them: the upload, the answer, and the gradient."""
        return Transcript(lambda: _frames(self.seen))


def step_of(number: int, output: Tensor, gradient: Tensor, lengths: Tensor | None = None) -> SeenStep:
    """A step of a training in this process: output and gradient `[rows, width]`, lengths `[texts]`."""
    return SeenStep(f"job/{JOB}", number, output, gradient, lengths)


def _frames(steps: Sequence[SeenStep]) -> Iterable[SeenFrame]:
    for step in steps:
        where: dict[str, str | int] = {"job": step.source.removeprefix("job/"), "step": step.number}
        sent = {"lengths": step.lengths} if step.lengths is not None else {"records": torch.arange(len(step.gradient))}
        crossed = [(Direction.UP, routes.STEP, sent), (Direction.UP, routes.GRADIENT, {"gradient": step.gradient})]
        if step.output is not None:
            crossed.insert(1, (Direction.DOWN, routes.STEP, {"output": step.output}))
        for direction, route, tensors in crossed:
            yield SeenFrame(direction, route, where, partial(dict, tensors))


# ---------------------------------------------------------------- what is read of them

ON_LABELS = ("gradient-sign", "output-gradient", "gradient-direction", "activation-clusters")
ON_TOKENS = "tail-gradient"
SOLVED = "combination solved"
"""The attack on recombined passes, of which the registry knows nothing: it has no meaning for what a run sends."""


NOTHING = Guarantee.nothing("The vendor finds which combination of passes is the gradient.")
"""Of recombined passes."""


class Reading(Spec):
    """An attack's number on one option.

    Attributes:
        success: The share of labels that it read; `None` where there is no number, and `reason` says why.
        interval: 95 % of it over resampled texts.
        chance: The share that it would read by chance.
    """

    attack: str
    success: Proportion | None
    interval: tuple[float, float] | None = None
    chance: float | None = None
    reason: str = ""

    @classmethod
    def of(cls, attack: str, found: Outcome | Score) -> Self:
        if isinstance(found, ControlFailed | NotApplicable):
            return cls(attack=attack, success=None, reason=found.reason)
        return cls(attack=attack, success=found.success, interval=found.interval, chance=found.chance)


class Option(Spec):
    """One option, attacked.

    Attributes:
        name: `ordinary`, `randomised response`, `recombination` or `head at the customer`.
        epsilon: Of randomised response.
        passes: Backward passes a step.
        rounds: Round trips of its steps.
        gradient_bytes: What gradients take up; `output_bytes` what outputs take down.
        accuracy: Of the tuned classifier on test; of a language model `perplexity`.
        bound: The share of labels that reports alone let anybody guess right, with labels as frequent as they are;
            `None` where nothing bounds it.
        draws: Different labels that were drawn, each once; of next tokens, those that attacks were measured on.
        deviation: How far the combination of passes is from the gradient, in its largest entry.
    """

    model_config = ConfigDict(ser_json_inf_nan="strings")

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

    @property
    def title(self) -> str:
        if self.epsilon is not None:
            return f"{self.name}, ε = {self.epsilon:g}"
        return f"{self.name}, {self.passes} passes" if self.passes > 1 else self.name

    def reading(self, attack: str) -> Reading | None:
        """What an attack read, if it was asked and has a number."""
        return next((each for each in self.readings if each.attack == attack and each.success is not None), None)

    def measures(self) -> Iterator[Measure]:
        at = {"option": self.title, "epsilon": self.epsilon, "passes": self.passes}
        for each in self.readings:
            low, high = each.interval or (None, None)
            success = Measure.share("success", each.success, attack=each.attack, note=each.reason)
            yield replace(success, lower=low, upper=high, axes=at)
            if each.chance is not None:
                yield Measure("chance", each.chance, attack=each.attack, axes=at)
        names = {
            "bound": "bound", "backward passes": "passes", "round trips": "rounds", "gradient bytes": "gradient_bytes",
            "output bytes": "output_bytes", "accuracy": "accuracy", "perplexity": "perplexity",
        }  # fmt: skip
        yield from (replace(each, axes=at) for each in Measure.fields(self, names))
        claim = self.guarantee
        promised = f"ε = {claim.budget:g} per {claim.per}" if claim.claim is Claim.LABEL else "none"
        yield Measure("guarantee", None, note=promised, axes=at)


@dataclass(frozen=True)
class Recorded:
    """Recorded steps, what their labels or next tokens were, and what the vendor knows beside them."""

    steps: Steps
    truth: LabelTruth | TrainedTruth
    knowledge: Knowledge

    def read(self, steps: Steps) -> tuple[Reading, ...]:
        """What the attacks on labels or on next tokens read of these steps, or of what was sent in their place."""
        transcript, names = steps.transcript(), ON_LABELS if isinstance(self.truth, LabelTruth) else (ON_TOKENS,)
        found = ((name, examine(name, transcript, knowledge=self.knowledge, truth=self.truth)) for name in names)
        return tuple(Reading.of(name, each.outcome) for name, each in found)

    def option(self, name: str, **found: Any) -> Option:
        """The steps as they are, as an option of this name, with further fields of it."""
        seen = self.steps.seen
        return Option(
            name=name, readings=self.read(self.steps), rounds=self.steps.rounds,
            gradient_bytes=sum(step.gradient.nbytes for step in seen),
            output_bytes=sum(step.output.nbytes for step in seen if step.output is not None), **found,
        )  # fmt: skip

    def recombined(self, option: Option, passes: int, *, cover: float) -> Option:
        """An option's steps with several passes in the place of each: learnt is the same, but for rounding.

        Covers are `cover` times as large as gradients.
        """
        rng = torch.Generator().manual_seed(0)  # of covers: they protect nothing here
        seen, truth, attack = self.steps.seen, self.truth, ON_TOKENS
        drawn = {step.number: recombine(step.gradient.float(), passes, cover=cover, rng=rng) for step in seen}
        logits = isinstance(truth, LabelTruth) and seen[0].gradient.shape[1] == truth.num_labels
        if logits:
            attack = "output-gradient"
        elif isinstance(truth, LabelTruth):
            truth = LabelTruth(truth.labels, truth.num_labels, truth.steps, named=False)
            attack = "gradient-direction"

        def solve(step: SeenStep) -> Tensor | None:
            """Which combination the vendor finds, of logits without any update."""
            sent, _ = drawn[step.number]
            if not logits:  # by what it applies to the bias in front: a sum over rows
                return solve_from_update(sent.double().sum(1), step.gradient.double().sum(0))
            return None if step.output is None else solve_from_labels(sent, torch.softmax(step.output.float(), 1))

        def deviation(step: SeenStep) -> float:
            """How far what is applied is from the gradient, in the largest entry of the latter: rounding."""
            far = combined(*drawn[step.number]) - step.gradient.float()
            return float(far.abs().max() / step.gradient.float().abs().max())

        found = {step.number: solve(step) for step in seen}
        known = {number: combined(drawn[number][0], each) for number, each in found.items() if each is not None}
        steps = self.steps.with_gradients(lambda step: known[step.number]) if len(known) == len(found) else None
        first = self.steps.with_gradients(lambda step: drawn[step.number][0][0])
        changes = {
            "name": f"recombination, {option.name}",
            "passes": passes,
            "readings": (*self.read(first), solved(steps, attack, truth, self.knowledge)),
            "gradient_bytes": passes * option.gradient_bytes,
            "guarantee": NOTHING,
            "deviation": max(map(deviation, seen)),
        }
        return option.model_copy(update=changes)


def solved(steps: Steps | None, attack: str, truth: LabelTruth | TrainedTruth, knowledge: Knowledge) -> Reading:
    """What an attack reads of gradients that were solved for."""
    if steps is None:
        return Reading(attack=SOLVED, success=None, reason="More choices of labels would have to be tried than 2^16.")
    run, transcript = ATTACKS[attack], steps.transcript()
    if isinstance(truth, TrainedTruth) and run.tokens is not None:
        transcript, kept = truth.beginning(transcript, run.tokens)
        return Reading.of(SOLVED, kept.score(run(View(transcript, knowledge))))
    return Reading.of(SOLVED, truth.score(run(View(transcript, truth.granted(transcript, knowledge)))))


# ---------------------------------------------------------------- cells that attack what they recorded


class Attacked(Spec):
    """A finished cell: its options, attacked."""

    options: tuple[Option, ...]


class OptionCell(Cell):
    """A training, and the numbers of passes that its gradients are recombined to.

    Attributes:
        cover: Standard deviation of covers, in that of gradients.
    """

    model: str
    passes: tuple[int, ...] = ()
    cover: float

    def attacked(self, recorded: Recorded, option: Option) -> Attacked:
        """Recorded steps as they are, and recombined."""
        several = (recorded.recombined(option, passes, cover=self.cover) for passes in self.passes)
        return Attacked(options=(option, *several))

    @classmethod
    def result_type(cls) -> type[BaseModel]:
        return Attacked

    def measures(self, result: Any) -> Iterator[Measure]:
        for option in result.options:
            yield from option.measures()
