"""The paper's parameter columns, counted on the meta device: no weights, no network, the same on every machine.

Ref: Yao and Li, "Is Split Learning Privacy-Preserving for Fine-Tuning Large Language Models?", Tables 2 and 3,
Figures 3 and 5, §4.1.2. Models are cut and adapted by the code that cuts and adapts them in a job, so a column says
what a customer of cutlayer holds and trains.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from decimal import ROUND_HALF_UP, Decimal
from typing import Any, Literal, cast

import torch
from torch import nn
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from cutlayer.core import ConfigError, Cut, Fault, Spec
from cutlayer.models import Bottom, Tail, attach_lora, split
from cutlayer.recipes.unsplit.paper import PAPER, Printed
from cutlayer.recipes.unsplit.vision import UnsplitCnn, resnet_152
from cutlayer.reports import Table

Targets = Literal["query-value", "all-linear"]

LORA_RANK = 8
"""The rank that gives Table 3's column; the paper does not print it."""

_ANY_SEED = 0
"""For adapters on the meta device, where nothing is drawn."""


class Architecture(Spec):
    """A decoder's configuration, without its weights.

    Attributes:
        title: What the paper or its makers call it.
        source: The checkpoint whose configuration this is.
        family: `config.model_type`.
        settings: What of the configuration decides shapes; everything else is the family's default.
        lora: The linear maps that Table 3's column counts; `None` where the table has no such row.
    """

    title: str
    source: str
    family: str
    settings: Mapping[str, int | bool]
    lora: Targets | None = None

    @property
    def blocks(self) -> int:
        """How many blocks the whole model has."""
        return int(self.settings["num_hidden_layers"])

    @property
    def width(self) -> int:
        """Size of a hidden state."""
        return int(self.settings["hidden_size"])

    def config(self, *, blocks: int | None = None, attention: str = "sdpa") -> PretrainedConfig:
        """The Hugging Face configuration.

        Args:
            blocks: Another number of blocks than the model's.
            attention: Which attention kernel its models use.
        """
        kind: Any = CONFIG_MAPPING[self.family]
        renamed: Mapping[str, str] = kind.attribute_map
        settings = {**self.settings, "num_hidden_layers": blocks or self.blocks}
        config: PretrainedConfig = kind(**{renamed.get(name, name): value for name, value in settings.items()})
        config._attn_implementation = attention
        return config

    def on_meta(self, *, blocks: int | None = None, attention: str = "sdpa") -> PreTrainedModel:
        """The model without storage: shapes and names are its own, values there are none."""
        with torch.device("meta"):
            return cast(
                PreTrainedModel, AutoModelForCausalLM.from_config(self.config(blocks=blocks, attention=attention))
            )


GPT2 = Architecture(
    title="GPT-2",
    source="gpt2",
    family="gpt2",
    settings={
        "vocab_size": 50257,
        "max_position_embeddings": 1024,
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
    },
    lora="query-value",
)
GPT2_XL = Architecture(
    title="GPT-2 XL",
    source="gpt2-xl",
    family="gpt2",
    settings={**GPT2.settings, "hidden_size": 1600, "num_hidden_layers": 48, "num_attention_heads": 25},
    lora="query-value",
)


def _opt(
    size: str, *, width: int, blocks: int, heads: int, rows: int | None = None, norm_first: bool = True
) -> Architecture:
    return Architecture(
        title="OPT",
        source=f"facebook/opt-{size}",
        family="opt",
        settings={
            "vocab_size": 50272,
            "max_position_embeddings": 2048,
            "hidden_size": width,
            "word_embed_proj_dim": rows or width,
            "ffn_dim": 4 * width,
            "num_hidden_layers": blocks,
            "num_attention_heads": heads,
            "do_layer_norm_before": norm_first,
        },
        lora="query-value",
    )


OPT_SIZES: Mapping[str, Architecture] = {
    "125m": _opt("125m", width=768, blocks=12, heads=12),
    "350m": _opt("350m", width=1024, blocks=24, heads=16, rows=512, norm_first=False),
    "1.3b": _opt("1.3b", width=2048, blocks=24, heads=32),
    "2.7b": _opt("2.7b", width=2560, blocks=32, heads=32),
    "6.7b": _opt("6.7b", width=4096, blocks=32, heads=32),
}
"""The paper does not say which OPT it attacks; its column does."""

OPT = OPT_SIZES["1.3b"]
OPENCHAT = Architecture(
    title="OpenChat 3.5",
    source="openchat/openchat_3.5",
    family="mistral",
    settings={
        "vocab_size": 32002,  # Mistral 7B's 32,000 and two tokens for turns
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "tie_word_embeddings": False,
    },
)
QWEN = Architecture(
    title="Qwen 1.5",
    source="Qwen/Qwen1.5-1.8B",
    family="qwen2",
    settings={
        "vocab_size": 151936,
        "hidden_size": 2048,
        "intermediate_size": 5504,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "tie_word_embeddings": False,
    },
    lora="all-linear",
)
LLAMA_2 = Architecture(
    title="Llama 2",
    source="meta-llama/Llama-2-7b-hf",
    family="llama",
    settings={
        "vocab_size": 32000,
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
        "tie_word_embeddings": False,
    },
    lora="query-value",
)
LLAMA_3 = Architecture(
    title="Llama 3",
    source="meta-llama/Meta-Llama-3-8B",
    family="llama",
    settings={
        **LLAMA_2.settings,
        "vocab_size": 128256,
        "intermediate_size": 14336,
        "num_key_value_heads": 8,
    },
    lora="query-value",
)

ARCHITECTURES: tuple[Architecture, ...] = (GPT2, OPT, OPENCHAT, QWEN, LLAMA_2, LLAMA_3)
"""The rows of Table 2, in its order."""


def adapted(model_type: str) -> Targets:
    """The linear maps that Table 3 adapts in such a model: by its parameter column all of Qwen's, two of the others'.

    Args:
        model_type: As in `config.model_type`.
    """
    return "all-linear" if model_type.startswith("qwen") else "query-value"


# ---------------------------------------------------------------- counting


class Held(Spec):
    """What the customer holds of a model.

    Attributes:
        architecture: Which model.
        bottom: Blocks below the cut.
        tail: Blocks above the upper cut, with the final norm and the head; `None` for no tail.
        table: Token embeddings.
        positions: What else stands before the first block: position embeddings, projections.
        blocks: The bottom's blocks.
        above: The tail, without what it shares with the bottom.
        adapter: LoRA on the bottom's and the tail's blocks; `None` where Table 3 has no row.
        whole: The whole model, tied weights once.
    """

    architecture: str
    bottom: int
    tail: int | None
    table: int
    positions: int
    blocks: int
    above: int
    adapter: int | None
    whole: int

    @property
    def parameters(self) -> int:
        """All of the customer's, without an adapter: what full fine-tuning trains."""
        return self.table + self.positions + self.blocks + self.above


def count(architecture: Architecture, *, bottom: int = 1, tail: int | None = None, rank: int = LORA_RANK) -> Held:
    """Counts what the customer holds and trains.

    Args:
        architecture: The model.
        bottom: Blocks below the cut.
        tail: Blocks above the upper cut; the paper's columns count none, nor the head.
        rank: LoRA's.

    Raises:
        ModelError: The cut leaves the vendor no block.
        ConfigError: There is no block to adapt.
    """
    return _count(architecture, architecture.on_meta(), bottom, tail, rank)


def _count(architecture: Architecture, model: PreTrainedModel, bottom: int, tail: int | None, rank: int) -> Held:
    if bottom < 1:
        raise ConfigError([Fault("bottom", bottom, "must be at least 1: below a block nothing is adapted")])
    parts = split(model, Cut(bottom=bottom, tail=tail))
    below = cast(Bottom, parts.bottom)
    shared = {id(parameter) for parameter in below.parameters()}
    table, blocks = below.table.numel(), total(below.block_parameters())
    above = total(each for each in ([] if parts.tail is None else parts.tail.parameters()) if id(each) not in shared)
    return Held(
        architecture=architecture.title,
        bottom=bottom,
        tail=tail,
        table=table,
        positions=total(below.parameters()) - table - blocks,
        blocks=blocks,
        above=above,
        adapter=None if architecture.lora is None else _adapter(architecture.lora, below, parts.tail, tail, rank),
        whole=total(model.parameters()),
    )


def _adapter(targets: Targets, bottom: Bottom, tail: Tail | None, depth: int | None, rank: int) -> int:
    adapted = [bottom, *([tail] if tail is not None and depth else [])]
    return sum(
        total(parameter for parameter in part.parameters() if parameter.requires_grad)
        for part in (
            attach_lora(part, rank=rank, alpha=2 * rank, dropout=0.0, targets=targets, seed=_ANY_SEED)
            for part in adapted
        )
    )


def total(parameters: Iterable[nn.Parameter]) -> int:
    """How many numbers, tied weights once."""
    return sum(parameter.numel() for parameter in {id(each): each for each in parameters}.values())


# ---------------------------------------------------------------- Tables 2 and 3


class Column(Spec):
    """A model's cells in the parameter columns.

    Attributes:
        held: Ours, one block at the customer.
        source: Whose configuration.
        paper_full: Table 2's column, in millions.
        paper_lora: Table 3's, in thousands; `None` where it has no such row.
    """

    held: Held
    source: str
    paper_full: float
    paper_lora: float | None

    @property
    def counted(self) -> tuple[str, ...]:
        """What Table 2's number can be the count of, to its printed digits; empty where nothing fits."""
        full = self.held.parameters
        readings = {"the bottom": full}
        if self.held.adapter is not None:
            readings["the bottom and its adapter"] = full + self.held.adapter
        return tuple(name for name, value in readings.items() if rounded(value, 6) == str(self.paper_full))

    @property
    def lora_matches(self) -> bool | None:
        """Whether Table 3's number is ours to its printed digits; `None` where it has none."""
        if self.paper_lora is None or self.held.adapter is None:
            return None
        return rounded(self.held.adapter, 3) == str(self.paper_lora)


def columns() -> tuple[Column, ...]:
    """The parameter columns of Tables 2 and 3."""
    rows = []
    for architecture in ARCHITECTURES:
        third = PAPER.table_3.get(architecture.title)
        rows.append(
            Column(
                held=count(architecture),
                source=architecture.source,
                paper_full=PAPER.table_2[architecture.title].parameters,
                paper_lora=None if third is None else third.parameters,
            )
        )
    return tuple(rows)


def columns_table(rows: Sequence[Column]) -> Table:
    """The columns for readers, the paper's beside ours."""
    return Table(
        title="Tables 2 and 3: parameters at a customer with one block",
        columns=(
            "model",
            "configuration",
            "full, the paper (M)",
            "full, here (M)",
            "difference (M)",
            "with the adapter, here (M)",
            "the paper's is",
            "LoRA, the paper (K)",
            "LoRA, here (K)",
        ),
        rows=tuple(
            (
                row.held.architecture,
                row.source,
                f"{row.paper_full:.1f}",
                rounded(row.held.parameters, 6, digits=3),
                f"{row.held.parameters / 1e6 - row.paper_full:+.3f}",
                "–" if row.held.adapter is None else rounded(row.held.parameters + row.held.adapter, 6, digits=3),
                " or ".join(row.counted) or "neither",
                "–" if row.paper_lora is None else f"{row.paper_lora:.1f}",
                "–" if row.held.adapter is None else rounded(row.held.adapter, 3, digits=3),
            )
            for row in rows
        ),
        notes=(
            "Counted on the meta device, without weights: token table, position embeddings and one block; the tail, "
            "which the paper places at the customer too, is in none of its numbers.",
            f"LoRA: rank {LORA_RANK}, on GPT-2's fused query-key-value map, on query and value of OPT and Llama, on "
            "all seven linear maps of Qwen's block.",
            "No one reading gives Table 2's whole column: the rows of OPT, Llama 2 and Llama 3 include the adapter "
            "that Table 3 trains, those of OpenChat and Qwen do not, and for GPT-2 both round to the same.",
        ),
    )


def opt_sizes() -> Mapping[str, Held]:
    """One block of each OPT: the paper names none, and its 157.6 M and 65.5 K fit one alone."""
    return {size: count(each) for size, each in OPT_SIZES.items()}


# ---------------------------------------------------------------- Figure 5


def figure_5(depths: Iterable[int] | None = None) -> tuple[Held, ...]:
    """Parameters and trainable (LoRA) parameters of OPT by blocks at the customer.

    Args:
        depths: Which; 1 to all but one by default, for the vendor must keep a block.
    """
    model = OPT.on_meta()
    wanted = range(1, OPT.blocks) if depths is None else depths
    return tuple(_count(OPT, model, depth, None, LORA_RANK) for depth in wanted)


# ---------------------------------------------------------------- §4.1.2


class Scale(Spec):
    """A count of §4.1.2.

    Attributes:
        what: Of what.
        paper: The paper's.
        ours: Ours.
        note: Which reading this is.
    """

    what: str
    paper: Printed
    ours: int
    note: str


def model_scale() -> tuple[Scale, ...]:
    """The counts of §4.1.2, built in plain torch on the meta device."""
    with torch.device("meta"):
        small, large, imagenet = UnsplitCnn(), resnet_152(classes=10), resnet_152(classes=1000)
    gpt2 = count(GPT2)
    printed = PAPER.model_scale
    return (
        Scale(
            what="UnSplit's CNN",
            paper=printed["UnSplit's CNN"],
            ours=total(small.parameters()),
            note="six convolutions and two linear layers, ten classes",
        ),
        Scale(
            what="UnSplit's CNN, one layer",
            paper=printed["UnSplit's CNN, one layer"],
            ours=total(small.convolutions[0].parameters()),
            note="its first convolution; the second has "
            f"{total(small.convolutions[1].parameters()):,}, the largest linear layer "
            f"{max(total(each.parameters()) for each in small.modules() if isinstance(each, nn.Linear)):,}",
        ),
        Scale(
            what="ResNet-152",
            paper=printed["ResNet-152"],
            ours=total(large.parameters()),
            note=f"with a head for CIFAR-10's ten classes; ImageNet's thousand make {total(imagenet.parameters()):,}",
        ),
        Scale(
            what="ResNet-152, one layer",
            paper=printed["ResNet-152, one layer"],
            ours=total(next(large.bottlenecks()).parameters()),
            note="its first bottleneck, three convolutions and the shortcut's; the last has "
            f"{total(list(large.bottlenecks())[-1].parameters()):,}",
        ),
        Scale(
            what="GPT-2, one block",
            paper=Printed(place="§4.1.2", what="GPT-2's one block, 'similar' to ResNet-152", value=None),
            ours=gpt2.blocks,
            note=f"with table and positions {gpt2.parameters:,}, which is what compares with ResNet-152",
        ),
    )


def rounded(value: int, power: int, *, digits: int = 1) -> str:
    """A count in millions (6) or thousands (3) to some digits; halves go up, as they do in print."""
    return str(Decimal(value).scaleb(-power).quantize(Decimal(1).scaleb(-digits), ROUND_HALF_UP))
