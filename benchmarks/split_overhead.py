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
from pathlib import Path

import torch
from torch import nn

from benchmarks.corpora import sentences
from benchmarks.results import write
from cutlayer import vendor
from cutlayer.core import Cut, Tokens
from cutlayer.customer import Client, TrainSpec
from cutlayer.customer.order import epoch_batches
from cutlayer.data import Dataset, tokenise
from cutlayer.models import Head, Template, attach_lora, load_model, load_tokenizer, split
from cutlayer.models.optimiser import Optimiser
from cutlayer.vendor.process import VendorProcess

TURN = 15
"""Steps in a row on one side."""
TEXTS = 3200
BATCH = 32
WARM_UP = 5


class Whole:
    """Ordinary PEFT training in one process: the reference.

    Args:
        frozen_blocks: Blocks below the adapter; they run, but are not adapted.
        tokens: The texts.
        labels: Their labels.
    """

    def __init__(self, frozen_blocks: int, tokens: Tokens, labels: torch.Tensor) -> None:
        model = load_model("starter", head=Head.CLASSIFICATION, num_labels=2)
        self._template = Template.from_tokenizer(load_tokenizer("starter"))
        parts = split(model, Cut(bottom=frozen_blocks or None))
        self._bottom = parts.bottom
        self._top = attach_lora(parts.top, rank=8, alpha=16, dropout=0, num_labels=2, seed=1)
        self._top.train()
        trained = {name: value for name, value in self._top.named_parameters() if value.requires_grad}
        self._optimiser = Optimiser(trained, learning_rate=3e-4, weight_decay=0.01, warmup_steps=0, total_steps=10_000)
        self._tokens, self._labels = tokens, labels
        lengths = self._template.segment_lengths(tokens).sum(1)
        # the batches that the split run makes, of about one length each
        self._order = epoch_batches(lengths, batch_size=BATCH, seed=1, epoch=0, group_by_length=True)
        self._step = 0

    def step(self) -> float:
        """One step; returns its seconds."""
        batch = self._order[self._step % (len(self._order) - 1)]
        self._step += 1
        began = time.perf_counter()
        inputs = self._template.assemble(self._tokens.select(batch))
        hidden = None if self._bottom is None else self._bottom(inputs)
        nn.functional.cross_entropy(self._top(inputs, hidden), self._labels[batch]).backward()
        self._optimiser.step()
        return time.perf_counter() - began


class Turns:
    """Progress of the split run that stops its clock while the references take their turns."""

    def __init__(self, references: list[Whole]) -> None:
        self._references = references
        self.whole: list[list[float]] = [[] for _ in references]
        self.split: list[float] = []
        self._last = 0.0

    def update(self, stage: str, done: int, total: int, note: str = "") -> None:
        """Called after each step of the split run."""
        if not stage.startswith("epoch"):
            return
        now = time.perf_counter()
        if done > 1:
            self.split.append(now - self._last)
        if done % TURN == 0:
            for reference, seconds in zip(self._references, self.whole, strict=True):
                seconds += [reference.step() for _ in range(TURN)]
        self._last = time.perf_counter()


def measure(url: str, key: str, home: Path, data: Dataset, *, bottom: int) -> dict[str, float]:
    """Median seconds a step: split, and whole with and without the frozen blocks adapted."""
    tokens = tokenise(data, load_tokenizer("starter"), max_content=254)
    labels = torch.tensor([int(label) for label in data.labels or ()])
    references = [Whole(bottom, tokens, labels)] + ([Whole(0, tokens, labels)] if bottom else [])
    turns = Turns(references)
    client = Client(url, key, home=home)
    client.finetune(
        data,
        eta=math.inf,
        bottom=bottom,
        training=TrainSpec(epochs=1, batch_size=BATCH, dev_share=0.01),
        seed=1,
        progress=turns,
    )
    client.close()
    found = {"split": statistics.median(turns.split[WARM_UP:])}
    for name, seconds in zip(("whole", "all_adapted"), turns.whole, strict=False):
        found[name] = statistics.median(seconds[WARM_UP:])
    return found


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
    for name, found in (("ids", ids), ("3 frozen blocks", frozen)):
        print(name, {key: f"{1000 * seconds:.1f} ms" for key, seconds in found.items()})
    write(
        "split_overhead",
        {
            "loopback_vs_whole": ids["split"] / ids["whole"],
            "frozen3_vs_whole": frozen["split"] / frozen["whole"],
            "frozen3_vs_all_adapted": frozen["split"] / frozen["all_adapted"],
        },
    )


if __name__ == "__main__":
    main()
