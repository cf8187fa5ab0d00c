"""The vendor's page: what the customer was handed."""

from __future__ import annotations

from cutlayer.customer.evidence import Evidence
from cutlayer.models import inventory, load_model
from cutlayer.reports.schema import BlocksCopies, HandedOut, Student, VendorPage


def vendor_page(
    evidence: Evidence, source: str, students: tuple[Student, ...], blocks: BlocksCopies | None, *, late: bool = False
) -> VendorPage:
    """Weights by name, count and share, and how well the tuned model can be copied (SAP §3.2, goal 1).

    Args:
        evidence: The run.
        source: Where the whole model is to be had.
        students: Copies that were tried.
        blocks: Copies of the vendor's blocks that were tried.
        late: Whether there was no time for copies of the tuned model.
    """
    groups = inventory(load_model(source, head=evidence.archive.manifest.head), evidence.spec.cut)
    total = sum(group.parameters for group in groups)
    handed = tuple(
        HandedOut(
            name=group.name,
            parameters=group.parameters,
            share=group.parameters / total,
            handed_out=group.handed_out == group.parameters,
        )
        for group in groups
    )
    return VendorPage(
        handed=handed,
        parameters=total,
        share=sum(group.handed_out for group in groups) / total,
        students=students,
        blocks=blocks,
        note="" if students else _why_none(evidence, late=late),
    )


def _why_none(evidence: Evidence, *, late: bool) -> str:
    if evidence.objective == "embed":
        return _FROZEN
    return _NO_LABELS if evidence.unlabelled else _NO_TIME if late else _NO_STUDENTS


_FROZEN = (
    "Nothing was tuned. How well a customer could copy the model from the embeddings that it is answered was not "
    "measured."
)
_NOT_COPIED = "How well a customer could copy the tuned model was not measured: "
_NO_STUDENTS = _NOT_COPIED + (
    "that takes a run made for the audit, labels, and 125 texts or more whose answers are not all the same."
)
_NO_TIME = _NOT_COPIED + "there was no time for it within the time limit."
_NO_LABELS = _NOT_COPIED + "no labels were given, so nothing was trained that could be copied."
