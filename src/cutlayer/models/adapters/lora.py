"""Low-rank adaptation of a part, in PEFT's own form and with whole-model names."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Iterator
from typing import TypeVar, cast

import torch
from peft import LoraConfig, PeftModel, TaskType
from torch import nn
from transformers.pytorch_utils import Conv1D

from cutlayer.core import ModelError
from cutlayer.core.tuning import LoraSpec, Targets
from cutlayer.models.adapters.methods import METHODS, Method, draw_heads, fresh_head
from cutlayer.models.anatomy import Stack
from cutlayer.models.cutting import Part, block_list
from cutlayer.models.heads import seeded
from cutlayer.models.quantization import shape_of
from cutlayer.models.twin import twin

P = TypeVar("P", bound=Part)

# PEFT asks transformers by a name that transformers has deprecated; nothing a user can act on.
warnings.filterwarnings("ignore", message="`is_gradient_checkpointing` is deprecated", category=FutureWarning)


class Lora(Method[LoraSpec]):
    """A low-rank adapter on the blocks' linear maps; the base stays frozen and shared."""

    def attach(self, part: P, spec: LoraSpec, *, num_labels: int | None, shared: bool, seed: int) -> P:
        """A twin with an adapter; see `attach_lora`."""
        return attach_lora(
            part,
            rank=spec.r,
            alpha=spec.lora_alpha,
            dropout=spec.lora_dropout,
            targets=spec.target_modules,
            num_labels=num_labels,
            seed=seed,
        )

    def parameters(self, part: Part, spec: LoraSpec, *, shared: bool) -> int:
        """Rank · (inputs + outputs) for each linear map that it adapts."""
        maps = (
            block.get_submodule(name)
            for stack in part.family.stacks
            for block in block_list(part.model, stack)
            for name in _adapted(block, part.family.query_value, spec.target_modules)
        )
        return spec.r * sum(sum(shape_of(cast(torch.Tensor, module.weight))) for module in maps)


METHODS.add("lora")(Lora())


def attach_lora(
    part: P,
    *,
    rank: int,
    alpha: float,
    dropout: float,
    targets: Targets = "query-value",
    num_labels: int | None = None,
    seed: int,
) -> P:
    """A twin of `part` with a low-rank adapter on its blocks, ready to train.

    The base stays frozen and shared; only the adapter, and the fresh classification head of a part
    that ends in one, are trained. Each new tensor is drawn from the seed and its whole-model name
    alone, so the adapter of a cut model starts equal to that of the whole one.
    Ref: Hu et al. 2021, arXiv:2106.09685.

    Args:
        part: What to adapt.
        rank: Rank of the update.
        alpha: The update is scaled by alpha / rank.
        dropout: Dropout on the adapter's input.
        targets: Query and value projections (for GPT-2 the fused map, hence keys too), or all linear
            maps of the blocks.
        num_labels: Size of the fresh head; required for a part that ends in a classification head.
        seed: Seed of the initialisation.
    """
    part = twin(part)
    heads = fresh_head(part, num_labels)
    model = part.model
    config = LoraConfig(
        task_type=TaskType.SEQ_CLS if heads else None,
        r=rank,
        lora_alpha=cast(int, alpha),  # PEFT only divides it by the rank
        lora_dropout=dropout,
        target_modules=_pattern(part, targets),
        modules_to_save=list(heads) or None,
        fan_in_fan_out=part.family.fan_in_fan_out,
    )
    model.requires_grad_(False)
    part.module = PeftModel(model, config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".lora_A." in name:
                drawn = torch.empty(parameter.shape)
                nn.init.kaiming_uniform_(drawn, a=math.sqrt(5), generator=seeded(seed, name))
                parameter.copy_(drawn)
            elif ".lora_B." in name:
                parameter.zero_()
    draw_heads(part, heads, seed=seed)
    part.train(part.training)
    return part


def _adapted(block: nn.Module, query_value: tuple[str, ...], targets: Targets) -> Iterator[str]:
    """Paths, below a block, of the linear maps that are adapted."""
    for name, module in block.named_modules():
        named = any(f".{name}".endswith(f".{target}") for target in query_value)
        if isinstance(module, nn.Linear | Conv1D) and (named or targets == "all-linear"):
            yield name


def _pattern(part: Part, targets: Targets) -> str:
    """A regular expression for the adapted modules of this part's own blocks, and no others.

    PEFT matches it against names in the whole model too, so blocks below the cut stay bare there.
    """
    choices = [
        _choice(stack, blocks, part.family.query_value, targets)
        for stack in part.family.stacks
        if (blocks := dict(block_list(part.model, stack).named_children()))
    ]
    if not choices:
        raise ModelError("This part has no blocks, so there is nothing to adapt.", remedy="Choose another cut.")
    return "|".join(choices)


def _choice(stack: Stack, blocks: dict[str, nn.Module], query_value: tuple[str, ...], targets: Targets) -> str:
    """The part of the expression that matches one stack's maps."""
    names = query_value
    if targets == "all-linear":
        names = tuple(dict.fromkeys(name for block in blocks.values() for name in _adapted(block, (), targets)))
    numbers = "|".join(blocks)
    endings = "|".join(re.escape(name) for name in names)
    path = re.escape(f"{stack.path}.{stack.blocks}")
    return rf"{path}\.(?:{numbers})\.(?:.*\.)?(?:{endings})"
