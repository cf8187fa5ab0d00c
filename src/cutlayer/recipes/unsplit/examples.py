"""Table 1: original text beside reconstructions at about the paper's four accuracies."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict

from cutlayer.recipes.unsplit.cells import AttackCell
from cutlayer.recipes.unsplit.grid import Grid, Setup
from cutlayer.recipes.unsplit.paper import PAPER
from cutlayer.recipes.unsplit.report import PartReport, Results
from cutlayer.reports import Table

SHOWN = 128
"""Characters: "we display only the first 128 characters" (§3.3.1)."""

_STEPS = (1, 5, 20, 50)
"""Of x' alone: attacks that are stopped so early read a part."""


class ReadText(BaseModel):
    """A line of Table 1.

    Attributes:
        wanted: The paper's accuracy.
        accuracy: Ours, of the whole text that is nearest to it.
        original: Its first characters.
        reconstructed: Those of the reconstruction.
        steps: Of the attack.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    wanted: float
    accuracy: float
    original: str
    reconstructed: str
    steps: str


def example_attacks(grid: Grid) -> tuple[AttackCell, ...]:
    """The first iteration's attack, and the same stopped early."""
    early = [grid.rows.model_copy(update={"outer_iterations": 1, "inner_inputs": steps}) for steps in _STEPS]
    return tuple(cell for spec in (*early, grid.rows, grid.paper) for cell in grid.attack(Setup(), 1, spec))


def examples_report(cells: Sequence[AttackCell], results: Results) -> PartReport:
    """For each of the paper's accuracies the text that was read about as well."""
    read = [
        (100 * right / counted, true, guessed, _steps(cell))
        for cell in cells
        for reading in [results.attacked[cell].reading]
        for right, counted, true, guessed in zip(
            reading.right, reading.counted, reading.true, reading.guessed, strict=True
        )
    ]
    lines = []
    for example in PAPER.table_1.examples:
        accuracy, true, guessed, steps = min(read, key=lambda each: abs(each[0] - example.accuracy))
        lines.append(
            ReadText(
                wanted=example.accuracy,
                accuracy=accuracy,
                original=_shown(true),
                reconstructed=_shown(guessed),
                steps=steps,
            )
        )
    table = Table(
        title="Table 1: texts and their reconstructions",
        columns=(
            "accuracy (%)",
            "attack",
            "original",
            "reconstructed",
            "the paper's accuracy (%)",
            "the paper's reconstruction",
        ),
        rows=tuple(
            (
                f"{line.accuracy:.1f}",
                line.steps,
                line.original,
                line.reconstructed,
                f"{line.wanted:g}",
                f"{example.text} ({example.run})",
            )
            for line, example in zip(lines, PAPER.table_1.examples, strict=True)
        ),
        notes=(
            f"The first {SHOWN} characters of the text whose accuracy is nearest to the paper's, of all texts read by "
            "these attacks on the first iteration; x' × n are n steps on x'. The paper's original: "
            f"{PAPER.table_1.original}",
        ),
    )
    return PartReport(
        (table,), {"examples": [line.model_dump() for line in lines], "paper": PAPER.table_1.model_dump()}
    )


def _steps(cell: AttackCell) -> str:
    spec = cell.spec
    inputs, weights = (spec.outer_iterations * each for each in (spec.inner_inputs, spec.inner_weights))
    return f"x' × {inputs}" + (f", θ × {weights}" if weights else "")


def _shown(text: str) -> str:
    return " ".join(text.split())[:SHOWN]
