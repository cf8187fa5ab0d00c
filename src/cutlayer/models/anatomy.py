"""Where the parts of a Hugging Face model are: one row per family, data and no code.

A row names modules by their path below the base model (the model without its head). Cutting,
adapters, heads and archives read the row and are the same for all families.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from transformers import PretrainedConfig

from cutlayer.core import UnsupportedArchitectureError


class Kind(StrEnum):
    """What a model computes, as far as cutting is concerned."""

    ENCODER = "encoder"
    DECODER = "decoder"
    ENCODER_DECODER = "encoder-decoder"


class Positions(StrEnum):
    """How a family takes `position_ids`."""

    FROM_ZERO = "from-zero"
    AFTER_PADDING = "after-padding"
    """The first token stands at `pad_token_id + 1`, padding at `pad_token_id` (fairseq's habit)."""
    NONE = "none"
    """Relative positions; nothing is passed."""


class Neutral(StrEnum):
    """What takes the place of a module that a part does not hold."""

    WITHHELD = "withheld"
    """Raises when called: a table that is always bypassed with `inputs_embeds`."""
    BYPASS = "bypass"
    """An embedding stage that returns its `inputs_embeds` unchanged."""
    ZERO = "zero"
    """Position embeddings that add nothing."""
    IDENTITY = "identity"
    ABSENT = "absent"
    """`None`: the model's own code skips it."""


@dataclass(frozen=True, slots=True)
class Stack:
    """A run of blocks with what stands before and after it.

    Attributes:
        path: The module that runs the blocks, below the model with its head.
        blocks: The list of blocks, below `path`.
        table: The token embeddings, below `path`.
        before: Modules between the token ids and the first block, and what replaces each in a part
            that starts later. The table is one of them or lies inside one of them.
        after: Modules between the last block and the head, and what replaces each in a part that
            ends earlier.
        shared: A module of the first block that later blocks use too, below a block. Every part
            needs it in its own first block.
    """

    path: str
    blocks: str
    table: str
    before: Mapping[str, Neutral]
    after: Mapping[str, Neutral] = field(default_factory=dict)
    shared: str | None = None


@dataclass(frozen=True, slots=True)
class Family:
    """One row of the table.

    Attributes:
        kind: Encoder, decoder or both.
        stacks: The runs of blocks in the order in which they run; one, or encoder and decoder.
        query_value: Names of the attention's query and value projections within a block.
        classifier: Modules of a classification head, below the model with its head.
        classifier_output: The linear map onto the labels, whose size a fresh head changes.
        optional_classifier: Head modules that a checkpoint may bring along; fresh otherwise.
        positions: How position ids are passed.
        token_types: Whether the model takes `token_type_ids`.
        aliases: Modules of the model with its head that are further names of the table.
        fan_in_fan_out: Whether linear maps store their weights transposed (`Conv1D`).
        prefixes: Whether blocks can attend to keys and values that stand before a text: DistilBERT's take none. Of
            encoder-decoders the decoder's do; T5's encoder takes some and ignores them without a word.
    """

    kind: Kind
    stacks: tuple[Stack, ...]
    query_value: tuple[str, ...]
    classifier: tuple[str, ...] = ()
    classifier_output: str = ""
    optional_classifier: tuple[str, ...] = ()
    positions: Positions = Positions.FROM_ZERO
    token_types: bool = False
    aliases: tuple[str, ...] = ()
    fan_in_fan_out: bool = False
    prefixes: bool = True

    @property
    def shares(self) -> bool:
        """Whether all blocks of a stack use weights that stand in its first one."""
        return any(stack.shared is not None for stack in self.stacks)


_LLAMA_LIKE = Family(
    kind=Kind.DECODER,
    stacks=(
        Stack(
            path="model",
            blocks="layers",
            table="embed_tokens",
            before={"embed_tokens": Neutral.WITHHELD},
            after={"norm": Neutral.IDENTITY},
        ),
    ),
    query_value=("self_attn.q_proj", "self_attn.v_proj"),
    classifier=("score",),
    classifier_output="score",
)


def _t5_stack(path: str) -> Stack:
    return Stack(
        path=path,
        blocks="block",
        table="embed_tokens",
        before={"embed_tokens": Neutral.WITHHELD},
        after={"final_layer_norm": Neutral.IDENTITY},
        shared="layer.0.SelfAttention.relative_attention_bias",
    )


FAMILIES: Mapping[str, Family] = {
    "bert": Family(
        kind=Kind.ENCODER,
        stacks=(
            Stack(
                path="bert",
                blocks="encoder.layer",
                table="embeddings.word_embeddings",
                before={"embeddings": Neutral.BYPASS},
                after={"pooler": Neutral.ABSENT},
            ),
        ),
        query_value=("attention.self.query", "attention.self.value"),
        classifier=("classifier",),
        classifier_output="classifier",
        optional_classifier=("bert.pooler",),
        token_types=True,
    ),
    "roberta": Family(
        kind=Kind.ENCODER,
        stacks=(
            Stack(
                path="roberta",
                blocks="encoder.layer",
                table="embeddings.word_embeddings",
                before={"embeddings": Neutral.BYPASS},
            ),
        ),
        query_value=("attention.self.query", "attention.self.value"),
        classifier=("classifier",),
        classifier_output="classifier.out_proj",
        positions=Positions.AFTER_PADDING,
        token_types=True,
    ),
    "distilbert": Family(
        kind=Kind.ENCODER,
        stacks=(
            Stack(
                path="distilbert",
                blocks="transformer.layer",
                table="embeddings.word_embeddings",
                before={"embeddings": Neutral.BYPASS},
            ),
        ),
        query_value=("attention.q_lin", "attention.v_lin"),
        classifier=("pre_classifier", "classifier"),
        classifier_output="classifier",
        prefixes=False,
    ),
    "gpt2": Family(
        kind=Kind.DECODER,
        stacks=(
            Stack(
                path="transformer",
                blocks="h",
                table="wte",
                before={"wte": Neutral.WITHHELD, "wpe": Neutral.ZERO, "drop": Neutral.IDENTITY},
                after={"ln_f": Neutral.IDENTITY},
            ),
        ),
        # one fused map makes query, key and value, so LoRA on it adapts the key too
        query_value=("attn.c_attn",),
        classifier=("score",),
        classifier_output="score",
        fan_in_fan_out=True,
    ),
    "opt": Family(
        kind=Kind.DECODER,
        stacks=(
            Stack(
                path="model.decoder",
                blocks="layers",
                table="embed_tokens",
                before={
                    "embed_tokens": Neutral.WITHHELD,
                    "embed_positions": Neutral.ZERO,
                    "project_in": Neutral.ABSENT,
                },
                after={"final_layer_norm": Neutral.ABSENT, "project_out": Neutral.ABSENT},
            ),
        ),
        query_value=("self_attn.q_proj", "self_attn.v_proj"),
        classifier=("score",),
        classifier_output="score",
    ),
    "llama": _LLAMA_LIKE,
    "mistral": _LLAMA_LIKE,
    "qwen2": _LLAMA_LIKE,
    "qwen3": _LLAMA_LIKE,
    "glm": _LLAMA_LIKE,
    "t5": Family(
        kind=Kind.ENCODER_DECODER,
        stacks=(_t5_stack("encoder"), _t5_stack("decoder")),
        query_value=("SelfAttention.q", "SelfAttention.v", "EncDecAttention.q", "EncDecAttention.v"),
        positions=Positions.NONE,
        aliases=("shared",),
    ),
}
"""Every family that can be cut, by `config.model_type`."""

_STATEFUL_ROPE = ("dynamic", "longrope")


def family_of(config: PretrainedConfig) -> Family:
    """The row for a model's configuration.

    Raises:
        UnsupportedArchitectureError: The family is not in the table, or the configuration has a part that
            cannot be cut exactly.
    """
    name = config.model_type
    if name not in FAMILIES:
        close = difflib.get_close_matches(name, FAMILIES, n=1)
        hint = f"Closest: {close[0]!r}. " if close else ""
        raise UnsupportedArchitectureError(
            f"Models of family {name!r} cannot be cut.", remedy=f"{hint}Known families: {', '.join(FAMILIES)}."
        )
    rope = _rope_type(config)
    if rope in _STATEFUL_ROPE:
        raise UnsupportedArchitectureError(
            f"Rotary positions of type {rope!r} depend on the longest text seen so far, so a cut model would differ "
            "from the whole one.",
            remedy="Use a checkpoint whose rope type is default, linear, llama3 or yarn.",
        )
    if getattr(config, "add_cross_attention", False):
        raise UnsupportedArchitectureError(
            f"This {name} model has add_cross_attention = True; it cannot be cut.",
            remedy="Use a checkpoint without cross-attention.",
        )
    if FAMILIES[name].kind is Kind.ENCODER and getattr(config, "is_decoder", False):
        raise UnsupportedArchitectureError(
            f"This {name} model has is_decoder = True; only its encoder form can be cut.",
            remedy="Use a checkpoint with is_decoder = False.",
        )
    return FAMILIES[name]


def _rope_type(config: PretrainedConfig) -> str | None:
    parameters: Any = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None)
    return parameters.get("rope_type", parameters.get("type")) if isinstance(parameters, dict) else None
