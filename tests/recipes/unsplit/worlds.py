"""A decoder, data sets and settings small enough to run the study's cells in a second or two."""

from __future__ import annotations

import gzip
import json
import random

from cutlayer.customer import Method, TrainSpec
from cutlayer.customer.progress import Silent
from cutlayer.recipes.lab import Lab
from cutlayer.recipes.options import RecipeOptions, Size
from cutlayer.recipes.recordings import SplitRun
from cutlayer.recipes.tasks import TextFile

CORPUS = TextFile(name="words", part="test")
PUBLIC = TextFile(name="words", part="public")


def write_words(folder, *splits, name="words"):
    rng = random.Random(5)
    (folder / name).mkdir(parents=True, exist_ok=True)
    for split in splits:
        rows = [" ".join(f"w{rng.randrange(290)}" for _ in range(rng.randint(2, 9))) for _ in range(400)]
        lines = "".join(json.dumps({"text": row}) + "\n" for row in rows)
        (folder / name / f"{split}.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    return folder


def open_lab(model, data, out, **options):
    return Lab(RecipeOptions(**{"size": Size.TINY, "model": str(model), "data": data, "out": out, **options}), Silent())


def training(**changes):
    return TrainSpec.language(
        **{"method": Method.FULL, "max_length": 8, "batch_size": 2, "epochs": 1, "dropout": False, **changes}
    )


def split_run(lab, **changes):
    base = {"bottom": 1, "training": training(), "iterations": 3, "kept": (1, 3), "seed": 0}
    return SplitRun(**{"model": lab.model(head=None).fingerprint, "corpus": CORPUS, **base, **changes})


def two_iterations(lab, **changes):
    kept = {"checkpoint_every": 1, **changes}
    return split_run(lab, training=training(**kept), iterations=2, kept=(2,), keeps_weights=True)
