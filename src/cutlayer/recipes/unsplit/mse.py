"""Figures 13 and 14: the two errors over an attack, of what it can see and of what it wants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cutlayer.recipes.picture import save_picture
from cutlayer.recipes.unsplit.cells import AttackCell, Stage
from cutlayer.recipes.unsplit.findings import Verdict, correlation
from cutlayer.recipes.unsplit.grid import Grid, Setup
from cutlayer.recipes.unsplit.report import PartReport, Results
from cutlayer.reports import Table

_RELATED = 0.5
"""A correlation above which two errors are called related here."""
_CLAIM = "§4.2: the error of outputs and the error of inputs do not go together."


def mse_attacks(grid: Grid) -> Mapping[str, tuple[AttackCell, ...]]:
    """Table 2's attacks and one of Table 4's, by name."""
    return {
        "Table 2, iteration 1": grid.attack(Setup(), 1),
        "Table 2, iteration 2": grid.attack(Setup(), 2),
        "Table 4, TextGenerator": grid.attack(Setup(corpus="textgenerator"), 2),
    }


def mse_report(
    attacks: Mapping[str, Sequence[AttackCell]], results: Results, folder: Path, *, model: str
) -> PartReport:
    """Table, plot and correlation of the two errors.

    Args:
        attacks: By name; of several seeds the first is drawn.
        results: Finished cells.
        folder: Where the plot is written.
        model: What was attacked.
    """
    lines = {name: results.attacked[cells[0]].history for name, cells in attacks.items()}
    related = {name: _related(history) for name, history in lines.items()}
    known = [value for value in related.values() if value is not None]
    verdict = Verdict(
        claim=_CLAIM,
        held=None if not known else max(known) < _RELATED,
        because="correlation of their logarithms over outer iterations "
        + ", ".join(f"{_two(value)} ({name})" for name, value in related.items())
        + f"; {_RELATED} and more counts as going together.",
    )
    table = Table(
        title="Figures 13 and 14: MSE of outputs and of inputs",
        columns=(
            "attack",
            "outer iterations",
            "outputs, first",
            "outputs, last",
            "inputs, first",
            "inputs, last",
            "tokens read (%)",
            "correlation",
        ),
        rows=tuple(
            (
                name,
                str(len(history)),
                *(f"{value:.3g}" for value in _ends(history)),
                f"{100 * history[-1].accuracy:.1f}",
                _two(related[name]),
            )
            for name, history in lines.items()
        ),
        notes=(
            "First and last: after the first outer iteration and after the last. Inputs are x' against the public "
            "table's rows of the true tokens. Correlation: of the logarithms, over outer iterations.",
            "The paper prints for GPT-2's first iteration 0.055 (outputs), 0.18 (inputs) and 82.57 % of tokens; for "
            "Llama 2's second 0.0055 (outputs) and 0.879 %. What an error of inputs means depends on the table's own "
            "size, so these do not compare between models.",
            str(verdict),
        ),
    )
    picture = "figure-13.png"
    _draw(lines, folder / picture, model=model)
    content = {
        "histories": {name: [stage.model_dump() for stage in history] for name, history in lines.items()},
        "correlation": related,
        "verdicts": [verdict.model_dump()],
    }
    return PartReport((table,), content, (picture,))


def _related(history: Sequence[Stage]) -> float | None:
    return correlation([stage.mse_outputs for stage in history], [stage.mse_inputs for stage in history])


def _ends(history: Sequence[Stage]) -> tuple[float, float, float, float]:
    first, last = history[0], history[-1]
    return first.mse_outputs, last.mse_outputs, first.mse_inputs, last.mse_inputs


def _two(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def _draw(lines: Mapping[str, Sequence[Stage]], path: Path, *, model: str) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5 * len(lines), 4.4), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(f"Figures 13 and 14 on {model}")
    named: dict[str, Any] = {}
    for number, (name, history) in enumerate(lines.items(), start=1):
        axes = figure.add_subplot(1, len(lines), number)
        at = [stage.number for stage in history]
        axes.plot(at, [stage.mse_outputs for stage in history], "-", color="#1f77b4", label="MSE of outputs")
        axes.plot(at, [stage.mse_inputs for stage in history], "--", color="#d95f02", label="MSE of inputs")
        axes.set_yscale("log")
        axes.set(title=name, xlabel="outer iteration")
        axes.grid(alpha=0.3)
        handles, labels = axes.get_legend_handles_labels()
        named |= dict(zip(labels, handles, strict=True))
    figure.legend(list(named.values()), list(named), loc="outside lower center", ncols=2, fontsize=8)
    save_picture(figure, path)
