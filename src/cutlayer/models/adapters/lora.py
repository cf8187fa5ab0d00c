"""Low-rank adaptation of a part, in PEFT's own form and with whole-model names."""

from __future__ import annotations

import math
import re
import warnings
from typing import Any, Literal, TypeVar, cast

import torch
from peft import LoraConfig, PeftModel, TaskType
from torch import nn
from transformers.pytorch_utils import Conv1D

from cutlayer.core import ModelError
from cutlayer.models.cutting import Part, block_list
from cutlayer.models.heads import Head, draw_head, head_modules, resize_head, seeded
from cutlayer.models.twin import twin

Targets = Literal["query-value", "all-linear"]
P = TypeVar("P", bound=Part)

# PEFT asks transformers by a name that transformers has deprecated; nothing a user can act on.
warnings.filterwarnings("ignore", message="`is_gradient_checkpointing` is deprecated", category=FutureWarning)

ADAPTER = "default"
"""PEFT's own name for the only adapter of a model."""


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
    model = part.model
    heads: tuple[str, ...] = ()
    if part.has_head and Head.of(model) is Head.CLASSIFICATION:
        if num_labels is None:
            raise ModelError("A classification head needs the number of labels.", remedy="Pass num_labels.")
        heads = head_modules(model)
        resize_head(model, num_labels)
    elif num_labels is not None:
        raise ModelError("This part does not end in a classification head.", remedy="Leave num_labels out.")
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
    _draw(part, seed=seed, heads=heads)
    part.train(part.training)
    return part


def _pattern(part: Part, targets: Targets) -> str:
    """A regular expression for the adapted modules of this part's own blocks, and no others.

    PEFT matches it against names in the whole model too, so blocks below the cut stay bare there.
    """
    choices = []
    for stack in part.family.stacks:
        blocks = dict(block_list(part.model, stack).named_children())
        if not blocks:
            continue
        names = part.family.query_value
        if targets == "all-linear":
            names = tuple(
                dict.fromkeys(
                    name
                    for block in blocks.values()
                    for name, module in block.named_modules()
                    if isinstance(module, nn.Linear | Conv1D)
                )
            )
        numbers = "|".join(blocks)
        endings = "|".join(re.escape(name) for name in names)
        path = re.escape(f"{stack.path}.{stack.blocks}")
        choices.append(rf"{path}\.(?:{numbers})\.(?:.*\.)?(?:{endings})")
    if not choices:
        raise ModelError("This part has no blocks, so there is nothing to adapt.", remedy="Choose another cut.")
    return "|".join(choices)


def _draw(part: Part, *, seed: int, heads: tuple[str, ...]) -> None:
    model = part.model
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".lora_A." in name:
                drawn = torch.empty(parameter.shape)
                nn.init.kaiming_uniform_(drawn, a=math.sqrt(5), generator=seeded(seed, name))
                parameter.copy_(drawn)
            elif ".lora_B." in name:
                parameter.zero_()
    std = getattr(model.config, "initializer_range", 0.02)
    for path in heads:
        copies: Any = model.get_submodule(path).modules_to_save
        draw_head(copies[ADAPTER], seed=seed, name=path, std=std)
