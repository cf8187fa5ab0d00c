"""The vendor's half of an encoder-decoder: two forward passes a step, and two backward.

The source texts come first, and the encoder's output goes down, for the customer's decoder blocks attend to it as
the vendor's do. The target texts follow. Backward it is the other way round: the gradient of the decoder's output, then
what the customer's blocks add to that of the encoder's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Self

import torch
from torch import Tensor

from cutlayer.core import Payload, Rows
from cutlayer.models import Seq2SeqTop, Template, Top, seed_dropout
from cutlayer.vendor.catalogue import ModelCard
from cutlayer.vendor.log import GRADIENT, SOURCE, SOURCE_GRADIENT, STEP, UPDATE
from cutlayer.vendor.passes import Encoded, decode, encode, prepare, rows_of
from cutlayer.vendor.steps import Backward, Due, Forward
from cutlayer.vendor.trainer import Trainer, graph_bytes
from cutlayer.wire.messages import JobSpec


class Seq2SeqTrainer(Trainer):
    """An adapted twin of an encoder-decoder's top, or a copy of it, with its optimiser.

    Args:
        top: The shared top.
        template: Where special tokens stand in source texts.
        target_template: Where they stand in target texts.
        spec: The job.
        device: Where to compute.
    """

    frames: ClassVar[tuple[int, ...]] = SOURCE, STEP, GRADIENT, SOURCE_GRADIENT

    def __init__(
        self, top: Top | Seq2SeqTop, template: Template, target_template: Template, spec: JobSpec, device: torch.device
    ) -> None:
        super().__init__(top, template, spec, device)
        if not isinstance(self.part, Seq2SeqTop):
            raise TypeError("this top has one stack of blocks")
        self._top: Seq2SeqTop = self.part
        self._templates = template, target_template
        self._source_boundary: Tensor | None = None
        self._encoded: Encoded | None = None
        self._attended: Tensor | None = None
        self._attended_gradient: Tensor | None = None

    @classmethod
    def of(cls, top: Top | Seq2SeqTop, card: ModelCard, spec: JobSpec, device: torch.device) -> Self:
        """The training of a job on an encoder-decoder; see `Training.of`."""
        return cls(top, card.template, card.targets, spec, device)

    def due(self) -> Mapping[tuple[int, int], Due]:
        """The frame that comes next, by kind and step."""
        source, target = self._templates
        if self._output is not None:
            return {(GRADIENT, self.step): Due(Backward(tuple(self._output.shape), self.backward))}
        if self._encoded is None and self.update_waits:
            return {(UPDATE, self.step): Due(peer_stats=self._stats)}
        if self._encoded is None:
            return {(SOURCE, self.step + 1): Due(forward=Forward(source, self.encode))}
        if self._attended is None:
            forward = Forward(target, self.forward, texts=len(self._encoded.states))
            return {(STEP, self.step): Due(forward=forward)}
        backward = Backward(tuple(self._encoded.rows.shape), self.backward_source)
        return {(SOURCE_GRADIENT, self.step): Due(backward)}

    @property
    def unsaved(self) -> tuple[int, ...]:
        """Kinds of the present step's frames of which `state` holds nothing.

        Between the two backward passes it holds what came of the target texts, and the encoder's graph waits.
        """
        if self._output is not None:
            return SOURCE, STEP
        return () if self._encoded is None else (SOURCE,)

    def forget_graph(self) -> None:
        """Frees the graphs that wait, which nothing will ask for any more."""
        super().forget_graph()
        self._source_boundary = self._encoded = self._attended = None

    def state(self) -> dict[str, Tensor]:
        """As of any trainer; between a step's two backward passes also what the first one found.

        That is `attended` `[n, source, width]`, the gradient of the encoder's output as far as it is the decoder's.
        """
        if self._attended is None or self._output is not None:
            return super().state()
        return super().state() | {"attended": _gradient(self._attended).clone()}

    def load(self, state: dict[str, Tensor]) -> None:
        """Puts back what `state` returned. Between two backward passes: once the step's source texts are here again."""
        super().load(state)
        self._attended_gradient = state.get("attended")

    def estimate(self, payload: Payload) -> int:
        """Bytes that the graph of the next forward pass takes at most, with that of the source texts."""
        longest = int(rows_of(payload).packed.lengths.max())
        encoder, decoder = self.part.family.stacks
        stack, before, seen = encoder, 0, longest
        if self._encoded is not None:
            stack, before, seen = decoder, self._estimate, longest + self._encoded.states.shape[1]
        return before + graph_bytes(self.part, self._spec, stack, texts=len(payload), longest=longest, seen=seen)

    def encode(self, payload: Payload) -> Tensor:
        """Begins the next step with its source texts.

        Returns:
            The encoder's output `[rows, width]`, without graph.
        """
        self.step += 1
        seed_dropout(self._spec.seed, self.step)
        self._estimate = self.estimate(payload)
        source, self._source_boundary = _leaf(prepare(payload, self._device))
        with self._autocast():
            self._encoded = encode(self._top, self._template, source, self._device)
        if self._attended_gradient is not None:
            self._attended = self._encoded.states.detach().requires_grad_()
            self._attended.grad = self._attended_gradient.to(self._attended)
            self._attended_gradient = None
        return self._encoded.rows.detach().float()

    def forward(self, payload: Payload) -> Tensor:
        """Takes the step's target texts.

        Returns:
            The upper boundary `[rows, width]`, without graph.
        """
        if self._encoded is None:
            raise RuntimeError("target texts need their source texts before them")
        seed_dropout(self._spec.seed, self.step, part="target")
        self._estimate = self.estimate(payload)
        target, self._boundary = _leaf(prepare(payload, self._device))
        # a copy: the customer's blocks add their part of its gradient before the encoder's backward pass
        self._attended = self._encoded.states.detach().requires_grad_()
        attended = Encoded(self._attended, self._encoded.inputs)
        with self._autocast():
            output = decode(self._top, self._templates[1], attended, target, self._device)
        self._output = output.float()
        return self._output.detach()

    def backward(self, gradient: Tensor) -> Tensor | None:
        """Takes d loss / d output: the decoder's backward pass.

        Returns:
            d loss / d the target texts' boundary `[rows, width]`.
        """
        if self._output is None or self._boundary is None:
            raise RuntimeError("no forward pass waits for a gradient")
        output, boundary = self._output, self._boundary
        self._output = self._boundary = None
        torch.autograd.backward(output, gradient.to(output))
        return boundary.grad

    def backward_source(self, gradient: Tensor) -> Tensor | None:
        """Takes what the customer's blocks add to d loss / d encoder's output, and the update that is due then.

        Returns:
            d loss / d the source texts' boundary `[rows, width]`.
        """
        encoded, attended, boundary = self._encoded, self._attended, self._source_boundary
        if encoded is None or attended is None or boundary is None:
            raise RuntimeError("no encoder's output waits for a gradient")
        own = _gradient(attended)
        mask = encoded.inputs.attention_mask.bool()
        own[:, -mask.shape[1] :][mask] += gradient.to(own)
        self._source_boundary = self._encoded = self._attended = None
        torch.autograd.backward(encoded.states, own.to(encoded.states))
        self._take()
        return boundary.grad


def _gradient(leaf: Tensor) -> Tensor:
    return torch.zeros_like(leaf) if leaf.grad is None else leaf.grad


def _leaf(payload: Payload) -> tuple[Rows, Tensor]:
    """Rows whose gradient is kept."""
    rows = rows_of(payload)
    leaf = rows.packed.values.detach().requires_grad_()
    return Rows(rows.packed.with_values(leaf), rows.segment_lengths), leaf
