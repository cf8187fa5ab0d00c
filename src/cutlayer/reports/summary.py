"""A leak report for the terminal: the same answers as on page one and two, as tables."""

from __future__ import annotations

from cutlayer.core import Claim, Guarantee
from cutlayer.reports import wording
from cutlayer.reports.downstream import Downstream, Mean
from cutlayer.reports.page.plots import is_share
from cutlayer.reports.schema import AuditReport, BlocksCopies, Finding, Frontier, Strongest, VendorPage
from cutlayer.reports.table import Table
from cutlayer.reports.wording import known


def summary(report: AuditReport) -> tuple[Table, ...]:
    """What leaked, all attacks, other settings, what embeddings are good for, and the vendor's page.

    Parts that the report does not have are left out.

    No text of a record is in it: a terminal is often recorded.

    Args:
        report: The report.
    """
    tables = [_leaked(report), _attacks(report)]
    if report.frontier is not None and (report.frontier.points or report.frontier.note):
        tables.append(_frontier(report.frontier))
    if report.downstream is not None:
        tables.append(_embeddings(report.downstream))
    if report.vendor is not None:
        tables.append(_handed_out(report.vendor))
        if report.vendor.students:
            tables.append(_copies(report.vendor))
        if report.vendor.blocks is not None and report.vendor.blocks.students:
            tables.append(_blocks(report.vendor.blocks))
    return tuple(tables)


def _promise(guarantee: Guarantee, *, of: str = "") -> list[str]:
    if guarantee.claim is Claim.NONE:
        return [" ".join((f"No guarantee of {of}." if of else "No guarantee.", *guarantee.caveats))]
    budget = f"{wording.plain(guarantee.budget)} ({guarantee.unit})"
    promised = f"Guarantee for each {guarantee.per} by itself: a budget of {budget}."
    return [promised, *(f"- {caveat}" for caveat in guarantee.caveats)]


def _leaked(report: AuditReport) -> Table:
    promise = _promise(report.guarantee)
    if report.label_guarantee is not None:
        promise += _promise(report.label_guarantee, of="labels")
    return Table(
        title="What leaked",
        columns=("question", "strongest attack read", "95 % interval", "by chance", "above chance", "attack"),
        rows=tuple(_answer(best, report) for best in report.strongest),
        notes=(*report.verdict, *report.runs, *report.traded, *promise),
    )


def _answer(best: Strongest, report: AuditReport) -> tuple[str, ...]:
    found = (each for each in report.attacks if (each.name, each.question) == (best.attack, best.question))
    finding = next((each for each in found if known(each.value)), None)
    if finding is None:
        return (best.asked, "no number", *(wording.NO_NUMBER,) * 4)
    answer, between, chance = wording.answer(finding), wording.between(finding), wording.by_chance(finding)
    return (best.asked, answer, between, chance, wording.yes_or_no(finding.above_chance), finding.name)


def _attacks(report: AuditReport) -> Table:
    order = [best.asked for best in report.strongest]
    return Table(
        title="All attacks (%)",
        columns=("attack", "question", "read", "95 % interval", "chance", "n", "p", "above chance"),
        rows=tuple(map(_attack, sorted(report.attacks, key=lambda finding: order.index(finding.asked)))),
        notes=(
            *(f"{each.name}: {wording.reason(each)}" for each in report.attacks if not known(each.value)),
            *((report.correction,) if report.correction else ()),
        ),
    )


def _attack(finding: Finding) -> tuple[str, ...]:
    if not known(finding.value):
        return (finding.name, finding.question, wording.status(finding), *(wording.NO_NUMBER,) * 5)
    return (
        finding.name,
        finding.question,
        wording.per_cent(finding.value),
        wording.per_cent_range(finding.ci),
        wording.per_cent(finding.chance),
        wording.whole(finding.n),
        wording.probability(finding.p_value),
        wording.yes_or_no(finding.above_chance),
    )


def _frontier(frontier: Frontier) -> Table:
    utility = wording.per_cent if is_share(frontier) else wording.plain
    return Table(
        title="Settings (shares in %)",
        columns=("setting", "words replaced", "words read", "95 % interval", "by", frontier.utility_name),
        rows=tuple(
            (
                f"{point.label} (this report)" if point.audited else point.label,
                wording.per_cent(point.replaced),
                wording.per_cent(point.recovered),
                wording.per_cent_range(point.recovered_ci),
                point.attack or wording.NO_NUMBER,
                utility(point.utility),
            )
            for point in frontier.points
        ),
        notes=(frontier.note,) if frontier.note else (),
    )


def _embeddings(found: Downstream) -> Table:
    def share(mean: Mean | None) -> tuple[str, str]:
        value, ci = (None, None) if mean is None else (mean.value, mean.ci)
        return wording.per_cent(value), wording.per_cent_range(ci)

    return Table(
        title="What embeddings are good for (accuracy and AUC in %)",
        columns=("embeddings", "accuracy", "95 % interval", "AUC", "95 % interval", "MSE to clean", "cosine to clean"),
        rows=tuple(
            (
                arm.name,
                *share(arm.accuracy),
                *share(arm.auc),
                wording.plain(arm.mse.value),
                wording.plain(arm.cosine.value),
            )
            for arm in found.arms
        ),
        notes=found.notes,
    )


def _handed_out(page: VendorPage) -> Table:
    return Table(
        title="What the customer was handed",
        columns=("part", "weights", "share (%)", "where"),
        rows=tuple(
            (part.name, wording.whole(part.parameters), wording.per_cent(part.share), wording.whereabouts(part))
            for part in page.handed
        ),
        notes=(
            f"{wording.per_cent(page.share)} % of {wording.whole(page.parameters)} weights were handed out.",
            *((page.note,) if page.note else ()),
            *((wording.uncopied(page.blocks),) if page.blocks is not None and not page.blocks.students else ()),
        ),
    )


def _copies(page: VendorPage) -> Table:
    return Table(
        title="Copies of the tuned model: agreement on unseen texts (%)",
        columns=("answered queries", "copy from answers", "95 % interval", "trained on labels", "95 % interval", "n"),
        rows=tuple(
            (
                wording.whole(each.queries),
                wording.per_cent(each.agreement),
                wording.per_cent_range(each.agreement_ci),
                wording.per_cent(each.from_labels),
                wording.per_cent_range(each.from_labels_ci),
                wording.whole(each.n),
            )
            for each in page.students
        ),
    )


def _blocks(copies: BlocksCopies) -> Table:
    return Table(
        title="Copies of the vendor's blocks from rows in and out: unseen texts (%)",
        columns=(
            "texts",
            "variance explained",
            "95 % interval",
            "same token",
            "95 % interval",
            "from answers",
            "95 % interval",
            "from own text",
            "95 % interval",
            "n",
        ),
        rows=tuple(
            (
                wording.whole(each.texts),
                wording.per_cent(each.explained),
                wording.per_cent_range(each.explained_ci),
                wording.per_cent(each.agreement),
                wording.per_cent_range(each.agreement_ci),
                wording.per_cent(each.from_answers),
                wording.per_cent_range(each.from_answers_ci),
                wording.per_cent(each.from_text),
                wording.per_cent_range(each.from_text_ci),
                wording.whole(each.n),
            )
            for each in copies.students
        ),
        notes=tuple(map(wording.checked_copies, copies.controls)),
    )
