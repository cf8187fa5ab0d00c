"""Figure 4, Table 2 and the conclusion on deeper bottoms, as tables and as JSON."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from cutlayer.attacks import ATTACKS
from cutlayer.core import Place
from cutlayer.recipes.sap.depth import LEAST_LOSS, DepthPoint, best_within, papers_share
from cutlayer.recipes.sap.findings import Findings
from cutlayer.reports import Table, percent

PLACES = {Place.TOKENS: "tokens, CTI", Place.ACTIVATIONS: "rows behind the blocks"}


def depth_tables(findings: Findings) -> tuple[Table, ...]:
    """The tables of the parts that were run."""
    if not findings.by_depth:
        return ()
    tables = [_figure_4(findings)] if "figure-4" in findings.parts else []
    if "table-2" in findings.parts:
        tables += [_table_2(findings), _table_2_paper(findings)]
    return (*tables, _conclusion(findings))


def depth_content(findings: Findings) -> dict[str, Any]:
    """The same for machines."""
    found: dict[str, Any] = {}
    if findings.by_depth:
        found["without_noise_by_depth"] = [
            point.model_dump(mode="json") | {"handed_out": findings.handed_out[bottom]}
            for bottom, point in findings.by_depth.items()
        ]
    if "table-2" in findings.parts:
        found["table_2"] = [point.model_dump(mode="json") for point in findings.table_2]
    return found


def _n(points: Iterable[DepthPoint]) -> str:
    """How many tokens each attack was measured on."""
    counted: dict[str, set[int]] = {}
    for point in points:
        for attack, ep in point.ep.items():
            if ep is not None:
                counted.setdefault(attack, set()).add(ep.n)
    told = (f"{attack} {' or '.join(map(str, sorted(n)))}" for attack, n in counted.items())
    return f"n of EP, training tokens: {'; '.join(told)}. ± is one standard error."


def _reasons(points: Iterable[DepthPoint]) -> list[str]:
    """Why attacks have no number, each once."""
    return sorted({f"{attack}: {reason}" for point in points for attack, reason in point.reasons.items()})


def _figure_4(findings: Findings) -> Table:
    points = [findings.by_depth[bottom] for bottom in findings.config.depths.figure_4]
    attacks = findings.config.depths.without_noise
    return Table(
        title=f"Figure 4: EP by depth of the bottom, without noise ({_title(findings)}, %)",
        columns=("blocks at the customer", "weights handed out", *attacks, "strongest", "UA"),
        rows=tuple(
            (
                str(point.bottom),
                percent(findings.handed_out[point.bottom]),
                *(_ep(point, attack) for attack in attacks),
                _least(point),
                str(point.ua),
            )
            for point in points
        ),
        notes=(
            *(f"The paper ({findings.config.paper.model}): {claim}" for claim in findings.config.paper.figure_4_claims),
            *(f"{attack}: {ATTACKS[attack].title}." for attack in attacks),
            _n(points),
            f"What the attacker read beforehand: {findings.config.depths.text.name}, no text of this data set.",
            *_reasons(points),
        ),
    )


def _title(findings: Findings) -> str:
    return findings.config.task(findings.config.depths.task).title


def _ep(point: DepthPoint, attack: str) -> str:
    ep = point.ep.get(attack)
    return "–" if ep is None else str(ep)


def _least(point: DepthPoint) -> str:
    return "–" if point.least is None else str(point.least)


def _eta(eta: float) -> str:
    return "none" if math.isinf(eta) else f"{eta:g}"


def _table_2(findings: Findings) -> Table:
    depths = findings.config.depths
    rows = []
    for bottom in depths.table_2:
        plain = findings.by_depth[bottom]
        for place, said in PLACES.items():
            points = [point for point in findings.table_2 if (point.bottom, point.place) == (bottom, place)]
            where = (str(bottom), said)
            if place is Place.TOKENS:
                rows.append((*where, "tokens replaced", *(percent(point.replaced) for point in points), "0.0"))
            points.append(plain)
            rows += [
                (*where, f"EP, {attack}", *(_ep(point, attack) for point in points)) for attack in depths.with_noise
            ]
            rows.append((*where, "UA", *(str(point.ua) for point in points)))
    etas = sorted({point.eta for point in findings.table_2})
    return Table(
        title=f"Table 2: EP and UA by depth and eta0 ({_title(findings)}, %)",
        columns=("blocks", "noise on", "", *(f"eta0 {_eta(eta)}" for eta in etas), "none"),
        rows=tuple(rows),
        notes=(
            _n(findings.table_2),
            f"UA over {', '.join(sorted({str(point.ua.n) for point in findings.table_2}))} test texts.",
            "EP of both attacks counts the true tokens: of noise on tokens it is at least the share replaced, however "
            "well the blocks are inverted. Etas of noise on rows and on tokens do not compare: rows are longer.",
            *_reasons(findings.table_2),
        ),
    )


def _table_2_paper(findings: Findings) -> Table:
    table = findings.config.paper.table_2
    return Table(
        title=f"Table 2 in the paper ({findings.config.paper.model}, SAP-CTI, %)",
        columns=("blocks", "", *(f"eta0 {_eta(eta)}" for eta in table.eta)),
        rows=tuple(
            (
                f"{bottom} of {findings.config.paper.architecture['num_hidden_layers']}",
                name,
                *(f"{v:.2f}" for v in values),
            )
            for bottom, line in table.bottoms.items()
            for name, values in (("EP", line.ep), ("UA", line.ua))
        ),
    )


def _conclusion(findings: Findings) -> Table:
    paper = findings.config.paper
    said, task = paper.conclusion, findings.config.depths.task
    centralised = findings.centralised[task].value
    attacks = findings.config.depths.with_noise
    blocks = paper.architecture["num_hidden_layers"]
    rows = [
        (
            f"{paper.model}, {said.blocks} of {blocks} blocks",
            percent(papers_share(paper.architecture, said.blocks)),
            "not stated; Table 2 has such a cell at eta0 65",
            f"{said.ep:g}",
            *("–" for _ in attacks[1:]),
            f"{-said.ua_loss:+.1f}",
        )
    ]
    for bottom, plain in findings.by_depth.items():
        rows.append(_line(findings, plain, centralised))
        for place, where in PLACES.items():
            points = [point for point in findings.table_2 if (point.bottom, point.place) == (bottom, place)]
            best = best_within(points, centralised)
            if best is not None:
                rows.append(_line(findings, best, centralised))
            elif points:
                share = percent(findings.handed_out[bottom])
                missing = ("–",) * (len(attacks) + 1)
                rows.append((f"here, {_blocks(bottom)}", share, f"{where}: no eta0 costs so little", *missing))
    return Table(
        title="Section 6: what a deeper bottom hides for one point of accuracy (%)",
        columns=(
            "bottom",
            "weights handed out",
            "noise",
            *(f"EP, {attack}" for attack in attacks),
            "UA against centralised",
        ),
        rows=tuple(rows),
        notes=(
            "word-selection is the paper's attack, optimised text by text; linear-inversion is a ridge map.",
            f"With noise: the eta0 of the most EP, against the stronger of both attacks, at which UA falls by no more "
            f"than {100 * LEAST_LOSS:g} point.",
        ),
    )


def _blocks(count: int) -> str:
    return f"{count} block{'' if count == 1 else 's'}"


def _line(findings: Findings, point: DepthPoint, centralised: float) -> tuple[str, ...]:
    noise = "none" if math.isinf(point.eta) else f"{PLACES[point.place]}, eta0 {point.eta:g}"
    return (
        f"here, {_blocks(point.bottom)}",
        percent(findings.handed_out[point.bottom]),
        noise,
        *(_ep(point, attack) for attack in findings.config.depths.with_noise),
        f"{100 * (point.ua.value - centralised):+.1f}",
    )
