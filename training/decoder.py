"""Trains the embedded decoder: `python -m training.decoder --books FOLDER --out FOLDER`.

A small GPT-2, with a byte-level BPE tokenizer of its own, on public-domain books; a modified Kneser-Ney
trigram on the same tokens says whether it is a real model. Stop it and start it again: it goes on at
its last checkpoint, with the same batches. A run takes three to four hours on two CPU cores.

The blocks' matrices are trained by Muon, everything else by AdamW; the rates rise over a hundred steps,
stay, and fall linearly to zero over the second half. Matrix products are in bf16. Dropout is off while
training, as hardly any token is seen three times; the saved configuration has GPT-2's own 0.1, which is
what fine-tuning expects.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from tokenizers import Tokenizer
from torch import Tensor, nn
from transformers import GenerationConfig, GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from training.books import END, PAD, SPLITS, encode, read_books, train_tokenizer
from training.card import Card
from training.kneser_ney import KneserNey

VOCABULARY = 8192
CONTEXT = 1024
BATCH = 4
WARMUP = 100
CLIP = 1.0
MUON_RATE = 4e-3
ADAMW_RATE = 2e-3
CHECKPOINT_EVERY = 100


def configuration(*, dropout: float) -> GPT2Config:
    """About 7.1 million parameters: six blocks of width 256."""
    return GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=CONTEXT,
        n_embd=256,
        n_layer=6,
        n_head=4,
        resid_pdrop=dropout,
        embd_pdrop=dropout,
        attn_pdrop=dropout,
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=1,
    )


class Run:
    """A training run and its checkpoint.

    Args:
        ids: The training text, `[n]`.
        steps: Updates in all.
        seed: Initialisation and batches.
        file: The checkpoint; what is there is resumed.
    """

    def __init__(self, ids: Tensor, *, steps: int, seed: int, file: Path) -> None:
        self.ids = ids
        self.steps = steps
        self.seed = seed
        self.file = file
        self.done = 0
        self.seconds = 0.0
        torch.manual_seed(seed)
        self.model = GPT2LMHeadModel(configuration(dropout=0.0))
        named = dict(self.model.named_parameters())
        matrices = {name: value for name, value in named.items() if ".h." in name and value.ndim == 2}
        others = [value for name, value in named.items() if name not in matrices]
        self.optimisers: list[tuple[torch.optim.Optimizer, float]] = [
            (torch.optim.Muon(matrices.values(), weight_decay=0.1, adjust_lr_fn="match_rms_adamw"), MUON_RATE),
            (torch.optim.AdamW(others, betas=(0.9, 0.95), weight_decay=0.0, fused=True), ADAMW_RATE),
        ]
        if file.exists():
            self._load()

    def rate(self, step: int) -> float:
        """Share of the highest rate after `step` updates."""
        return min(1.0, (step + 1) / WARMUP, 2 * (self.steps - step) / self.steps)

    def batch(self, step: int) -> Tensor:
        """`[BATCH, CONTEXT + 1]`, a function of the seed and the step."""
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + step)
        starts = torch.randint(len(self.ids) - CONTEXT - 1, (BATCH,), generator=generator)
        return torch.stack([self.ids[start : start + CONTEXT + 1] for start in starts.tolist()]).long()

    def train(self) -> None:
        """Takes the steps that are left."""
        self.model.train()
        while self.done < self.steps:
            started = time.monotonic()
            loss = losses(self.model, self.batch(self.done), bf16=True).mean()
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), CLIP)
            for optimiser, highest in self.optimisers:
                optimiser.param_groups[0]["lr"] = highest * self.rate(self.done)
                optimiser.step()
                optimiser.zero_grad()
            self.done += 1
            self.seconds += time.monotonic() - started
            if self.done % 20 == 0:
                pace = self.seconds / self.done
                print(f"step {self.done}/{self.steps} loss {loss.item():.3f} {pace:.2f} s a step", flush=True)
            if self.done % CHECKPOINT_EVERY == 0 or self.done == self.steps:
                self._save()

    def _tensors(self) -> dict[str, Tensor]:
        tensors = {f"model/{name}": value.detach() for name, value in self.model.named_parameters()}
        for number, (optimiser, _) in enumerate(self.optimisers):
            for place, parameter in enumerate(optimiser.param_groups[0]["params"]):
                for name, value in optimiser.state.get(parameter, {}).items():
                    tensors[f"optimiser/{number}/{place}/{name}"] = torch.as_tensor(value)
        return tensors

    def _save(self) -> None:
        notes = {"done": self.done, "seconds": self.seconds, "steps": self.steps, "seed": self.seed}
        temporary = self.file.with_suffix(".partial")
        content = safetensors.torch.save(self._tensors(), {"run": json.dumps(notes)})
        temporary.write_bytes(content)
        os.replace(temporary, self.file)

    def _load(self) -> None:
        with safetensors.safe_open(self.file, framework="pt") as file:
            notes = json.loads((file.metadata() or {})["run"])
            if (notes["steps"], notes["seed"]) != (self.steps, self.seed):
                raise SystemExit(f"{self.file} is of a run with {notes['steps']} steps and seed {notes['seed']}.")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
        self.done, self.seconds = notes["done"], notes["seconds"]
        with torch.no_grad():
            for name, value in self.model.named_parameters():
                value.copy_(tensors[f"model/{name}"])
        for number, (optimiser, _) in enumerate(self.optimisers):
            for place, parameter in enumerate(optimiser.param_groups[0]["params"]):
                prefix = f"optimiser/{number}/{place}/"
                state: dict[str, Any] = {
                    name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)
                }
                if state:
                    optimiser.state[parameter] = state


def losses(model: GPT2LMHeadModel, ids: Tensor, *, bf16: bool = False) -> Tensor:
    """Negative log-likelihoods `[batch, seq - 1]` of all ids but the first of each row, in nats."""
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        logits = model(ids[:, :-1], use_cache=False).logits
    return nn.functional.cross_entropy(logits.float().transpose(1, 2), ids[:, 1:], reduction="none")


@torch.no_grad()
def perplexity(model: GPT2LMHeadModel, ids: Tensor) -> float:
    """Of all ids but the first, each with at least half a context before it where the text has as much."""
    model.eval()
    half = CONTEXT // 2
    total = 0.0
    for start in range(0, len(ids) - 1, half):
        first = max(0, start - half)
        window = ids[first : start + half + 1].long()
        total += float(losses(model, window[None])[0, start - first :].double().sum())
    return math.exp(total / (len(ids) - 1))


def main() -> None:
    """Trains, measures and saves."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--books", type=Path, required=True, help="folder of train_part1, train_part2, dev, test")
    parser.add_argument("--out", type=Path, required=True, help="the model's folder, with the checkpoint meanwhile")
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    file = options.out / "tokenizer.json"
    if not file.exists():
        train_tokenizer(read_books(options.books, "train"), size=VOCABULARY).save(str(file))
    tokenizer = Tokenizer.from_file(str(file))
    ids = {split: encode(tokenizer, read_books(options.books, split)) for split in SPLITS}
    tensors = {split: torch.from_numpy(part.astype(np.int32)) for split, part in ids.items()}
    run = Run(tensors["train"], steps=options.steps, seed=options.seed, file=options.out / "checkpoint.safetensors")
    run.train()

    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=END, eos_token=END, pad_token=PAD, model_max_length=CONTEXT
    )
    fast.save_pretrained(options.out)
    saved = GPT2LMHeadModel(configuration(dropout=0.1))
    saved.load_state_dict(run.model.state_dict())
    saved.generation_config = GenerationConfig(bos_token_id=0, eos_token_id=0, pad_token_id=1)
    saved.half().save_pretrained(options.out)
    read = GPT2LMHeadModel.from_pretrained(options.out, dtype=torch.float32)
    trigram = KneserNey.fit(ids["train"], vocabulary=VOCABULARY)
    card = Card(
        parameters=sum(parameter.numel() for parameter in read.parameters()),
        tokens={split: len(part) for split, part in ids.items()},
        steps=run.steps,
        tokens_per_step=BATCH * CONTEXT,
        seed=run.seed,
        hours=run.seconds / 3600,
        perplexity={split: perplexity(read, tensors[split]) for split in ("dev", "test")},
        trigram={split: trigram.perplexity(ids[split]) for split in ("dev", "test")},
    )
    (options.out / "README.md").write_text(card.render(), encoding="utf-8")
    print(card.render())


if __name__ == "__main__":
    main()
