"""Steps as a vendor saw them, with the gradient that was sent or with others in its place, and what they cost."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from cutlayer.attacks import SeenFrame, SeenStep, Transcript
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
        """Those of a recorded run."""
        kinds = (routes.STEP, routes.GRADIENT)
        rounds = sum(frame.route in kinds and frame.direction is Direction.UP for frame in transcript)
        return cls(tuple(transcript.steps()), rounds)

    @property
    def gradient_bytes(self) -> int:
        """What gradients take on their way up."""
        return sum(_size(step.gradient) for step in self.seen)

    @property
    def output_bytes(self) -> int:
        """What outputs take on their way down."""
        return sum(_size(step.output) for step in self.seen if step.output is not None)

    def with_gradients(self, change: Callable[[SeenStep], Tensor]) -> Steps:
        """The same with other gradients."""
        return replace(self, seen=tuple(replace(step, gradient=change(step)) for step in self.seen))

    def transcript(self) -> Transcript:
        """As a vendor would have seen them: what went up, what came down, and the gradient."""
        return Transcript(lambda: _frames(self.seen))


def step_of(number: int, output: Tensor, gradient: Tensor, lengths: Tensor | None = None) -> SeenStep:
    """A step of a training in this process."""
    return SeenStep(f"job/{JOB}", number, output, gradient, lengths)


def _frames(steps: Sequence[SeenStep]) -> Iterable[SeenFrame]:
    for step in steps:
        where: dict[str, str | int] = {"job": step.source.removeprefix("job/"), "step": step.number}
        sent = {"lengths": step.lengths} if step.lengths is not None else {"records": torch.arange(len(step.gradient))}
        yield _frame(Direction.UP, routes.STEP, where, sent)
        if step.output is not None:
            yield _frame(Direction.DOWN, routes.STEP, where, {"output": step.output})
        yield _frame(Direction.UP, routes.GRADIENT, where, {"gradient": step.gradient})


def _frame(
    direction: Direction, route: routes.Route, where: dict[str, str | int], tensors: dict[str, Tensor]
) -> SeenFrame:
    return SeenFrame(direction, route, where, lambda: tensors)


def _size(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()
