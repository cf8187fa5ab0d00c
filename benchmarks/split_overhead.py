"""How long a training step takes over loopback HTTP, against the same training in one process.

Run it with `python -m benchmarks.split_overhead`. It starts a real vendor process, fine-tunes MiniLM
with LoRA on sentences, and takes turns: some steps over the wire, some whole steps in this process.

Ratios:
    loopback_vs_whole: Frozen table, token ids up once, LoRA on all blocks, against ordinary PEFT.
    frozen3_vs_whole: Three frozen blocks at the customer, released once, LoRA on the other three;
        against one process that runs all six blocks and trains the same adapter.
    frozen3_vs_all_adapted: The same split run against LoRA on all six blocks in one process.
"""

from __future__ import annotations

import math
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from transformers import get_linear_schedule_with_warmup

from benchmarks.corpora import sentences
from benchmarks.results import write
from benchmarks.turns import Turns
from cutlayer import vendor
from cutlayer.attacks import Transcript
from cutlayer.core import Cut
from cutlayer.customer import Client, Lora, Objective, Training
from cutlayer.customer.connection import choose_device
from cutlayer.customer.defaults import settle_training
from cutlayer.customer.order import Order
from cutlayer.data import Dataset
from cutlayer.models import Head, load_model, load_tokenizer
from cutlayer.models.batches import epoch_batches
from cutlayer.recipes.reference.classifier import Batches
from cutlayer.recipes.reference.fit import order_without_privacy, tuned_whole
from cutlayer.vendor.process import VendorProcess
from cutlayer.wire import routes

TURN = 10
"""Steps in a row on one side; then the other takes the same batches."""
TEXTS = 3200
BATCH = 32
MAX_LENGTH = 256
WARM_UP = 1
"""Turns that do not count."""


class Whole:
    """Ordinary training in one process, by Hugging Face, PEFT and PyTorch alone: the reference.

    Args:
        frozen_blocks: Blocks below the adapter; they run, but are not adapted.
        data: The texts that the split run trains on.
        order: In which its customer takes them.

    Attributes:
        longest: Positions of each batch's longest text.
    """

    def __init__(self, frozen_blocks: int, data: Dataset, order: Order) -> None:
        data = data.select(order.of(data.texts))
        settings = settle_training(Training(), Objective.CLASSIFICATION, Lora())
        whole = load_model("starter", head=Head.CLASSIFICATION, num_labels=2)
        device = choose_device("auto")  # as the split run's parties do
        self._model = tuned_whole(whole, Lora(), bottom=frozen_blocks, num_labels=2, seed=1).to(device)
        self._model.train()
        trained = [parameter for parameter in self._model.parameters() if parameter.requires_grad]
        self._optimiser = torch.optim.AdamW(trained, lr=settings.learning_rate, weight_decay=settings.weight_decay)
        self._schedule = get_linear_schedule_with_warmup(self._optimiser, 0, 10_000)
        batches = Batches(load_tokenizer("starter"), MAX_LENGTH, device)
        labels = torch.tensor([int(label) for label in data.labels or ()], device=device)
        taken = epoch_batches(batches.lengths(data), batch_size=BATCH, rng=order.generator(0), group_by_length=True)
        # tokenised before the clock runs, as it is on the other side
        self._batches = [(batches.of([data.texts[i] for i in rows.tolist()]), labels[rows]) for rows in taken]
        self.longest = [int(batch["input_ids"].shape[1]) for batch, _ in self._batches]
        self._step = 0

    def step(self) -> float:
        """One step; returns its seconds."""
        batch, labels = self._batches[self._step % len(self._batches)]
        self._step += 1
        began = time.perf_counter()
        loss = nn.functional.cross_entropy(self._model(**batch).logits, labels)
        loss.backward()
        self._optimiser.step()
        self._schedule.step()
        self._optimiser.zero_grad()
        loss.item()  # a GPU has done all of it by then
        return time.perf_counter() - began


@dataclass(frozen=True)
class Found:
    """Seconds a step, a number for each turn.

    Attributes:
        split: Over loopback HTTP.
        whole: The same job in one process.
        all_adapted: One process that adapts all blocks; empty where that is the same job.
    """

    split: list[float]
    whole: list[float]
    all_adapted: list[float]

    def ratio(self, reference: list[float]) -> float:
        """Median over the turns of split to reference."""
        return statistics.median(ours / theirs for ours, theirs in zip(self.split, reference, strict=True))

    def __str__(self) -> str:
        """Median seconds a step."""
        named = {"split": self.split, "whole": self.whole, "all adapted": self.all_adapted}
        parts = [f"{name} {1000 * statistics.median(turns):.1f} ms" for name, turns in named.items() if turns]
        return ", ".join(parts) + f" a step ({len(self.split)} turns of {TURN})"


def longest(transcript: Transcript) -> list[int]:
    """Positions of the longest text of each step, special tokens included, as they crossed the wire."""
    lengths: list[int] = []
    found = []
    for frame in transcript:
        tensors = frame.tensors()
        if frame.route is routes.SHARD_PUT:
            specials = 2 if "ids" in tensors else 0  # [CLS] and [SEP] are sent as rows, not as ids
            lengths += (tensors["lengths"].sum(1) + specials).tolist()
        elif frame.route is routes.STEP and "records" in tensors:
            found.append(max(lengths[number] for number in tensors["records"].tolist()))
    return found


def measure(url: str, key: str, home: Path, data: Dataset, *, bottom: int) -> Found:
    """Seconds a step: split, and whole with and without the frozen blocks adapted."""
    train, dev = data.split_off(0.01, seed=1)
    order = order_without_privacy(home, 1)
    references = [Whole(bottom, train, order)] + ([Whole(0, train, order)] if bottom else [])
    turns = Turns(references, steps=TURN)
    client = Client(url, key, home=home)
    result = client.finetune(
        train,
        dev=dev,
        eta=math.inf,
        training=Training(epochs=1, batch_size=BATCH, max_length=MAX_LENGTH),
        seed=1,
        progress=turns,
        cut=Cut(bottom=bottom),
    )
    client.close()
    if longest(Transcript.recorded(result.folder / "transcript")) != references[0].longest:
        raise RuntimeError("the two sides took other batches, so their times do not compare")
    whole, *rest = [seconds[WARM_UP:] for seconds in turns.whole]
    return Found(turns.split[WARM_UP:], whole, rest[0] if rest else [])


def main() -> None:
    """Runs both cases and writes `benchmarks/results/split_overhead.json`."""
    data = sentences(TEXTS)
    with tempfile.TemporaryDirectory() as folder:
        at = Path(folder)
        vendor.init(at / "vendor", models=["starter"])
        key = vendor.keys.create(at / "vendor", "benchmark")
        with VendorProcess(at / "vendor") as process:
            ids = measure(process.url, key, at / "ids", data, bottom=0)
            frozen = measure(process.url, key, at / "frozen", data, bottom=3)
    print(f"ids: {ids}")
    print(f"3 frozen blocks: {frozen}")
    write(
        "split_overhead",
        {
            "loopback_vs_whole": ids.ratio(ids.whole),
            "frozen3_vs_whole": frozen.ratio(frozen.whole),
            "frozen3_vs_all_adapted": frozen.ratio(frozen.all_adapted),
        },
    )


if __name__ == "__main__":
    main()
