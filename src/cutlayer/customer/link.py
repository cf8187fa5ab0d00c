"""One job's numbered steps over the gate, and the autograd function that puts them on the road.

With a frozen bottom there is one round trip a step: the frame of step n names n's records and
carries the gradient of step n - 1. With a trainable bottom the frame carries the step's own release
and a second trip brings the gradient of the boundary. An update that both parties take together needs
numbers of both: where gradients are clipped, their norm; where both hold copies of weights, the copies'
gradients. The second trip brings the vendor's, the next frame carries the customer's. Steps are
numbered and repeating one is harmless, so after a crash on either side the run goes on from the last accepted step.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from cutlayer.core import ConfigError, Rows, VendorError
from cutlayer.customer.gate import Gate, StepTensors
from cutlayer.privacy import Release
from cutlayer.wire import Reply, Route, Shape, WireType, routes
from cutlayer.wire.generation import GenerationInfo, GenerationSpec
from cutlayer.wire.messages import JobInfo

PAIR_OUTPUT = 2
"""Numbers that the vendor answers for a pair that it has whole: a target text's log-probability, of how many tokens."""
_REPLAYS = 5
"""Times that a session is started anew for one token."""


@dataclass(frozen=True)
class Stored:
    """Texts whose release the vendor already holds.

    Attributes:
        records: `[n]` int64, their numbers over the job's record sets.
        segment_lengths: `[n, segments]` int64, positions of each text, special tokens included: where rows of an
            upper boundary belong.
    """

    records: Tensor
    segment_lengths: Tensor

    def __len__(self) -> int:
        return len(self.records)

    def select(self, indices: Tensor) -> Stored:
        """The texts at `indices`, `[chosen]` int64, in that order."""
        return Stored(self.records[indices], self.segment_lengths[indices])


class Leg(Protocol):
    """A way up to the vendor's blocks, and back for gradients."""

    def forward(self, sent: Release | Stored) -> Tensor:
        """What the vendor's blocks make of what is sent, fp32: logits `[texts, labels]` or rows `[rows, width]`."""
        ...

    def backward(self, gradient: Tensor) -> Tensor | None:
        """Takes d loss / d output, in the output's shape; returns d loss / d what was sent, `[rows, width]`, if any."""
        ...


def _output(gate: Gate, sent: Release | Stored, labels: int | None) -> dict[str, Shape]:
    """The shape of what the vendor's blocks make of what is sent.

    Args:
        gate: The door that it leaves by.
        sent: Texts; of an encoder-decoder, whose segments are source and target, the target's rows come back.
        labels: Outputs of a head at the vendor; None where the customer holds the tail.
    """
    if labels is not None:
        return {"output": (len(sent), labels)}
    if isinstance(sent, Stored):
        rows = int(sent.segment_lengths[:, -1].sum())
    elif isinstance(sent.payload, Rows):
        rows = int(sent.payload.segment_lengths[:, -1].sum())
    else:
        return {"output": (None, gate.width)}  # ids leave without the special tokens that the vendor adds
    return {"output": (rows, gate.width)}


def _growing(sent: Release) -> int:
    """How many sequences go on; one that has ended is sent without a position."""
    payload = sent.payload
    lengths = payload.packed.lengths if isinstance(payload, Rows) else payload.segments[0].lengths
    return int((lengths > 0).sum())


class Link:
    """The steps of one job.

    Args:
        gate: The door.
        job: The job as the vendor holds it. If its last step still waits for a gradient, that step
            is asked for again instead of being sent again: its frame carried a gradient that is gone.

    Attributes:
        gradient_type: Element type of gradients on the wire.
        step: The last step whose forward pass was taken.
        reconstruction_loss: What the vendor's own loss was in the last step's forward pass; `None` where it has none.
        peer_gradient_stats: What the next update needs of the vendor's gradients, by role; empty where none is
            joint.
    """

    def __init__(self, gate: Gate, job: JobInfo) -> None:
        self.gate = gate
        self.job = job.job
        self.two_trips = job.spec.trainable_bottom or job.spec.optimiser.clip_norm is not None
        as_rows = job.spec.cut.tail is not None and job.spec.wire_type is WireType.BF16
        self.gradient_type = torch.bfloat16 if as_rows else torch.float32
        self._accepted = job.step
        self._gradient: Tensor | None = None
        self._labels = job.spec.num_labels
        self._told: dict[str, Shape] = {} if job.spec.reconstruction is None else {"reconstruction_loss": (1,)}
        self.reconstruction_loss: float | None = None
        self._boundary: Shape = (0, None)
        # only a customer without gradients of its own goes on with a job that waits for their norm
        self._gradient_stats = {"norm": torch.zeros(1)} if job.update_waits else None
        self.peer_gradient_stats: Mapping[str, Tensor] = {}
        self.step = job.step if job.gradient_applied or job.step == 0 else job.step - 1

    @property
    def moment(self) -> str:
        """A name for the state of the weights that the next frame will meet."""
        return f"{self.job}/{self.step}"

    def _where(self) -> dict[str, str | int]:
        return {"job": self.job, "step": self.step}

    def forward(self, sent: Release | Stored) -> Tensor:
        """Takes the next step's forward pass and returns the top's output.

        Returns:
            Logits `[texts, labels]`, or rows `[rows, width]` of the upper boundary, fp32.
        """
        self.step += 1
        shapes = _output(self.gate, sent, self._labels) | self._told
        if self.step <= self._accepted:
            reply = self.gate.send(routes.STEP_GET, self._where(), shapes=shapes)
        elif isinstance(sent, Stored):
            reply = self.gate.send(
                routes.STEP,
                self._where(),
                tensors=StepTensors(sent.records, self._gradient, self._gradient_stats),
                shapes=shapes,
            )
        else:
            reply = self.gate.send(
                routes.STEP,
                self._where(),
                release=sent,
                tensors=StepTensors(gradient_stats=self._gradient_stats),
                shapes=shapes,
            )
        self._boundary = (0, None)  # what is stored, and ids, get no gradient
        if isinstance(sent, Release) and isinstance(sent.payload, Rows):
            self._boundary = tuple(sent.payload.packed.values.shape)
        self._gradient = self._gradient_stats = None
        if self._told:
            self.reconstruction_loss = float(reply.tensors["reconstruction_loss"])
        return reply.tensors["output"].float()

    def backward(self, gradient: Tensor) -> Tensor | None:
        """Takes d loss / d output; returns d loss / d boundary, `[rows, width]`, where the bottom is trainable."""
        self._gradient = gradient.detach().to("cpu", self.gradient_type)
        if not self.two_trips:
            return None
        reply = self._send_gradient()
        self.peer_gradient_stats = _gradient_stats(reply)
        boundary = reply.tensors["boundary_gradient"].float()
        return boundary if len(boundary) else None

    def send_gradient_stats(self, stats: Mapping[str, Tensor]) -> None:
        """Has the vendor take its update with the next frame.

        Args:
            stats: What it needs of the customer's own gradients, by role.
        """
        self._gradient_stats = dict(stats)

    def flush(self) -> None:
        """Sends what no further step will carry: the end of an epoch."""
        if self._gradient is not None:
            self._send_gradient()
        if self._gradient_stats is not None:
            self.gate.send(routes.UPDATE, self._where(), tensors=StepTensors(gradient_stats=self._gradient_stats))
            self._gradient_stats = None

    def _send_gradient(self) -> Reply:
        shapes = {"boundary_gradient": self._boundary}
        gradient = StepTensors(gradient=self._gradient)
        reply = self.gate.send(routes.GRADIENT, self._where(), tensors=gradient, shapes=shapes)
        self._gradient = None
        return reply

    def infer(self, sent: Release | Stored) -> Tensor:
        """The top's output in evaluation mode, `[texts, labels]` or `[rows, width]`, with the job's present weights."""
        shapes = _output(self.gate, sent, self._labels)
        if isinstance(sent, Stored):
            reply = self.gate.send(
                routes.JOB_INFER, {"job": self.job}, tensors=StepTensors(sent.records), shapes=shapes
            )
        else:
            reply = self.gate.send(routes.JOB_INFER, {"job": self.job}, release=sent, shapes=shapes)
        return reply.tensors["output"].float()


class Seq2SeqLink(Link):
    """The steps of an encoder-decoder's job: source texts up, then target texts; gradients the other way round.

    No frame carries what belongs to another, so a step that was cut off is sent again from its beginning: the same
    bytes get the same answers.

    Attributes:
        source: The way of source texts, whose gradient ends a step.
        target: The way of target texts.
    """

    def __init__(self, gate: Gate, job: JobInfo) -> None:
        super().__init__(gate, job)
        self.source = _Source(self)
        self.target = _Target(self)


@dataclass(frozen=True)
class _Half:
    """Source or target texts of one step."""

    link: Seq2SeqLink

    def _up(self, route: Route, sent: Release | Stored) -> Tensor:
        if isinstance(sent, Stored):
            raise ConfigError("An encoder-decoder's steps carry their own texts.", remedy="Pass the texts.")
        where: dict[str, str | int] = {"job": self.link.job, "step": self.link.step}
        reply = self.link.gate.send(route, where, release=sent, shapes=_output(self.link.gate, sent, None))
        return reply.tensors["output"].float()

    def _down(self, route: Route, gradient: Tensor) -> Reply:
        gradient = gradient.detach().to("cpu", self.link.gradient_type)
        where: dict[str, str | int] = {"job": self.link.job, "step": self.link.step}
        # a boundary's rows are as many and as wide below the vendor's blocks as above
        shapes: dict[str, Shape] = {"boundary_gradient": tuple(gradient.shape)}
        return self.link.gate.send(route, where, tensors=StepTensors(gradient=gradient), shapes=shapes)


class _Source(_Half):
    def forward(self, sent: Release | Stored) -> Tensor:
        """The encoder's output, rows `[rows, width]`; begins the next step."""
        self.link.flush()
        self.link.step += 1
        return self._up(routes.SOURCE, sent)

    def backward(self, gradient: Tensor) -> Tensor:
        """Takes what the customer's decoder blocks add to d loss / d encoder's output; ends the step."""
        reply = self._down(routes.SOURCE_GRADIENT, gradient)
        self.link.peer_gradient_stats = _gradient_stats(reply)
        return reply.tensors["boundary_gradient"].float()


class _Target(_Half):
    def forward(self, sent: Release | Stored) -> Tensor:
        """Rows `[rows, width]` of the upper boundary."""
        return self._up(routes.STEP, sent)

    def backward(self, gradient: Tensor) -> Tensor:
        """Takes d loss / d upper boundary."""
        return self._down(routes.GRADIENT, gradient).tensors["boundary_gradient"].float()


def _gradient_stats(reply: Reply) -> dict[str, Tensor]:
    """What an answer tells for an update that both parties take together."""
    return {role: tensor for role, tensor in reply.tensors.items() if role in ("norm", "shared_gradient")}


class QueryLink:
    """Queries to weights that no longer change: the same road, without steps.

    Args:
        gate: The door.
        route: What is asked.
        where: Of what, by the route's placeholders.
        outputs: Numbers that a text is answered with; None where the customer holds the tail.

    Attributes:
        uplink_bytes: What its queries sent, headers included.
        downlink_bytes: What was received.
    """

    def __init__(self, gate: Gate, route: Route, where: Mapping[str, str], *, outputs: int | None) -> None:
        self.gate = gate
        self._route = route
        self._where = dict(where)
        self._outputs = outputs
        self.uplink_bytes = self.downlink_bytes = 0

    @classmethod
    def to_adapter(cls, gate: Gate, adapter: str, *, labels: int | None) -> QueryLink:
        """Queries to a published adapter.

        Args:
            gate: The door.
            adapter: The adapter.
            labels: Outputs of its head, or `PAIR_OUTPUT`; None where the customer holds the tail.
        """
        return cls(gate, routes.ADAPTER_INFER, {"adapter": adapter}, outputs=labels)

    @property
    def moment(self) -> str:
        """A name for the weights."""
        return "/".join(self._where.values())

    def infer(self, sent: Release | Stored) -> Tensor:
        """The vendor's answer: logits `[texts, labels]`, embeddings `[texts, width]`, or rows `[rows, width]`.

        Raises:
            ConfigError: Stored records belong to a job; a query carries its own release.
        """
        if isinstance(sent, Stored):
            raise ConfigError("A query carries its own release.", remedy="Pass the texts.")
        shapes = _output(self.gate, sent, self._outputs)
        reply = self.gate.send(self._route, self._where, release=sent, shapes=shapes)
        self.uplink_bytes += reply.uplink_bytes
        self.downlink_bytes += reply.downlink_bytes
        return reply.tensors["output"].float()


class GenerationLink:
    """The frames of one generation session, each of which the vendor can be told again.

    Sessions are in the vendor's memory alone. Where one is gone (the vendor was restarted, or it was idle for too
    long), it is started anew and all frames are sent again, the same bytes in the same order: the vendor then
    computes the same bits, and the text goes on unchanged.

    Args:
        gate: The door.
        spec: What to ask for.
        last_only: Whether the customer's tail has no blocks, and looks at nothing but the position that is continued.

    Attributes:
        round_trips: Frames that brought a text further.
        replays: How many times the session was started anew.
    """

    def __init__(self, gate: Gate, spec: GenerationSpec, *, last_only: bool) -> None:
        self.gate = gate
        self.name = secrets.token_hex(16)
        self.spec = spec
        self._last_only = last_only
        self.round_trips = 0
        self.replays = 0
        self._frames: list[tuple[Release, Tensor | None]] = []
        self._open()

    @property
    def moment(self) -> str:
        """A name for what the next frame meets."""
        return f"{self.name}/{self.round_trips}"

    def infer(self, sent: Release, parents: Tensor | None) -> Tensor:
        """Rows of the upper boundary for the new positions.

        Args:
            sent: The new positions' release, of every sequence.
            parents: `[sequences]` which sequence each one goes on from; `None`: from itself.

        Raises:
            VendorError: It refused, or lost the session again and again.
        """
        self._frames.append((sent, parents))
        tries = 0
        while True:
            try:
                output = self._send(len(self._frames) if not tries else 1)
                break
            except VendorError as error:
                if error.status not in (404, 409):
                    raise
                if tries == _REPLAYS:
                    raise VendorError(
                        f"The vendor lost the session {1 + _REPLAYS} times at token {len(self._frames)}; "
                        f"the last time: {error.message}",
                        status=error.status,
                        remedy="Write fewer or shorter texts at a time, or try again later: sessions end when the "
                        "vendor restarts, needs their memory, or waits too long for the next token.",
                    ) from error
                tries += 1
                self.replays += 1
                self._open()
        self.round_trips += 1
        return output

    def close(self) -> None:
        """Ends the session. One that cannot be ended expires: no text that was written is lost for it."""
        with contextlib.suppress(VendorError):
            self.gate.send(routes.GENERATION_DELETE, {"generation": self.name})

    def _open(self) -> None:
        self.gate.send(routes.GENERATION_PUT, {"generation": self.name}, control=self.spec).expect(GenerationInfo)

    def _send(self, first: int) -> Tensor:
        """Sends frames from the `first`, counted from 1; returns what the last one was answered."""
        output = torch.empty(0)
        for step in range(first, len(self._frames) + 1):
            release, parents = self._frames[step - 1]
            where: dict[str, str | int] = {"generation": self.name, "step": step}
            shapes = _output(self.gate, release, None)
            source = self.spec.source_positions > 0 and step == 1
            if self._last_only and not source:
                shapes = {"output": (_growing(release), self.gate.width)}
            beside = StepTensors(parents=parents)
            reply = self.gate.send(routes.GENERATION_STEP, where, release=release, tensors=beside, shapes=shapes)
            output = reply.tensors["output"].float()
        return output


class Exchange(torch.autograd.Function):
    """Wire → top → wire as one differentiable operation."""

    @staticmethod
    def forward(ctx: Any, boundary: Tensor, link: Leg, sent: Release | Stored, after: Tensor | None = None) -> Tensor:
        """Sends what was released and returns the top's output.

        Args:
            ctx: Autograd's context.
            boundary: `[rows, width]`, or any scalar, that the gradient returns to. It must require a gradient even
                with a frozen bottom: otherwise backward never runs and the vendor's adapter never trains.
            link: The job's steps, or a half of them.
            sent: The release, or the stored records that hold it.
            after: An exchange's output that this one follows. Its gradient is not changed, but its backward pass
                runs, and after this one's.
        """
        ctx.link = link
        ctx.after = None if after is None else after.shape
        return link.forward(sent)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, None, None, Tensor | None]:
        """Hands d loss / d output to the link; returns d loss / d boundary, `[rows, width]`."""
        boundary = ctx.link.backward(gradients[0])
        return boundary, None, None, None if ctx.after is None else gradients[0].new_zeros(ctx.after)
