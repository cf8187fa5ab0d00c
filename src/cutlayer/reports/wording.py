"""How a leak report says its numbers and shows text that is not its own."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import TypeGuard

from cutlayer.attacks import Check, Control
from cutlayer.attacks.evaluation.labels import REPORTS_ALONE
from cutlayer.reports.schema import AuditSettings, BlocksCopies, Finding, HandedOut, Interval, ProtectedEntities

NO_NUMBER = "–"

_INVISIBLE = frozenset(
    "\u00ad\u061c\u180e\u200b\u200e\u200f\u2028\u2029\u202a\u202b\u202c\u202d\u202e\u2060\u2066\u2067\u2068\u2069\ufeff"
)
"""Shows as nothing, or reverses what stands around it. Joiners are not among them: scripts and emoji need those."""
_TAGS = range(0xE0000, 0xE0080)


def known(value: float | None) -> TypeGuard[float]:
    """Whether there is a number that can be printed and drawn."""
    return value is not None and math.isfinite(value)


def per_cent(value: float | None, digits: int = 1) -> str:
    """A share in per cent, without the sign; a dash where there is no number."""
    return f"{100 * value:.{digits}f}" if known(value) else NO_NUMBER


def per_cent_range(ci: Interval | None, digits: int = 1) -> str:
    """An interval in per cent; a dash where there is none."""
    if ci is None or not all(map(math.isfinite, ci)):
        return NO_NUMBER
    return f"{100 * ci[0]:.{digits}f} to {100 * ci[1]:.{digits}f}"


def of_hundred(value: float | None) -> str:
    """A share as `37 of 100`, never rounded to nothing or to all."""
    if not known(value):
        return NO_NUMBER
    if 0 < value < 0.005:
        return "fewer than 1 of 100"
    if 0.995 <= value < 1:
        return "more than 99 of 100"
    return f"{100 * value:.0f} of 100"


def range_of_hundred(ci: Interval | None) -> str:
    """An interval as `35 to 39 of 100`, with a digit more where it is narrow."""
    if ci is None or not all(map(math.isfinite, ci)):
        return NO_NUMBER
    if ci[0] == ci[1]:
        return of_hundred(ci[0])
    digits = 0 if ci[1] - ci[0] >= 0.02 else 1
    return f"{per_cent_range(ci, digits)} of 100"


def answer(finding: Finding) -> str:
    """An attack's number in plain words: `37 of 100 words`; in per cent where nothing is counted."""
    if not known(finding.value):
        return NO_NUMBER
    return f"{of_hundred(finding.value)} {finding.counted}" if finding.counted else f"{per_cent(finding.value)} %"


def between(finding: Finding) -> str:
    """Its interval, in the same words."""
    if finding.counted:
        return range_of_hundred(finding.ci)
    return f"{per_cent_range(finding.ci)} %" if per_cent_range(finding.ci) != NO_NUMBER else NO_NUMBER


def by_chance(finding: Finding) -> str:
    """What is reached without a look, in the same words."""
    if finding.counted or not known(finding.chance):
        return of_hundred(finding.chance)
    return f"{per_cent(finding.chance)} %"


def known_of_labels(findings: Iterable[Finding]) -> str | None:
    """What a vendor knows of each label that was drawn at random, beside what reports alone allow; `None` if not asked.

    The promise is about reports, given the text: reports and texts together may tell more.
    """
    for finding in findings:
        cap = next((each.value for each in finding.further if each.name == REPORTS_ALONE), None)
        if finding.name == "reports-and-text" and cap is not None and known(finding.value):
            return (
                "What the vendor knows of each label: from reports alone at most "
                f"{per_cent(cap)} % of equally frequent labels are guessed right; reports and texts together gave "
                f"{per_cent(finding.value)} % ({per_cent_range(finding.ci)})."
            )
    return None


def sent_labels(settings: AuditSettings) -> str | None:
    """What a vendor was told of labels that it trained on alone; `None` where they stayed with the customer."""
    if settings.labels_sent is None:
        return None
    if not settings.labels_drawn:
        return "The vendor has the labels: those of all training texts were sent to it as they are."
    return (
        "The vendor has a label of each training text, which was drawn at random before it was sent: "
        f"{of_hundred(settings.labels_sent)} are the true ones."
    )


def outside_entities(protected: ProtectedEntities) -> str:
    """What was left in clear around entities, by kind, the most frequent first."""
    clear = sum(protected.clear.values())
    total = clear + protected.mentions
    kinds = sorted(protected.clear.items(), key=lambda kind: -kind[1])
    told = f": {', '.join(f'{per_cent(count / total)} % {kind}' for kind, count in kinds)}" if clear else ""
    return (
        f"Entities were replaced before: drawn words stand for {per_cent(protected.mentions / total)} % of "
        f"{whole(total)} words, and {protected.replaced} of {protected.drawn} that were drawn became another word. "
        f"{per_cent(clear / total)} % stand outside entities and left as they were{told}."
    )


def status(finding: Finding) -> str:
    """Why an attack has no number, in two words."""
    return "no number" if finding.status == "measured" else finding.status


def reason(finding: Finding) -> str:
    """Why an attack has no number."""
    if finding.status == "measured":
        return "What it gave is no number that can be printed."
    return finding.reason.removeprefix(f"{finding.status}: ")


def yes_or_no(value: bool | None) -> str:
    """An answer; a dash where there is none."""
    return NO_NUMBER if value is None else "yes" if value else "no"


def whereabouts(part: HandedOut) -> str:
    """Who has these weights."""
    return "handed out" if part.handed_out else "kept"


def uncopied(copies: BlocksCopies) -> str:
    """Why there is no number of copies of the vendor's blocks."""
    return f"There is no number of copies of the vendor's blocks ({copies.name}): {copies.status}. {copies.reason}"


def checked_copies(control: Control) -> str:
    """A control of students of the vendor's blocks."""
    made = {
        Check.UNPROTECTED: "a linear map of rows",
        Check.NONLINEAR: "a nonlinear map of rows",
        Check.SHUFFLED: "rows out dealt out anew among rows in",
    }[control.check]
    return (
        f"Control: of {made} students explain {per_cent(control.recovered)} % of the variance; must be "
        f"{control.relation} {per_cent(control.bound)} %."
    )


def probability(value: float | None) -> str:
    """A p-value."""
    if not known(value):
        return NO_NUMBER
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def whole(value: int) -> str:
    """A count."""
    return f"{value:,}"


def plain(value: float | None) -> str:
    """Any number, to four digits."""
    if value is None or math.isnan(value):
        return NO_NUMBER
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def duration(seconds: float | None) -> str:
    """A time in the unit that it is best read in."""
    if not known(seconds):
        return NO_NUMBER
    if seconds < 1:
        return "under 1 s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"


def day(created: str) -> str:
    """A moment, to the minute; as it is where it is no ISO 8601."""
    try:
        moment = datetime.fromisoformat(created)
    except ValueError:
        return created
    moment = moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
    return f"{moment:%Y-%m-%d %H:%M} UTC"


def visible(text: str) -> str:
    """Text with its control characters as their codes: what is shown cannot reverse or hide what stands beside it."""
    return "".join(map(_character, text.replace("\r\n", "\n")))


def _character(one: str) -> str:
    if one in "\n\t":
        return one
    hidden = one in _INVISIBLE or ord(one) in _TAGS or unicodedata.category(one) in ("Cc", "Cs")
    return f"⟨U+{ord(one):04X}⟩" if hidden else one
