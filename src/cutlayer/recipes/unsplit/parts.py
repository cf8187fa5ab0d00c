"""The parts of the recipe by the names that `--only` takes: which cells each needs, and its report."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from cutlayer.customer import Method, TrainSpec
from cutlayer.recipes.unsplit.beside import BESIDE
from cutlayer.recipes.unsplit.cells import AttackCell, Experiment, InverterCell
from cutlayer.recipes.unsplit.counted import figure_5_report, model_scale_report
from cutlayer.recipes.unsplit.examples import example_attacks, examples_report
from cutlayer.recipes.unsplit.findings import Verdict
from cutlayer.recipes.unsplit.grid import Grid, Setup
from cutlayer.recipes.unsplit.likeness import (
    LikenessCell,
    client_costs,
    cost_cell,
    costs_report,
    likeness,
    likeness_report,
)
from cutlayer.recipes.unsplit.mse import mse_attacks, mse_report
from cutlayer.recipes.unsplit.paper import PAPER, Scores
from cutlayer.recipes.unsplit.parameters import (
    adapted,
    columns,
    columns_table,
)
from cutlayer.recipes.unsplit.report import PartReport, Results, printed, report_study
from cutlayer.recipes.unsplit.studies import PAPERS
from cutlayer.recipes.unsplit.tails import TailCell, tail_readings, tails_report
from cutlayer.reports import Table

STUDIES = {**PAPERS, **BESIDE}
"""Parts that are attacks."""

PARTS = (
    "table-1",
    "table-2",
    "table-3",
    "table-4",
    "table-5",
    "figure-3",
    "figure-4",
    "figure-5",
    "figure-6",
    "figure-7",
    "figure-9",
    "figure-11",
    "figure-13",
    "figure-15",
    "figure-22",
    "model-scale",
    "tail",
    "second-iteration",
    "public-first",
    "inverter",
    "controls",
)
"""All of them, in the order of the report."""

OTHER_NAMES: Mapping[str, str] = {
    "figure-8": "figure-7",
    "figure-10": "figure-9",
    "figure-12": "figure-11",
    "figure-14": "figure-13",
    **{f"figure-{number}": "table-5" for number in range(16, 22)},
}
"""Figures of the paper that are one part here: it draws GPT-2 and OPT apart, and Table 5's heat maps."""


@dataclass(frozen=True)
class Part:
    """A part of the recipe.

    Attributes:
        attacks: UnSplit's cells that it needs.
        inversions: The inverter's.
        report: Its tables, JSON and pictures from finished cells.
    """

    report: Callable[[Results], PartReport]
    attacks: tuple[AttackCell, ...] = ()
    inversions: tuple[InverterCell, ...] = ()


def make_part(name: str, grid: Grid, experiment: Experiment, folder: Path) -> Part:
    """A part for an order.

    Args:
        name: One of `PARTS`.
        grid: The order's cells.
        experiment: Where they are run, for what is no attack's cell.
        folder: The report's.
    """
    model = experiment.recorder.source
    if name in STUDIES:
        study = STUDIES[name](grid)

        def report(results: Results) -> PartReport:
            made = report_study(study, results, folder, model=model)
            return _with_papers(name, _with_processed(made, grid, experiment) if name == "figure-11" else made)

        return Part(
            report,
            tuple(cell for point in study.points for cell in point.attacks),
            tuple(cell for point in study.points for cell in point.inversions),
        )
    if name == "table-1":
        cells = example_attacks(grid)
        return Part(partial(examples_report, cells, folder=folder, model=model), cells)
    if name == "figure-13":
        attacks = mse_attacks(grid)
        return Part(
            lambda results: mse_report(attacks, results, folder, model=model),
            tuple(cell for some in attacks.values() for cell in some),
        )
    return Part(lambda _: _counted(name, grid, experiment, folder))


def _counted(name: str, grid: Grid, experiment: Experiment, folder: Path) -> PartReport:
    """Parts that attack nothing."""
    recorder, scale = experiment.recorder, grid.scale
    if name == "figure-5":
        return figure_5_report(folder)
    if name == "model-scale":
        return model_scale_report(folder)
    if name == "figure-22":
        return costs_report(client_costs(cost_cell(all_models=scale.costs), experiment.folder), folder)
    if name == "tail":
        cells = [
            TailCell(
                model=recorder.model,
                corpus=grid.config.corpora["enron"],
                texts=scale.tail_texts,
                tail=tail,
                training=TrainSpec.language(
                    method=method, max_length=scale.tail_length, epochs=1, targets=adapted(recorder.model_type)
                ),
                seed=0,
            )
            for tail in scale.tails
            if tail <= recorder.blocks - 2  # one block below the cut, and one at the vendor
            for method in Method
        ]
        return tails_report(tail_readings(cells, recorder, experiment.folder), folder, model=recorder.source)
    if name == "table-5":
        cell = LikenessCell(
            model=recorder.model,
            corpus=grid.config.corpora["wikitext"],
            length=scale.length,
            samples=scale.samples,
            vit=None if grid.config.vit is None else str(grid.config.vit.expanduser().resolve()),
            seed=0,
        )
        return likeness_report(likeness(cell, recorder, experiment.folder), folder, model=recorder.source)
    raise ValueError(f"no part is named {name}")


# ---------------------------------------------------------------- what stands beside a study


def _with_papers(name: str, report: PartReport) -> PartReport:
    """The paper's whole table behind ours, and Tables 2 and 3's parameter columns."""
    tables: tuple[Table, ...] = ()
    if name == "table-2":
        lines = {title: (row.first, row.second) for title, row in PAPER.table_2.items()}
        tables = (_paper_table("Table 2 in the paper", ("iteration 1", "iteration 2"), lines), columns_table(columns()))
    elif name == "table-3":
        tables = (
            _paper_table(
                "Table 3 in the paper", ("iteration 2",), {title: (row.second,) for title, row in PAPER.table_3.items()}
            ),
            columns_table(columns()),
        )
    elif name == "table-4":
        others = {title: (row.textgenerator, row.enron) for title, row in PAPER.table_4.items()}
        tables = (_paper_table("Table 4 in the paper", ("TextGenerator mini 4", "Enron"), others),)
    return replace(report, tables=(*report.tables, *tables))


def _paper_table(title: str, columns: Sequence[str], lines: Mapping[str, Sequence[Scores]]) -> Table:
    return Table(
        title=f"{title}: accuracy; R-1 / R-2 / R-L / R-Lsum (%)",
        columns=("model", *columns),
        rows=tuple((name, *map(printed, scores)) for name, scores in lines.items()),
    )


def _with_processed(report: PartReport, grid: Grid, experiment: Experiment) -> PartReport:
    """What the paper says that its Figures 11 and 12 do, done: the guess processes the private batch."""
    found = experiment.processed(grid.run(Setup(), 0), 1)
    verdict = Verdict(
        claim="§4.1.1: by processing the private batch the guess comes to know the norms' mean and variance.",
        held=found.changed > 0,
        because=f"a forward pass in training mode over the private batch changed {found.changed} of the "
        f"{found.tensors} parameters and buffers of the guessed bottom"
        + (", so the attack that follows is the same, bit by bit." if not found.changed else "."),
    )
    (table, *others) = report.tables
    table = table.model_copy(update={"notes": (*table.notes, str(verdict))})
    content = {
        **report.content,
        "processed": found.model_dump(),
        "verdicts": [*report.content["verdicts"], verdict.model_dump()],
    }
    return replace(report, tables=(table, *others), content=content)
