"""The protocol of a job's steps: which frame is due next, what it must carry, and why another one is refused.

A step is one frame or several, each of a kind and of the step's number. What is trained in a job (`Training`) declares
in a table which frames it takes next; whoever reads, orders or replays frames goes by that table alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Protocol, Self

import torch
from torch import Tensor

from cutlayer.core import Payload
from cutlayer.models import Part, Seq2SeqTop, Template, Top
from cutlayer.serving.refusal import Refusal
from cutlayer.vendor.catalogue import ModelCard
from cutlayer.vendor.log import GRADIENT, SOURCE, SOURCE_GRADIENT, STEP, UPDATE
from cutlayer.vendor.problems import conflict, unacceptable
from cutlayer.wire import Route, routes
from cutlayer.wire.messages import JobSpec

STEP_ROUTES: Mapping[int, Route] = {
    STEP: routes.STEP,
    GRADIENT: routes.GRADIENT,
    UPDATE: routes.UPDATE,
    SOURCE: routes.SOURCE,
    SOURCE_GRADIENT: routes.SOURCE_GRADIENT,
}
"""The route of each kind of frame."""

_STATS = {
    "norm": "the norm of the customer's gradients",
    "shared_gradient": "the gradients of the customer's copies of shared weights",
}
"""What the vendor needs to know of the customer's gradients for an update that both take together, by role."""


@dataclass(frozen=True)
class Backward:
    """The gradient that a frame carries.

    Attributes:
        shape: Shape of the output that it belongs to.
        run: Takes d loss / d output, of that shape; returns d loss / d boundary `[rows, width]`, or `None` where
            nothing is trained below the boundary.
    """

    shape: tuple[int, ...]
    run: Callable[[Tensor], Tensor | None]


@dataclass(frozen=True)
class Forward:
    """The release that a frame carries or names.

    Attributes:
        template: Where special tokens stand in its texts.
        run: Takes the release; returns logits `[texts, labels]` or rows `[rows, width]` of an upper boundary.
        told: What the customer is told beside what was computed, by role.
        preceded: Whether public words must stand before its texts.
        stored: Whether the frame names stored records; else it carries the release itself.
        texts: How many texts there must be; `None` for any number.
    """

    template: Template
    run: Callable[[Payload], Tensor]
    told: Callable[[], dict[str, Tensor]] = dict
    preceded: bool = False
    stored: bool = False
    texts: int | None = None


@dataclass(frozen=True)
class Due:
    """What a frame carries that is due: all of it, and nothing else.

    It takes effect in this order: the backward pass, the update that both parties take together, the forward pass.

    Attributes:
        backward: The gradient of an earlier output, if it carries one.
        peer_stats: What it tells of the customer's gradients for the update: numbers by role.
        forward: The release of this step, if it carries one.
    """

    backward: Backward | None = None
    peer_stats: Mapping[str, int] = field(default_factory=dict)
    forward: Forward | None = None

    def is_in(self, tensors: Mapping[str, Tensor]) -> bool:
        """Whether a frame with these tensors, by role, carries all of it."""
        gradient = self.backward is None or "gradient" in tensors
        records = self.forward is None or not self.forward.stored or "records" in tensors
        return gradient and records and self.peer_stats.keys() <= tensors.keys()


class Training(Protocol):
    """What is trained in a job: all that the other parts of a job know of it. Lives in the compute thread.

    A new kind of training is one more implementation, and a line in `trainers.training_of`.

    Attributes:
        frames: Kinds of a step's frames, in the order in which they come. The last one ends the step; `UPDATE` may
            follow it.
        step: The last step of which a frame was taken; 0 before the first.
        taken: The last step of which all gradients were taken: as `step`, or one less while that one goes on.
        update_waits: Whether the update after it waits for what the customer tells of its own gradients.
    """

    frames: ClassVar[tuple[int, ...]]
    step: int
    taken: int
    update_waits: bool

    @classmethod
    def of(cls, top: Top | Seq2SeqTop, card: ModelCard, spec: JobSpec, device: torch.device) -> Self:
        """A job's training, at its start.

        Args:
            top: The shared top.
            card: Its model.
            spec: The job.
            device: Where to compute.
        """
        ...

    @property
    def part(self) -> Part:
        """The adapted top."""
        ...

    def due(self) -> Mapping[tuple[int, int], Due]:
        """The frames that may come next, by kind and step."""
        ...

    @property
    def unsaved(self) -> tuple[int, ...]:
        """Kinds of the present step's frames of which `state` holds nothing, in their order: their graphs wait.

        Where a job is resumed, these frames are taken again from the log.
        """
        ...

    @property
    def at_update(self) -> bool:
        """Whether no gradients are kept for an update to come."""
        ...

    @property
    def graph_bytes(self) -> int:
        """About how many bytes the graph takes that waits for its gradient; 0 if none waits."""
        ...

    def estimate(self, payload: Payload) -> int:
        """Bytes that the graphs of the present step take at most after the forward pass of this release."""
        ...

    def gradient_stats(self) -> dict[str, Tensor]:
        """What the customer is told when a step ends, for an update that both take together.

        Returns:
            By role: `norm` `[1]`, `shared_gradient` `[numbers]`; those that the job needs, fp32.
        """
        ...

    def join(self, peer_stats: Mapping[str, Tensor]) -> None:
        """Takes the update that waits, with what the customer told of its gradients, as `gradient_stats` tells them."""
        ...

    def infer(self, payload: Payload) -> Tensor:
        """The answer to a query with the weights as they are: logits `[n, labels]`, or rows `[rows, width]`."""
        ...

    def state(self) -> dict[str, Tensor]:
        """What a checkpoint holds but for `unsaved` frames, as named tensors; `taken` `[2]` is of all kinds alike.

        Its numbers are the last step taken, and whether an update waits: the journal reads them alone.
        """
        ...

    def load(self, state: dict[str, Tensor]) -> None:
        """Puts back what `state` returned: as before the frames that are `unsaved`."""
        ...

    def adapter(self) -> dict[str, Tensor]:
        """What was trained, as named tensors in their parameters' shapes."""
        ...

    def load_adapter(self, state: dict[str, Tensor]) -> None:
        """Puts back what `adapter` returned."""
        ...

    def forget_graph(self) -> None:
        """Frees the graphs that wait."""
        ...


# ---------------------------------------------------------------- order


def order(training: Training) -> tuple[int, ...]:
    """Kinds of a step's frames in the order in which they come, with that of the update after it."""
    return (*training.frames, UPDATE)


def check_turn(training: Training, kind: int, step: int, *, total_steps: int) -> Due:
    """What a frame must carry, if it is due.

    Args:
        training: What the job trains.
        kind: The frame's kind.
        step: Its step.
        total_steps: Steps of the job's schedule.

    Raises:
        Refusal: It is not due, or of a step beyond the schedule.
    """
    due = training.due()
    if (kind, step) not in due:
        raise _out_of_turn(training, kind, step)
    if step > total_steps:
        raise conflict(
            "schedule-ended",
            f"Step {step} was sent; the schedule ends at total_steps = {total_steps}.",
            remedy="Finish the job, or start one with more steps.",
        )
    return due[kind, step]


def _out_of_turn(training: Training, kind: int, step: int) -> Refusal:
    names = [STEP_ROUTES[each].name for each in training.frames]
    name, at, due = STEP_ROUTES[kind].name, training.step, training.due()
    if kind not in order(training):
        return unacceptable(
            "wrong-form", f"The steps of this job have no {name}.", remedy=f"They are made of {', '.join(names)}."
        )
    if kind == UPDATE:
        waits = f"waits for that of step {at}" if training.update_waits else "waits for none"
        said = f"What the update after step {step} needs was sent; the job stands at step {at} and {waits}."
    elif all(other == UPDATE for other, _ in due):
        return update_waits(training)
    else:
        takes = " or ".join(f"{STEP_ROUTES[other].name} {number}" for other, number in due)
        said = f"{name} {step} was sent; the job stands at step {at} and takes {takes} next."
    return conflict("wrong-step", said, remedy="GET the job and go on from there.")


def check_at_rest(training: Training) -> None:
    """Refuses what needs the weights of a step that is over.

    Raises:
        Refusal: The weights are between two steps.
    """
    if training.step != training.taken:
        raise conflict(
            "gradient-missing",
            f"Step {training.step} waits for its gradient, so the weights are between two steps.",
            remedy=f"POST the gradient of step {training.step} first.",
        )
    if training.update_waits:
        raise update_waits(training)


def update_waits(training: Training) -> Refusal:
    """Why something is refused that comes before the update that is due."""
    (needed,) = (due.peer_stats for (kind, _), due in training.due().items() if kind == UPDATE)
    return conflict(
        "update-waits",
        f"The update after step {training.step} waits for {' and '.join(_STATS[role] for role in needed)}.",
        remedy="Send it alone, or, of a model with one stack of blocks, with the next step.",
    )


# ---------------------------------------------------------------- content


def peer_stats_in(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What a frame tells of the customer's gradients: `norm` `[1]`, `shared_gradient` `[numbers]`, or neither."""
    return {role: tensors[role] for role in _STATS if role in tensors}


def check_content(training: Training, due: Due, tensors: Mapping[str, Tensor], gradient_type: torch.dtype) -> None:
    """Checks that a frame carries what is due, and nothing else; the release itself is checked where it is read.

    Args:
        training: What the job trains.
        due: What the frame must carry.
        tensors: What it carries, by role; shapes are of `wire.routes.ROLES`, and what they hold of `due`.
        gradient_type: Element type of a gradient.

    Raises:
        Refusal: It carries something else.
    """
    forward, at = due.forward, training.step
    if forward is not None and ("records" in tensors) != forward.stored:
        raise unacceptable(
            "wrong-form",
            "Steps of this job name stored records."
            if forward.stored
            else "Steps of this job carry their own release.",
            remedy="Send what the spec says: records for a frozen bottom, a release for a trainable one.",
        )
    gradient, stats = tensors.get("gradient"), peer_stats_in(tensors)
    if (gradient is None) != (due.backward is None):
        raise conflict(
            "gradient-missing" if gradient is None else "gradient-not-expected",
            f"Step {at} {'waits for its gradient' if gradient is None else 'has its gradient already'}.",
            remedy="Send the gradient of each step once: with the next step, or alone.",
        )
    if due.peer_stats and not stats:
        raise update_waits(training)
    if stats and not due.peer_stats:
        raise conflict(
            "update-not-expected",
            f"No update after step {at} waits for a norm.",
            remedy="Send it once after each update's last gradient, and only where clip_norm is set.",
        )
    if stats:
        _check_peer_stats(stats, due.peer_stats)
    if gradient is not None and due.backward is not None:
        _check_gradient(gradient, due.backward.shape, gradient_type, step=at)


def _check_peer_stats(stats: Mapping[str, Tensor], needed: Mapping[str, int]) -> None:
    """Refuses what an update that both parties take together does not need, or not so."""
    given = {role: len(tensor) for role, tensor in stats.items()}
    if given != needed:
        forms = (", ".join(f"{role} [{count}]" for role, count in roles.items()) for roles in (given, needed))
        raise unacceptable(
            "wrong-shape",
            "An update was sent {}; it takes {}.".format(*forms),
            remedy="Send what the job's spec asks for: a norm for clip_norm, copies' gradients for shared_weights.",
        )
    if "norm" in stats and float(stats["norm"]) < 0:
        raise unacceptable(
            "wrong-shape",
            "norm is less than 0.",
            remedy="Send the squared norm of all gradients that are the customer's alone.",
        )


def _check_gradient(gradient: Tensor, shape: tuple[int, ...], dtype: torch.dtype, *, step: int) -> None:
    if tuple(gradient.shape) != shape or gradient.dtype is not dtype:
        types = ("", "") if gradient.dtype is dtype else (f" {gradient.dtype}", f" {dtype}")
        raise unacceptable(
            "wrong-shape",
            f"gradient is {list(gradient.shape)}{types[0]}; the output of step {step} is {list(shape)}{types[1]}.",
            remedy="Send d loss / d output in the output's own shape and element type.",
        )


def step_too_large(texts: int, size: int, limit: int) -> Refusal:
    """Why a step is refused whose graph would not fit.

    Args:
        texts: How many.
        size: Bytes that it takes.
        limit: Bytes that a step may take.
    """
    return unacceptable(
        "batch-too-large",
        f"Training on {texts} texts takes about {size} bytes of memory; this vendor gives a step {limit}.",
        remedy="Use smaller batches, shorter texts, or gradient checkpointing.",
    )
