"""How long a language model in three parts takes over loopback HTTP, against the whole model in one process.

Run it with `python -m benchmarks.split_lm`. It starts a real vendor process on GPT-2 architectures with random
weights: what they compute is noise, and takes the time that it takes. Both sides may use all cores, or the GPU where
there is one.

Ratios, each for GPT-2's own size (124 M) and, with `_small`, for six blocks of width 256 (7 M):
    training_vs_whole: A step of full fine-tuning, bottom 1 and tail 0 at the customer, 8 blocks of 128 tokens.
    generation_vs_whole: A token of greedy generation after a prompt of 32, ledger commits included.
"""

from __future__ import annotations

import math
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from benchmarks.results import write
from benchmarks.turns import Turns
from cutlayer import vendor
from cutlayer.core import Cut
from cutlayer.customer import Client, FullTuning, Sampling, Training
from cutlayer.customer.connection import choose_device
from cutlayer.data import Dataset
from cutlayer.vendor.process import VendorProcess

TURN = 2
"""Steps in a row on one side; then the other takes as many."""
WARM_UP = 1
BATCH, BLOCK = 8, 128
PROMPT, TOKENS = 32, 64
ROUNDS = 5


@dataclass(frozen=True)
class Size:
    """A GPT-2 architecture."""

    blocks: int
    width: int
    heads: int
    vocabulary: int
    steps: int


SIZES = {
    "": Size(blocks=12, width=768, heads=12, vocabulary=50257, steps=12),
    "_small": Size(blocks=6, width=256, heads=4, vocabulary=8192, steps=40),
}


def write_model(size: Size, folder: Path) -> GPT2LMHeadModel:
    """A random model without dropout, with a tokenizer of a token a word."""
    torch.manual_seed(1)
    config = GPT2Config(
        vocab_size=size.vocabulary,
        n_positions=256,
        n_embd=size.width,
        n_layer=size.blocks,
        n_head=size.heads,
        resid_pdrop=0,
        embd_pdrop=0,
        attn_pdrop=0,
        bos_token_id=0,
        eos_token_id=0,
    )
    model = GPT2LMHeadModel(config)
    model.save_pretrained(folder)
    words = {word: number for number, word in enumerate(["<end>", "<unk>", *(f"w{n}" for n in range(2000))])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<end>", eos_token="<end>", model_max_length=256
    ).save_pretrained(folder)
    return model


def text(n: int, seed: int) -> str:
    """`n` random words."""
    numbers = torch.randint(2000, (n,), generator=torch.Generator().manual_seed(seed))
    return " ".join(f"w{number}" for number in numbers.tolist())


class Whole:
    """Full fine-tuning of the whole model in one process."""

    def __init__(self, model: GPT2LMHeadModel) -> None:
        self._model = model.train()
        self._optimiser = torch.optim.AdamW(model.parameters(), lr=5e-6)
        batch = torch.randint(2, 2000, (BATCH, BLOCK), generator=torch.Generator().manual_seed(2))
        self._batch = batch.to(model.device)

    def step(self) -> float:
        """One step; returns its seconds."""
        began = time.perf_counter()
        loss = self._model(input_ids=self._batch, labels=self._batch, use_cache=False).loss
        loss.backward()
        self._optimiser.step()
        self._optimiser.zero_grad()
        loss.item()  # a GPU has done all of it by then
        return time.perf_counter() - began


@torch.no_grad()
def whole_token(model: GPT2LMHeadModel, prompt: torch.Tensor) -> float:
    """Seconds a token of the whole model, with its cache, by the plainest loop there is."""
    model.eval()
    began = time.perf_counter()
    cache, ids = None, prompt.to(model.device)
    for _ in range(TOKENS):
        out = model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
        cache, ids = out.past_key_values, out.logits[:, -1].argmax(-1, keepdim=True)
        ids.item()  # whoever writes reads each token
    return (time.perf_counter() - began) / TOKENS


def measure(size: Size, at: Path) -> tuple[float, float]:
    """Both ratios for one architecture."""
    at.mkdir()
    model = write_model(size, at / "model")
    nn.Module.to(model, choose_device("auto"))  # as the split run's parties do
    vendor.init(at / "vendor", models=[f"gpt2={at / 'model'}"])
    key = vendor.keys.create(at / "vendor", "benchmark")
    with VendorProcess(at / "vendor") as process:
        client = Client(process.url, key, home=at / "home")
        turns = Turns([Whole(model)], steps=TURN)
        corpus = Dataset((((text(BATCH * BLOCK * size.steps - 1, 3)),),))
        result = client.finetune(
            corpus,
            objective="lm",
            dev=Dataset(((text(2 * BLOCK, 4),),)),
            eta=math.inf,
            training=Training(epochs=1, batch_size=BATCH, max_length=BLOCK, save_steps=10_000),
            tuning=FullTuning(),
            seed=1,
            progress=turns,
            cut=Cut(bottom=1, tail=0),
        )
        (whole_turns,) = turns.whole
        training = statistics.median(
            ours / theirs for ours, theirs in zip(turns.split[WARM_UP:], whole_turns[WARM_UP:], strict=True)
        )
        split_step, whole_step = (1000 * statistics.median(each[WARM_UP:]) for each in (turns.split, whole_turns))
        print(
            f"{size.blocks} blocks of width {size.width}: a step {split_step:.0f} ms split, {whole_step:.0f} ms whole"
        )
        prompt = text(PROMPT, 5)
        ids = torch.tensor([[2 + int(word[1:]) for word in prompt.split()]])
        sampling = Sampling(greedy=True, max_new_tokens=TOKENS)
        ratios, split, whole = [], [], []
        for number in range(ROUNDS + WARM_UP):
            written = client.generate(result.adapter_id, prompt, sampling=sampling)[0]
            theirs = whole_token(model, ids)
            if number >= WARM_UP:
                split.append(written.seconds / written.round_trips)
                whole.append(theirs)
                ratios.append(split[-1] / theirs)
        print(f"a token {1000 * statistics.median(split):.1f} ms split, {1000 * statistics.median(whole):.1f} ms whole")
        client.close()
    return training, statistics.median(ratios)


def main() -> None:
    """Measures both sizes and writes `benchmarks/results/split_lm.json`."""
    ratios: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        for suffix, size in SIZES.items():
            training, generation = measure(size, Path(folder) / f"size{suffix}")
            ratios |= {f"training_vs_whole{suffix}": training, f"generation_vs_whole{suffix}": generation}
    write("split_lm", ratios)


if __name__ == "__main__":
    main()
