"""Findings as tables and as JSON, the paper's figures beside ours."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from cutlayer.customer import TrainBottom
from cutlayer.recipes.cells import Steering
from cutlayer.recipes.sap.config import PaperTable3, SapConfig
from cutlayer.recipes.sap.depth_report import depth_content, depth_tables
from cutlayer.recipes.sap.findings import Findings, Point
from cutlayer.recipes.tasks import Limits, Task
from cutlayer.reports import Estimate, Gain, Table, percent

_NAMES = {Steering.BY_CLASS: "CTI", Steering.CLASS_FREE: "CTI class-free"}


def tables(findings: Findings) -> tuple[Table, ...]:
    """All tables of the report, the paper's behind ours."""
    config = findings.config
    found: list[Table] = []
    if "figure-2" in findings.parts:
        found += [_table_1(findings), *(_figure_2(findings, task) for task in findings.tasks)]
        found += [_figure_2_verdicts(findings), _figure_2_paper(config)]
    found += depth_tables(findings)
    if "table-3" in findings.parts:
        found += [_table_3(findings), _table_3_paper(config)]
    return (*found, _deviations(findings))


def content(findings: Findings) -> dict[str, Any]:
    """The same for machines, and more."""
    return {
        "limits": findings.limits.model_dump(),
        "table_1": {name: _plain_row(findings, name) for name in findings.rows},
        "figure_2": {
            task.name: {
                steering.value: [point.model_dump(mode="json") for point in findings.curves[task.name, steering]]
                for steering in Steering
            }
            | {f"{steering}_gain": _dumped(findings.gains[task.name, steering]) for steering in _NAMES}
            for task in findings.tasks
            if "figure-2" in findings.parts
        },
        **depth_content(findings),
        "table_3": {
            how.value: [point.model_dump(mode="json") for point in line] for how, line in findings.table_3.items()
        },
        "paper": findings.config.paper.model_dump(mode="json"),
        "deviations": [each.model_dump() for each in findings.config.deviations]
        + [each.model_dump() | {"data_sets": titles} for each, titles in findings.deviations.items()],
    }


# ---------------------------------------------------------------- JSON


def _plain_row(findings: Findings, task: str) -> dict[str, Any]:
    train, dev, test = findings.rows[task]
    training = findings.training[task]
    return {
        "train": train,
        "dev": dev,
        "test": test,
        "max_length": training.max_length,
        "epochs": training.epochs,
        "centralised": findings.centralised[task].model_dump(),
    }


def _dumped(gain: Gain | None) -> dict[str, Any] | None:
    return None if gain is None else gain.model_dump()


# ---------------------------------------------------------------- tables


def _table_1(findings: Findings) -> Table:
    paper = findings.config.paper
    rows = []
    for task in findings.tasks:
        train, dev, test = findings.rows[task.name]
        theirs = paper.table_1[task.name]
        training = findings.training[task.name]
        unprotected = findings.curves[task.name, Steering.NONE][-1].ua
        rows.append(
            (
                task.title,
                f"{train} / {dev} / {test}",
                f"{theirs.train} / {theirs.dev} / {theirs.test}",
                "the model's limit" if training.max_length is None else str(training.max_length),
                str(training.epochs),
                str(findings.centralised[task.name]),
                str(unprotected),
                f"{theirs.accuracy:.2f}",
            )
        )
    return Table(
        title="Table 1: rows and centralised accuracy (%)",
        columns=(
            "data set",
            "train / dev / test",
            "the paper's rows",
            "tokens of a text, at most",
            "epochs, at most",
            "centralised",
            "split, no privacy",
            f"the paper's centralised ({paper.model})",
        ),
        rows=tuple(rows),
        notes=(
            *_limited(findings.limits),
            "Centralised is ordinary PEFT in one process; ± is one standard error, over texts and seeds; n is the rows "
            f"of test{_in_runs(findings)}. The paper states no standard errors.",
        ),
    )


def _limited(limits: Limits) -> tuple[str, ...]:
    most = [str(rows or "all") for rows in (limits.train, limits.dev, limits.test)]
    if set(most) == {"all"}:
        return ()
    return (
        f"At this size {' / '.join(most)} rows of train / dev / test are taken at most, drawn at random within each "
        "label; where there are fewer, these are all.",
    )


def _in_runs(findings: Findings) -> str:
    return f", in each of {findings.seeds} runs" if findings.seeds > 1 else ""


def _n(findings: Findings, points: Iterable[Point]) -> str:
    """What the accuracies and attacks of a table were counted over."""
    points = list(points)
    texts, tokens = (
        " or ".join(map(str, sorted({each.n for each in estimates if each is not None})))
        for estimates in ([point.ua for point in points], [point.ep for point in points])
    )
    return (
        f"n: {texts} test texts for UA; {tokens} training tokens for EP, and for the share replaced, which is a count "
        f"of what these draws did{_in_runs(findings)}. ± is one standard error."
    )


def _eta(point: Point) -> str:
    return "∞ (no privacy)" if math.isinf(point.eta) else f"{point.eta:g}"


def _figure_2(findings: Findings, task: Task) -> Table:
    curves = [findings.curves[task.name, steering] for steering in Steering]
    rows = [
        (_eta(plain), *_cells(plain), *(cell for cti in steered for cell in _cells(cti, steered=True)))
        for plain, *steered in zip(*curves, strict=True)
    ]
    centralised = findings.centralised[task.name]
    return Table(
        title=f"Figure 2: {task.title} (%)",
        columns=(
            *("eta0", "replaced", "UA", "EP"),
            *(f"{column}, {name}" for name in _NAMES.values() for column in ("replaced", "UA", "EP")),
        ),
        rows=tuple(rows),
        notes=(
            f"Centralised accuracy: {centralised}.",
            _n(findings, (point for curve in curves for point in curve)),
            "EP is 1 - the share of tokens that nearest-neighbour inversion recovers; stronger attacks exist.",
            "CTI scores a training text by its own class and a test text by the largest score over classes; "
            "CTI class-free scores both by the largest.",
        ),
    )


def _cells(point: Point, *, steered: bool = False) -> tuple[str, str, str]:
    if steered and math.isinf(point.eta):
        return ("–",) * 3
    return percent(point.replaced), str(point.ua), _or_dash(point.ep)


def _or_dash(estimate: Estimate | None) -> str:
    return "–" if estimate is None else str(estimate)


def _figure_2_verdicts(findings: Findings) -> Table:
    rows = []
    notes = [
        "Mean over the CTI points that lie within the plain curve, which is read along straight lines; "
        "a verdict needs two standard errors."
    ]
    if findings.seeds == 1:
        notes.append(
            "One seed: the errors are over test texts alone, and another draw of the noise may move a point by more. "
            "--seeds runs several."
        )
    for task in findings.tasks:
        helps = findings.config.paper.cti_helps[task.name]
        theirs = "helps" if helps else "no significant improvement"
        rows += [(task.title, name, *_verdict(findings.gains[task.name, how]), theirs) for how, name in _NAMES.items()]
    return Table(
        title="Figure 2: does CTI help?",
        columns=("data set", "CTI", "UA gained at equal EP (points)", "n (CTI points)", "here", "in the paper"),
        rows=tuple(rows),
        notes=tuple(notes),
    )


def _verdict(gain: Gain | None) -> tuple[str, str, str]:
    if gain is None:
        return "–", "0", "the curves do not overlap"
    return f"{100 * gain.value:+.1f} ± {100 * gain.standard_error:.1f}", str(gain.points), gain.verdict


def _figure_2_paper(config: SapConfig) -> Table:
    with_cti = {True: "yes", False: "no", None: "not stated"}
    return Table(
        title=f"Figure 2 in the paper: what the text states ({config.paper.model}, %)",
        columns=("data set", "eta0", "CTI", "EP", "UA lost against centralised"),
        rows=tuple(
            (
                config.task(point.task).title,
                f"{point.eta:g}",
                with_cti[point.cti],
                f"{point.ep:g}",
                f"{point.ua_loss:g}",
            )
            for point in config.paper.figure_2
        ),
        notes=(
            *config.paper.figure_2_claims,
            "In the plot these points stand where plain SAP's EP here is the paper's: eta0 of different tables do not "
            "compare.",
        ),
    )


_LINES = {
    TrainBottom.FROZEN: "frozen embedding layer",
    TrainBottom.REDRAW: "unfrozen embedding layer, fresh release each epoch",
    TrainBottom.MEMOISED: "trained blocks above one memoised release",
}


def _table_3(findings: Findings) -> Table:
    config = findings.config
    rows = []
    notes = [
        _n(findings, (point for line in findings.table_3.values() for point in line)),
        "EP of the unfrozen layer counts a token as recovered if the attack on any epoch's release recovers it.",
    ]
    for how, line in findings.table_3.items():
        rows.append((_LINES[how], "EP", *(_or_dash(point.ep) for point in line)))
        rows.append((_LINES[how], "UA", *(str(point.ua) for point in line)))
        missing = next((point for point in line if point.ep is None), None)
        if missing is not None:
            notes.append(f"No EP for {_LINES[how]}: {missing.ep_note}")
            notes.append(
                "Whoever inverts those blocks exactly has the released tokens and no more: EP is then the share of "
                "tokens replaced, at every epoch."
            )
    frozen = findings.table_3[TrainBottom.FROZEN]
    notes.append(_unfreezing(config.paper.table_3, frozen, findings.table_3[TrainBottom.REDRAW]))
    rows.append(("tokens replaced by one draw", "", *(percent(point.replaced) for point in frozen)))
    return Table(
        title=f"Table 3: {config.task(config.table_3).title}, frozen and trained bottoms (%)",
        columns=("bottom", "", *(f"eta0 {_eta(point)}" for point in frozen)),
        rows=tuple(rows),
        notes=tuple(notes),
    )


def _unfreezing(paper: PaperTable3, frozen: list[Point], redraw: list[Point]) -> str:
    """The paper's finding on unfreezing (Appendix A), counted in the paper's table and in ours."""
    pairs = [(a, b, a.ep.value - b.ep.value) for a, b in zip(frozen, redraw, strict=True) if a.ep and b.ep]
    ours = f"EP falls at {sum(fall > 0 for _, _, fall in pairs)} of {len(pairs)}"
    if pairs:
        ours += f" (by {100 * max(fall for *_, fall in pairs):.1f} points at most)"
    gained = sum(b.ua.value > a.ua.value for a, b in zip(frozen, redraw, strict=True))
    falls = [a - b for a, b in zip(paper.frozen.ep, paper.redraw.ep, strict=True)]
    rises = sum(b > a for a, b in zip(paper.frozen.ua, paper.redraw.ua, strict=True))
    return (
        f"Unfreezing the embedding layer. In the paper EP falls at {sum(fall > 0 for fall in falls)} of {len(falls)} "
        f"eta0 (by {max(falls):.1f} points at most) and UA rises at {rises}. Here {ours}, and UA rises at {gained} of "
        f"{len(frozen)}."
    )


def _table_3_paper(config: SapConfig) -> Table:
    table = config.paper.table_3
    rows = [
        (_LINES[how].partition(",")[0], name, *(f"{value:.2f}" for value in values))
        for how, line in ((TrainBottom.FROZEN, table.frozen), (TrainBottom.REDRAW, table.redraw))
        for name, values in (("EP", line.ep), ("UA", line.ua))
    ]
    return Table(
        title=f"Table 3 in the paper ({config.paper.model}, %)",
        columns=("bottom", "", *(f"eta0 {eta:g}" for eta in table.eta)),
        rows=tuple(rows),
    )


def _deviations(findings: Findings) -> Table:
    everywhere = len(findings.tasks)
    found = [(each, "the recipe") for each in findings.config.deviations]
    found += [
        (each, "all data sets" if len(titles) == everywhere else ", ".join(titles))
        for each, titles in findings.deviations.items()
    ]
    return Table(
        title="Where this differs from the paper",
        columns=("what", "where", "in the paper", "here", "why"),
        rows=tuple((each.what, where, each.value_in_paper, each.ours, each.why) for each, where in found),
    )
