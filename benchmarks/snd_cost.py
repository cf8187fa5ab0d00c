"""What a customer of Split-and-Denoise computes and holds at home, against the whole model.

Run it with `python -m benchmarks.snd_cost`; `--shapes` measures some alone. A text of 128 tokens is embedded by each of
the models of the paper's Table 8, and by MiniLM, and denoised by its denoisers, all with random weights in fp32. They
take turns. The customer looks up the text's rows and denoises; the paper counts the same. Operations are those of
matrix products and attention, as PyTorch counts them. Memory is what weights take; of the customer also the token
table, which is left out in brackets.

Ratios, by shape:
    paper_denoiser_time: Seconds with the paper's denoiser, against the whole model.
    paper_denoiser_memory: Bytes of table and denoiser, against the whole model.
    light_denoiser_time: The same with the light denoiser.
    light_denoiser_memory: The same.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

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

from benchmarks.results import interleaved, write
from cutlayer.core.denoiser import DenoiserKind, DenoiserSpec, light_shape, paper_shape
from cutlayer.models.denoiser import Denoiser, build_denoiser

TOKENS = 128
SECONDS = 8.0
"""Of the whole model's turns, about; a model that takes longer has the fewest turns."""
TURNS = 3, 30
"""The fewest, and the most."""
KINDS: tuple[DenoiserKind, ...] = ("paper", "light")
PAPER = {"time": 0.047, "memory": 0.065}
"""What SnD says of GPT-2 XL (A.9, Figure 5)."""


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


def main() -> None:
    """Measures and writes `benchmarks/results/snd_cost.json`."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--shapes", nargs="+", default=list(SHAPES), choices=list(SHAPES), help="All by default.")
    shapes = parser.parse_args().shapes
    ratios: dict[str, dict[str, float]] = {f"{kind}_denoiser_{what}": {} for kind in KINDS for what in PAPER}
    print(f"One text of {TOKENS} tokens, against the whole model:")
    print(f"{'model':16} {'denoiser':9} operations    time              memory (without the table)")
    for shape in shapes:
        count, took = counts(SHAPES[shape]), seconds(SHAPES[shape])
        gc.collect()  # two large models must not be there at once
        whole = count["whole"]
        for kind in KINDS:
            time_ratio = took[kind] / took["whole"]
            memory = (count[kind].bytes + count["table"].bytes) / whole.bytes
            ratios[f"{kind}_denoiser_time"][shape] = time_ratio
            ratios[f"{kind}_denoiser_memory"][shape] = memory
            print(
                f"{shape:16} {kind:9} {count[kind].operations / whole.operations:10.1%} {time_ratio:8.1%}"
                f"  {1e3 * took[kind]:7.1f} ms {memory:7.1%} ({count[kind].bytes / whole.bytes:.1%})"
            )
    if "gpt2-xl" in shapes:
        _beside_the_paper(ratios)
    for kind in KINDS:
        slow = [shape for shape, ratio in ratios[f"{kind}_denoiser_time"].items() if ratio >= 1]
        print(
            f"Better run at home than denoised by the {kind} denoiser, which takes longer: {', '.join(slow) or 'none'}."
        )
    write("snd_cost", ratios)


def _beside_the_paper(ratios: dict[str, dict[str, float]]) -> None:
    for what, told in PAPER.items():
        ours = ", ".join(f"{kind} {ratios[f'{kind}_denoiser_{what}']['gpt2-xl']:.1%}" for kind in KINDS)
        print(f"GPT-2 XL, {what}: the paper says {told:.1%} of its denoiser; measured here: {ours}.")
    print(
        "Table 8's shape alone, counted above, takes more of GPT-2 XL's operations and values than the paper says of "
        "all that a user does; it does not tell how it measured."
    )


if __name__ == "__main__":
    main()
