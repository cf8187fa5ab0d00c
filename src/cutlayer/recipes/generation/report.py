"""What the recipe prints: a table over eta, a page of text, and a plot."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from cutlayer.core import Proportion
from cutlayer.recipes.generation.cells import GenerationCell, Results, Tuned
from cutlayer.recipes.picture import save_picture
from cutlayer.reports import Table
from cutlayer.reports.table import percent


def tables(results: Results, *, seeds: int) -> tuple[Table, ...]:
    """Perplexity and recovery over eta, and what the first seed's models write.

    Args:
        results: Of all cells.
        seeds: How many runs of each cell there are; each has a row.
    """
    columns = (
        "model", "eta", "seed", "perplexity before, dev", "perplexity, test", "tokens replaced, %",
        "true tokens read from rows, %", "from gradients, %", "of its answers, %",
    )  # fmt: skip
    rows = tuple(_row(cell, found) for cell, found in results.tuned.items())
    notes = (
        "Every column is per token. Noise replaces tokens on their way up; the tokens to be predicted stay the true "
        "ones, at the customer. Test texts are noised as training texts are: a query leaves, too.",
        "Read from rows: by a search from the left with the vendor's own blocks, scored against the true tokens. Read "
        "from gradients and answers: see docs/explanation/sharp-edges.md. Noise below does not protect what the loss "
        "says above.",
        *_findings(results),
    )
    return (
        Table(title="Perplexity and recovery over eta", columns=columns, rows=rows, notes=notes),
        _page(results),
    )


def _row(cell: GenerationCell, found: Tuned) -> tuple[str, ...]:
    whole = cell.bottom is None
    return (
        "whole, in one process" if whole else "split",
        "–" if whole else "∞" if math.isinf(cell.eta) else f"{cell.eta:g}",
        str(cell.seed),
        f"{found.before:.1f}",
        str(found.perplexity),
        percent(found.replaced),
        _share(found.rows),
        _share(found.gradients),
        _share(found.answers),
    )


def _share(found: Proportion | None) -> str:
    return "–" if found is None else f"{found.percent()} (n = {found.n})"


def _findings(results: Results) -> tuple[str, ...]:
    """Whether more noise cost more, in the first seed's runs."""
    first = [(cell.eta, found) for cell, found in results.tuned.items() if cell.bottom is not None and cell.seed == 0]
    ordered = sorted(first, key=lambda pair: -pair[0])
    values = [found.perplexity.value for _, found in ordered]
    rises = all(earlier <= later for earlier, later in pairwise(values))
    said = "rose with every step of noise" if rises else "did not rise with every step of noise"
    clear, noisiest = ordered[0][1], ordered[-1][1]
    return (
        f"Perplexity {said}: from {clear.perplexity.value:.1f} without noise to {noisiest.perplexity.value:.1f} at "
        f"eta {ordered[-1][0]:g}, where {percent(noisiest.replaced)} % of tokens were replaced.",
    )


def _page(results: Results) -> Table:
    """The first seed's continuations."""
    rows = []
    for number, prompt in enumerate(results.prompts):
        for cell, found in results.tuned.items():
            if cell.seed == 0 and cell.bottom is not None:
                eta = "∞" if math.isinf(cell.eta) else f"{cell.eta:g}"
                rows.append((_line(prompt), eta, _line(found.texts[number])))
    return Table(title="A page of text", columns=("prompt", "eta", "what the tuned model writes"), rows=tuple(rows))


def _line(text: str) -> str:
    return " ".join(text.split())


def content(results: Results) -> Mapping[str, Any]:
    """The same for machines."""
    return {
        "calibration": [
            {"wanted": point.wanted, "eta": point.eta, "replaced": point.replaced, "n": point.n}
            for point in results.calibrated
        ],
        "prompts": list(results.prompts),
        "cells": [
            {"cell": cell.model_dump(mode="json"), "result": found.model_dump(mode="json")}
            for cell, found in results.tuned.items()
        ],
    }


def draw(results: Results, path: Path, *, model: str) -> None:
    """Perplexity, and tokens read from rows, over eta.

    Args:
        results: Of all cells.
        path: The picture.
        model: Its name, for the title.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    split = [(cell, found) for cell, found in results.tuned.items() if cell.bottom is not None]
    labels = list(dict.fromkeys(cell.eta for cell, _ in sorted(split, key=lambda pair: pair[0].eta)))
    for seed in sorted({cell.seed for cell, _ in split}):
        own = {cell.eta: found for cell, found in split if cell.seed == seed}
        left.errorbar(
            range(len(labels)),
            [own[eta].perplexity.value for eta in labels],
            [own[eta].perplexity.standard_error for eta in labels],
            marker="o",
            label=f"seed {seed}",
        )
        read = [own[eta].rows for eta in labels]
        places = [place for place, each in enumerate(read) if each is not None]
        shares = [each for each in read if each is not None]
        right.errorbar(
            places, [100 * each.value for each in shares], [100 * each.standard_error for each in shares], marker="o"
        )
    for cell, found in results.tuned.items():
        if cell.bottom is None and cell.seed == 0:
            left.axhline(found.perplexity.value, linestyle="--", color="grey", label="whole model, no noise")
    _label(left, labels, "test perplexity per token")
    _label(right, labels, "true tokens read from rows, %")
    left.legend()
    figure.suptitle(f"Noise on tokens and a language model's text: {model}")
    save_picture(figure, path)


def _label(axes: Any, etas: Sequence[float], what: str) -> None:
    axes.set_xticks(range(len(etas)), ["∞" if math.isinf(eta) else f"{eta:g}" for eta in etas])
    axes.set_xlabel("eta")
    axes.set_ylabel(what)
    axes.grid(alpha=0.3)
