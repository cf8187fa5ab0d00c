"""Page one in plain words: the strongest attack on each question, and what it found."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from cutlayer.attacks import Question
from cutlayer.reports.schema import AuditSettings, Finding, Strongest
from cutlayer.reports.wording import answer, by_chance, outside_entities, sent_labels

_NAMED = 20


def strongest(findings: Iterable[Finding]) -> tuple[Strongest, ...]:
    """For each question the attack that reads most of all that have a number; words first, as `Question` has them."""
    by_question: dict[str, list[Finding]] = {}
    for finding in findings:
        by_question.setdefault(finding.question, []).append(finding)
    order = list(Question)
    asked = sorted(by_question, key=lambda question: order.index(Question(question.partition(":")[0])))
    return tuple(_strongest(by_question[question]) for question in asked)


def _strongest(findings: Sequence[Finding]) -> Strongest:
    asked = findings[0]
    measured = [finding for finding in findings if finding.value is not None]
    if not measured:
        return Strongest(
            question=asked.question,
            asked=asked.asked,
            sentence=f"There is no number. {_why_none(findings)} That is no protection.",
        )
    best = max(measured, key=lambda finding: finding.value or 0.0)
    return Strongest(
        question=best.question,
        asked=best.asked,
        attack=best.name,
        metric=best.metric,
        value=best.value,
        ci=best.ci,
        chance=best.chance,
        above_chance=best.above_chance,
        sentence=_sentence(best),
    )


def _why_none(findings: Sequence[Finding]) -> str:
    failed = [finding.name for finding in findings if finding.status == "control failed"]
    if failed:
        return f"Controls of {', '.join(failed)} failed."
    late = [finding.name for finding in findings if finding.status == "not run"]
    if late:
        return f"The time budget was used up before {', '.join(late)} had a turn."
    reasons = {finding.reason for finding in findings}
    return reasons.pop() if len(reasons) == 1 else "No attack applies to what was sent."


def _sentence(finding: Finding) -> str:
    if not finding.above_chance:
        return f"No attack read more than guessing would, which gives {by_chance(finding)}."
    return f"The vendor could read {answer(finding)}; guessing without a look gives {by_chance(finding)}."


def verdict(
    best: Sequence[Strongest], settings: AuditSettings, *, stand_out: Sequence[int], tried: int
) -> tuple[str, ...]:
    """Page one's first sentences.

    Args:
        best: The strongest attack on each question.
        settings: Of the run.
        stand_out: Rows of texts that were read far better than others.
        tried: How many texts were looked at for that.
    """
    told = [f"{each.asked} {each.sentence}" for each in best]
    if stand_out:
        named = ", ".join(map(str, stand_out[:_NAMED])) + (" and others" if len(stand_out) > _NAMED else "")
        unit = "Blocks" if settings.objective == "lm" else "Rows"
        told.insert(
            0,
            f"{len(stand_out)} of the {tried} texts whose words were tried were read far better than noise like the "
            f"others' allows: they left with less of it, or with none. {unit}: {named}.",
        )
    if settings.protected is not None:
        told.insert(0, outside_entities(settings.protected))
    if (labels := sent_labels(settings)) is not None:
        told.insert(0, labels)
    if settings.unlabelled:
        told.insert(
            0,
            "No labels were given, so nothing was trained. What left of the texts does not depend on labels; what "
            "training shows of labels was not looked at.",
        )
    if math.isinf(settings.eta):
        told.insert(0, "No noise was added: texts left as the customer's part of the model makes them.")
    if settings.unsafe_noise:
        told.insert(0, "The noise came from a seed that was given: whoever knows it can undo it.")
    return tuple(told)
