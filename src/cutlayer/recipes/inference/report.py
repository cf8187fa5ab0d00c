"""Findings as tables and as JSON."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from cutlayer.attacks import Measured
from cutlayer.core.proportion import in_percent
from cutlayer.recipes.inference.cells import INVERSIONS, Attacked, Results
from cutlayer.recipes.inference.config import InferenceConfig
from cutlayer.recipes.inference.findings import TITLES, estimate, findings, further
from cutlayer.reports import Table, percent


def tables(results: Results, config: InferenceConfig, parts: Sequence[str]) -> tuple[Table, ...]:
    """All tables of the report."""
    return (
        *(_sap(results, config) if "figure-3-sap" in parts else ()),
        *((_rapt(results, config), _entities(results)) if "figure-3-rapt" in parts else ()),
        _findings(results, config, parts),
        _attacks(results),
        _deviations(config),
    )


def content(results: Results, config: InferenceConfig, parts: Sequence[str]) -> dict[str, Any]:
    """The same for machines, and more."""
    return {
        "scale": results.scale.model_dump(),
        "calibration": [point.__dict__ for point in results.calibrated],
        "cells": [
            {"cell": cell.model_dump(mode="json", exclude={"scale"}), "result": found.model_dump(mode="json")}
            for cell, found in results.cells.items()
        ],
        "findings": [finding.model_dump() for finding in findings(results, config, parts)],
        "papers": config.paper.model_dump(mode="json"),
        "deviations": [each.model_dump() for each in config.deviations],
    }


def _etas(results: Results) -> tuple[str, ...]:
    """Column heads: eta, and the share of tokens that it replaces."""
    shares = {point.eta: point.replaced for point in results.calibrated}
    return tuple("∞" if math.isinf(eta) else f"{eta:g} ({percent(shares[eta], 0)} %)" for eta in results.etas)


def _sap(results: Results, config: InferenceConfig) -> Iterator[Table]:
    for column, names in config.posts.columns.items():
        rows = []
        for attack in ("attribute-classifier", "attribute-mlp", "attribute-lengths"):
            for labelled in results.scale.labelled:
                found = results.of(attack, column=column, labelled=labelled)
                if found:
                    rows.append((TITLES[attack], str(labelled), *(_share(found[eta]) for eta in results.etas)))
                    rows.append(("", "AUC", *(_number(found[eta], "auc") for eta in results.etas)))
        yield Table(
            title=f"SAP, Figure 3: {column} ({' or '.join(names)}) of posts' authors, accuracy (%)",
            columns=("attack", "N_l", *(f"eta {eta}" for eta in _etas(results))),
            rows=tuple(rows),
            notes=(
                _majority(results, column),
                "In brackets after eta: the share of tokens that it replaces. In brackets after a number: 95 % over "
                "resampled authors (over seeds: one standard error).",
                f"The paper's figure is {config.paper.sap_figure_3.source}: {config.paper.sap_figure_3.setting}.",
            ),
        )


def _majority(results: Results, column: str) -> str:
    found = results.of("attribute-mlp", column=column, labelled=max(results.scale.labelled))[math.inf]
    share = further(found, "majority")
    known = "not measured" if share is None else f"{percent(share.value)} % of {share.n} attacked posts"
    return f"The most frequent answer needs no attack: it is right for {known}. Of their authors no post is known."


def _share(found: Sequence[Attacked]) -> str:
    """The attack's success with its interval, or why there is none."""
    told = estimate(found)
    if told is None:
        return found[0].outcome.status
    if told.runs > 1 or not isinstance(found[0].outcome, Measured):
        return str(told)
    low, high = found[0].outcome.interval
    return _within(100 * told.value, 100 * low, 100 * high)


def _number(found: Sequence[Attacked], name: str, digits: int = 2) -> str:
    number = further(found, name)
    if number is None:
        return "–"
    if number.interval is None:
        return f"{number.value:.{digits}f}"
    return _within(number.value, *number.interval, digits=digits)


def _within(value: float, low: float, high: float, digits: int = 1) -> str:
    return f"{value:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"


def _rapt(results: Results, config: InferenceConfig) -> Table:
    rows = []
    for attack in INVERSIONS:
        found = results.of(attack)
        rows.append((TITLES[attack], "1 - tokens read, %", *(_privacy(found[eta]) for eta in results.etas)))
    mse = results.of("autoencoder-inversion")
    rows.append(("", "its MSE (the paper's metric)", *(_number(mse[eta], "mse", 3) for eta in results.etas)))
    rows.append(("", "MSE of the mean row", *(_number(mse[eta], "mse_blind", 3) for eta in results.etas)))
    most = max(results.scale.labelled)
    for column in config.posts.columns:
        found = results.of("attribute-mlp", column=column, labelled=most)
        rows.append(
            (f"{column}: {TITLES['attribute-mlp']}", "1 - accuracy, %", *(_privacy(found[eta]) for eta in results.etas))
        )
    named = results.of("ner")
    rows.append((TITLES["ner"], "1 - F1, %", *(_privacy(named[eta]) for eta in results.etas)))
    return Table(
        title="RAPT, Figure 3: empirical privacy 1 - X under attacks, text-to-text (T2T)",
        columns=("attack", "metric", *(f"eta {eta}" for eta in _etas(results))),
        rows=tuple(rows),
        notes=(
            f"Attributes: N_l = {most}. A guess without any look has an EP, too: the last table has its chance.",
            f"The paper's figure is {config.paper.rapt_figure_3.source}: {config.paper.rapt_figure_3.setting}. "
            "Its eta are of another table and do not compare.",
        ),
    )


def _privacy(found: Sequence[Attacked]) -> str:
    told = estimate(found)
    if told is None:
        return found[0].outcome.status
    if told.runs > 1 or not isinstance(found[0].outcome, Measured):
        return in_percent(1 - told.value, told.standard_error, told.n)
    low, high = found[0].outcome.interval
    return _within(100 * (1 - told.value), 100 * (1 - high), 100 * (1 - low))


def _entities(results: Results) -> Table:
    found = results.of("ner")
    rows = (
        ("F1, %", *(_share(found[eta]) for eta in results.etas)),
        ("precision", *(_number(found[eta], "precision") for eta in results.etas)),
        ("recall", *(_number(found[eta], "recall") for eta in results.etas)),
        ("F1 by chance, %", *(_chance(found[eta]) for eta in results.etas)),
        ("tokens replaced, %", *(percent(found[eta][0].replaced) for eta in results.etas)),
    )
    return Table(
        title="Entities of WNUT17 found in releases",
        columns=("", *(f"eta {eta}" for eta in _etas(results))),
        rows=rows,
        notes=(
            "An entity is found if its kind, its first and its last word are. By chance: the same guesses beside other "
            "words. The tagger learnt from annotated public text under the same noise.",
        ),
    )


def _chance(found: Sequence[Attacked]) -> str:
    outcome = found[0].outcome
    return percent(outcome.chance) if isinstance(outcome, Measured) else outcome.status


def _findings(results: Results, config: InferenceConfig, parts: Sequence[str]) -> Table:
    found = findings(results, config, parts)
    return Table(
        title="The papers' claims",
        columns=("paper", "claim", "here", "verdict"),
        rows=tuple((each.paper, each.claim, each.here, each.verdict) for each in found),
        notes=("A verdict needs two standard errors of the difference.",),
    )


def _attacks(results: Results) -> Table:
    """Every attack once, where nothing is hidden and where most is: chance, controls, seconds."""
    rows = []
    for cell, found in results.cells.items():
        if cell.seed or cell.eta not in (results.etas[0], math.inf):
            continue
        if cell.column and cell.labelled != max(results.scale.labelled):
            continue
        rows.append((cell.attack, cell.column, "∞" if math.isinf(cell.eta) else f"{cell.eta:g}", *_told(found)))
    return Table(
        title="The attacks: chance and controls",
        columns=("attack", "of", "eta", "success, %", "chance, %", "p", "n", "controls", "seconds"),
        rows=tuple(rows),
        notes=(
            "Chance is what the same guesses would give if they were dealt out at random. Controls: what the attack "
            "recovers of unprotected, pure noise, shuffled traffic, and whether it does so twice; without all of them "
            "there is no number. Those of attacks on attributes are on made-up texts that tell the answer, and are run "
            "once for all eta and N_l.",
        ),
    )


def _told(found: Attacked) -> tuple[str, ...]:
    outcome = found.outcome
    seconds = f"{found.seconds:.0f}"
    if not isinstance(outcome, Measured):
        return (outcome.status, "–", "–", "–", outcome.reason, seconds)
    controls = "; ".join(f"{control.check} {percent(control.recovered)}" for control in outcome.controls)
    return (
        percent(outcome.success.value),
        percent(outcome.chance),
        f"{outcome.p_value:.1g}",
        str(outcome.success.n),
        controls,
        seconds,
    )


def _deviations(config: InferenceConfig) -> Table:
    return Table(
        title="Where this differs from the papers",
        columns=("what", "in the paper", "here", "why"),
        rows=tuple((each.what, each.value_in_paper, each.ours, each.why) for each in config.deviations),
    )
