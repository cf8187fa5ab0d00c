"""Parts of the recipe without a model: from made-up results of their cells."""

from __future__ import annotations

import random
from types import SimpleNamespace

from cutlayer.models import Kind
from cutlayer.recipes.boundary_attacks import Attacked, Inverted, InverterCell, Processed, Reading, Stage, UnsplitCell
from cutlayer.recipes.lab import Outcomes
from cutlayer.recipes.measures.parameters import CountCell
from cutlayer.recipes.options import Size
from cutlayer.recipes.recipe import long_table
from cutlayer.recipes.study import Results
from cutlayer.recipes.unsplit import RECIPE

TEXTS = ("the quick brown fox", "jumps over the lazy dog")


def made_up_lab(size=Size.TINY, *, blocks=6, limit=1024, seeds=1, model_type="gpt2"):
    """What declaring parts asks of a lab."""
    model = SimpleNamespace(
        source="m",
        fingerprint="f" * 64,
        family=SimpleNamespace(kind=Kind.DECODER),
        blocks=blocks,
        limit=limit,
        whole=SimpleNamespace(config=SimpleNamespace(model_type=model_type)),
    )
    return SimpleNamespace(options=SimpleNamespace(size=size, seeds=seeds), model=lambda head=None: model)


def declared(name, size=Size.TINY, **lab):
    return RECIPE._parts[name](RECIPE.config, made_up_lab(size, **lab))


def told(name, found, size=Size.TINY, **lab):
    """A part's tables and results, where `found` gives a cell's result, or nothing."""
    part = declared(name, size, **lab)
    cells = {each.cell: result for each in part.scenarios if (result := found(each.cell)) is not None}
    frame = long_table({name: part}, Outcomes(cells))
    results = Results(frame, cells, part.scenarios, same_texts=part.same_texts)
    tables = []
    for each in part.tables:
        tables += [each.table(results)] if hasattr(each, "table") else each(results)
    return tables, results


def verdicts(name, found, size=Size.TINY, **lab):
    results = told(name, found, size, **lab)[1]
    return [verdict for claim in declared(name, size, **lab).claims for verdict in claim(results)]


def reading(share, **changes):
    """What an attack made of `TEXTS`, 64 tokens each."""
    right = tuple(round(share * 64) for _ in TEXTS)
    texts = {"true": TEXTS, "guessed": TEXTS[::-1]}
    return Reading(**{**texts, "right": right, "counted": (64, 64), "shuffled": (0, 1), "chance": 0.01, **changes})


def attacks(share=lambda cell: 0.9 if cell.iteration == 1 else 0.01):
    """Results of a part's cells, by the share of tokens that each reads."""
    rng = random.Random(0)

    def found(cell):
        if isinstance(cell, UnsplitCell):
            errors = [{"mse_outputs": 1 / n, "mse_inputs": 1 + rng.random()} for n in range(1, 5)]
            stages = [Stage(number=n, accuracy=share(cell), **each) for n, each in enumerate(errors, start=1)]
            return Attacked(reading=reading(share(cell)), history=tuple(stages), seconds=1)
        if isinstance(cell, InverterCell):
            return Inverted(stages={"guessed": reading(share(cell))}, public_accuracy=0.5, seconds=1)
        return cell.run(None) if isinstance(cell, CountCell) else Processed(tensors=9, changed=0)

    return found
