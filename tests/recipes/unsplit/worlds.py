"""A decoder, data sets and settings small enough to run the study's cells in a second or two."""

from __future__ import annotations

import gzip
import json
import random

from cutlayer.customer import FullTuning, Objective
from cutlayer.customer.progress import Silent
from cutlayer.recipes.lab import Lab
from cutlayer.recipes.options import RecipeOptions, Size
from cutlayer.recipes.recordings import SplitRun
from cutlayer.recipes.tasks import TextFile
from cutlayer.recipes.training import settled

CORPUS = TextFile(name="words", part="test")
PUBLIC = TextFile(name="words", part="public")
FULL = FullTuning()


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


def trained(tuning=FULL, **changes):
    """How a run's model is trained, and which weights of it."""
    said = {"max_length": 8, "batch_size": 2, "epochs": 1, "dropout": False, **changes}
    return {"tuning": tuning, "training": settled(Objective.LM, tuning, said)}


def split_run(lab, **changes):
    base = {"bottom": 1, **trained(), "iterations": 3, "kept": (1, 3), "seed": 0}
    return SplitRun(**{"model": lab.model(head=None).fingerprint, "corpus": CORPUS, **base, **changes})


def two_iterations(lab, **changes):
    return split_run(lab, **trained(**{"save_steps": 1, **changes}), iterations=2, kept=(2,), keeps_weights=True)
