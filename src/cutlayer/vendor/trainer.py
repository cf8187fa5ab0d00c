"""One job's training: the vendor's half of `loss.backward()`.

The loss is the customer's. A forward pass keeps its graph until the gradient of its output comes
back, which with a frozen bottom is one step later, so each job has a twin of the top of its own.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from cutlayer.core import Payload, Ragged, Rows, Tokens
from cutlayer.models import Top, adapter_state, attach_lora, load_adapter_state, seed_dropout, set_dropout
from cutlayer.models.cutting import block_list
from cutlayer.models.heads import head_modules
from cutlayer.models.inputs import Template
from cutlayer.models.optimiser import Optimiser
from cutlayer.wire.messages import JobSpec, Precision

_WIDTHS = {"query-value": 26, "all-linear": 42}
"""Floats that a block keeps for the backward pass at each position, in widths of the model, with that LoRA.

Counted with `saved_tensors_hooks`, LoRA's dropout on: 12 (MiniLM, BERT), 16 (Qwen3), 26 (GPT-2) and 29, 32 and 40
of them. On MiniLM the process grows by up to 25 times the width, as the C library cannot use all that it holds.
"""
_SCORES = 3
"""Floats that it keeps for each position, head and position attended to, while attention drops out: 3.0 in BERT,
RoBERTa, DistilBERT and GPT-2, the starter model among them."""


class Trainer:
    """An adapted twin of the top with its optimiser. Lives in the compute thread.

    Args:
        top: The shared top.
        template: Where special tokens stand.
        spec: The job.
        device: Where to compute.

    Attributes:
        step: The last step whose forward pass was taken; 0 before the first.
    """

    def __init__(self, top: Top, template: Template, spec: JobSpec, device: torch.device) -> None:
        self._template = template
        self._spec = spec
        self._device = device
        self.part = attach_lora(
            top,
            rank=spec.lora.rank,
            alpha=spec.lora.alpha,
            dropout=spec.lora.dropout,
            targets=spec.lora.targets,
            num_labels=spec.num_labels,
            seed=spec.seed,
        )
        set_dropout(self.part, spec.dropout)
        self.part.train()
        trained = {name: parameter for name, parameter in self.part.named_parameters() if parameter.requires_grad}
        self._trained = trained
        self._optimiser = Optimiser(trained, **spec.optimiser.model_dump())
        self._proven = False
        self.step = 0
        self._estimate = 0
        self._output: Tensor | None = None
        self._boundary: Tensor | None = None

    @property
    def updates(self) -> int:
        """How many gradients have been applied."""
        return self._optimiser.steps

    @property
    def waits(self) -> bool:
        """Whether the last forward pass still waits for its gradient."""
        return self._output is not None

    @property
    def output_shape(self) -> tuple[int, ...]:
        """Shape of the output that waits for its gradient; empty if none does."""
        return () if self._output is None else tuple(self._output.shape)

    def estimate(self, payload: Payload) -> int:
        """Bytes that the graph of a forward pass takes at most."""
        lengths = payload.packed.lengths if isinstance(payload, Rows) else self._lengths(payload)
        longest = int(lengths.max())
        config = self.part.model.config
        floats = _WIDTHS[self._spec.lora.targets] * int(config.hidden_size)
        if self._spec.dropout:
            floats += _SCORES * int(config.num_attention_heads) * longest
        # Embeddings and head count as one block more.
        blocks = 1 + len(block_list(self.part.model, self.part.stack))
        return len(payload) * longest * floats * blocks * 4

    def _lengths(self, tokens: Tokens) -> Tensor:
        """Positions of each text, special tokens included."""
        lengths = torch.stack([segment.lengths for segment in tokens.segments]).sum(0)
        return lengths + self._template.special_count(len(tokens.segments))

    @property
    def graph_bytes(self) -> int:
        """About how many bytes the graph that waits for its gradient takes; 0 if none waits."""
        return self._estimate if self.waits else 0

    def forget_graph(self) -> None:
        """Frees the graph that waits, which nothing will ask for any more."""
        self._output = self._boundary = None

    def forward(self, payload: Payload) -> Tensor:
        """Takes the next step's forward pass.

        Dropout depends on nothing but the job's seed and the step, so a pass that a crash took away
        is taken again with the same mask.

        Returns:
            Logits `[texts, labels]`, without graph.
        """
        self.step += 1
        seed_dropout(self._spec.seed, self.step)
        self._estimate = self.estimate(payload)
        payload = prepare(payload, self._device)
        if self._spec.trainable_bottom and isinstance(payload, Rows):
            self._boundary = payload.packed.values.detach().requires_grad_()
            payload = Rows(payload.packed.with_values(self._boundary), payload.segment_lengths)
        with torch.autocast(self._device.type, torch.bfloat16, enabled=self._spec.precision is Precision.BF16):
            output = compute(self.part, self._template, payload, self._device)
        self._output = output.float()
        return self._output.detach()

    def backward(self, gradient: Tensor) -> Tensor | None:
        """Takes d loss / d output of the last forward pass, and one optimiser step.

        Returns:
            d loss / d boundary `[rows, width]` where the bottom is trainable.
        """
        if self._output is None:
            raise RuntimeError("no forward pass waits for a gradient")
        output, boundary = self._output, self._boundary
        self._output = self._boundary = None
        torch.autograd.backward(output, gradient.to(output))
        if self._proven:
            self._optimiser.step()
        else:
            self._first_update()
        return None if boundary is None else boundary.grad

    @torch.no_grad()
    def infer(self, payload: Payload) -> Tensor:
        """Logits `[texts, labels]` in evaluation mode, with the weights as they are."""
        self.part.eval()
        try:
            return compute(self.part, self._template, prepare(payload, self._device), self._device)
        finally:
            self.part.train()

    def _first_update(self) -> None:
        """One optimiser step, checked: an adapter that silently never trains is split training's classic failure."""
        without = [name for name, parameter in self._trained.items() if parameter.grad is None]
        if without:
            raise RuntimeError(f"{len(without)} adapter tensors got no gradient, the first is {without[0]}")
        before = {name: parameter.detach().clone() for name, parameter in self._trained.items()}
        expected = self._optimiser.rate(self.updates) > 0 and any(
            parameter.grad is not None and bool(parameter.grad.any()) for parameter in self._trained.values()
        )
        self._optimiser.step()
        if expected and all(torch.equal(before[name], parameter) for name, parameter in self._trained.items()):
            raise RuntimeError("the first update moved no adapter weight")
        self._proven = expected

    # ------------------------------------------------------------ state

    def state(self) -> dict[str, Tensor]:
        """Adapter and optimiser as named tensors."""
        return self.adapter() | {f"optimiser/{name}": tensor for name, tensor in self._optimiser.state().items()}

    def adapter(self) -> dict[str, Tensor]:
        """The adapter alone, as named tensors."""
        return {f"adapter/{name}": tensor.detach() for name, tensor in adapter_state(self.part).items()}

    def load_adapter(self, state: dict[str, Tensor]) -> None:
        """Puts back what `adapter` returned."""
        load_adapter_state(self.part, _below("adapter/", state))

    def load(self, state: dict[str, Tensor]) -> None:
        """Puts back what `state` returned, as after the last gradient: nothing waits."""
        self.load_adapter(state)
        self._optimiser.load(_below("optimiser/", state))
        self.step = self.updates
        self.forget_graph()


def adapter_parameters(top: Top, spec: JobSpec) -> int:
    """How many parameters a job trains, counted before any is made.

    LoRA adds rank · (inputs + outputs) to each linear map that it adapts; the head is trained whole.
    """
    model, family = top.model, top.family
    sides = 0
    for stack in family.stacks:
        for block in block_list(model, stack):
            for name, module in block.named_modules():
                named = any(f".{name}".endswith(f".{target}") for target in family.query_value)
                if isinstance(module, nn.Linear | Conv1D) and (named or spec.lora.targets == "all-linear"):
                    sides += sum(module.weight.shape)
    head = sum(_count(model.get_submodule(path)) for path in head_modules(model))
    output = model.get_submodule(family.classifier_output)
    labels = int(output.get_parameter("weight").shape[0])
    return spec.lora.rank * sides + head + (spec.num_labels - labels) * (_count(output) // labels)


def prepare(payload: Payload, device: torch.device) -> Payload:
    """A release as the top computes on it: rows in fp32, on the device."""
    if not isinstance(payload, Rows):
        return payload
    values = payload.packed.values.to(device, torch.float32)
    return Rows(Ragged(values, payload.packed.lengths), payload.segment_lengths)


def compute(part: Top, template: Template, payload: Payload, device: torch.device) -> Tensor:
    """A top's output for a release that `prepare` made ready; special tokens of ids are added here."""
    output: Tensor
    if isinstance(payload, Rows):
        hidden, inputs = template.from_rows(payload)
        output = part(inputs.to(device), hidden)
    else:
        output = part(template.assemble(payload).to(device))
    return output


def _count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _below(prefix: str, state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in state.items() if name.startswith(prefix)}
