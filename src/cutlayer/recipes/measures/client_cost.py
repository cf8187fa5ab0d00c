"""What a customer's part costs in memory and arithmetic, by depth (UnSplit's "the client's cost" and Figure 22).

Three kinds of numbers, and each says where it comes from.

- *Parameters* are counted on the meta device, and so is what they take: 4 bytes for each weight, and for each that is
  trained 4 for its gradient and 8 for AdamW's two moments.
- *Floating-point operations* are counted there too, at the stated batch and length, from the matrix products of one
  forward and one backward pass; one product of `[m, k]` and `[k, n]` is 2mkn. Attention counts the whole square of
  positions, as kernels without a causal shortcut compute it.
- *Activations* are measured: two blocks with random weights run forward in fp32, and autograd's own hooks tell every
  byte that it keeps for the backward pass, each storage once, without weights. Two and three texts of three lengths
  give the polynomial in the length that the bytes of a text are (the square is there where attention keeps its
  weights, as the CPU's kernel does with attention dropout). What is printed is that polynomial at the stated length,
  times the batch, times the blocks: the first block and a second are measured, further ones are multiplied.

A part's peak is their sum. Left out is what lives for one operation only, and what the process needs besides.
Ref: Yao and Li, §5 and Figure 22, which prints no numbers.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from itertools import product
from typing import NamedTuple, cast

import torch
import torch.nn.functional as F
from accelerate import init_empty_weights  # type: ignore[import-untyped]  # it has no py.typed
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModelForCausalLM, PreTrainedModel

from cutlayer.core import Cut, Spec
from cutlayer.models import Bottom, Inputs, Part, Tail, block_list, set_dropout, split
from cutlayer.recipes.lab import Cell, Lab, Rows
from cutlayer.recipes.long_table import Measure
from cutlayer.recipes.measures.parameters import ARCHITECTURES, LORA_RANK, Architecture, P, adapted_part, total

WEIGHT_BYTES, GRADIENT_BYTES, OPTIMISER_BYTES = 4, 4, 8

LENGTHS = (16, 32, 48)
"""Lengths measured; three points make a polynomial of degree two."""
_BATCHES = (2, 3)
"""Batches measured. One text alone is laid out so that some copies are not made, and tells less of others."""
DEPTHS = (1, 2, 3, 4, 6, 8)
"""Blocks at the customer; the axis of Figure 22 is not printed."""


class Tuning(StrEnum):
    """What the customer trains of its part."""

    FULL = "full"
    LORA = "lora"


class Setting(Spec):
    """How a part is trained: `length` tokens of each of `batch` texts, its dropout on or off, LoRA's rank."""

    tuning: Tuning
    batch: int = 4
    length: int = 1024
    dropout: bool = True
    rank: int = LORA_RANK


class Piece(StrEnum):
    """A piece of a model whose activations are measured apart."""

    STEM = "stem"
    """Up to the first block: ids, embeddings, masks, what blocks share."""
    FIRST = "first"
    """The first block: with LoRA nothing below it is trained, so it keeps less."""
    FURTHER = "further"
    """Any other block."""
    TAIL = "tail"
    """Final norm, head and loss."""


@dataclass(frozen=True)
class Curve:
    """Bytes as a function of the length: `fixed + linear·n + square·n²`."""

    fixed: Fraction
    linear: Fraction
    square: Fraction

    @classmethod
    def through(cls, points: Mapping[int, int]) -> Curve:
        """The polynomial through three points: bytes by length."""
        (a, at_a), (b, at_b), (c, at_c) = ((length, Fraction(count)) for length, count in sorted(points.items()))
        square = ((at_c - at_a) / (c - a) - (at_b - at_a) / (b - a)) / (c - b)
        linear = (at_b - at_a) / (b - a) - square * (a + b)
        return cls(fixed=at_a - linear * a - square * a**2, linear=linear, square=square)

    def at(self, length: int) -> int:
        return math.ceil(self.fixed + self.linear * length + self.square * length**2)


@dataclass(frozen=True)
class Bytes:
    """What a piece keeps for the backward pass: whatever the batch, as positions and their rotation, and for a text."""

    shared: Curve
    text: Curve

    @classmethod
    def through(cls, points: Mapping[tuple[int, int], int]) -> Bytes:
        """Curves through what was measured: bytes by batch and length, of two batches at three lengths."""
        few, many = sorted({batch for batch, _ in points})
        lengths = {length for _, length in points}
        text = {length: (points[many, length] - points[few, length]) // (many - few) for length in lengths}
        shared = {length: points[few, length] - few * text[length] for length in lengths}
        return cls(shared=Curve.through(shared), text=Curve.through(text))

    def at(self, *, batch: int, length: int) -> int:
        return self.shared.at(length) + batch * self.text.at(length)


@dataclass(frozen=True)
class Profile:
    """What a model's pieces keep for the backward pass, as measured."""

    architecture: Architecture
    setting: Setting
    pieces: Mapping[Piece, Bytes]

    def activations(self, *, blocks: int, stem: bool, tail: bool) -> int:
        """Bytes kept by a run of blocks: from the ids where it has the stem, to the loss where it has the tail."""
        first = int(stem and blocks > 0)
        times = {Piece.STEM: int(stem), Piece.FIRST: first, Piece.FURTHER: blocks - first, Piece.TAIL: int(tail)}
        batch, length = self.setting.batch, self.setting.length
        return sum(self.pieces[piece].at(batch=batch, length=length) * n for piece, n in times.items())


class Cost(Spec):
    """A row of the cost table.

    Attributes:
        tail: Blocks at the customer, above, with final norm and head; `None` where the vendor has them.
        parameters: The customer's, tied ones once, with adapters.
        training_bytes: Gradients and optimiser states.
        flops: Of a token, forward and backward.
        whole_bytes: Peak of training the whole model alike, in one process.
    """

    architecture: str
    setting: Setting
    bottom: int
    tail: int | None
    parameters: int
    trained: int
    weight_bytes: int
    training_bytes: int
    activation_bytes: int
    flops: int
    whole_bytes: int
    whole_flops: int

    @property
    def peak_bytes(self) -> int:
        return self.weight_bytes + self.training_bytes + self.activation_bytes

    @property
    def share(self) -> float:
        return self.peak_bytes / self.whole_bytes

    @property
    def flops_share(self) -> float:
        return self.flops / self.whole_flops


# ---------------------------------------------------------------- activations, measured


def profile(architecture: Architecture, setting: Setting, *, rng: torch.Generator) -> Profile:
    """Measures what two blocks, the stem and the tail keep for the backward pass.

    Both blocks use the same weights, which changes no byte that is kept and halves what has to be drawn; of the
    whole model nothing else is held. Lengths and batches are those of the module, not the setting's.
    """
    parts = split(_two_blocks(architecture, rng), Cut(bottom=2, tail=0))
    bottom, tail = _trained(cast(Bottom, parts.bottom), architecture, setting), cast(Tail, parts.tail)
    tail.requires_grad_(setting.tuning is Tuning.FULL)
    for part in (bottom, tail):
        set_dropout(part, setting.dropout)
        part.train()
    vocabulary = int(architecture.settings["vocab_size"])
    found: dict[Piece, dict[tuple[int, int], int]] = {piece: {} for piece in Piece}
    with torch.random.fork_rng(devices=[]):  # the process's generator, which dropout draws from, stays as it is
        for batch, length in product(_BATCHES, LENGTHS):
            ids = torch.randint(vocabulary, (batch, length), generator=rng)
            for piece, count in _kept(bottom, tail, ids).items():
                found[piece][batch, length] = count
    return Profile(architecture, setting, {piece: Bytes.through(points) for piece, points in found.items()})


def _two_blocks(architecture: Architecture, rng: torch.Generator) -> PreTrainedModel:
    """A model of three blocks: the first two are one and the same, the third and its weights are only named."""
    with init_empty_weights(include_buffers=False):
        model = cast(PreTrainedModel, AutoModelForCausalLM.from_config(architecture.config(blocks=3)))
    model.tie_weights()  # naming weights alone breaks ties
    parts = split(model, Cut(bottom=2, tail=0))
    bottom, tail = cast(Bottom, parts.bottom), cast(Tail, parts.tail)
    first, second = (dict(block.named_parameters()) for block in block_list(bottom.model, bottom.stack))
    same = {id(second[name]): id(first[name]) for name in first}
    real = {
        key: nn.Parameter(torch.empty(each.shape).normal_(0, 0.02, generator=rng))
        for key, each in {id(each): each for each in (*bottom.parameters(), *tail.parameters())}.items()
        if key not in same
    }
    real |= {key: real[original] for key, original in same.items()}
    for name, empty in list(model.named_parameters(remove_duplicate=False)):
        owner, _, attribute = name.rpartition(".")
        setattr(model.get_submodule(owner), attribute, real.get(id(empty), empty))
    return model


def _kept(bottom: Bottom, tail: Tail, ids: Tensor) -> Mapping[Piece, int]:
    """Bytes kept for the backward pass, by the piece that keeps them first."""
    counter = _Kept([*bottom.parameters(), *tail.parameters()])
    length = ids.shape[1]
    inputs = Inputs(
        attention_mask=torch.ones_like(ids), position_ids=torch.arange(length).expand_as(ids), input_ids=ids
    )
    first, second = block_list(bottom.model, bottom.stack)
    marks = (
        first.register_forward_pre_hook(lambda *_: counter.enter(Piece.FIRST)),
        second.register_forward_pre_hook(lambda *_: counter.enter(Piece.FURTHER)),
        second.register_forward_hook(lambda *_: counter.enter(Piece.STEM)),
    )
    try:
        with counter.listening():
            boundary = bottom(inputs)
        counter.enter(Piece.TAIL)
        received = boundary.detach().requires_grad_()
        with counter.listening():
            logits = tail(received, inputs)
            # labels stand one to the left, so that the logits are used as they are
            F.cross_entropy(logits.flatten(0, 1).float(), ids.roll(-1, 1).flatten())
    finally:
        for mark in marks:
            mark.remove()
    return {piece: counter.bytes[piece] for piece in Piece}


class _Kept:
    """Counts storages that autograd keeps; each once, weights not at all.

    Meanwhile the graph must live: as long as it holds them, no other storage gets their address.
    """

    def __init__(self, weights: Sequence[Tensor]) -> None:
        self._seen = {each.untyped_storage().data_ptr() for each in weights}
        self._piece = Piece.STEM
        self.bytes: dict[Piece, int] = defaultdict(int)

    def enter(self, piece: Piece) -> None:
        self._piece = piece

    def listening(self) -> torch.autograd.graph.saved_tensors_hooks:
        return torch.autograd.graph.saved_tensors_hooks(self._keep, lambda tensor: tensor)

    def _keep(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.nbytes() and storage.data_ptr() not in self._seen:
            self._seen.add(storage.data_ptr())
            self.bytes[self._piece] += storage.nbytes()
        return tensor


def _trained(part: P, architecture: Architecture, setting: Setting) -> P:
    if setting.tuning is Tuning.FULL:
        part.requires_grad_(True)
        return part
    return adapted_part(part, architecture.lora or "query-value", setting.rank)


# ---------------------------------------------------------------- parameters and operations, counted


class _Counted(NamedTuple):
    parameters: int
    trained: int
    flops: int

    @property
    def weight_bytes(self) -> int:
        return WEIGHT_BYTES * self.parameters

    @property
    def training_bytes(self) -> int:
        return (GRADIENT_BYTES + OPTIMISER_BYTES) * self.trained


def _count_customer(architecture: Architecture, setting: Setting, *, bottom: int, tail: int | None) -> _Counted:
    parts = split(_still(architecture), Cut(bottom=bottom, tail=tail))
    below, above = _trained(cast(Bottom, parts.bottom), architecture, setting), parts.tail
    if above is not None and (tail or setting.tuning is Tuning.FULL):  # a head without blocks has nothing to adapt
        above = _trained(above, architecture, setting)
    ids, inputs = _batch(setting)

    def run() -> None:
        _backward(below(inputs))
        if above is not None:
            shape = (*ids.shape, architecture.width)
            _backward(above(torch.empty(shape, device="meta", requires_grad=True), inputs))

    return _counted([below] if above is None else [below, above], setting, run)


def _count_whole(architecture: Architecture, setting: Setting) -> _Counted:
    whole = _trained(split(_still(architecture), Cut(bottom=None)).top, architecture, setting)
    _, inputs = _batch(setting)
    return _counted([whole], setting, lambda: _backward(whole(inputs)))


def _still(architecture: Architecture) -> PreTrainedModel:
    # the plain kernel, for it is made of products that can be counted
    return architecture.on_meta(attention="eager").requires_grad_(False)


def _batch(setting: Setting) -> tuple[Tensor, Inputs]:
    shape = (setting.batch, setting.length)
    ids = torch.zeros(shape, dtype=torch.int64, device="meta")
    positions = torch.arange(setting.length, device="meta").expand(shape)
    return ids, Inputs(attention_mask=torch.ones_like(ids), position_ids=positions, input_ids=ids)


def _backward(made: Tensor) -> None:
    if made.requires_grad:
        made.backward(torch.empty_like(made))


def _counted(parts: Sequence[Part], setting: Setting, run: Callable[[], None]) -> _Counted:
    parameters = [each for part in parts for each in part.parameters()]
    with FlopCounterMode(display=False) as counter:
        run()
    return _Counted(
        total(parameters),
        total(each for each in parameters if each.requires_grad),
        -(-counter.get_total_flops() // (setting.batch * setting.length)),
    )


# ---------------------------------------------------------------- the cost


def costs(measured: Profile, *, depths: Sequence[int] = DEPTHS, tail: int | None = 0) -> tuple[Cost, ...]:
    """What customers need by blocks below, each at least 1, beside the whole model.

    Raises:
        ModelError: A cut leaves the vendor no block.
    """
    architecture, setting = measured.architecture, measured.setting
    whole = _count_whole(architecture, setting)
    kept_by_whole = measured.activations(blocks=architecture.blocks, stem=True, tail=True)
    above = 0 if tail is None else measured.activations(blocks=tail, stem=False, tail=True)
    counted = {depth: _count_customer(architecture, setting, bottom=depth, tail=tail) for depth in depths}
    return tuple(
        Cost(
            architecture=architecture.title, setting=setting, bottom=depth, tail=tail, **customer._asdict(),
            weight_bytes=customer.weight_bytes, training_bytes=customer.training_bytes,
            activation_bytes=measured.activations(blocks=depth, stem=True, tail=False) + above,
            whole_bytes=whole.weight_bytes + whole.training_bytes + kept_by_whole, whole_flops=whole.flops,
        )
        for depth, customer in counted.items()
    )  # fmt: skip


Costs = Rows[Cost]


class CostCell(Cell):
    """What customers of some models need, of full fine-tuning and of LoRA, with the head at the vendor and without."""

    architectures: tuple[str, ...]
    batch: int = 4
    length: int = 1024

    def run(self, lab: Lab) -> Costs:
        """Measures and counts: a minute or two for the paper's models."""
        rows: list[Cost] = []
        for architecture, tuning in product((ARCHITECTURES[source] for source in self.architectures), Tuning):
            setting = Setting(tuning=tuning, batch=self.batch, length=self.length)
            measured = profile(architecture, setting, rng=torch.Generator().manual_seed(self.seed))
            for tail in (None, 0):
                rows += costs(measured, tail=tail)
        return Costs(rows=tuple(rows))

    def measures(self, result: Costs) -> Iterator[Measure]:
        for row in result.rows:
            tail, held = ("at the vendor", "no tail") if row.tail is None else (f"{row.tail}", f"tail {row.tail}")
            axes = {"model": row.architecture, "trained": row.setting.tuning.value, "tail": tail, "bottom": row.bottom}
            numbers = {
                "parameters": row.parameters, "weights and optimiser": row.weight_bytes + row.training_bytes,
                "activations": row.activation_bytes, "peak": row.peak_bytes, "share of memory": row.share,
                "operations": row.flops, "share of operations": row.flops_share,
            }  # fmt: skip
            for metric, value in numbers.items():
                yield Measure(metric, value, axes={**axes, "held": f"{row.architecture}, {held}"})
            if row.tail is None:
                whole = {**axes, "tail": None, "held": f"{row.architecture}, the whole model"}
                yield Measure("peak", row.whole_bytes, axes=whole)
