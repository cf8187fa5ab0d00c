"""A report's plots, as plotly takes them: plain values, the same for the same report.

No text of a record is in any of them. Colours of text, lines and grids are the page's own, by scheme;
those of marks are told apart on light and on dark, in print, and by colour-blind readers, and no two
things are told apart by colour alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from cutlayer.reports.page.axes import LEGEND, ROOM, Rows, axis_title, layout_of, wrapped
from cutlayer.reports.schema import AuditReport, Finding, Frontier, FrontierPoint, Interval, Student
from cutlayer.reports.wording import known, per_cent, per_cent_range, plain

LEAK = "#d55e00"
CALM = "#2a86c4"
SERIES = (LEAK, CALM, "#0a9169", "#b5638f")
FAINT = "#787878"
INK = "#1c2127"
"""Of error bars, until the page gives them its own."""
SYMBOLS = ("circle", "square", "diamond", "triangle-up")

_NEAR, _FAR = 0.15, 0.75
"""Shares: of marks so near to one another, or to the left edge, and of those far to the right."""
_BAR = 16
"""Pixels of a bar."""


@dataclass(frozen=True)
class Plot:
    """A plot and what it says in words.

    Attributes:
        name: Its place on the page.
        title: What it shows.
        reading: How to read it.
        numbers: What is drawn, a sentence each: the plot for who does not see it.
        data: Its traces.
        layout: Its axes and sizes.
    """

    name: str
    title: str
    reading: str
    numbers: tuple[str, ...]
    data: tuple[dict[str, Any], ...]
    layout: dict[str, Any]

    @property
    def figure(self) -> dict[str, Any]:
        """What the page's script draws."""
        return {"id": f"plot-{self.name}", "data": list(self.data), "layout": self.layout}


def plots(report: AuditReport) -> dict[str, Plot]:
    """The plots for which there are numbers, by name."""
    drawn = (_strongest(report), _words(report), _frontier(report), _classes(report), _students(report))
    return {plot.name: plot for plot in drawn if plot is not None}


def strongest_findings(report: AuditReport) -> Iterator[tuple[str, Finding]]:
    """Each question that has a number, as it is asked, with its strongest attack."""
    measured = {(finding.question, finding.name): finding for finding in report.attacks if known(finding.value)}
    for best in report.strongest:
        finding = measured.get((best.question, best.attack or ""))
        if finding is not None:
            yield best.asked, finding


def by_value(report: AuditReport, question: str) -> list[Finding]:
    """Attacks on a question that have a number, the most successful first."""
    found = [each for each in report.attacks if each.question == question and known(each.value)]
    return sorted(found, key=lambda each: (-(each.value or 0), each.name))


def plotted(frontier: Frontier) -> list[FrontierPoint]:
    """Settings that can be drawn, by eta."""
    points = [point for point in frontier.points if known(point.recovered)]
    return sorted(points, key=lambda point: (math.isnan(point.eta), point.eta))


def is_share(frontier: Frontier) -> bool:
    """Whether its utility is a share, and printed in per cent."""
    return all(0 <= point.utility <= 1 for point in frontier.points if known(point.utility))


def utility_title(frontier: Frontier) -> str:
    """What the axis of its utility shows; up is more useful."""
    unit = " (%)" if is_share(frontier) else ""
    return f"{frontier.utility_name}{unit}{'; less is better' if frontier.lower_is_better else ''}"


# ---------------------------------------------------------------- the five


def _strongest(report: AuditReport) -> Plot | None:
    rows = list(strongest_findings(report))
    if not rows:
        return None
    return Plot(
        name="strongest",
        title="The strongest attack on each question",
        reading=_BARS,
        numbers=tuple(f"{asked} {finding.title}: {_said(finding)}" for asked, finding in rows),
        **_bars([asked for asked, _ in rows], [finding for _, finding in rows]),
    )


def _words(report: AuditReport) -> Plot | None:
    rows = by_value(report, "words")
    if not rows:
        return None
    left_out = sum(each.question == "words" for each in report.attacks) - len(rows)
    missing = f" {left_out} more on words without a number: the table says why." if left_out else ""
    return Plot(
        name="words",
        title="All attacks on words",
        reading=_BARS + missing,
        numbers=tuple(f"{finding.title}: {_said(finding)}" for finding in rows),
        **_bars([finding.title for finding in rows], rows),
    )


def _frontier(report: AuditReport) -> Plot | None:
    frontier = report.frontier
    points = plotted(frontier) if frontier is not None else []
    if frontier is None or not points:
        return None
    useful = [point for point in points if known(point.utility)]
    scale = 100 if is_share(frontier) else 1
    if useful:
        figure = _over_recovered(frontier, useful, scale)
        reading = (
            "Up is more useful, left is more private: the best settings lie at the top left. "
            "The large diamond is the setting of this report; lines through points are 95\u00a0% intervals."
        )
    else:
        figure = _over_settings(points)
        reading = (
            f"Each dot is a setting; further right, more was read. {frontier.utility_name[:1].upper()}"
            f"{frontier.utility_name[1:]} was not measured. The diamond is the setting of this report."
        )
    return Plot(
        name="frontier",
        title="What each setting keeps, over what it gives away" if useful else "What each setting gives away",
        reading=reading,
        numbers=tuple(_setting(point, frontier, scale) for point in points),
        **figure,
    )


def _classes(report: AuditReport) -> Plot | None:
    findings = [each for each in by_value(report, "words") if any(known(kind.recovered) for kind in each.classes)]
    findings = findings[: len(SERIES)]
    names = list(dict.fromkeys(kind.name for each in findings for kind in each.classes if known(kind.recovered)))
    if not names:
        return None
    rows = Rows(names, room=ROOM + 12 * (len(findings) - 1))
    traces = []
    for number, finding in enumerate(findings):
        kinds = [kind for kind in finding.classes if known(kind.recovered)]
        shift = (number - (len(findings) - 1) / 2) * 12
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": wrapped(finding.title, 40),
                "x": [_hundredfold(kind.recovered) for kind in kinds],
                "y": [rows.at(names.index(kind.name), shift) for kind in kinds],
                "error_x": _errors([kind.recovered for kind in kinds], [kind.ci for kind in kinds]),
                "marker": {"color": SERIES[number], "symbol": SYMBOLS[number], "size": 10},
                "customdata": [[wrapped(kind.name), kind.n] for kind in kinds],
                "hovertemplate": "%{customdata[0]}: %{x:.1f} % of %{customdata[1]:,}<extra></extra>",
            }
        )
    layout = rows.layout("share that was read (%)", legend=sum(1 + len(each.title) // 40 for each in findings))
    return Plot(
        name="classes",
        title="Which kinds of words",
        reading="Each dot is the share of one kind of words that an attack read. Lines are 95\u00a0% intervals.",
        numbers=tuple(
            f"{finding.title}: "
            + "; ".join(
                f"{kind.name} {per_cent(kind.recovered)} %{_in(kind.ci)} of {kind.n:,}"
                for kind in finding.classes
                if known(kind.recovered)
            )
            + "."
            for finding in findings
        ),
        data=tuple(traces),
        layout=layout,
    )


def _students(report: AuditReport) -> Plot | None:
    students = report.vendor.students if report.vendor is not None else ()
    students = tuple(sorted((each for each in students if known(each.agreement)), key=lambda each: each.queries))
    if not students:
        return None
    taught = [each for each in students if known(each.from_labels)]
    traces = [
        _curve(students, [each.agreement for each in students], [each.agreement_ci for each in students], copy=True),
        _curve(taught, [each.from_labels for each in taught], [each.from_labels_ci for each in taught], copy=False),
    ]
    layout = layout_of(380)
    layout["xaxis"] |= {
        "title": axis_title("answered queries"),
        "type": "log",
        "tickvals": [each.queries for each in students],
        "ticktext": [f"{each.queries:,}" for each in students],
        "range": [math.log10(max(1, students[0].queries)) - 0.15, math.log10(max(1, students[-1].queries)) + 0.15],
    }
    layout["yaxis"] |= {"title": axis_title("agreement (%)"), "range": [0, 102]}
    return Plot(
        name="students",
        title="How well a copy agrees with the tuned model",
        reading=(
            "The more a copy gains over one that was trained on true labels alone, the more the answers give away "
            "of the model itself. Lines through points are 95\u00a0% intervals."
        ),
        numbers=tuple(_copy(each) for each in students),
        data=tuple(trace for trace in traces if trace["x"]),
        layout=layout | {"showlegend": True, "legend": LEGEND, "margin": layout["margin"] | {"t": 44}},
    )


# ---------------------------------------------------------------- marks

_BARS = (
    "A bar is the share that was read. The thin line on it is a 95\u00a0% interval. The thick upright mark is what "
    "guessing without a look would reach. Orange bars are above chance, blue striped ones are not."
)


def _bars(labels: Sequence[str], findings: Sequence[Finding]) -> dict[str, Any]:
    rows = Rows(labels)
    places = [rows.at(number) for number in range(len(labels))]
    marked = [(at, each) for at, each in zip(places, findings, strict=True) if known(each.chance)]
    bars = [
        _bar([(at, each) for at, each in zip(places, findings, strict=True) if bool(each.above_chance) is above], above)
        for above in (True, False)
    ]
    # error bars and not symbols: those take the page's colour for text, and are seen on a bar and beside it
    chance = {
        "type": "scatter",
        "mode": "markers",
        "name": "chance",
        "x": [_hundredfold(each.chance) for _, each in marked],
        "y": [at for at, _ in marked],
        "error_y": {"type": "constant", "value": _BAR / 2 + 2, "thickness": 3.5, "width": 0, "color": INK},
        "marker": {"opacity": 0, "size": _BAR},
        "hovertemplate": "chance: %{x:.1f} %<extra></extra>",
    }
    data = tuple(trace for trace in (*bars, chance) if trace["x"])
    return {"data": data, "layout": rows.layout("share that was read (%)") | {"barmode": "overlay"}}


def _bar(placed: Sequence[tuple[float, Finding]], above: bool) -> dict[str, Any]:
    values, intervals = [each.value for _, each in placed], [each.ci for _, each in placed]
    stripes = {"shape": "/", "fillmode": "overlay", "fgcolor": "#ffffff", "fgopacity": 0.55, "size": 7}
    return {
        "type": "bar",
        "orientation": "h",
        "name": "above chance" if above else "not above chance",
        "x": [_hundredfold(value) for value in values],
        "y": [at for at, _ in placed],
        "width": _BAR,
        "error_x": _errors(values, intervals),
        "marker": {"color": LEAK} if above else {"color": CALM, "pattern": stripes},
        "customdata": [each.n for _, each in placed],
        "hovertemplate": "%{x:.1f} % of %{customdata:,}<extra></extra>",
    }


def _over_recovered(frontier: Frontier, points: Sequence[FrontierPoint], scale: int) -> dict[str, Any]:
    layout = layout_of(440)
    layout["xaxis"] |= {"title": axis_title("words that the attack read (%)"), "rangemode": "tozero"}
    layout["yaxis"] |= {"title": axis_title(wrapped(utility_title(frontier), 40))}
    if frontier.lower_is_better:
        layout["yaxis"] |= {"autorange": "reversed"}
    line = {
        "type": "scatter",
        "mode": "lines",
        "x": [_hundredfold(point.recovered) for point in points],
        "y": [_scaled(point.utility or 0, scale) for point in points],
        "line": {"color": FAINT, "width": 1, "dash": "dot"},
        "hoverinfo": "skip",
        "showlegend": False,
    }
    return {"data": (line, *_both(points, scale)), "layout": layout}


def _both(points: Sequence[FrontierPoint], scale: int) -> Iterator[dict[str, Any]]:
    sides = _sides(points)
    for audited in (False, True):
        some = [point for point in points if point.audited is audited]
        if some:
            yield {
                "type": "scatter",
                "mode": "markers+text",
                "name": "this report" if audited else "other settings",
                "x": [_hundredfold(point.recovered) for point in some],
                "y": [_scaled(point.utility or 0, scale) for point in some],
                "text": [_eta(point) for point in some],
                "textposition": [sides[point.eta, point.label] for point in some],
                "error_x": _errors([point.recovered for point in some], [point.recovered_ci for point in some]),
                "error_y": _errors([point.utility for point in some], [point.utility_ci for point in some], scale),
                "marker": _audited() if audited else {"color": CALM, "size": 9},
                "customdata": [[wrapped(point.label, 60)] for point in some],
                "hovertemplate": "%{customdata[0]}<br>read %{x:.1f} %<br>utility %{y:.1f}<extra></extra>",
                "cliponaxis": False,
            }


def _sides(points: Sequence[FrontierPoint]) -> dict[tuple[float, str], str]:
    """On which side of each mark its label stands: not where the next mark is, nor beyond the plot's edges."""
    placed = sorted(points, key=lambda point: point.recovered)
    sides = {}
    for point, after in zip_longest(placed, placed[1:]):
        near = after is not None and after.recovered - point.recovered < _NEAR
        left = point.recovered >= (_NEAR if near else _FAR)
        sides[point.eta, point.label] = "top left" if left else "top right" if near else "bottom right"
    return sides


def _over_settings(points: Sequence[FrontierPoint]) -> dict[str, Any]:
    rows = Rows([f"{point.label} (this report)" if point.audited else point.label for point in points])
    trace = {
        "type": "scatter",
        "mode": "markers",
        "name": "read",
        "x": [_hundredfold(point.recovered) for point in points],
        "y": [rows.at(number) for number in range(len(points))],
        "error_x": _errors([point.recovered for point in points], [point.recovered_ci for point in points]),
        "marker": {
            "color": [LEAK if point.audited else CALM for point in points],
            "symbol": ["diamond" if point.audited else "circle" for point in points],
            "size": [15 if point.audited else 10 for point in points],
        },
        "hovertemplate": "%{x:.1f} %<extra></extra>",
    }
    return {"data": (trace,), "layout": rows.layout("words that the attack read (%)")}


def _curve(
    students: Sequence[Student], values: Sequence[float | None], intervals: Sequence[Interval | None], *, copy: bool
) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": "copy from answers" if copy else "trained on labels",
        "x": [each.queries for each in students],
        "y": [_hundredfold(value) for value in values],
        "error_y": _errors(values, intervals),
        "line": {"color": LEAK if copy else CALM, "width": 2, "dash": "solid" if copy else "dash"},
        "marker": {"symbol": "circle" if copy else "square", "size": 9},
        "hovertemplate": "%{x:,} queries: %{y:.1f} %<extra></extra>",
    }


def _audited() -> dict[str, Any]:
    return {"color": LEAK, "size": 16, "symbol": "diamond"}


def _errors(values: Sequence[float | None], intervals: Sequence[Interval | None], scale: int = 100) -> dict[str, Any]:
    """Error bars; of no length where there is no interval."""
    up, down = [], []
    for value, ci in zip(values, intervals, strict=True):
        whole = ci is not None and known(value) and all(map(math.isfinite, ci))
        up.append(_scaled(max(0.0, ci[1] - value), scale) if whole and ci is not None and known(value) else 0)
        down.append(_scaled(max(0.0, value - ci[0]), scale) if whole and ci is not None and known(value) else 0)
    return {
        "type": "data",
        "symmetric": False,
        "array": up,
        "arrayminus": down,
        "thickness": 1.4,
        "width": 4,
        "color": INK,
    }


def _scaled(value: float, scale: int) -> float:
    return round(scale * value, 4)


def _hundredfold(value: float | None) -> float | None:
    return _scaled(value, 100) if known(value) else None


def _in(ci: Interval | None) -> str:
    return f" ({per_cent_range(ci)})" if ci is not None else ""


def _said(finding: Finding) -> str:
    chance = f", chance {per_cent(finding.chance)} %" if known(finding.chance) else ""
    return f"{per_cent(finding.value)} %{_in(finding.ci)} of {finding.n:,}{chance}."


def _eta(point: FrontierPoint) -> str:
    return f"eta {plain(point.eta)}"


def _setting(point: FrontierPoint, frontier: Frontier, scale: int) -> str:
    unit = " %" if scale == 100 else ""
    utility = (
        f", {frontier.utility_name} {scale * point.utility:.1f}{unit}"
        if known(point.utility)
        else f", {frontier.utility_name} not measured"
    )
    audited = " This is the setting of this report." if point.audited else ""
    return f"{point.label}: {per_cent(point.recovered)} %{_in(point.recovered_ci)} read{utility}.{audited}"


def _copy(student: Student) -> str:
    labels = (
        f"; trained on labels {per_cent(student.from_labels)} %{_in(student.from_labels_ci)}"
        if known(student.from_labels)
        else ""
    )
    return f"{student.queries:,} queries: {per_cent(student.agreement)} %{_in(student.agreement_ci)}{labels}."
