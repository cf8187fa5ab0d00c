"""Prints the equivalence table as Markdown: `python -m tests.equivalence.table`.

Largest absolute differences between Hugging Face's whole model and the cut one, fp32, one thread
count, over a fixed grid of cuts, heads, paddings and attention kernels.
"""

from __future__ import annotations

import sys
from itertools import product

import torch

from cutlayer.core import Cut
from cutlayer.models import Head
from tests.equivalence.checks import (
    Case,
    compare_adapters,
    compare_step,
    compare_training,
    generate_split,
    generate_whole,
)
from tests.equivalence.test_step import heads
from tests.equivalence.zoo import ATTENTION, CONFIGURATIONS, ENCODERS, make_model, shared_model

STEP_CUTS = tuple(Cut(bottom=bottom, tail=tail) for bottom, tail in product((None, 0, 1, 3), (None, 0)))
TRAINING_CUTS = (Cut(bottom=0), Cut(bottom=2), Cut(bottom=1, tail=1))
GENERATION_CUTS = (Cut(bottom=0, tail=0), Cut(bottom=1, tail=1), Cut(bottom=2))
COLUMNS = ("logits", "loss", "gradients", "loss, 20 steps", "weights, 20 steps", "LoRA, 20 steps", "tokens equal")


def row(name: str) -> dict[str, str]:
    """One configuration's differences."""
    worst: dict[str, float] = {}

    def note(found: dict[str, float]) -> None:
        for key, value in found.items():
            worst[key] = max(worst.get(key, 0.0), value)

    for head, cut, padding, attention in product(heads(name), STEP_CUTS, ("right", "left"), ATTENTION):
        case = Case(name, head, cut, padding=padding, attention=attention)
        note(compare_step(shared_model(name, head, attention), case))
    for head, cut in product(heads(name), TRAINING_CUTS):
        model = make_model(name, head)
        full = compare_training(model, Case(name, head, cut))
        lora = compare_adapters(model, Case(name, head, cut))
        note({"loss, 20 steps": max(full["loss"], lora["loss"]), "weights, 20 steps": full["parameters"]})
        note({"LoRA, 20 steps": lora["parameters"]})
    cells = {key: f"{value:.0e}" if value else "0" for key, value in worst.items()}
    return cells | {"tokens equal": "–" if name in ENCODERS else generation(name)}


def generation(name: str) -> str:
    """How many greedily generated tokens agree."""
    equal = total = 0
    for cut, attention in product(GENERATION_CUTS, ATTENTION):
        model = shared_model(name, Head.LANGUAGE, attention)
        case = Case(name, Head.LANGUAGE, cut, padding="left", attention=attention)
        same = generate_split(model, case, tokens=24) == generate_whole(model, case, tokens=24)
        equal, total = equal + int(same.sum()), total + same.numel()
    return f"{equal} / {total}"


def main() -> None:
    """Prints the table."""
    torch.set_num_threads(1)
    out = sys.stdout.write
    out(f"| configuration | {' | '.join(COLUMNS)} |\n|---|{'---|' * len(COLUMNS)}\n")
    for name in CONFIGURATIONS:
        cells = row(name)
        out(f"| {name} | {' | '.join(cells[column] for column in COLUMNS)} |\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
