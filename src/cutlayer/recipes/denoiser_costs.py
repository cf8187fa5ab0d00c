"""What embeddings denoised at home cost: the customer's part against the whole model, by shape.

A text is embedded by models with random weights and denoised by their denoisers, in fp32. The customer looks up the
text's rows and denoises; Split-and-Denoise counts the same. Operations are those of matrix products and attention, as
PyTorch counts them; memory is what weights take.

Ref: Split-and-Denoise, A.9, Table 12 and Figure 5, arXiv:2310.09130.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode
from transformers import (
    AutoModel,
    BertConfig,
    DistilBertConfig,
    GPT2Config,
    PretrainedConfig,
    PreTrainedModel,
    T5Config,
    T5EncoderModel,
)

from cutlayer.core import Ragged, Rows, Spec
from cutlayer.core.denoiser import DenoiserKind, DenoiserSpec, light_shape, paper_shape
from cutlayer.core.timing import interleaved
from cutlayer.models.denoiser import Denoiser, build_denoiser
from cutlayer.recipes.lab import Cell, Lab
from cutlayer.recipes.long_table import Level, Measure
from cutlayer.recipes.options import Named
from cutlayer.wire import WireType
from cutlayer.wire.tensors import encode_tensors, pack

TOKENS: Final = 128
SECONDS: Final = 8.0
"""Of the whole model's turns, about; a model that takes longer has the fewest turns."""
TURNS: Final = 3, 30
"""The fewest, and the most."""
KINDS: Final[tuple[DenoiserKind, ...]] = ("paper", "light")


def _bert(width: int, blocks: int, heads: int) -> BertConfig:
    return BertConfig(
        hidden_size=width, num_hidden_layers=blocks, num_attention_heads=heads, intermediate_size=4 * width
    )


def _t5(width: int, blocks: int, heads: int) -> T5Config:
    return T5Config(d_model=width, num_layers=blocks, num_heads=heads, d_kv=64, d_ff=4 * width)


def _gpt2(width: int, blocks: int, heads: int) -> GPT2Config:
    return GPT2Config(n_embd=width, n_layer=blocks, n_head=heads)


SHAPES: dict[str, PretrainedConfig] = {
    "minilm": _bert(384, 6, 12),
    "distilbert": DistilBertConfig(),
    "bert-base": _bert(768, 12, 12),
    "bert-large": _bert(1024, 24, 16),
    "t5-small": _t5(512, 6, 8),
    "t5-base": _t5(768, 12, 12),
    "t5-large": _t5(1024, 24, 16),
    "gpt2-small": _gpt2(768, 12, 12),
    "gpt2-medium": _gpt2(1024, 24, 16),
    "gpt2-large": _gpt2(1280, 36, 20),
    "gpt2-xl": _gpt2(1600, 48, 25),
}


def whole_model(config: PretrainedConfig) -> PreTrainedModel:
    """A model's base without a head, with random weights; of an encoder-decoder its encoder, which embeds alone."""
    model: Any = T5EncoderModel(config) if isinstance(config, T5Config) else AutoModel.from_config(config)
    return model.eval()  # type: ignore[no-any-return]


def denoiser_of(config: PretrainedConfig, kind: DenoiserKind) -> Denoiser:
    """The denoiser of a model's embeddings, with random weights."""
    width = config.hidden_size
    shape: DenoiserSpec = light_shape(width=width)
    if kind == "paper":
        shape = paper_shape(config.model_type, blocks=config.num_hidden_layers, width=width)
    denoiser = build_denoiser(shape).eval()
    if torch.get_default_device().type != "meta":
        denoiser.draw(0)
    return denoiser


def noisy_text(width: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """What a denoiser takes: an embedding `[1, width]`, rows and noise `[1, tokens, width]`, a mask `[1, tokens]`."""
    rows, noise = torch.randn(2, 1, TOKENS, width)
    return torch.randn(1, width), rows, noise, torch.ones(1, TOKENS, dtype=torch.bool)


@dataclass(frozen=True)
class Cost:
    """What something takes.

    Attributes:
        operations: Of matrix products and attention, for one text.
        bytes: Of weights.
    """

    operations: int
    bytes: int


def counted(modules: nn.Module, run: Callable[[], object]) -> Cost:
    """The cost of modules and of one run of them."""
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        run()
    return Cost(counter.get_total_flops(), sum(each.numel() * each.element_size() for each in modules.parameters()))


def counts(config: PretrainedConfig) -> dict[str, Cost]:
    """What the model, its token table and its denoisers take, found without memory or arithmetic."""
    eager = type(config)(**{**config.to_diff_dict(), "attn_implementation": "eager"})
    with torch.device("meta"):
        model, ids = whole_model(eager), torch.zeros(1, TOKENS, dtype=torch.int64)
        found = {"whole": counted(model, lambda: model(input_ids=ids))}
        table: nn.Module = model.get_input_embeddings()
        found["table"] = counted(table, lambda: table(ids))
        for kind in KINDS:
            denoiser, given = denoiser_of(config, kind), noisy_text(config.hidden_size)
            found[kind] = counted(denoiser, lambda denoiser=denoiser, given=given: denoiser(*given))  # type: ignore[misc]
    return found


@torch.no_grad()
def seconds(config: PretrainedConfig) -> dict[str, float]:
    """Median seconds of the whole model, and of a customer with each denoiser."""
    model, ids = whole_model(config), torch.randint(0, config.vocab_size, (1, TOKENS))
    table = model.get_input_embeddings()
    noisy, _, noise, mask = noisy_text(config.hidden_size)
    runs: dict[str, Callable[[], object]] = {"whole": lambda: model(input_ids=ids)}
    for kind in KINDS:
        denoiser = denoiser_of(config, kind)
        runs[kind] = lambda denoiser=denoiser: denoiser(noisy, table(ids) + noise, noise, mask)  # type: ignore[misc]
    runs["whole"]()
    start = time.perf_counter()
    runs["whole"]()
    turns = min(TURNS[1], max(TURNS[0], round(SECONDS / (time.perf_counter() - start))))
    return interleaved(runs, rounds=turns)


class Costs(Spec):
    """What a shape takes: by `whole`, `table`, `paper` and `light`.

    Attributes:
        operations: For one text.
        bytes: Of weights.
        seconds: Medians; of a denoiser with the look-up of rows.
        up: Bytes of the text's rows on the wire, without headers.
        down: The same of its embedding.
    """

    operations: dict[str, int]
    bytes: dict[str, int]
    seconds: dict[str, float]
    up: int
    down: int


class CostCell(Cell):
    """What a text of 128 tokens costs at a shape of model, with each denoiser and without one.

    Attributes:
        shape: One of `SHAPES`.
    """

    shape: str

    @property
    def name(self) -> str:
        return f"cost-{self.shape}-s{self.seed}"

    def check(self, lab: Lab) -> None:
        super().check(lab)
        _ = Named("shape", SHAPES)[self.shape]

    def run(self, lab: Lab) -> Costs:
        config = SHAPES[self.shape]
        lab.progress.update("cost", 0, 1, self.shape)
        counted_of, took = counts(config), seconds(config)
        width = config.hidden_size
        rows = Rows(Ragged(torch.randn(TOKENS, width), torch.tensor([TOKENS])), torch.tensor([[TOKENS]]))
        return Costs(
            operations={name: cost.operations for name, cost in counted_of.items()},
            bytes={name: cost.bytes for name, cost in counted_of.items()},
            seconds=took,
            up=len(encode_tensors(pack(rows, vocab_size=config.vocab_size, wire_type=WireType.BF16))),
            down=len(encode_tensors({"output": torch.randn(1, width)})),
        )

    def measures(self, result: Costs) -> Iterator[Measure]:
        whole = result.bytes["whole"]
        for name in ("whole", *KINDS):
            denoiser = name != "whole"
            axes: dict[str, Level] = {"method": _TITLES[name]}
            taken = result.bytes[name] + (result.bytes["table"] if denoiser else 0)
            yield Measure("seconds", result.seconds[name], axes=axes)
            yield Measure("of the time", result.seconds[name] / result.seconds["whole"], axes=axes)
            yield Measure("of the operations", result.operations[name] / result.operations["whole"], axes=axes)
            yield Measure("memory", taken, axes=axes)
            yield Measure("of the memory", taken / whole, axes=axes)
            if denoiser:
                yield Measure("both, seconds", result.seconds[name] + result.seconds["whole"], axes=axes)
                yield Measure("sent", result.up + result.down, axes=axes)


_TITLES: Final = {"whole": "whole model at home", "paper": "SnD", "light": "SnD, light"}
