"""What was read, by how texts left: tables, findings, JSON."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict

from cutlayer.attacks import Further, Measured
from cutlayer.core.proportion import in_percent
from cutlayer.recipes.words.cells import (
    ADAPTIVE,
    BITS,
    INFILLING,
    LINEAR,
    NEAREST,
    CellResult,
    Experiment,
    Leaving,
    Read,
    WordsCell,
)
from cutlayer.reports import Estimate, Table, percent

TITLES = {
    NEAREST: "nearest row",
    LINEAR: "linear map",
    ADAPTIVE: "most probable token",
    INFILLING: "masked-LM infill",
    BITS: "float support",
}
"""The attacks as tables name them."""


class Finding(BaseModel):
    """What must hold, and whether it does.

    Attributes:
        what: Of what.
        must: What must hold.
        study: What a study before this project found, if there is one.
        here: What was found.
        holds: Whether it does, in the first seed's run.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    what: str
    must: str
    study: str
    here: str
    holds: bool


class Results:
    """Finished cells, by part.

    Args:
        experiment: Where they were run.
        cells: By cell.
        seeds: How many of each.
    """

    def __init__(self, experiment: Experiment, cells: Mapping[WordsCell, CellResult], seeds: int) -> None:
        self.config = experiment.config
        self.parts = experiment.parts
        self.calibrated = experiment.etas
        self.cells = cells
        self._seeds = range(seeds)
        self.unprotected = self._by_setting(experiment.unprotected, "unprotected")
        self.clipped = self._by_setting(experiment.clipped, "clipped")
        self.token_ids = self._by_setting(experiment.token_ids, "token-ids")
        self.floats = self._by_setting(experiment.floats, "floats")

    def _by_setting(
        self, cells: Callable[[int], Sequence[WordsCell]], part: str
    ) -> list[tuple[WordsCell, list[CellResult]]]:
        """Each setting once, with its results over seeds."""
        if part not in self.parts:
            return []
        columns = zip(*(cells(seed) for seed in self._seeds), strict=True)
        return [(column[0], [self.cells[cell] for cell in column]) for column in columns]


def read_share(found: Sequence[CellResult], attack: str) -> Estimate | None:
    """An attack's success over seeds; `None` where it has no number."""
    outcomes = [each.reads[attack].outcome for each in found]
    shares = [outcome.success for outcome in outcomes if isinstance(outcome, Measured)]
    return Estimate.of(shares) if shares else None


def tables(results: Results) -> tuple[Table, ...]:
    """All tables of the report."""
    found: list[Table] = []
    if results.unprotected:
        found.append(_unprotected(results))
    if results.clipped:
        found.append(_clipped(results))
    if results.token_ids:
        found.append(_token_ids(results))
    if results.floats:
        found.append(_floats(results))
    told = list(findings(results))
    return (*found, *([_findings(told)] if told else []), _controls(results))


def content(results: Results) -> dict[str, Any]:
    """The same for machines, and more."""
    return {
        "calibrated": [vars(point) for point in results.calibrated],
        "cells": [
            {"cell": cell.model_dump(mode="json"), "result": found.model_dump(mode="json")}
            for cell, found in results.cells.items()
        ],
        "findings": [each.model_dump(mode="json") for each in findings(results)],
    }


# ---------------------------------------------------------------- what must hold


def findings(results: Results) -> Iterator[Finding]:
    """What must hold of each part that was run; by the first seed."""
    yield from _of_rows(results)
    yield from _of_clipped(results)
    yield from _of_ids(results)


def _of_rows(results: Results) -> Iterator[Finding]:
    expected = results.config.expected
    for cell, (first, *_) in results.unprotected:
        if cell.leaving is Leaving.TABLE:
            least, study, attack = expected.unprotected.least, None, NEAREST
        elif cell.public is not None and cell.public.name == results.config.public.mail.name:
            blocks = expected.behind_blocks
            if cell.bottom not in blocks.least:
                continue
            least, study, attack = blocks.least[cell.bottom], blocks.study.get(cell.bottom), LINEAR
        else:
            continue
        share = _value(first.reads[attack])
        yield Finding(
            what=f"{TITLES[attack]}, no noise, {_blocks(cell.bottom)}",
            must=f"reads at least {least:g} %",
            study="–" if study is None else f"{study:g} %",
            here=_success(first.reads[attack], 2),
            holds=share is not None and 100 * share >= least,
        )


def _of_clipped(results: Results) -> Iterator[Finding]:
    expected = results.config.expected.clipped
    for cell, (first, *_) in results.clipped:
        nearest, adaptive = (_value(first.reads[name]) for name in (NEAREST, ADAPTIVE))
        yield Finding(
            what=f"nearest row, shortened rows, eta {cell.eta:g}",
            must=f"reads at most {expected.nearest_most:g} %",
            study="–",
            here=_success(first.reads[NEAREST], 2),
            holds=nearest is not None and 100 * nearest <= expected.nearest_most,
        )
        yield Finding(
            what=f"most probable token, shortened rows, eta {cell.eta:g}",
            must=f"reads at least {expected.least:g} %",
            study=f"{expected.study:g} %",
            here=_success(first.reads[ADAPTIVE], 2),
            holds=adaptive is not None and 100 * adaptive >= expected.least,
        )


def _of_ids(results: Results) -> Iterator[Finding]:
    expected = results.config.expected.token_ids
    for point, (_, (first, *_)) in zip(results.calibrated, results.token_ids, strict=True):
        if point.wanted not in expected.least:
            continue
        least, beyond = expected.least[point.wanted], first.reads[ADAPTIVE].beyond
        low = None if beyond is None or beyond.interval is None else beyond.interval[0]
        yield Finding(
            what=f"most probable token beyond nearest row, {percent(first.replaced)} % replaced",
            must="its interval lies above 0" + (f", and by at least {least:g} points" if least else ""),
            study=f"+{expected.study:g} points" if least else "–",
            here=_points(beyond),
            holds=beyond is not None and low is not None and low > 0 and 100 * beyond.value >= least,
        )


# ---------------------------------------------------------------- tables


def _unprotected(results: Results) -> Table:
    rows = []
    for cell, found in results.unprotected:
        attack = cell.attacks[0]
        read = found[0].reads[attack]
        unseen = read.unseen
        rows.append(
            (
                str(cell.bottom),
                TITLES[attack],
                "–" if cell.public is None else f"{cell.public.name}, {found[0].fitted:,}",
                _over_seeds(found, attack, 2),
                "–" if unseen is None else f"{_interval(unseen)} of {unseen.n:,}",
                _trials(read),
                f"{read.seconds:.0f}",
            )
        )
    return Table(
        title="Rows without noise, by blocks at the customer",
        columns=("blocks", "attack", "fitted on, tokens", "read, %", "of tokens never fitted on, %", "n", "seconds"),
        rows=tuple(rows),
        notes=("In brackets: 95 % over resampled texts, of the first seed.",),
    )


def _clipped(results: Results) -> Table:
    return Table(
        title="Noisy rows shortened to the table's largest norm",
        columns=("eta", "attack", "read, %", "by chance, %", "n"),
        rows=tuple(
            (
                f"{cell.eta:g}",
                TITLES[name],
                _over_seeds(found, name, 2),
                *_beside(found[0].reads[name]),
            )
            for cell, found in results.clipped
            for name in cell.attacks
        ),
        notes=(
            "Shortening is no part of the road yet: these rows were made with the attacker's own arithmetic. It hides "
            "their length, which the likelihood takes into account and distance does not.",
        ),
    )


def _token_ids(results: Results) -> Table:
    rows = []
    for cell, found in results.token_ids:
        adaptive = found[0].reads[ADAPTIVE]
        choice = adaptive.choice
        rows.append(
            (
                f"{cell.eta:g}",
                percent(found[0].replaced),
                _over_seeds(found, NEAREST),
                _over_seeds(found, ADAPTIVE),
                _points(adaptive.beyond),
                _over_seeds(found, INFILLING),
                _points(found[0].reads[INFILLING].beyond),
                _trials(adaptive),
                "–" if choice is None or choice.weight is None else f"{choice.weight:g}",
                "–" if choice is None else "formula alone" if choice.shrinkage is None else f"{choice.shrinkage:g}",
                "–" if choice is None else f"{percent(choice.read)} against {percent(choice.as_released)}",
            )
        )
    first = next((choice for _, found in results.token_ids if (choice := found[0].reads[ADAPTIVE].choice)), None)
    strength = (
        ()
        if first is None
        else (
            f"The channel was fitted on {first.pairs:,} draws of the attacker's own; {first.candidates} tokens were "
            f"considered in each place. Weight of the prior and draws that the formula is worth were chosen on "
            f"{first.tokens:,} tokens of the attacker's text, read there as the last column says.",
        )
    )
    return Table(
        title="Token ids (text-to-text): what is read beyond the nearest row",
        columns=(
            "eta", "replaced, %", "nearest row, %", "most probable, %", "paired difference, points",
            "masked-LM infill, %", "paired difference, points", "n", "prior's weight", "formula worth, draws",
            "own text, %",
        ),
        rows=tuple(rows),
        notes=(
            *strength,
            "Differences are to the nearest row, of the same releases, resampled by text: 95 % in brackets.",
        ),
    )  # fmt: skip


def _floats(results: Results) -> Table:
    rows = []
    for cell, found in results.floats:
        how = "single precision" if cell.leaving is Leaving.SINGLE else "this project's lattice"
        told = [_over_seeds(found, name) for name in cell.attacks]
        rows.append((f"{cell.eta:g}", how, *told, _trials(found[0].reads[NEAREST])))
    return Table(
        title="Noise in single precision: what exact bits tell",
        columns=("eta", "noise drawn and added in", *(f"{TITLES[name]}, %" for name in (NEAREST, BITS)), "n"),
        rows=tuple(rows),
        notes=("Multiples of one lattice rule no token out: against them the attack has no meaning.",),
    )


def _findings(told: Sequence[Finding]) -> Table:
    return Table(
        title="What must hold",
        columns=("of", "must hold", "study", "here", "holds"),
        rows=tuple((each.what, each.must, each.study, each.here, "yes" if each.holds else "NO") for each in told),
        notes=("Studies: this project's, on e-mail and the embedded model.",),
    )


def _controls(results: Results) -> Table:
    rows = []
    for cell, found in results.cells.items():
        for name, read in found.reads.items():
            outcome = read.outcome
            told = (
                "; ".join(f"{control.check} {percent(control.recovered)}" for control in outcome.controls)
                if isinstance(outcome, Measured)
                else outcome.reason
            )
            rows.append((cell.name, TITLES[name], outcome.status, told))
    return Table(
        title="Controls",
        columns=("cell", "attack", "status", "what it reads of unprotected, noise, shuffled traffic; twice alike, %"),
        rows=tuple(rows),
    )


# ---------------------------------------------------------------- numbers as text


def _blocks(count: int) -> str:
    return "the table's rows" if not count else f"behind {count} block{'' if count == 1 else 's'}"


def _value(read: Read) -> float | None:
    return read.outcome.success.value if isinstance(read.outcome, Measured) else None


def _success(read: Read, digits: int = 1) -> str:
    if not isinstance(read.outcome, Measured):
        return read.outcome.status
    low, high = read.outcome.interval
    value = read.outcome.success.value
    return f"{percent(value, digits)} [{percent(low, digits)}, {percent(high, digits)}] %"


def _over_seeds(found: Sequence[CellResult], attack: str, digits: int = 1) -> str:
    told = read_share(found, attack)
    if told is None:
        return found[0].reads[attack].outcome.status
    if told.runs > 1:
        return in_percent(told.value, told.standard_error, told.n, digits=digits)
    return _success(found[0].reads[attack], digits).removesuffix(" %")


def _interval(number: Further) -> str:
    low, high = number.interval or (math.nan, math.nan)
    return f"{percent(number.value)} [{percent(low)}, {percent(high)}]"


def _points(beyond: Further | None) -> str:
    if beyond is None or beyond.interval is None:
        return "–"
    low, high = beyond.interval
    return f"{100 * beyond.value:+.2f} [{100 * low:+.2f}, {100 * high:+.2f}]"


def _beside(read: Read) -> tuple[str, str]:
    """What chance gives, and of how many."""
    return percent(read.outcome.chance, 2) if isinstance(read.outcome, Measured) else "–", _trials(read)


def _trials(read: Read) -> str:
    return f"{read.outcome.success.n:,}" if isinstance(read.outcome, Measured) else "–"
