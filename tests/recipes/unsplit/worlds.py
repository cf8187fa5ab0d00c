"""A decoder, data sets and settings small enough to run the study's cells in a second or two."""

from __future__ import annotations

import gzip
import json
import random

from cutlayer.customer import Method, TrainSpec
from cutlayer.recipes.unsplit.runs import Corpus, RunCell

CORPUS = Corpus(title="words", name="words", split="test")
PUBLIC = Corpus(title="others", name="words", split="public")


def write_words(folder, *splits, name="words"):
    rng = random.Random(5)
    (folder / name).mkdir(parents=True, exist_ok=True)
    for split in splits:
        rows = [" ".join(f"w{rng.randrange(290)}" for _ in range(rng.randint(2, 9))) for _ in range(400)]
        lines = "".join(json.dumps({"text": row}) + "\n" for row in rows)
        (folder / name / f"{split}.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    return folder


def training(**changes):
    return TrainSpec.language(
        **{"method": Method.FULL, "max_length": 8, "batch_size": 2, "epochs": 1, "dropout": False, **changes}
    )


def run_cell(recorder, **changes):
    base = {"bottom": 1, "training": training(), "iterations": 3, "kept": (1, 3), "seed": 0}
    return RunCell(**{"model": recorder.model, "corpus": CORPUS, **base, **changes})


def two_iterations(recorder, **changes):
    kept = {"checkpoint_every": 1, **changes}
    return run_cell(recorder, training=training(**kept), iterations=2, kept=(2,), keeps_weights=True)
