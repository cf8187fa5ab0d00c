"""A recipe: a paper's parts declared on the experiment engine, run, and reported."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

import pandas as pd

from cutlayer.attacks import ControlFailed, Measured, NotApplicable
from cutlayer.core import ConfigError, ModelError
from cutlayer.core.executors import Executor
from cutlayer.customer import Progress
from cutlayer.models import Kind
from cutlayer.recipes.claims import claims_table
from cutlayer.recipes.figures import written
from cutlayer.recipes.lab import Lab, Outcomes
from cutlayer.recipes.long_table import COLUMNS
from cutlayer.recipes.options import RecipeConfig, RecipeOptions, chosen_parts, configured
from cutlayer.recipes.study import Part, Results, Told
from cutlayer.reports import Table, percent, write_report

C = TypeVar("C", bound=RecipeConfig[Any])
Declared = Callable[[C, Lab], Part]
"""Makes a part from the recipe's settings: which cells are run, and what is made of their numbers."""


@dataclass(frozen=True)
class Report:
    """What a recipe gives.

    Attributes:
        tables: For readers.
        content: For machines, the same and more.
        files: What was written: JSON, Markdown, Parquet, PNG, CSV.
        failures: Cells that have no result, by name, with the reason.
    """

    tables: tuple[Table, ...]
    content: Mapping[str, Any]
    files: tuple[Path, ...]
    failures: Mapping[str, str] = field(default_factory=dict)


class Recipe(Generic[C]):
    """A paper's experiments. Its parts are functions that are added with `part`.

    Args:
        name: Of the recipe.
        config: Its settings; `options.shipped` reads those of `configs/NAME.yaml`.
        default_model: What it runs on where nothing else is named.
        paper: The paper's own numbers, or nothing; shown and put into the report.
        closing: Tables over all parts that were run, behind theirs.
        encoder_decoders: Whether it runs on these, too, which write labels and have no head for them.
    """

    def __init__(
        self,
        name: str,
        config: C,
        *,
        default_model: str,
        paper: Callable[[C], Mapping[str, Any]] = lambda _: {},
        closing: Sequence[Told] = (),
        encoder_decoders: bool = False,
    ) -> None:
        self.name = name
        self.default_model = default_model
        self.config = config
        self._paper = paper
        self._closing = closing
        self._encoder_decoders = encoder_decoders
        self._parts: dict[str, Declared[C]] = {}
        self._other_names: dict[str, str] = {}

    def using(self, config: C) -> Recipe[C]:
        """The same recipe with other settings than those that ship."""
        other = copy(self)
        other.config = config
        return other

    def part(self, name: str, *, also: Iterable[str] = ()) -> Callable[[Declared[C]], Declared[C]]:
        """Adds a part that `--only` calls by this name, or by others: those of figures that are one with it."""

        def add(declared: Declared[C]) -> Declared[C]:
            self._parts[name] = declared
            self._other_names |= dict.fromkeys(also, name)
            return declared

        return add

    @property
    def parts(self) -> tuple[str, ...]:
        return tuple(self._parts)

    def show(self) -> Mapping[str, Any]:
        """Its parts, other names of these, its settings, the paper's figures and the deviations from it."""
        named = {"other_names": self._other_names} if self._other_names else {}
        return {"parts": list(self.parts), **named, **self.config.model_dump(mode="json"), **self._paper(self.config)}

    def run(self, options: RecipeOptions, progress: Progress, pool: Executor | None = None) -> Report:
        """Runs what is not finished yet and reports.

        Args:
            options: What is asked for.
            progress: Where to show progress.
            pool: Where cells are computed; in this process by default.

        Raises:
            ConfigError: There is no such size, part or setting.
            DataError: A data set is missing.
            ModelError: It does not run on such a model.
            Stopped: The user interrupted; the same options go on.
        """
        config = configured(self.config, options.settings)
        names = chosen_parts(self.parts, options.only, self._other_names)
        config.at(options.size)
        with Lab(options, progress, pool) as lab:
            if not self._encoder_decoders and lab.model().family.kind is Kind.ENCODER_DECODER:
                raise ModelError(
                    f"{options.model} is an encoder-decoder, on which recipe {self.name} does not run.",
                    remedy="Name an encoder or a decoder.",
                )
            parts = self._declared(config, lab, names)
            cells = [scenario.cell for part in parts.values() for scenario in part.scenarios]
            for cell in dict.fromkeys(cells):
                cell.check(lab)
            outcomes = lab.run(cells)
            fingerprint = lab.model().fingerprint
        frame = long_table(parts, outcomes)
        results = {name: _results(frame, name, part, outcomes) for name, part in parts.items()}
        verdicts = {
            name: [each for claim in part.claims for each in claim(results[name])] for name, part in parts.items()
        }
        everything = Results(frame, outcomes.results, [each for part in parts.values() for each in part.scenarios])
        tables = [table for name, part in parts.items() for table in _tables(part.tables, results[name])]
        judged = [each for some in verdicts.values() for each in some]
        tables += [claims_table(judged)] if judged else []
        tables += [*_tables(self._closing, everything), *self._about(config, outcomes)]
        content = {
            "recipe": self.name,
            "reference": config.reference,
            "model": {"source": options.model, "fingerprint": fingerprint},
            "size": options.size.value,
            "seeds": options.seeds,
            "settings": dict(options.settings),
            "scale": config.at(options.size).model_dump(mode="json"),
            "parts": {
                name: {"title": part.title, "claims": [each.model_dump() for each in verdicts[name]], **part.details}
                for name, part in parts.items()
            },
            "cells": [
                {"cell": cell.model_dump(mode="json"), "result": found.model_dump(mode="json")}
                for cell, found in outcomes.results.items()
            ],
            "table": _records(frame),
            "failures": dict(outcomes.failures),
            **self._paper(config),
            "deviations": [each.model_dump() for each in config.deviations],
        }
        pictures = [
            path
            for name, part in parts.items()
            for figure in part.figures
            for path in figure.draw(results[name], options.out, model=options.model)
        ]
        shown = [path.name for path in pictures if path.suffix == ".png"]
        files = write_report(options.out, tables, content, title=f"Recipe {self.name}: {config.title}", pictures=shown)
        parquet = options.out / "results.parquet"
        # an axis of numbers and words is written as words
        mixed = [str(name) for name in frame if frame[name].dtype == object and frame[name].map(type).nunique() > 1]
        with written(parquet):
            frame.assign(**{name: frame[name].map(_word) for name in mixed}).to_parquet(parquet, index=False)
        return Report(tuple(dict.fromkeys(tables)), content, (*files, parquet, *pictures), outcomes.failures)

    def _declared(self, config: C, lab: Lab, names: Iterable[str]) -> dict[str, Part]:
        """The parts that are run; settings that the model does not allow are told of all parts at once."""
        parts: dict[str, Part] = {}
        refused: list[ConfigError] = []
        for name in names:
            try:
                parts[name] = self._parts[name](config, lab)
            except ConfigError as error:
                refused.append(error)
        if len(refused) > 1 and all(error.faults for error in refused):
            faults = [fault for error in refused for fault in error.faults]
            raise ConfigError(faults, remedy=" ".join(dict.fromkeys(error.remedy for error in refused)))
        if refused:
            raise refused[0]
        return parts

    def _about(self, config: C, outcomes: Outcomes) -> list[Table]:
        found = []
        if outcomes.failures:
            rows = tuple(outcomes.failures.items())
            notes = ("The same command runs them again. `failures/` in the report's folder says more.",)
            found.append(Table(title="Cells that failed", columns=("cell", "why"), rows=rows, notes=notes))
        if config.deviations:
            found.append(deviations_table([(each, "") for each in config.deviations]))
        return found


def _results(frame: pd.DataFrame, name: str, part: Part, outcomes: Outcomes) -> Results:
    own = frame[frame["part"] == name]
    return Results(own, outcomes.results, part.scenarios, part.same_texts)


def _tables(told: Sequence[Told], results: Results) -> list[Table]:
    found: list[Table] = []
    for each in told:
        found += [table for table in each(results) if table.rows]
    return found


def long_table(parts: Mapping[str, Part], outcomes: Outcomes) -> pd.DataFrame:
    """All numbers of all parts, a row each: the axes of their parts, and `COLUMNS`."""
    rows: list[dict[str, Any]] = []
    for name, part in parts.items():
        for scenario in part.scenarios:
            if scenario.cell in outcomes.results:
                here = {"part": name, "source": "here", "seed": scenario.cell.seed, **scenario.axes}
                rows += [{**here, **each.row()} for each in scenario.cell.measures(outcomes.results[scenario.cell])]
        for stated in part.stated:
            paper = {"part": name, "source": "paper", "seed": 0}
            rows.append({**paper, **stated.axes, **{key: each for key, each in vars(stated).items() if key != "axes"}})
    measured = _framed(rows)
    for name, part in parts.items():
        derived = {"part": name, "source": "here", "seed": 0}
        rows += [{**derived, **each.row()} for each in part.derived(_results(measured, name, part, outcomes))]
    return _framed(rows)


def _framed(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    axes = dict.fromkeys(column for row in rows for column in row if column not in COLUMNS)
    return pd.DataFrame(rows, columns=[*COLUMNS[:3], *axes, *COLUMNS[3:]])


def _records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Rows as JSON, without what they lack."""
    return [
        {str(name): value for name, value in row.items() if value is not None and value == value and value != ""}  # noqa: PLR0124
        for row in frame.to_dict("records")
    ]


def _word(value: Any) -> str | None:
    return None if value is None or value != value else str(value)  # noqa: PLR0124


def deviations_table(found: Sequence[tuple[Any, str]], title: str = "Where this differs from the paper") -> Table:
    """Deviations for readers, with where each holds; that column is left out where all hold everywhere."""
    where = any(place for _, place in found)
    return Table(
        title=title,
        columns=("what", *(("where",) if where else ()), "in the paper", "here", "why"),
        rows=tuple(
            (each.what, *((place,) if where else ()), each.value_in_paper, each.ours, each.why) for each, place in found
        ),
    )


def controls_table(results: Results) -> Iterable[Table]:
    """Every attack's controls; for recipes whose cells keep outcomes of attacks by name as `reads`."""
    rows = [
        (cell.name, name, read.outcome.status, controls_text(read.outcome))
        for cell, found in results.cells.items()
        for name, read in found.reads.items()
    ]
    yield Table(
        title="Controls",
        columns=("cell", "attack", "status", "what it reads of unprotected, noise, shuffled traffic; twice alike, %"),
        rows=tuple(rows),
    )


def controls_text(outcome: Measured | ControlFailed | NotApplicable) -> str:
    """What an attack's controls read, or why it has no number."""
    if not isinstance(outcome, Measured):
        return outcome.reason
    return "; ".join(f"{control.check} {percent(control.recovered)}" for control in outcome.controls)


def outcome_texts(outcome: Measured | ControlFailed | NotApplicable) -> tuple[str, str, str, str, str]:
    """An attack's success, chance, p and n, and what its controls read; or its status and why there is no number."""
    if not isinstance(outcome, Measured):
        return outcome.status, "–", "–", "–", outcome.reason
    shares = (percent(outcome.success.value), percent(outcome.chance))
    return *shares, f"{outcome.p_value:.1g}", str(outcome.success.n), controls_text(outcome)
