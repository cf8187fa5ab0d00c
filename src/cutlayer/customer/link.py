"""One job's numbered steps over the gate, and the autograd function that puts them on the road.

With a frozen bottom there is one round trip a step: the frame of step n names n's records and
carries the gradient of step n - 1. With a trainable bottom the frame carries the step's own release
and a second trip brings the gradient of the boundary. Steps are numbered and repeating one is
harmless, so after a crash on either side the run goes on from the last accepted step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cutlayer.core import ConfigError
from cutlayer.customer.gate import Gate
from cutlayer.privacy import Release
from cutlayer.wire import routes
from cutlayer.wire.messages import JobInfo


@dataclass(frozen=True)
class Stored:
    """Texts whose release the vendor already holds.

    Attributes:
        records: `[n]` int64, their numbers over the job's record sets.
    """

    records: Tensor

    def __len__(self) -> int:
        return len(self.records)

    def select(self, indices: Tensor) -> Stored:
        """The texts at `indices`, in that order."""
        return Stored(self.records[indices])


class Link:
    """The steps of one job.

    Args:
        gate: The door.
        job: The job as the vendor holds it. If its last step still waits for a gradient, that step
            is asked for again instead of being sent again: its frame carried a gradient that is gone.
    """

    def __init__(self, gate: Gate, job: JobInfo) -> None:
        self.gate = gate
        self.job = job.job
        self.returns_gradient = job.spec.trainable_bottom
        self._accepted = job.step
        self._pending: Tensor | None = None
        self.step = job.step if job.gradient_applied or job.step == 0 else job.step - 1

    @property
    def moment(self) -> str:
        """A name for the state of the weights that the next frame will meet."""
        return f"{self.job}/{self.step}"

    def _where(self) -> dict[str, str | int]:
        return {"job": self.job, "step": self.step}

    def forward(self, sent: Release | Stored) -> Tensor:
        """Takes the next step's forward pass and returns the top's output `[texts, labels]`."""
        self.step += 1
        if self.step <= self._accepted:
            reply = self.gate.send(routes.STEP_GET, self._where())
        elif isinstance(sent, Stored):
            reply = self.gate.send(routes.STEP, self._where(), records=sent.records, gradient=self._pending)
        else:
            reply = self.gate.send(routes.STEP, self._where(), release=sent)
        self._pending = None
        return reply.tensors["output"]

    def backward(self, gradient: Tensor) -> Tensor | None:
        """Takes d loss / d output; returns d loss / d boundary where the bottom is trainable."""
        if self.returns_gradient:
            reply = self.gate.send(routes.GRADIENT, self._where(), gradient=gradient)
            return reply.tensors["boundary_gradient"].float()
        self._pending = gradient
        return None

    def flush(self) -> None:
        """Sends the gradient that no further step will carry: the end of an epoch."""
        if self._pending is not None:
            self.gate.send(routes.GRADIENT, self._where(), gradient=self._pending)
            self._pending = None

    def infer(self, sent: Release | Stored) -> Tensor:
        """The top's output in evaluation mode, with the job's weights as they are."""
        if isinstance(sent, Stored):
            reply = self.gate.send(routes.JOB_INFER, {"job": self.job}, records=sent.records)
        else:
            reply = self.gate.send(routes.JOB_INFER, {"job": self.job}, release=sent)
        return reply.tensors["output"]


class AdapterLink:
    """Queries to a published adapter: the same road, without steps."""

    def __init__(self, gate: Gate, adapter: str) -> None:
        self.gate = gate
        self.adapter = adapter

    @property
    def moment(self) -> str:
        """A name for the state of the weights, which no longer changes."""
        return self.adapter

    def infer(self, sent: Release | Stored) -> Tensor:
        """The adapted top's output `[texts, labels]`.

        Raises:
            ConfigError: Stored records belong to a job; a query carries its own release.
        """
        if isinstance(sent, Stored):
            raise ConfigError("A query carries its own release.", remedy="Pass the texts.")
        return self.gate.send(routes.ADAPTER_INFER, {"adapter": self.adapter}, release=sent).tensors["output"]


class Exchange(torch.autograd.Function):
    """Wire → top → wire as one differentiable operation."""

    @staticmethod
    def forward(ctx: Any, boundary: Tensor, link: Link, sent: Release | Stored) -> Tensor:
        """Sends what was released and returns the top's output.

        Args:
            ctx: Autograd's context.
            boundary: The tensor that the gradient returns to. It must require a gradient even with a
                frozen bottom: otherwise backward never runs and the vendor's adapter never trains.
            link: The job's steps.
            sent: The release, or the stored records that hold it.
        """
        ctx.link = link
        return link.forward(sent)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, None, None]:
        """Hands d loss / d output to the link."""
        return ctx.link.backward(gradients[0]), None, None
