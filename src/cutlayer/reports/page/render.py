"""A leak report as one HTML file that loads nothing from anywhere.

Everything that is not the page's own is escaped, and the page's content policy allows the three scripts
that are in it, by their digests, and no request at all.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Literal

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from cutlayer.attacks import Check, Control
from cutlayer.core import Claim, Guarantee
from cutlayer.reports import wording
from cutlayer.reports.page.plots import Plot, is_share, plots
from cutlayer.reports.schema import AuditReport, Example, Finding, Frontier, Piece, Strongest, VendorPage
from cutlayer.reports.wording import known

SHOWN_CHARACTERS = 700
"""Of an example's text before the rest is folded away."""
_CHARACTERS_PER_LINE = 50
"""What a line break takes of that, however little stands on its line."""


def render(report: AuditReport) -> str:
    """A report's page; the same report gives the same page.

    Args:
        report: The report.

    Returns:
        HTML that needs no network: style, scripts and numbers are all in it.
    """
    drawn = plots(report)
    answers = [Answer.of(best, report) for best in report.strongest]
    style, script, library = _part("report.css"), _part("report.js"), _plotly() if drawn else ""
    return (
        _environment()
        .get_template("report.html.j2")
        .render(
            report=report,
            opening=opening(report, answers),
            answers=answers,
            examples=[Comparison.of(example, report) for example in report.examples],
            odds=Odds.of(report.guarantee, report.settings.largest_distance),
            # any two labels are as far apart as any others
            label_odds=None if report.label_guarantee is None else Odds.of(report.label_guarantee, 1.0),
            known_of_labels=wording.known_of_labels(report.attacks),
            questions=_by_question(report),
            controls=[(finding, _by_check(finding)) for finding in report.attacks if finding.controls],
            checks=_checks(report),
            without_meaning=_without_meaning(report),
            classes=_classes(report),
            utility=_utility,
            handed=None if report.vendor is None else HandedOutShare.of(report.vendor),
            plots=drawn,
            style=Markup(style),  # noqa: S704 - the page's own
            library=Markup(library),  # noqa: S704 - plotly's own
            script=Markup(script),  # noqa: S704 - the page's own
            figures=_embedded(drawn),
            policy=_policy(library, script) if drawn else _policy(),
        )
    )


# ---------------------------------------------------------------- what templates are given


@dataclass(frozen=True)
class Answer:
    """What page one says about a question.

    Attributes:
        best: The report's own words.
        finding: The strongest attack; `None` where none has a number.
        anchor: Where on the page that attack is described.
        state: Which of the three things can be said.
        without: Attacks on this question that have no number.
    """

    best: Strongest
    finding: Finding | None
    anchor: str
    state: Literal["above chance", "not above chance", "no number"]
    without: tuple[Finding, ...]

    @classmethod
    def of(cls, best: Strongest, report: AuditReport) -> Answer:
        """Looks a question's attacks up."""
        about = [(anchor, each) for anchor, each in _anchored(report) if each.question == best.question]
        found = next((pair for pair in about if pair[1].name == best.attack and known(pair[1].value)), None)
        without = tuple(each for _, each in about if not known(each.value))
        if found is None:
            return cls(best, None, "", "no number", without)
        state: Literal["above chance", "not above chance"] = (
            "above chance" if found[1].above_chance else "not above chance"
        )
        return cls(best, found[1], found[0], state, without)


@dataclass(frozen=True)
class Comparison:
    """An example, of which a long text is shown in part.

    Attributes:
        example: The example.
        attack: What the attack does.
        hits: Tokens that the attacker read.
        tokens: All of the guess.
        shown: For original, released and guess the pieces that are shown at once; `None` for no text.
        folded: The rest of each.
        more: Characters that are folded away, of the text that has most; 0 where nothing is.
    """

    example: Example
    attack: str
    hits: int
    tokens: int
    shown: tuple[tuple[Piece, ...] | None, ...]
    folded: tuple[tuple[Piece, ...] | None, ...]
    more: int

    @classmethod
    def of(cls, example: Example, report: AuditReport) -> Comparison:
        """Counts hits, and cuts long texts after as many tokens each: what stands beside each other belongs."""
        texts = (example.original, example.released, example.guess)
        longest = max(len(pieces) for pieces in texts if pieces is not None)
        cuts = [(_fitting(pieces), len(pieces)) for pieces in texts if pieces is not None]
        cut = min((fitting for fitting, pieces in cuts if fitting < pieces), default=longest)
        words = [piece for piece in example.guess if piece.text.strip()]
        return cls(
            example=example,
            attack=next((each.title for each in report.attacks if each.name == example.attack), example.attack),
            hits=sum(piece.hit for piece in words),
            tokens=len(words),
            shown=tuple(None if pieces is None else pieces[:cut] for pieces in texts),
            folded=tuple(None if pieces is None else pieces[cut:] for pieces in texts),
            more=max(sum(len(piece.text) for piece in pieces[cut:]) for pieces in texts if pieces is not None),
        )


@dataclass(frozen=True)
class Odds:
    """By how much a guarantee lets odds move: e to the budget times the largest distance.

    Attributes:
        factor: As a number; `None` where it is a power.
        power: Of ten.
    """

    factor: float | None
    power: int | None

    @classmethod
    def of(cls, guarantee: Guarantee, largest_distance: float | None) -> Odds | None:
        """The worst case; `None` where nothing is promised or no distance is known."""
        if guarantee.claim is Claim.NONE or not known(largest_distance):
            return None
        exponent = guarantee.budget * largest_distance
        if exponent < math.log(1000):
            return cls(math.exp(exponent), None)
        return cls(None, round(exponent / math.log(10)))

    @property
    def says_little(self) -> bool:
        """Whether a factor so large excludes next to nothing."""
        return self.power is not None


@dataclass(frozen=True)
class HandedOutShare:
    """Where in the model the weights lie that the customer has.

    Attributes:
        parameters: How many.
        bars: Start and width of each group that was handed out, in thousandths of the model.
    """

    parameters: int
    bars: tuple[tuple[float, float], ...]

    @classmethod
    def of(cls, page: VendorPage) -> HandedOutShare:
        """Adds the groups up, in the order of the report."""
        bars, start = [], 0.0
        for part in page.handed:
            width = 1000 * part.share if known(part.share) else 0.0
            if part.handed_out:
                bars.append((round(start, 2), round(width, 2)))
            start += width
        return cls(sum(part.parameters for part in page.handed if part.handed_out), tuple(bars))


def opening(report: AuditReport, answers: Sequence[Answer]) -> list[str]:
    """Page one's first sentences: what no answer below them says, and on how many questions something leaked."""
    answered = {f"{each.best.asked} {each.best.sentence}" for each in answers}
    told = [sentence for sentence in report.verdict if sentence not in answered]
    if len(answers) < 2:
        return told
    states = Counter(each.state for each in answers)
    leaks = states["above chance"] or "none"
    said = [f"On {leaks} of {len(answers)} questions the vendor could read more than guessing gives."]
    if states["not above chance"] and states["above chance"]:
        said.append(f"On {states['not above chance']} the attacks did no better.")
    if states["no number"]:
        said.append(f"On {states['no number']} nothing is known.")
    return [*told, " ".join(said)]


def runs(pieces: tuple[Piece, ...]) -> list[tuple[str, bool]]:
    """A text in as few parts as tell what was read from what was not; a blank before the first read word was not."""
    parts: list[tuple[str, bool]] = []
    for piece in pieces:
        word = piece.text.lstrip()
        blank = piece.text[: len(piece.text) - len(word)]
        if piece.hit and word and parts and parts[-1][1]:
            parts[-1] = (parts[-1][0] + piece.text, True)
        elif piece.hit and word:
            parts += [(blank, False), (word, True)]
        else:
            parts.append((piece.text, False))
    return parts


def _anchored(report: AuditReport) -> list[tuple[str, Finding]]:
    return [(f"attack-{number}", finding) for number, finding in enumerate(report.attacks, start=1)]


def _by_question(report: AuditReport) -> list[tuple[str, list[tuple[str, Finding]]]]:
    """Attacks by question, asked in page one's order; those with a number first, the most successful before others."""
    groups: dict[str, list[tuple[str, Finding]]] = {best.asked: [] for best in report.strongest}
    for anchor, finding in _anchored(report):
        groups.setdefault(finding.asked, []).append((anchor, finding))
    return [(asked, sorted(group, key=_rank)) for asked, group in groups.items()]


def _rank(anchored: tuple[str, Finding]) -> tuple[bool, float]:
    value = anchored[1].value
    return (False, -value) if known(value) else (True, 0.0)


def _checks(report: AuditReport) -> list[Check]:
    """What attacks on transcripts were asked, in the order of `Check`."""
    asked = {control.check for finding in report.attacks for control in finding.controls}
    return [check for check in Check if check in asked]


def _by_check(finding: Finding) -> dict[Check, Control]:
    return {control.check: control for control in finding.controls}


def _without_meaning(report: AuditReport) -> list[str]:
    """Reasons why controls have no meaning, each once, with the attacks that it is of."""
    attacks: dict[str, list[str]] = {}
    for finding in report.attacks:
        for control in finding.controls:
            if control.reason is not None:
                attacks.setdefault(f"{control.check}: {control.reason}", []).append(finding.name)
    return [f"{reason} ({', '.join(names)})" for reason, names in attacks.items()]


def _classes(report: AuditReport) -> list[tuple[str, Finding]]:
    groups = [pair for pair in _anchored(report) if pair[1].classes]
    return sorted(groups, key=_rank)


def _utility(value: float | None, frontier: Frontier) -> str:
    return wording.per_cent(value) if is_share(frontier) else wording.plain(value)


def _fitting(pieces: tuple[Piece, ...]) -> int:
    """How many pieces are shown at once: the rest is folded away only if it is worth a click."""
    length = fitting = 0
    for number, piece in enumerate(pieces):
        length += len(piece.text) + _CHARACTERS_PER_LINE * piece.text.count("\n")
        if length <= SHOWN_CHARACTERS:
            fitting = number + 1
    return len(pieces) if length <= 1.3 * SHOWN_CHARACTERS else max(1, fitting)


# ---------------------------------------------------------------- the file


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("cutlayer.reports", "page"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    named: dict[str, Any] = {
        "answer": wording.answer,
        "between": wording.between,
        "by_chance": wording.by_chance,
        "checked_copies": wording.checked_copies,
        "day": wording.day,
        "duration": wording.duration,
        "of_hundred": wording.of_hundred,
        "per_cent": wording.per_cent,
        "per_cent_range": wording.per_cent_range,
        "plain": wording.plain,
        "probability": wording.probability,
        "range_of_hundred": wording.range_of_hundred,
        "reason": wording.reason,
        "runs": runs,
        "status": wording.status,
        "uncopied": wording.uncopied,
        "whereabouts": wording.whereabouts,
        "whole": wording.whole,
        "yes_or_no": wording.yes_or_no,
    }
    environment.filters |= named
    environment.tests["known"] = known
    return environment


def _shown(value: Any) -> Any:
    return wording.visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _embedded(drawn: dict[str, Plot]) -> Markup:
    """Plots as JSON inside HTML: no character of it can end the element that it stands in."""
    text = json.dumps([plot.figure for plot in drawn.values()], allow_nan=False, separators=(",", ":"))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)  # noqa: S704 - escaped above


def _policy(*scripts: str) -> str:
    """What a browser may load and run: the page's own scripts. Styles cannot be named: plotly makes some of its own."""
    allowed = " ".join(map(_digest, scripts)) or "'none'"
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _part(name: str) -> str:
    return (files("cutlayer.reports") / "page" / name).read_text(encoding="utf-8")


def _plotly() -> str:
    from plotly.offline import get_plotlyjs

    library: str = get_plotlyjs()
    return library
