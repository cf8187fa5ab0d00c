"""Table 1: original text beside reconstructions at about the paper's four accuracies."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from cutlayer.attacks import text_overlap
from cutlayer.core import DataError
from cutlayer.recipes.picture import save_picture
from cutlayer.recipes.unsplit.cells import AttackCell
from cutlayer.recipes.unsplit.findings import Verdict
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
        rouge_1: Of the whole text's words, in per cent.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    wanted: float
    accuracy: float
    original: str
    reconstructed: str
    steps: str
    rouge_1: float


def example_attacks(grid: Grid) -> tuple[AttackCell, ...]:
    """The first iteration's attack, and the same stopped early."""
    early = [grid.rows.model_copy(update={"outer_iterations": 1, "inner_inputs": steps}) for steps in _STEPS]
    return tuple(cell for spec in (*early, grid.rows, grid.paper) for cell in grid.attack(Setup(), 1, spec))


def examples_report(cells: Sequence[AttackCell], results: Results, *, folder: Path, model: str) -> PartReport:
    """For each of the paper's accuracies the text that was read about as well.

    Args:
        cells: The attacks.
        results: Their outcomes.
        folder: Where the plot is written.
        model: What was attacked, for the heading.

    Raises:
        StorageError: The plot cannot be written.
    """
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
                rouge_1=100 * _words(true, guessed),
            )
        )
    verdict = _judged(lines)
    _draw(cells, results, folder / "table-1.png", model=model)
    table = Table(
        title="Table 1: texts and their reconstructions",
        columns=(
            "accuracy (%)",
            "R-1 (%)",
            "attack",
            "original",
            "reconstructed",
            "the paper's accuracy (%)",
            "the paper's reconstruction",
        ),
        rows=tuple(
            (
                f"{line.accuracy:.1f}",
                f"{line.rouge_1:.1f}",
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
            str(verdict),
        ),
    )
    content = {
        "examples": [line.model_dump() for line in lines],
        "paper": PAPER.table_1.model_dump(),
        "verdicts": [verdict.model_dump()],
    }
    return PartReport((table,), content, ("table-1.png",))


def _judged(lines: Sequence[ReadText]) -> Verdict:
    """No number says what a reader can tell, so this one is left to them."""
    below = [line for line in lines if line.accuracy < 50]
    best = max(below, key=lambda line: line.accuracy, default=None)
    return Verdict(
        claim="§4.2: where less than 50 % is read it is hard to tell what the text was.",
        held=None,
        because="no text was read so little."
        if best is None
        else f"of the text that was read to {best.accuracy:.1f} %, ROUGE-1 is {best.rouge_1:.1f} %; whether its words "
        "tell what it was about is for a reader of the table to say.",
    )


def _words(true: str, guessed: str) -> float:
    """ROUGE-1 of one text; 0 where it has no word."""
    try:
        return text_overlap([true], [guessed]).rouge1.value
    except DataError:
        return 0.0


def _draw(cells: Sequence[AttackCell], results: Results, path: Path, *, model: str) -> None:
    """Draws how well each text was read by each attack, and the accuracies that the paper shows."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, 4.8), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    readings = [results.attacked[cell].reading for cell in cells]
    for text in range(len(readings[0].right)):
        shares = [100 * reading.right[text] / reading.counted[text] for reading in readings]
        axes.plot(range(len(cells)), shares, "o-", markersize=4, label=f"text {text + 1}")
    for example in PAPER.table_1.examples:
        axes.axhline(example.accuracy, color="0.6", linestyle=":", linewidth=1)
    axes.plot([], [], ":", color="0.6", label="the paper's examples")
    axes.set_xticks(range(len(cells)), [_steps(cell) for cell in cells], rotation=20)
    axes.set(ylabel="tokens read (%)", ylim=(-2, 102))
    axes.set_title(f"Table 1: texts read by attacks that are stopped early\non {model}", fontsize=10)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    save_picture(figure, path)


def _steps(cell: AttackCell) -> str:
    spec = cell.spec
    inputs, weights = (spec.outer_iterations * each for each in (spec.inner_inputs, spec.inner_weights))
    return f"x' × {inputs}" + (f", θ × {weights}" if weights else "")


def _shown(text: str) -> str:
    return " ".join(text.split())[:SHOWN]
