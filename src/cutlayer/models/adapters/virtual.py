"""Prompt tuning and prefix-tuning of a part, in PEFT's own form; see `models.virtual` for where they stand."""

from __future__ import annotations

from typing import Any, TypeVar

import torch
from peft import PeftModel, PrefixTuningConfig, PromptLearningConfig, PromptTuningConfig, TaskType
from torch import Tensor

from cutlayer.core.tuning import PrefixSpec, PromptSpec
from cutlayer.models.adapters.methods import METHODS, Method, draw_heads, fresh_head
from cutlayer.models.anatomy import FAMILIES, Kind
from cutlayer.models.cutting import Part, block_list
from cutlayer.models.decoding import key_value_shape
from cutlayer.models.heads import Head, seeded
from cutlayer.models.twin import twin
from cutlayer.models.virtual import ADAPTER

P = TypeVar("P", bound=Part)


class Prompt(Method[PromptSpec]):
    """Rows before the text's, of the width of the rows that enter the part."""

    def attach(self, part: P, spec: PromptSpec, *, num_labels: int | None, shared: bool, seed: int) -> P:
        """A twin with a prompt. Rows are drawn from N(0, initializer_range).

        PEFT draws them from N(0, 1), far from a model's own rows: as in `PromptSpec`, at a rate of 0.01 and with
        `sequence`, that gave 69.2 % where these gave 75.8.
        """
        part = twin(part)
        heads = fresh_head(part, num_labels)
        config = PromptTuningConfig(
            task_type=_task(part),
            num_virtual_tokens=spec.prompt_length,
            token_dim=_entrance_width(part),
            num_transformer_submodules=1,
            num_attention_heads=1,  # it asks for both, and uses neither
            num_layers=1,
            modules_to_save=list(heads) or None,
        )
        drawn = torch.empty(spec.prompt_length, _entrance_width(part))
        drawn.normal_(0, _std(part), generator=seeded(seed, "prompt"))
        return _attached(part, config, drawn, heads, seed=seed)

    def parameters(self, part: Part, spec: PromptSpec, *, shared: bool) -> int:
        """Its rows."""
        return spec.prompt_length * _entrance_width(part)


class Prefix(Method[PrefixSpec]):
    """Keys and values before the text's in each block; of an encoder-decoder in its decoder's, as PEFT has it."""

    def attach(self, part: P, spec: PrefixSpec, *, num_labels: int | None, shared: bool, seed: int) -> P:
        """A twin with a prefix. Keys and values are drawn from N(0, 1), as PEFT draws them.

        At a rate of 0.01, and measured as in `PromptSpec`, 80.8 %; from N(0, 0.02) 79.2.
        """
        part = twin(part)
        heads = fresh_head(part, num_labels)
        (count, width), stack = key_value_shape(part), part.family.stacks[-1]
        blocks = block_list(part.model, stack)
        config = PrefixTuningConfig(
            task_type=_task(part),
            num_virtual_tokens=spec.prefix_length,
            token_dim=count * width,
            num_transformer_submodules=len(part.family.stacks),
            num_attention_heads=count,
            num_layers=len(blocks),
            modules_to_save=list(heads) or None,
        )
        drawn = [
            torch.empty(spec.prefix_length, 2 * count * width).normal_(
                generator=seeded(seed, f"{stack.path}.{stack.blocks}.{number}.prefix")
            )
            for number, _ in blocks.named_children()
        ]
        return _attached(part, config, torch.cat(drawn, 1), heads, seed=seed)

    def parameters(self, part: Part, spec: PrefixSpec, *, shared: bool) -> int:
        """A key and a value of each position in each block."""
        heads, width = key_value_shape(part)
        return spec.prefix_length * 2 * heads * width * len(block_list(part.model, part.family.stacks[-1]))

    def ignored_by(self, family: str) -> str:
        """Why a family's blocks do not look at a prefix."""
        return "" if FAMILIES[family].prefixes else "its blocks attend to the text's own keys and values alone"


METHODS.add("prompt")(Prompt())
METHODS.add("prefix")(Prefix())


def _attached(part: P, config: PromptLearningConfig, drawn: Tensor, heads: tuple[str, ...], *, seed: int) -> P:
    """The twin with PEFT's module around it."""
    part.model.requires_grad_(False)
    module: Any = PeftModel(part.model, config)
    module.prompt_encoder[ADAPTER].embedding.weight.data.copy_(drawn)
    part.module = module
    draw_heads(part, heads, seed=seed)
    part.train(part.training)
    return part


def _task(part: Part) -> TaskType:
    """What PEFT calls the model's task, so that its own class for it can load what was trained."""
    if Head.of(part.model) is Head.CLASSIFICATION and part.has_head:
        return TaskType.SEQ_CLS
    return TaskType.SEQ_2_SEQ_LM if part.family.kind is Kind.ENCODER_DECODER else TaskType.CAUSAL_LM


def _std(part: Part) -> float:
    return float(getattr(part.model.config, "initializer_range", 0.02))


def _entrance_width(part: Part) -> int:
    """Width of the rows that enter a part: of OPT's table where the part begins with it, else of its blocks."""
    config = part.model.config
    first, *_ = (name for name, _ in block_list(part.model, part.stack).named_children())
    narrow = getattr(config, "word_embed_proj_dim", None) if first == "0" else None
    return int(narrow or config.hidden_size)
