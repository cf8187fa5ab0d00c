"""What a customer of a public decoder holds and trains, counted on the meta device: no weights, no network.

Models are cut and adapted by the code that cuts and adapts them in a job, so a number says what a customer of cutlayer
holds and trains. Architectures: `architectures.yaml`.

Ref: Yao and Li, "Is Split Learning Privacy-Preserving for Fine-Tuning Large Language Models?", Tables 2 and 3,
Figures 3 and 5, §4.1.2.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from decimal import ROUND_HALF_UP, Decimal
from typing import Any, Literal, TypeVar, cast

import torch
from torch import nn
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from cutlayer.core import ConfigError, Cut, Fault, Spec
from cutlayer.models import Bottom, Part, attach_lora, split
from cutlayer.recipes.lab import Cell, Lab, Rows
from cutlayer.recipes.long_table import Level, Measure
from cutlayer.recipes.measures.networks import UnsplitCnn, bottlenecks, resnet_152
from cutlayer.recipes.options import read_yaml

P = TypeVar("P", bound=Part)
Targets = Literal["query-value", "all-linear"]

LORA_RANK = 8
"""The rank that gives the adapter column of Table 3; the paper does not print it."""


class Architecture(Spec):
    """A decoder's configuration, without its weights.

    Attributes:
        source: The checkpoint whose configuration this is.
        title: What papers or its makers call it.
        family: `config.model_type`.
        settings: What of the configuration decides shapes; everything else is the family's default.
        lora: The linear maps that Table 3's column counts; `None` where the table has no such row.
    """

    source: str
    title: str
    family: str
    settings: Mapping[str, int | bool]
    lora: Targets | None = None

    @property
    def blocks(self) -> int:
        return int(self.settings["num_hidden_layers"])

    @property
    def width(self) -> int:
        return int(self.settings["hidden_size"])

    def config(self, *, blocks: int | None = None, attention: str = "sdpa") -> PretrainedConfig:
        """The Hugging Face configuration, with the model's number of blocks or another."""
        kind: Any = CONFIG_MAPPING[self.family]
        renamed: Mapping[str, str] = kind.attribute_map
        settings = {**self.settings, "num_hidden_layers": blocks or self.blocks}
        config: PretrainedConfig = kind(**{renamed.get(name, name): value for name, value in settings.items()})
        config._attn_implementation = attention
        return config

    def on_meta(self, *, attention: str = "sdpa") -> PreTrainedModel:
        """The model without storage: shapes and names are its own, values there are none."""
        with torch.device("meta"):
            return cast(PreTrainedModel, AutoModelForCausalLM.from_config(self.config(attention=attention)))


ARCHITECTURES: Mapping[str, Architecture] = {
    source: Architecture(source=source, **content) for source, content in read_yaml("measures", "architectures").items()
}
"""By checkpoint."""
GPT2, GPT2_XL, OPT, LLAMA_2 = (
    ARCHITECTURES[source] for source in ("gpt2", "gpt2-xl", "facebook/opt-1.3b", "meta-llama/Llama-2-7b-hf")
)
TABLE_2 = (
    GPT2.source,
    OPT.source,
    "openchat/openchat_3.5",
    "Qwen/Qwen1.5-1.8B",
    LLAMA_2.source,
    "meta-llama/Meta-Llama-3-8B",
)
"""The rows of Table 2, in its order."""


def adapted(model_type: str) -> Targets:
    """The linear maps that Table 3 adapts, by its parameter column: all of Qwen's, two of the others'."""
    return "all-linear" if model_type.startswith("qwen") else "query-value"


# ---------------------------------------------------------------- counting


class Held(Spec):
    """What the customer holds of a model, in numbers of parameters.

    Attributes:
        tail: Blocks above the upper cut, with the final norm and the head; `None` for no tail.
        positions: What else stands before the first block: position embeddings, projections.
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

    def fits(self, millions: float) -> tuple[str, ...]:
        """What a number of Table 2's column can be the count of, to its printed digit; empty where nothing fits."""
        readings = {"the bottom": 0, "the bottom and its adapter": self.adapter}
        return tuple(
            name
            for name, more in readings.items()
            if more is not None and rounded(self.parameters + more, 6) == str(millions)
        )

    def adapter_fits(self, thousands: float | None) -> bool | None:
        """Whether a number of Table 3's column is the adapter's to its printed digit; `None` where there is none."""
        if thousands is None or self.adapter is None:
            return None
        return rounded(self.adapter, 3) == str(thousands)


def count(
    architecture: Architecture,
    *,
    bottom: int = 1,
    tail: int | None = None,
    rank: int = LORA_RANK,
    model: PreTrainedModel | None = None,
) -> Held:
    """Counts what the customer holds and trains; the paper's columns count no tail, nor the head.

    `model` is the architecture on the meta device, given where several cuts are counted.

    Raises:
        ModelError: The cut leaves the vendor no block.
        ConfigError: There is no block to adapt.
    """
    if bottom < 1:
        raise ConfigError([Fault("bottom", bottom, "must be at least 1: below a block nothing is adapted")])
    model = model or architecture.on_meta()
    parts = split(model, Cut(bottom=bottom, tail=tail))
    below = cast(Bottom, parts.bottom)
    shared = {id(parameter) for parameter in below.parameters()}
    table, blocks = below.table.numel(), total(below.block_parameters())
    above = total(each for each in ([] if parts.tail is None else parts.tail.parameters()) if id(each) not in shared)
    trained = [below, *([parts.tail] if parts.tail is not None and tail else [])]
    adapters = [] if architecture.lora is None else [adapted_part(part, architecture.lora, rank) for part in trained]
    return Held(
        architecture=architecture.title,
        bottom=bottom,
        tail=tail,
        table=table,
        positions=total(below.parameters()) - table - blocks,
        blocks=blocks,
        above=above,
        adapter=sum(total(each for each in part.parameters() if each.requires_grad) for part in adapters) or None,
        whole=total(model.parameters()),
    )


def adapted_part(part: P, targets: Targets, rank: int) -> P:
    """A part with LoRA on its blocks, for counting: nobody reads its values."""
    return attach_lora(part, rank=rank, alpha=2 * rank, dropout=0.0, targets=targets, seed=0)


def total(parameters: Iterable[nn.Parameter]) -> int:
    """How many numbers, tied weights once."""
    return sum(parameter.numel() for parameter in {id(each): each for each in parameters}.values())


def rounded(value: int, power: int, *, digits: int = 1) -> str:
    """A count in millions (6) or thousands (3) to some digits; halves go up, as they do in print."""
    return str(Decimal(value).scaleb(-power).quantize(Decimal(1).scaleb(-digits), ROUND_HALF_UP))


class CountCell(Cell):
    """What customers of some decoders, by checkpoint, hold and train at some depths."""

    architectures: tuple[str, ...]
    bottoms: tuple[int, ...]

    def run(self, lab: Lab) -> Rows[Held]:
        rows = []
        for architecture in (ARCHITECTURES[source] for source in self.architectures):
            model = architecture.on_meta()
            rows += [count(architecture, bottom=bottom, model=model) for bottom in self.bottoms]
        return Rows[Held](rows=tuple(rows))

    def measures(self, result: Rows[Held]) -> Iterator[Measure]:
        for row in result.rows:
            axes: dict[str, Level] = {"model": row.architecture, "bottom": row.bottom}
            yield Measure("parameters", row.parameters, axes=axes)
            if row.adapter is not None:
                yield Measure("trained with LoRA", row.adapter, axes=axes)
                yield Measure("trained share", row.adapter / row.parameters, axes=axes)


# ---------------------------------------------------------------- §4.1.2


class NetworkSizeCell(Cell):
    """Parameters of the networks that §4.1.2 compares, built in plain torch on the meta device."""

    def run(self, lab: Lab) -> Rows[Measure]:
        with torch.device("meta"):
            small, large, imagenet = UnsplitCnn(), resnet_152(classes=10), resnet_152(classes=1000)
        linear = max(total(each.parameters()) for each in small.modules() if isinstance(each, nn.Linear))
        first, second, *_ = (total(each.parameters()) for each in small.convolutions)
        bottom, *_, top = (total(each.parameters()) for each in bottlenecks(large))
        thousand, gpt2 = total(imagenet.parameters()), count(GPT2)
        rows = {
            "UnSplit's CNN": (total(small.parameters()), "six convolutions and two linear layers, ten classes"),
            "UnSplit's CNN, one layer": (
                first, f"its first convolution; the second has {second:,}, the largest linear layer {linear:,}",
            ),
            "ResNet-152": (
                total(large.parameters()),
                f"with a head for CIFAR-10's ten classes; ImageNet's thousand make {thousand:,}",
            ),
            "ResNet-152, one layer": (
                bottom, f"its first bottleneck, three convolutions and the shortcut's; the last has {top:,}",
            ),
            "GPT-2, one block": (
                gpt2.blocks,
                f"with table and positions {gpt2.parameters:,}, which is what compares with ResNet-152",
            ),
        }  # fmt: skip
        counts = (Measure("parameters", n, note=note, axes={"what": what}) for what, (n, note) in rows.items())
        return Rows[Measure](rows=tuple(counts))
