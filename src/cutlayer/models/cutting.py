"""Cutting a Hugging Face model into bottom, top and tail.

A part is the model's own class with fewer blocks and neutral modules where it ends. No block is
re-implemented, so masks, rotary tables, attention kernels, caches and PEFT work as they do in the
whole model. Blocks keep the numbers they have in the whole model: every parameter of a part, and
every adapter put on it, has its whole-model name.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import torch
from peft import PeftModel
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import Cache, DynamicCache, PreTrainedModel

from cutlayer.core import Cut, ModelError, UnsupportedArchitectureError
from cutlayer.core.tuning import Pooling
from cutlayer.models.anatomy import Family, Kind, Positions, Stack, family_of
from cutlayer.models.heads import Head
from cutlayer.models.inputs import Inputs
from cutlayer.models.neutral import REPLACEMENTS, Withheld
from cutlayer.models.pooling import mean_of_text, pool_last, reading
from cutlayer.models.twin import twin
from cutlayer.models.virtual import Entering, Virtual


class Part(nn.Module):
    """Some consecutive blocks of a model, with the embeddings or the head if they hold them.

    Args:
        module: The trimmed model, in its own class, or PEFT's wrapper around it.
        head: Whether the part ends in the model's head.
    """

    def __init__(self, module: PreTrainedModel | PeftModel, *, head: bool) -> None:
        super().__init__()
        self.module = module
        self.has_head = head
        self.family: Family = family_of(self.model.config)
        self.own_dropout = self.family.kind is not Kind.ENCODER_DECODER
        self.pooling: Pooling = "sequence"
        self.train(module.training)

    @property
    def model(self) -> PreTrainedModel:
        """The trimmed model, without PEFT's wrapper."""
        model = self.module.get_base_model() if isinstance(self.module, PeftModel) else self.module
        return cast(PreTrainedModel, model)

    @property
    def stack(self) -> Stack:
        """The row of the anatomy table for this part's blocks."""
        return self.family.stacks[0]

    @property
    def runner(self) -> PreTrainedModel:
        """The module that runs the blocks."""
        return cast(PreTrainedModel, self.model.get_submodule(self.stack.path))

    def block_parameters(self) -> Iterator[nn.Parameter]:
        """Parameters of the part's blocks, without embeddings and head."""
        for stack in self.family.stacks:
            yield from block_list(self.model, stack).parameters()

    def shared_parameters(self) -> dict[str, nn.Parameter]:
        """Weights that all blocks of a stack use, by the stack's path: T5's relative position biases.

        Wherever the stack is cut, the first block of each part holds them, so that both parties may hold copies.
        """
        found: dict[str, nn.Parameter] = {}
        for stack in self.family.stacks:
            for block in block_list(self.model, stack) if stack.shared is not None else ():
                module = dict(block.named_modules()).get(stack.shared or "")
                for parameter in () if module is None else module.parameters():
                    found.setdefault(stack.path, parameter)
        return found

    def new_cache(self) -> Cache:
        """An empty key-value cache for this part's blocks, for decoding step by step.

        Raises:
            ModelError: The model does not decode.
        """
        if self.family.kind is not Kind.DECODER:
            raise ModelError(f"A model of kind {self.family.kind} has no cache to decode with.")
        return DynamicCache(config=self.runner.config)

    def train(self, mode: bool = True) -> Part:
        """Switches to training or evaluation; `set_dropout` says whether training drops out."""
        super().train(mode)
        if mode and not self.own_dropout:
            self.model.train(False)
            for module in self.model.modules():
                adapter_dropout = getattr(module, "lora_dropout", None)
                if isinstance(adapter_dropout, nn.Module):
                    adapter_dropout.train()
        return self

    @property
    def virtual(self) -> Virtual | None:
        """Virtual positions that stand before each text; `None` of a part that is not tuned with any."""
        return Virtual.of(self.module)

    def _enter(self, inputs: Inputs, cache: Cache | None, source: Mapping[str, Tensor | None]) -> Entering:
        virtual = self.virtual
        if virtual is None:
            return Entering(inputs, source, cache)
        return virtual.enter(inputs, source, cache, self.runner.get_submodule(self.stack.table))

    def _run(self, inputs: Inputs, cache: Cache | None, **source: Tensor | None) -> Tensor:
        """Hidden states `[batch, seq, width]` of the text, or logits where the part ends in the head."""
        entering = self._enter(inputs, cache, source)
        arguments: dict[str, Any] = {**entering.source, "attention_mask": entering.inputs.attention_mask}
        if self.family.positions is not Positions.NONE:
            arguments["position_ids"] = self._position_ids(entering.inputs)
        types = entering.inputs.token_type_ids
        if self.family.token_types and self.model.config.type_vocab_size > 1 and types is not None:
            arguments["token_type_ids"] = types
        if self.family.kind is Kind.DECODER:
            arguments["use_cache"] = entering.cache is not None
        if self.family.kind is Kind.DECODER or entering.cache is not None:
            arguments["past_key_values"] = entering.cache
        before, classifies = entering.before, Head.of(self.model) is Head.CLASSIFICATION
        if not self.has_head:
            hidden: Tensor = self.runner(**arguments).last_hidden_state
            return hidden[:, before:]
        if self.family.kind is Kind.DECODER and classifies:
            score = self.model.get_submodule(self.family.classifier_output)
            hidden = self.runner(**arguments).last_hidden_state
            if self.pooling == "mean":
                return cast(Tensor, score(mean_of_text(hidden[:, before:], inputs)))
            return pool_last(score(hidden)[:, before:], inputs)
        if classifies and self.pooling != "sequence":
            with reading(list(block_list(self.model, self.stack))[-1], inputs, before, self.pooling):
                return cast(Tensor, self.model(**arguments).logits)
        logits: Tensor = self.model(**arguments).logits
        return logits if classifies else logits[:, before:]

    def _position_ids(self, inputs: Inputs) -> Tensor:
        if self.family.positions is Positions.FROM_ZERO:
            return inputs.position_ids
        padding = self.model.config.pad_token_id
        real = inputs.attention_mask[:, -inputs.position_ids.shape[1] :].bool()
        return torch.where(real, inputs.position_ids + padding + 1, padding)


class Bottom(Part):
    """What the customer computes before the boundary."""

    @property
    def table(self) -> Tensor:
        """The token-embedding table `[vocab, width]`."""
        return embedding_table(self.model)

    def forward(self, inputs: Inputs, cache: Cache | None = None) -> Tensor:
        """The boundary `[batch, seq, width]`.

        Args:
            inputs: Ids, or rows of the table in `inputs_embeds`.
            cache: This part's cache, while decoding.
        """
        if not len(block_list(self.model, self.stack)):
            if inputs.inputs_embeds is not None:
                return inputs.inputs_embeds
            rows: Tensor = self.runner.get_submodule(self.stack.table)(inputs.input_ids)
            return rows
        if inputs.inputs_embeds is not None:
            return self._run(inputs, cache, inputs_embeds=inputs.inputs_embeds)
        return self._run(inputs, cache, input_ids=inputs.input_ids)


class Top(Part):
    """What the vendor computes."""

    def forward(self, inputs: Inputs, hidden: Tensor | None = None, cache: Cache | None = None) -> Tensor:
        """Logits, or the upper boundary `[batch, seq, width]` where there is a tail.

        Args:
            inputs: Mask and positions; ids for a text cut.
            hidden: The boundary from below, `[batch, seq, width]`; None for a text cut.
            cache: This part's cache, while decoding.
        """
        if hidden is None:
            return self._run(inputs, cache, input_ids=inputs.input_ids)
        return self._run(inputs, cache, inputs_embeds=hidden)


class Tail(Part):
    """What the customer computes after the upper boundary."""

    def forward(self, hidden: Tensor, inputs: Inputs, cache: Cache | None = None) -> Tensor:
        """Logits from the upper boundary `[batch, seq, width]`."""
        return self._run(inputs, cache, inputs_embeds=hidden)


@dataclass(frozen=True)
class CutModel:
    """What all cut models have.

    Attributes:
        cut: Where the model was cut.
        tied: Whole-model names of parameters that both parties hold.
        family: The model's row of the anatomy table.
    """

    cut: Cut
    tied: tuple[str, ...]
    family: Family

    def check_trainable(self, *, customer: bool, vendor: bool) -> None:
        """Checks that no weight would be trained by one party and kept by the other.

        Args:
            customer: Whether bottom and tail are trained themselves (not through an adapter).
            vendor: Whether the top is trained itself.

        Raises:
            ModelError: A tied parameter would drift apart.
        """
        if customer or vendor:
            check_untied(self.family, self.cut, self.tied)


@dataclass(frozen=True)
class Parts(CutModel):
    """A cut model. The parts share their parameters with the model they were cut from.

    Attributes:
        bottom: The customer's lower part; None for a text cut.
        top: The vendor's part.
        tail: The customer's upper part, if there is one.
    """

    bottom: Bottom | None
    top: Top
    tail: Tail | None


def split(model: PreTrainedModel, cut: Cut, *, head: bool = True) -> Parts:
    """Cuts a model.

    The model stays usable: parts are twins that share its parameters.

    Args:
        model: A model with its head, of a family in the anatomy table.
        cut: Where to cut.
        head: Whether the uppermost part ends in the head, or in what stands before it.

    Raises:
        UnsupportedArchitectureError: The family cannot be cut, or not by this function.
        ModelError: The cut does not fit into the model.
    """
    family = family_of(model.config)
    if family.kind is Kind.ENCODER_DECODER:
        raise UnsupportedArchitectureError(
            f"A {model.config.model_type} model has two boundaries.", remedy="Cut it with split_seq2seq."
        )
    if cut.target:
        raise ModelError(
            f"target = {cut.target}: a {model.config.model_type} model has one stack of blocks.",
            remedy="Leave it out; it is for encoder-decoders.",
        )
    (stack,) = family.stacks
    depth = len(block_list(model, stack))
    check_depth(depth, cut)
    lower, upper = cut.bottom or 0, depth - (cut.tail or 0)
    bottom = tail = None
    if cut.bottom is not None:
        bottom = Bottom(_part(model, stack, 0, lower, table=True, before=lower > 0), head=False)
    last = cut.tail is None
    top = Top(
        _part(model, stack, lower, upper, table=cut.is_text, before=lower == 0, after=last, head=last and head),
        head=last and head,
    )
    if cut.tail is not None:
        tail = Tail(_part(model, stack, upper, depth, after=True, head=head), head=head)
    tied = tied_names(model, [top], [part for part in (bottom, tail) if part is not None])
    return Parts(cut, tied, family, bottom, top, tail)


def check_depth(blocks: int, cut: Cut) -> None:
    """Checks that a cut leaves the vendor at least one block.

    Raises:
        ModelError: It does not.
    """
    taken = (cut.bottom or 0) + (cut.tail or 0)
    if taken >= blocks:
        raise ModelError(
            f"A cut with bottom {cut.bottom} and tail {cut.tail} takes {taken} of the model's {blocks} blocks; "
            "the vendor must keep at least one.",
            remedy=f"Use at most {blocks - 1} blocks for bottom and tail together.",
        )


def check_untied(family: Family, cut: Cut, tied: tuple[str, ...]) -> None:
    """Checks that no weight is held by both parties, before one of them trains what it holds.

    What all blocks of a stack use (`Part.shared_parameters`) may lie on both sides: its copies take the same updates.

    Args:
        family: The model's.
        cut: Where it was cut.
        tied: Whole-model names of what both hold.

    Raises:
        ModelError: One is, and would drift apart.
    """
    shared = [f".{stack.shared}." for stack in family.stacks if stack.shared is not None]
    drifting = [name for name in tied if not any(path in name for path in shared)]
    if drifting:
        raise ModelError(
            f"Both parties hold {', '.join(drifting)} (cut {cut.slug}), so training it would break the tie.",
            remedy="Train adapters instead, or choose a cut at which one party holds both ends.",
        )


def set_dropout(part: Part, on: bool) -> None:
    """Says whether the model's own dropout (embeddings, blocks, head) acts while training.

    An adapter's dropout follows its own rate either way.

    Raises:
        UnsupportedArchitectureError: The family uses one dropout module at both ends of its blocks, so a
            part would drop out at the boundary too.
    """
    if on and part.family.kind is Kind.ENCODER_DECODER:
        raise UnsupportedArchitectureError(
            f"A cut {part.model.config.model_type} model trains without its own dropout.", remedy="Leave it off."
        )
    part.own_dropout = on
    part.train(part.training)


def set_checkpointing(part: Part, on: bool) -> None:
    """Says whether a part computes its blocks again in the backward pass, with the same dropout.

    Transformers' own switch acts on modules in training mode alone, and a part whose dropout is off is not in it.
    """
    for stack in part.family.stacks:
        for block in block_list(part.model, stack):
            vars(block).pop("forward", None)
            if on:
                again = functools.partial(checkpoint, block.forward, use_reentrant=False)
                setattr(block, "forward", again)  # noqa: B010 - torch types it as a method of the class


def seed_dropout(seed: int, step: int, *, part: str = "") -> None:
    """Makes a step's dropout a function of the job's seed and the step, and of nothing before.

    Dropout draws from the process-wide generator, so callers hold it to themselves from here to the
    end of the forward pass. Never for privacy noise.

    Args:
        seed: The job's.
        step: Counted from 1.
        part: Which part, where one party computes two: they drop out on their own.
    """
    digest = hashlib.blake2b(f"dropout/{seed}/{step}{part and f'/{part}'}".encode(), digest_size=8).digest()
    torch.manual_seed(int.from_bytes(digest, "little") % 2**63)


@contextmanager
def isolated_dropout(seed: int, step: int, device: torch.device) -> Iterator[None]:
    """As `seed_dropout`, but the process-wide generators are put back when the context ends.

    Args:
        seed: The job's.
        step: Counted from 1.
        device: Where the forward pass runs.
    """
    with torch.random.fork_rng(
        devices=[] if device.type == "cpu" else [device],
        device_type="cuda" if device.type == "cpu" else device.type,
    ):
        seed_dropout(seed, step)
        yield


def tied_names(model: nn.Module, ours: Iterable[nn.Module], theirs: Iterable[nn.Module]) -> tuple[str, ...]:
    """Whole-model names of the parameters that two sets of parts both hold."""
    left = {id(parameter) for part in ours for parameter in part.parameters()}
    right = {id(parameter) for part in theirs for parameter in part.parameters()}
    return tuple(name for name, parameter in model.named_parameters() if id(parameter) in left & right)


def embedding_table(model: PreTrainedModel) -> Tensor:
    """The token embeddings `[vocab, width]`."""
    stack = family_of(model.config).stacks[0]
    weight = model.get_submodule(f"{stack.path}.{stack.table}").weight
    return cast(Tensor, weight)


def block_list(model: PreTrainedModel, stack: Stack) -> nn.ModuleList:
    """The blocks of a stack."""
    blocks = model.get_submodule(f"{stack.path}.{stack.blocks}")
    if not isinstance(blocks, nn.ModuleList):
        raise TypeError(f"{stack.path}.{stack.blocks} is a {type(blocks).__name__}")
    return blocks


def _part(
    model: PreTrainedModel,
    stack: Stack,
    first: int,
    last: int,
    *,
    table: bool = False,
    before: bool = False,
    after: bool = False,
    head: bool = False,
) -> PreTrainedModel:
    """A twin of a single-stack model that holds blocks `first` to `last` and what it is told to hold."""
    part = twin(model)
    trim(part, stack, first, last, table=table, before=before, after=after)
    if not head:
        behead(part)
    return part


def trim(
    model: PreTrainedModel, stack: Stack, first: int, last: int, *, table: bool, before: bool, after: bool
) -> None:
    """Reduces one stack of a model, in place, to some of its blocks.

    Args:
        model: A twin that may be changed.
        stack: Which stack.
        first: Number of the first block kept.
        last: Number of the first block above those kept.
        table: Whether the token embeddings stay.
        before: Whether what else stands before the first block stays.
        after: Whether what stands after the last block stays.
    """
    runner = model.get_submodule(stack.path)
    embeddings = runner.get_submodule(stack.table)
    for held, edge in ((before, stack.before), (after, stack.after)):
        for path, neutral in edge.items():
            if not held:
                _replace(runner, path, REPLACEMENTS[neutral]())
    _replace(runner, stack.table, embeddings if table else Withheld())
    blocks = list(block_list(model, stack))
    if stack.shared is not None and first < last:
        _share_with_first(blocks[0], blocks[first], stack.shared)
    kept = nn.ModuleList()
    for number in range(first, last):
        # under its old number, so that names in a part are names in the whole model
        kept.add_module(str(number), blocks[number])
        for module in blocks[number].modules():
            if isinstance(getattr(module, "layer_idx", None), int):
                setattr(module, "layer_idx", number - first)  # noqa: B010 - caches count a part's own blocks
    _replace(runner, stack.blocks, kept)
    for config in {id(module.config): module.config for module in _configured(model, runner)}.values():
        if getattr(config, "layer_types", None) is not None:
            config.layer_types = config.layer_types[first:last]
        config.num_hidden_layers = last - first


def behead(model: PreTrainedModel) -> None:
    """Removes, in place, the head: all that stands beside the stacks."""
    family = family_of(model.config)
    kept = {stack.path.partition(".")[0] for stack in family.stacks} | set(family.aliases)
    for name, _ in list(model.named_children()):
        if name not in kept:
            setattr(model, name, None)


def drop_aliases(model: PreTrainedModel) -> None:
    """Withholds, in place, the model's further names for its table; its forward pass does not use them."""
    for name in family_of(model.config).aliases:
        setattr(model, name, Withheld())


def _replace(parent: nn.Module, path: str, module: nn.Module | None) -> None:
    *steps, name = path.split(".")
    owner = parent.get_submodule(".".join(steps))
    if getattr(owner, name, None) is not None:
        setattr(owner, name, module)


def _share_with_first(first: nn.Module, other: nn.Module, path: str) -> None:
    """Gives `other` a module that only the stack's first block has; both use the same weights."""
    parent, _, name = path.rpartition(".")
    source, target = first.get_submodule(parent), other.get_submodule(parent)
    setattr(target, name, getattr(source, name))
    setattr(target, f"has_{name}", True)


def _configured(model: PreTrainedModel, runner: nn.Module) -> Iterable[Any]:
    """Modules whose configuration describes this stack; that of the whole model does where it is the only stack."""
    scope = runner if len(family_of(model.config).stacks) > 1 else model
    return (module for module in scope.modules() if hasattr(module, "config"))
