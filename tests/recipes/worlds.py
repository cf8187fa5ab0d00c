"""A folder of public data sets and a model, both small enough to run whole recipes on."""

from __future__ import annotations

import gzip
import json
import random

import torch
from transformers import T5Config, T5ForConditionalGeneration

from cutlayer.data import Dataset
from cutlayer.models import load_tokenizer
from cutlayer.recipes.options import Size
from cutlayer.recipes.sap import RECIPE, Scale
from cutlayer.recipes.tasks import Limits

LABELS = 2


class Quiet:
    """Progress that only remembers the cells."""

    def __init__(self):
        self.cells = []

    def update(self, stage, done, total, note=""):
        if stage == "cells" and done:
            self.cells.append(note)


def sentences(n, *, seed, pairs=False):
    """Texts of the tiny model's words; the label shows in which half of the words a text uses more."""
    rng = random.Random(seed)
    rows = []
    for number in range(n):
        label = number % LABELS
        sides = [
            " ".join(f"w{rng.randrange(100) + 100 * (label if rng.random() < 0.8 else 1 - label)}" for _ in range(6))
            for _ in range(1 + pairs)
        ]
        rows.append((*sides, label))
    return rows


def dataset(n, *, seed):
    rows = sentences(n, seed=seed)
    return Dataset(tuple((text,) for text, _ in rows), tuple(str(label) for _, label in rows))


def write_split(folder, name, split, rows, columns):
    path = folder / name / f"{split}.jsonl.gz"
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = "".join(json.dumps(dict(zip(columns, row, strict=True))) + "\n" for row in rows)
    path.write_bytes(gzip.compress(lines.encode()))


def write_data(folder):
    """The two data sets of `small_config`."""
    for split, n in (("train", 120), ("dev", 40)):
        write_split(folder, "sst2", split, sentences(n, seed=n), ("text", "label"))
    for split, n in (("train", 100), ("test", 30)):
        write_split(folder, "mrpc", split, sentences(n, seed=n + 1, pairs=True), ("text_a", "text_b", "label"))
    return folder


def small_config():
    """The recipe's own settings, cut down to two data sets, two eta0 and two epochs."""
    config = RECIPE.config
    return config.model_copy(
        update={
            "tasks": tuple(
                task.model_copy(update={"dev_share": 0.1}) for task in config.tasks if task.name in ("sst2", "mrpc")
            ),
            "replaced": (0.75, 0.25),
            "depths": config.depths.model_copy(
                update={
                    "figure_4": (0, 1, 3),
                    "table_2": (1,),
                    "text": config.depths.text.model_copy(update={"name": "sst2", "part": "dev"}),
                }
            ),
            "sizes": {
                Size.SMALL: Scale(limits=Limits(train=64), training={"epochs": 2, "patience": 2}, attacked_tokens=64)
            },
        }
    )


def write_tiny_t5(folder):
    """A tiny T5 without training, that reads and writes with the starter's tokenizer; its folder's path."""
    tokenizer = load_tokenizer("starter")
    tokenizer.eos_token = tokenizer.sep_token
    torch.manual_seed(0)
    config = T5Config(
        vocab_size=len(tokenizer), d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4,
        pad_token_id=tokenizer.pad_token_id, eos_token_id=tokenizer.eos_token_id,
        decoder_start_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    T5ForConditionalGeneration(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)
