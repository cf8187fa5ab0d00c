"""The vendor's half of an encoder-decoder: two forward passes a step, and two backward.

The source texts come first, and the encoder's output goes down, for the customer's decoder blocks attend to it as
the vendor's do. The target texts follow. Backward it is the other way round: the gradient of the decoder's output, then
what the customer's blocks add to that of the encoder's.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from cutlayer.core import Payload, Rows
from cutlayer.models import Inputs, Seq2SeqTop, Template, seed_dropout
from cutlayer.vendor.trainer import Stage, Trainer, graph_bytes, prepare
from cutlayer.wire.messages import JobSpec


@dataclass(frozen=True)
class Encoded:
    """Source texts after the encoder.

    Attributes:
        states: `[n, source, width]`.
        inputs: Their mask.
    """

    states: Tensor
    inputs: Inputs

    def select(self, indices: Tensor) -> Encoded:
        """The texts at `indices`, in that order; a text may be there several times."""
        chosen = indices.to(self.states.device)
        mask, positions = self.inputs.attention_mask[chosen], self.inputs.position_ids[chosen]
        return Encoded(self.states[chosen], Inputs(mask, positions))

    @property
    def rows(self) -> Tensor:
        """`[rows, width]`: the states without padding."""
        return self.states[self.inputs.attention_mask.bool()]


def encode(part: Seq2SeqTop, template: Template, source: Rows, device: torch.device) -> Encoded:
    """Source texts through the vendor's encoder blocks.

    Args:
        part: The adapted top.
        template: Where special tokens stand in a source text.
        source: `n` texts, made ready by `prepare`.
        device: Where to compute.
    """
    hidden, inputs = template.from_rows(source)
    inputs = inputs.to(device)
    return Encoded(part.encode(inputs, hidden), inputs)


def decode(part: Seq2SeqTop, template: Template, encoded: Encoded, target: Rows, device: torch.device) -> Tensor:
    """Target texts through the vendor's decoder blocks: rows `[rows, width]` of the upper boundary.

    Args:
        part: The adapted top.
        template: Where special tokens stand in a target text.
        encoded: The source texts.
        target: `n` texts, made ready by `prepare`.
        device: Where to compute.
    """
    hidden, inputs = template.from_rows(target)
    inputs = inputs.to(device)
    upper = part.decode(encoded.states, encoded.inputs, inputs, hidden)
    return upper[inputs.attention_mask.bool()]


def infer(
    part: Seq2SeqTop, source_template: Template, target_template: Template, payload: Payload, device: torch.device
) -> Tensor:
    """The encoder's output for source texts, or the upper boundary for pairs of source and target: `[rows, width]`."""
    source, *targets = _rows(prepare(payload, device)).parted()
    encoded = encode(part, source_template, source, device)
    if not targets:
        return encoded.rows
    return decode(part, target_template, encoded, targets[0], device)


class Seq2SeqTrainer(Trainer):
    """An adapted twin of an encoder-decoder's top, or a copy of it, with its optimiser.

    Args:
        top: The shared top.
        template: Where special tokens stand in source texts.
        target_template: Where they stand in target texts.
        spec: The job.
        device: Where to compute.
    """

    def __init__(
        self, top: Seq2SeqTop, template: Template, target_template: Template, spec: JobSpec, device: torch.device
    ) -> None:
        super().__init__(top, template, spec, device)
        self._target_template = target_template
        self._source_boundary: Tensor | None = None
        self._encoded: Encoded | None = None
        self._attended: Tensor | None = None
        self._attended_gradient: Tensor | None = None

    @property
    def stage(self) -> Stage:
        """Where the job stands within a step."""
        if self._output is not None:
            return Stage.OUTPUT
        if self._encoded is None:
            return Stage.READY
        return Stage.SOURCE if self._attended is None else Stage.ENCODED

    @property
    def texts(self) -> int | None:
        """How many target texts are due; `None` where none are."""
        return len(self._encoded.states) if self._encoded is not None and self._attended is None else None

    @property
    def output_shape(self) -> tuple[int, ...]:
        """Shape of what waits for its gradient; empty if nothing does."""
        if self.stage is Stage.ENCODED and self._encoded is not None:
            return tuple(self._encoded.rows.shape)
        return super().output_shape

    def forget_graph(self) -> None:
        """Frees the graphs that wait, which nothing will ask for any more."""
        super().forget_graph()
        self._source_boundary = self._encoded = self._attended = None

    def state(self) -> dict[str, Tensor]:
        """As of any trainer; between the two backward passes of a step also what the first one found."""
        if self._attended is None or self.stage is not Stage.ENCODED:
            return super().state()
        return super().state() | {"attended": _gradient(self._attended).clone()}

    def load(self, state: dict[str, Tensor]) -> None:
        """Puts back what `state` returned. Between two backward passes: once the step's source texts are here again."""
        super().load(state)
        self._attended_gradient = state.get("attended")

    def estimate(self, payload: Payload) -> int:
        """Bytes that the graph of the next forward pass takes at most, with that of the source texts."""
        longest = int(_rows(payload).packed.lengths.max())
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
            output = decode(self._top, self._target_template, attended, target, self._device)
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
        own[encoded.inputs.attention_mask.bool()] += gradient.to(own)
        self._source_boundary = self._encoded = self._attended = None
        torch.autograd.backward(encoded.states, own.to(encoded.states))
        self._take()
        return boundary.grad

    @property
    def _top(self) -> Seq2SeqTop:
        if not isinstance(self.part, Seq2SeqTop):
            raise TypeError("this top has one stack of blocks")
        return self.part

    def _compute(self, payload: Payload) -> Tensor:
        return infer(self._top, self._template, self._target_template, payload, self._device)


def _rows(payload: Payload) -> Rows:
    if not isinstance(payload, Rows):
        raise TypeError("an encoder-decoder's texts travel as rows")
    return payload


def _gradient(leaf: Tensor) -> Tensor:
    return torch.zeros_like(leaf) if leaf.grad is None else leaf.grad


def _leaf(payload: Payload) -> tuple[Rows, Tensor]:
    """Rows whose gradient is kept."""
    rows = _rows(payload)
    leaf = rows.packed.values.detach().requires_grad_()
    return Rows(rows.packed.with_values(leaf), rows.segment_lengths), leaf
