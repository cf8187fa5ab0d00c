"""One job's training: the vendor's half of `loss.backward()`.

The loss is the customer's. A forward pass keeps its graph until the gradient of its output comes
back, which with a frozen bottom is one step later, so each job has a twin of the top of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Self

import torch
from torch import Tensor, nn

from cutlayer.core import ModelError, Payload, PrecededTokens, Rows
from cutlayer.core.tuning import LoraSpec
from cutlayer.models import (
    METHODS,
    Part,
    ReconstructionHead,
    Seq2SeqTop,
    Top,
    adapter_state,
    attach,
    last_states,
    load_adapter_state,
    seed_dropout,
    set_checkpointing,
    set_dropout,
    unpacked_bytes,
)
from cutlayer.models.adapters.methods import output_parameters, trained_parameters
from cutlayer.models.anatomy import Stack
from cutlayer.models.cutting import block_list
from cutlayer.models.inputs import Template
from cutlayer.models.joint import JointGradients, joint_stacks
from cutlayer.models.label_words import LabelWords
from cutlayer.models.optimiser import STATE_NUMBERS, Optimiser, is_update, updates_in
from cutlayer.models.reconstruction import head_parameters
from cutlayer.vendor.catalogue import ModelCard
from cutlayer.vendor.log import GRADIENT, STEP, UPDATE
from cutlayer.vendor.passes import compute, infer, prepare, text_lengths, writes
from cutlayer.vendor.steps import Backward, Due, Forward
from cutlayer.wire.messages import JobSpec, Precision, StepSize

_WIDTHS = {"query-value": 26, "all-linear": 42, "whole": 32, "virtual": 22}
"""Floats that a block keeps for the backward pass at each position, in widths of the model, with that LoRA, with its
own weights trained, or behind a prompt or a prefix (20 at most, GPT-2 with a prompt).

Counted with `saved_tensors_hooks`, LoRA's dropout on: 12 (MiniLM, BERT), 16 (Qwen3), 26 (GPT-2) and 29, 32 and 40
of them; where the block's own weights are trained, 14 (OPT), 21 (Llama), 24 (Qwen3) and 30 (GPT-2). On MiniLM the
process grows by up to 25 times the width, as the C library cannot use all that it holds.
"""
_SCORES = 3
"""Floats that it keeps for each position, head and position attended to, while attention drops out: 3.0 in BERT,
RoBERTa, DistilBERT and GPT-2, the starter model among them."""

_DECODER = 1.5
"""What a block of an encoder-decoder's decoder keeps, in what an encoder block keeps: it attends twice."""

_WORD_SCORES = 3
"""Times that scores of a word that is reconstructed, or written, are held: with their logarithms and gradient."""

_FP32 = 4


class Trainer:
    """An adapted twin of a top that takes one release a step, or a copy of it, with its optimiser.

    A step's frame carries the gradient of the step before where the bottom is frozen; else its gradient follows alone.
    Lives in the compute thread.

    Args:
        top: The shared top.
        template: Where special tokens stand.
        spec: The job.
        device: Where to compute.

    Attributes:
        step: The last step whose forward pass was taken; 0 before the first.
        taken: The last step whose gradient was taken. An update takes those of `accumulation` steps.
        update_waits: Whether the update that is due waits for what the customer tells of its own gradients.
    """

    frames: ClassVar[tuple[int, ...]] = STEP, GRADIENT

    def __init__(self, top: Top | Seq2SeqTop, template: Template, spec: JobSpec, device: torch.device) -> None:
        self._template = template
        self._templates: tuple[Template, ...] = (template,)
        self._spec = spec
        self._device = device
        self.part: Top | Seq2SeqTop = attach(
            top,
            spec.tuning,
            num_labels=_head_labels(spec),
            label_words=spec.label_words,
            shared=spec.shared_weights,
            seed=spec.seed,
        )
        set_dropout(self.part, spec.dropout)
        set_checkpointing(self.part, spec.gradient_checkpointing)
        self.part.train()
        trained = {name: parameter for name, parameter in self.part.named_parameters() if parameter.requires_grad}
        task = spec.reconstruction
        self._head = None
        if task is not None:
            self._head = ReconstructionHead(self.part, width=task.width, vocabulary=task.vocabulary, seed=spec.seed)
            self._words = torch.tensor(task.words, device=device)
            trained |= self._head.named()
        self._trained = trained
        both = joint_stacks(self.part.family, spec.cut) if spec.shared_weights else ()
        copies = {path: value for path, value in self.part.shared_parameters().items() if path in both}
        self._gradients = JointGradients(trained.values(), copies)
        self._optimiser = Optimiser(
            trained,
            kind=spec.optimiser.kind,
            schedule=spec.optimiser.schedule,
            learning_rate=spec.optimiser.learning_rate,
            weight_decay=spec.optimiser.weight_decay,
            warmup_steps=spec.optimiser.warmup_steps,
            total_steps=updates_in(spec.optimiser.total_steps, spec.optimiser.accumulation),
        )
        self._proven = False
        self.step = 0
        self.taken = 0
        self.update_waits = False
        self._estimate = 0
        self._output: Tensor | None = None
        self._boundary: Tensor | None = None
        self._reconstruction: Tensor | None = None

    @classmethod
    def of(cls, top: Top | Seq2SeqTop, card: ModelCard, spec: JobSpec, device: torch.device) -> Self:
        """The training of a job whose steps have one release; see `Training.of`."""
        return cls(top, card.template, spec, device)

    @property
    def at_update(self) -> bool:
        """Whether no gradients are kept for an update to come."""
        return not self.update_waits and all(parameter.grad is None for parameter in self._trained.values())

    def due(self) -> Mapping[tuple[int, int], Due]:
        """The frames that may come next, by kind and step."""
        stats = self._stats if self.update_waits else {}
        backward = None if self._output is None else Backward(tuple(self._output.shape), self.backward)
        stored, preceded = not self._spec.trainable_bottom, self._spec.reconstruction is not None
        forward = Forward(self._template, self.forward, self._told, stored=stored, preceded=preceded)
        due = {(STEP, self.step + 1): Due(backward, stats, forward)}
        if backward is not None:
            due[GRADIENT, self.step] = Due(backward)
        if stats:
            due[UPDATE, self.step] = Due(peer_stats=stats)
        return due

    @property
    def unsaved(self) -> tuple[int, ...]:
        """Kinds of the present step's frames of which `state` holds nothing: their graph waits for a gradient."""
        return () if self._output is None else (STEP,)

    def estimate(self, payload: Payload) -> int:
        """Bytes that the graph of a forward pass takes at most."""
        longest = int(text_lengths(payload, self._template).max())
        blocks = graph_bytes(self.part, self._spec, self.part.stack, texts=len(payload), longest=longest, seen=longest)
        more = _reconstruction_bytes(self.part, self._spec, texts=len(payload))
        return blocks + more + _writing_bytes(self.part, self._spec, texts=len(payload), seen=longest)

    @property
    def graph_bytes(self) -> int:
        """About how many bytes the graph that waits for its gradient takes; 0 if none waits."""
        return self._estimate if self.unsaved else 0

    def forget_graph(self) -> None:
        """Frees the graph that waits, which nothing will ask for any more."""
        self._output = self._boundary = self._reconstruction = None

    def forward(self, payload: Payload) -> Tensor:
        """Takes the next step's forward pass.

        Dropout depends on nothing but the job's seed and the step, so a pass that a crash took away
        is taken again with the same mask.

        Returns:
            Logits `[texts, labels]` or, where there is a tail, the upper boundary `[rows, width]`, without graph.
        """
        self.step += 1
        seed_dropout(self._spec.seed, self.step)
        self._estimate = self.estimate(payload)
        payload = prepare(payload, self._device)
        if self._spec.trainable_bottom and isinstance(payload, Rows):
            self._boundary = payload.packed.values.detach().requires_grad_()
            payload = Rows(payload.packed.with_values(self._boundary), payload.segment_lengths)
        with self._autocast(), last_states(self.part) as states:
            output = self._compute(payload)
        self._output = output.float()
        if self._head is not None and isinstance(payload, PrecededTokens):
            preceding = self._template.preceding(self._read(payload))
            if preceding is None:
                raise TypeError("words stand before these texts")
            (hidden,) = states
            text = hidden[:, -preceding.shape[1] :].to(self._head.up.weight.dtype)
            words = self._words[payload.sequences.to(self._device)]
            self._reconstruction = self._head.loss(text, preceding.to(self._device), words)
        return self._output.detach()

    def _compute(self, payload: Payload) -> Tensor:
        """The output for a release that was made ready."""
        return compute(self.part, self._template, payload, self._device)

    def _read(self, payload: PrecededTokens) -> PrecededTokens:
        """What the blocks whose states tell words read of a release."""
        return payload

    def _told(self) -> dict[str, Tensor]:
        """What the customer is told of the last forward pass beside its output: `reconstruction_loss` `[1]`."""
        return {} if self._reconstruction is None else {"reconstruction_loss": self._reconstruction.detach()[None]}

    def _autocast(self) -> torch.autocast:
        return torch.autocast(self._device.type, torch.bfloat16, enabled=self._spec.precision is Precision.BF16)

    def backward(self, gradient: Tensor) -> Tensor | None:
        """Takes d loss / d output of the last forward pass, and the update that is due then.

        With it, in the same pass, go the weighted gradients of the vendor's own loss, where the job has one (RAPT
        eq. 11): the customer's is a share of an update that is taken of several steps, so this one is, too.
        An update that both parties take together waits for what the customer tells.

        Returns:
            d loss / d boundary `[rows, width]` where the bottom is trainable.
        """
        if self._output is None:
            raise RuntimeError("no forward pass waits for a gradient")
        output, boundary, own, task = self._output, self._boundary, self._reconstruction, self._spec.reconstruction
        self.forget_graph()
        if own is None or task is None:
            torch.autograd.backward(output, gradient.to(output))
        else:
            weighted = own * (task.weight / self._spec.optimiser.accumulation)
            torch.autograd.backward((output, weighted), (gradient.to(output), torch.ones_like(weighted)))
        self._take()
        return None if boundary is None else boundary.grad

    def _take(self) -> None:
        """All gradients of a step were taken: the update that is due then."""
        self.taken += 1
        schedule = self._spec.optimiser
        if is_update(self.taken, schedule.accumulation, schedule.total_steps):
            if self._stats:
                self.update_waits = True
            else:
                self._update()

    @property
    def _stats(self) -> dict[str, int]:
        """What each party must tell the other of its gradients for an update: numbers by role; empty if nothing."""
        norm = {} if self._spec.optimiser.clip_norm is None else {"norm": 1}
        return norm | ({"shared_gradient": self._gradients.numbers} if self._gradients.numbers else {})

    def gradient_stats(self) -> dict[str, Tensor]:
        """What the customer is told of the gradients that the next update takes, by role.

        Returns:
            `norm` `[1]` where gradients are clipped, `shared_gradient` `[numbers]` where both hold copies; both fp32.
        """
        made = {"norm": self._gradients.norm, "shared_gradient": self._gradients.copied}
        return {role: made[role]() for role in self._stats}

    def join(self, peer_stats: Mapping[str, Tensor]) -> None:
        """Takes the update that waits together with the customer.

        Args:
            peer_stats: What the customer told of its own gradients, in the roles and shapes of `gradient_stats`.
        """
        if not self.update_waits:
            raise RuntimeError("no update waits for the customer")
        norm, copied = peer_stats.get("norm"), peer_stats.get("shared_gradient")
        self._gradients.join(norm=norm, copied=copied, limit=self._spec.optimiser.clip_norm)
        self.update_waits = False
        self._update()

    @torch.no_grad()
    def infer(self, payload: Payload) -> Tensor:
        """The answer to a query with the weights as they are: logits `[n, labels]`, or rows `[rows, width]`."""
        self.part.eval()
        try:
            return infer(self.part, self._templates, payload, self._device)
        finally:
            self.part.train()

    def _update(self) -> None:
        if self._proven:
            self._optimiser.step()
        else:
            self._first_update()

    def _first_update(self) -> None:
        """One optimiser step, checked: an adapter that silently never trains is split training's classic failure."""
        without = [name for name, parameter in self._trained.items() if parameter.grad is None]
        if without:
            method, family = self._spec.tuning.method, self.part.model.config.model_type
            raise ModelError(
                f"Method {method} does not train this {family} model: {len(without)} of its tensors got no gradient, "
                f"the first is {without[0]}.",
                remedy="Use another method, or a model of another family.",
            )
        before = {name: parameter.detach().clone() for name, parameter in self._trained.items()}
        expected = self._optimiser.rate(self._optimiser.steps) > 0 and any(
            parameter.grad is not None and bool(parameter.grad.any()) for parameter in self._trained.values()
        )
        self._optimiser.step()
        if expected and all(torch.equal(before[name], parameter) for name, parameter in self._trained.items()):
            raise RuntimeError("the first update moved no adapter weight")
        self._proven = expected

    # ------------------------------------------------------------ state

    def state(self) -> dict[str, Tensor]:
        """Adapter, reconstruction head, optimiser, gradients kept for the next update, and how far the job is.

        Returns:
            `adapter/…`, `head/…`, `optimiser/…` and `gradient/…` in their parameters' shapes; `taken` `[2]`: the last
            step taken, and whether an update waits.
        """
        kept = {
            f"gradient/{name}": value.grad.clone() for name, value in self._trained.items() if value.grad is not None
        }
        optimiser = {f"optimiser/{name}": tensor for name, tensor in self._optimiser.state().items()}
        head = {f"head/{name}": value.detach() for name, value in self._head_parameters.items()}
        return self.adapter() | head | optimiser | kept | {"taken": torch.tensor([self.taken, self.update_waits])}

    @property
    def _head_parameters(self) -> dict[str, nn.Parameter]:
        """Those of the reconstruction head, by name; it is no part of what is published."""
        return {} if self._head is None else self._head.named()

    def adapter(self) -> dict[str, Tensor]:
        """The trained tensors as `adapter/…`, in the shapes of `adapter_state`."""
        return {f"adapter/{name}": tensor.detach() for name, tensor in adapter_state(self.part).items()}

    def load_adapter(self, state: dict[str, Tensor]) -> None:
        """Puts back what `adapter` returned."""
        load_adapter_state(self.part, _below("adapter/", state))

    def load(self, state: dict[str, Tensor]) -> None:
        """Puts back what `state` returned, as after the last gradient: nothing waits."""
        self.load_adapter(state)
        with torch.no_grad():
            for name, value in self._head_parameters.items():
                value.copy_(state[f"head/{name}"])
        self._optimiser.load(_below("optimiser/", state))
        kept = _below("gradient/", state)
        for name, parameter in self._trained.items():
            parameter.grad = kept[name].to(parameter) if name in kept else None
        self.taken, waits = state["taken"].tolist()
        self.update_waits = bool(waits)
        self.step = self.taken
        self.forget_graph()


def graph_bytes(part: Part, spec: JobSpec, stack: Stack, *, texts: int, longest: int, seen: int) -> int:
    """Bytes that the graph of one stack's blocks takes at most in a step.

    Args:
        part: The top, with or without what is trained on it.
        spec: The job.
        stack: Which blocks.
        texts: How many.
        longest: Positions of the longest.
        seen: Positions that one attends to at most.
    """
    config, method = part.model.config, spec.tuning
    kind = method.target_modules if isinstance(method, LoraSpec) else "whole" if method.method == "full" else "virtual"
    longest, seen = longest + method.rows, seen + method.positions
    floats = _WIDTHS[kind] * int(config.hidden_size)
    if spec.dropout:
        floats += _SCORES * int(config.num_attention_heads) * seen
    # Embeddings and head count as one block more.
    blocks = 1 + len(block_list(part.model, stack))
    kept = floats * blocks
    if spec.gradient_checkpointing:
        kept = 2 * floats + blocks * int(config.hidden_size)  # one block's at a time, and what goes into each
    size = texts * longest * kept * _FP32
    # A map in 4 bits is one of numbers while a pass uses it, in the backward pass too.
    return size + unpacked_bytes(part) if stack is part.family.stacks[0] else int(_DECODER * size)


def step_bytes(part: Part, spec: JobSpec, size: StepSize) -> int:
    """Bytes that the graphs of a step take at most, of all stacks together.

    Args:
        part: The top, with or without what is trained on it.
        spec: The job.
        size: How many texts the step has, and how long they are.
    """
    source, *targets = part.family.stacks
    total = graph_bytes(part, spec, source, texts=size.texts, longest=size.positions, seen=size.positions)
    for stack in targets if spec.label_words is None else ():
        longest = size.target_positions
        total += graph_bytes(part, spec, stack, texts=size.texts, longest=longest, seen=longest + size.positions)
    total += _writing_bytes(part, spec, texts=size.texts, seen=size.positions)
    if writes(spec):
        total += score_bytes(part, size.texts * size.target_positions)
    return total + _reconstruction_bytes(part, spec, texts=size.texts)


def score_bytes(part: Part, positions: int) -> int:
    """Bytes that the graph of scores of a model's whole vocabulary takes, of so many positions."""
    return _FP32 * _WORD_SCORES * positions * int(part.model.config.vocab_size)


def _reconstruction_bytes(part: Part, spec: JobSpec, *, texts: int) -> int:
    """Bytes that the graph of the reconstruction takes: of each word its state, scores, and their gradients."""
    task = spec.reconstruction
    if task is None:
        return 0
    floats = 2 * int(part.model.config.hidden_size) + task.width + _WORD_SCORES * task.vocabulary
    return texts * task.plain_tokens * floats * _FP32


def _writing_bytes(part: Part, spec: JobSpec, *, texts: int, seen: int) -> int:
    """Bytes that the graph of the words of labels takes: of a decoder's blocks, and of scores of its vocabulary."""
    if spec.label_words is None:
        return 0
    sequences, longest = LabelWords.of_ids(spec.label_words, start=0).entering.shape
    stack = part.family.stacks[-1]
    blocks = graph_bytes(part, spec, stack, texts=texts * sequences, longest=longest, seen=longest + seen)
    return blocks + score_bytes(part, texts * sequences * longest)


def adapter_parameters(top: Part, spec: JobSpec) -> int:
    """How many parameters a job trains, counted before any is made; heads are trained whole."""
    task = spec.reconstruction
    own = 0 if task is None else head_parameters(top, width=task.width, vocabulary=task.vocabulary)
    return own + trained_parameters(top, spec.tuning, num_labels=_head_labels(spec), shared=spec.shared_weights)


def job_bytes(top: Part, spec: JobSpec) -> int:
    """Bytes that a job's tensors take between two frames, counted before any is made.

    What it trains, its gradients and what its optimiser keeps; and what it copies of the top and does not train: what
    blocks share, or the head that stands beside the trained one.
    """
    untrained = METHODS[spec.tuning.method].untrained_bytes(top, shared=spec.shared_weights)
    if (labels := _head_labels(spec)) is not None and spec.tuning.method != "full":
        untrained += _FP32 * output_parameters(top, labels)
    numbers = 2 + STATE_NUMBERS[spec.optimiser.kind]  # itself, its gradient, and what the optimiser keeps
    return untrained + _FP32 * numbers * adapter_parameters(top, spec)


def _head_labels(spec: JobSpec) -> int | None:
    """Outputs of a fresh head; `None` where there is none, for labels are words."""
    return None if spec.label_words is not None else spec.num_labels


def _below(prefix: str, state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in state.items() if name.startswith(prefix)}
