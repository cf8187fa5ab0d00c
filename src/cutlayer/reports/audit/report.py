"""From what a run showed to a leak report: every attack that applies, checked, compared, and told in plain words."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

import torch

from cutlayer.attacks import (
    ATTACKS,
    Examined,
    Measured,
    NotApplicable,
    PublicText,
    Question,
    Reading,
)
from cutlayer.core import Guarantee
from cutlayer.customer import FinetuneResult, Progress
from cutlayer.customer.evidence import Evidence
from cutlayer.customer.settings import LabelsAt
from cutlayer.models import Head, load_model
from cutlayer.reports.audit.examples import examples
from cutlayer.reports.audit.handed import vendor_page
from cutlayer.reports.audit.outliers import stand_out
from cutlayer.reports.audit.running import AttackRun, run_attacks
from cutlayer.reports.audit.words import strongest, verdict
from cutlayer.reports.downstream import Downstream
from cutlayer.reports.markup import Markup, mark_up
from cutlayer.reports.metrics import by_class, exact_sentences, exact_texts, holm, likeness
from cutlayer.reports.schema import (
    AuditReport,
    AuditSettings,
    BlocksCopies,
    Finding,
    Metric,
    ProtectedEntities,
    Student,
    TokenClass,
)

ALPHA = 0.01
"""Probability that a report on traffic that holds nothing calls anything a leak."""
_UNLABELLED = "The texts were given without labels, so there is nothing to hold guesses against."


@dataclass(frozen=True)
class Attacked:
    """What is attacked, and what is to be said of it beside the attacks.

    Attributes:
        evidence: What the run, or several, showed.
        source: Where the vendor's model is to be had: `starter`, a local folder or a hub id.
        recorded: Whether the traffic is of a run that was, not made for the audit.
        runs: What is to be said of several runs that are read together.
        students: Copies of the tuned model that were tried, for the vendor's page.
        blocks: Copies of the vendor's blocks that were tried, for the same page.
        began: From when a time budget counts, by `time.monotonic`; from the attacks on where it is left out.
        left_out: What was left out or cut short for it before attacks, a sentence each.
        late: Whether there was no time to try copies of the tuned model.
        protected: What stands in the places of entities in these texts.
        downstream: What embeddings are good for, where that was measured.
    """

    evidence: Evidence
    source: str
    recorded: bool = False
    runs: tuple[str, ...] = ()
    students: tuple[Student, ...] = ()
    blocks: BlocksCopies | None = None
    began: float | None = None
    left_out: tuple[str, ...] = ()
    late: bool = False
    protected: ProtectedEntities | None = None
    downstream: Downstream | None = None


def audit(
    attacked: Attacked,
    *,
    public: PublicText | None,
    budget: float | None,
    only: Collection[str] | None = None,
    shown: int,
    seed: int,
    repeat: tuple[str, ...],
    progress: Progress,
) -> AuditReport:
    """Attacks what a run showed, and reports.

    Args:
        attacked: The run.
        public: The attacker's own text.
        budget: Seconds that attacks may take, or all since `attacked.began`; for it they are run more weakly, and the
            report says so. `None` for as long as they take.
        only: Names of the attacks to run; `None` for all.
        shown: Examples on page one.
        seed: From which examples are chosen.
        repeat: Command lines that make the report again.
        progress: Where to show progress.
    """
    evidence, source = attacked.evidence, attacked.source
    head = Head.LANGUAGE if evidence.spec.objective.generates else Head.CLASSIFICATION
    model = load_model(source, head=None if evidence.objective == "embed" else head)
    evidence = evidence.granted(public, model)
    names = sorted(ATTACKS if only is None else only, key=lambda each: (ATTACKS[each].costly, each))
    ran, traded = run_attacks(
        evidence, names, budget=budget, began=attacked.began, by_name=only is not None, progress=progress
    )
    ran += _not_asked(evidence, names)
    outcomes = {number: each.found.outcome for number, each in enumerate(ran)}
    measured = {number: found for number, found in outcomes.items() if isinstance(found, Measured)}
    above = holm({str(number): outcome.p_value for number, outcome in measured.items()}, alpha=ALPHA)
    findings = [_finding(each, above.get(str(number)), evidence) for number, each in enumerate(ran)]
    best = strongest(findings)
    rows, tried = _rows_that_stand_out(evidence, ran)
    readings = {each.name: each.reading for each in ran if each.reading is not None}
    page = vendor_page(evidence, source, attacked.students, attacked.blocks, late=attacked.late)
    depth = sum("block" in part.name for part in page.handed)
    settings = _settings(
        replace(attacked, evidence=evidence), blocks=depth, budget=budget, seed=seed, looks=_looks(ran)
    )
    return AuditReport(
        version=version("cutlayer"),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        verdict=verdict(best, settings, stand_out=rows, tried=tried),
        settings=settings,
        guarantee=evidence.result.guarantee,
        label_guarantee=_label_guarantee(evidence),
        strongest=best,
        attacks=tuple(findings),
        correction=(
            f"Holm's correction over the {len(measured)} attacks with a number: on traffic that holds nothing, any of "
            f"them is called above chance with probability {ALPHA:g} at most."
        ),
        stand_out=rows,
        examples=examples(evidence, readings, best, count=shown, seed=seed),
        vendor=page,
        downstream=attacked.downstream,
        traded=(*attacked.left_out, *traded),
        runs=attacked.runs,
        repeat=repeat,
    )


def _label_guarantee(evidence: Evidence) -> Guarantee | None:
    """What is promised of the customer's labels; `None` where it has none."""
    return evidence.result.label_guarantee if isinstance(evidence.result, FinetuneResult) else None


def _not_asked(evidence: Evidence, names: Sequence[str]) -> list[AttackRun]:
    """Attacks on labels, where texts have none."""
    if not evidence.unlabelled:
        return []
    unasked = [name for name in names if ATTACKS[name].question is Question.LABEL]
    return [
        AttackRun(name, ATTACKS[name], "", Examined(NotApplicable(attack=name, reason=_UNLABELLED))) for name in unasked
    ]


def _rows_that_stand_out(evidence: Evidence, ran: list[AttackRun]) -> tuple[tuple[int, ...], int]:
    """Rows of which any attack read improbably much; together as improbable as one attack's alone.

    Returns:
        The rows, and of how many texts words were tried.
    """
    readings = [each.reading for each in ran if each.reading is not None]
    texts: set[int] = set()
    tried: set[int] = set()
    for reading in readings:
        texts.update(reading.texts[stand_out(reading, alpha=ALPHA / len(readings))].tolist())
        tried.update(reading.texts[reading.per_text(reading.seen) > 0].tolist())
    return tuple(sorted(evidence.rows[text] + 1 for text in texts)), len(tried)


def _markup(evidence: Evidence, reading: Reading) -> Markup | None:
    """What stands where in the texts of a reading; `None` for blocks of joined texts."""
    if evidence.texts is None:
        return None
    public = (evidence.knowledge if evidence.words is None else evidence.words.knowledge).public
    return mark_up(
        evidence.texts.select(reading.texts.tolist()),
        reading,
        evidence.tokenizer,
        public=None if public is None else torch.cat([side.values for side in public.tokens.segments]),
    )


def _looks(ran: list[AttackRun]) -> int:
    return max((each.found.outcome.looks for each in ran if isinstance(each.found.outcome, Measured)), default=1)


METRICS: Mapping[str, str] = {
    Question.WORDS: "token_recovery",
    Question.ANSWERS: "answer_recovery",
    Question.LABEL: "label_recovery",
    Question.ATTRIBUTE: "attribute_accuracy",
    Question.LENGTH: "length_recovery",
    Question.ROW: "row_linkage",
}
"""By question, what its attacks are measured by."""
_COUNTED: Mapping[str, str] = {
    Question.WORDS: "words and pieces of words",
    Question.ANSWERS: "words and pieces of words",
    Question.LABEL: "labels",
    Question.LENGTH: "lengths",
    Question.ROW: "rows, to within a hundredth of the list",
}


def _finding(run: AttackRun, above: bool | None, evidence: Evidence) -> Finding:
    outcome, question = run.found.outcome, run.attack.question
    common: dict[str, Any] = {
        "name": run.name,
        "title": run.attack.title,
        "question": run.question,
        "asked": f"Which value of {run.column} does each text have?" if run.column else question.asked,
        "reference": _reference(run),
        "needs": tuple(sorted(need.value for need in run.attack.needs)),
        "settings": {"strength": ", ".join(run.less)} if run.less else {},
        "seconds": run.seconds,
    }
    if not isinstance(outcome, Measured):
        controls = () if isinstance(outcome, NotApplicable) else outcome.controls
        # one that had no turn might well have applied
        status = outcome.status if run.share else "not run"
        return Finding(status=status, reason=outcome.reason, controls=controls, **common)
    further = tuple(Metric(ci=each.interval, **each.model_dump(exclude={"interval"})) for each in outcome.further)
    classes: tuple[TokenClass, ...] = ()
    reading = run.reading
    if reading is not None:
        markup = _markup(evidence, reading)
        sentences = () if markup is None else (exact_sentences(reading, markup),)
        further = (exact_texts(reading), *sentences, *likeness(reading, evidence.tokenizer), *further)
        classes = () if markup is None else by_class(reading, markup)
    return Finding(
        status="measured",
        metric=METRICS[question],
        counted=f"values of {run.column}" if run.column else _COUNTED[question],
        value=outcome.success.value,
        ci=outcome.interval,
        chance=outcome.chance,
        n=outcome.success.n,
        p_value=outcome.p_value,
        above_chance=above,
        controls=outcome.controls,
        further=further,
        classes=classes,
        **common,
    )


def _reference(run: AttackRun) -> str:
    """Where an attack is from, and of which package it is where that is not cutlayer."""
    origin = ATTACKS.origin(run.name)
    return run.attack.reference if origin is None else f"{run.attack.reference} (plug-in of {origin})"


def _settings(attacked: Attacked, *, blocks: int, budget: float | None, seed: int, looks: int) -> AuditSettings:
    evidence, result = attacked.evidence, attacked.evidence.result
    spec, manifest = evidence.spec, evidence.archive.manifest
    sent = result.label_recovery if isinstance(result, FinetuneResult) and spec.labels_at is LabelsAt.VENDOR else None
    public = evidence.knowledge.public
    return AuditSettings(
        source="recorded" if attacked.recorded else "local",
        model=spec.model if attacked.recorded else attacked.source,
        fingerprint=manifest.fingerprint,
        cut=spec.cut.slug,
        bottom_blocks=spec.cut.bottom,
        blocks=blocks,
        mechanism=spec.privacy.mechanism,
        noise=spec.privacy.noise,
        eta=spec.privacy.eta,
        place=spec.privacy.place,
        clip=spec.privacy.clipped,
        cti=spec.privacy.cti is not None,
        objective=evidence.objective,
        unlabelled=evidence.unlabelled,
        texts=len(evidence.lengths.lengths),
        tokens=int(evidence.lengths.lengths.sum()),
        replaced=result.replaced,
        clear_words=result.clear_words,
        labels_sent=sent,
        labels_drawn=spec.label_epsilon is not None,
        protected=attacked.protected,
        looks=looks,
        largest_distance=result.largest_distance,
        public_text="none" if public is None else public.source,
        attacker_labels=evidence.known_records,
        unsafe_noise=spec.unsafe_noise_seed is not None,
        budget_seconds=budget,
        seed=seed,
    )
