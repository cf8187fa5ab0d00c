"""What a customer can copy of the vendor's blocks: `middle-distillation` with its controls, for page two."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Literal

import torch

from cutlayer.attacks import Control, Copied, DistillationSpec, Exchanged, control_students, distil
from cutlayer.attacks.extraction.middle_distillation import NAME, REFERENCE, TITLE
from cutlayer.customer import Objective, Progress, RunSpec
from cutlayer.customer.evidence import Evidence
from cutlayer.data import Dataset
from cutlayer.reports.audit.students import SIZES, divide, sizes_up_to
from cutlayer.reports.audit.traffic import local_exchange
from cutlayer.reports.schema import BlocksCopies, BlocksCopy

_CHECKED = 1_000
"""Texts that controls learn from, at most."""
_UNSOUND = "Students failed a control, so what they make of the vendor's blocks would say nothing."
_POOLED = "The vendor pools what comes out of its blocks: the customer gets one embedding a text, and no such row."
_STAGE = "copies of the vendor's blocks"


def copy_blocks(texts: Dataset, evidence: Evidence, folder: Path, progress: Progress, *, seed: int) -> BlocksCopies:
    """Asks the tuned model of a local run, and trains students of the vendor's blocks on what goes in and comes out.

    Args:
        texts: What is asked about.
        evidence: The run.
        folder: Where vendor, customer and run are, as `local_evidence` was given it.
        progress: Where to show progress.
        seed: Which texts no student sees, and what students draw.
    """
    reason = _inapplicable(evidence.spec)
    if reason:
        return _without("not applicable", reason)
    exchanged = local_exchange(texts, evidence.adapter, folder, progress)
    return study_blocks(exchanged, progress, seed=seed)


def unasked(
    spec: RunSpec, reason: str = "It takes queries of the tuned model, and so a run made for the audit."
) -> BlocksCopies:
    """What is in the place of numbers where the tuned model is not asked.

    Args:
        spec: The run's settings.
        reason: Why it is not. Of a recorded run there is no vendor to ask.
    """
    inapplicable = _inapplicable(spec)
    return _without("not applicable", inapplicable) if inapplicable else _without("not run", reason)


def unanswered(evidence: Evidence) -> BlocksCopies:
    """What is in the place of numbers where nothing was trained.

    Args:
        evidence: What texts showed.
    """
    embeds = evidence.objective == "embed"
    return _without("not applicable", _POOLED if embeds else "Nothing was trained, so there is no model to ask.")


def study_blocks(
    exchanged: Exchanged, progress: Progress, *, seed: int, spec: DistillationSpec | None = None
) -> BlocksCopies:
    """Trains students on the rows of the first 100, 1,000 and 10,000 texts, as far as these reach, and on all of them.

    Controls come first, on as many texts as the largest student learns from, 1,000 at most. If one fails, there is no
    number.

    Args:
        exchanged: What went through the vendor's blocks.
        progress: Where to show progress.
        seed: Which texts no student sees, and what students draw.
        spec: How strong students are; as reports have them where it is left out.
    """
    began, spec = time.monotonic(), spec or DistillationSpec()
    unseen, asked = divide(len(exchanged), seed=seed)
    if len(asked) < SIZES[0]:
        return _without("not applicable", "It takes 125 texts or more, of which a fifth is kept to compare on.")
    sizes = sizes_up_to(len(asked))
    progress.update(_STAGE, 0, len(sizes) + 1, "controls")
    generator = torch.Generator().manual_seed(seed)
    checked = asked[: min(_CHECKED, sizes[-1])]
    controls = control_students(exchanged, checked, unseen, spec=spec, generator=generator)
    if not all(control.passed for control in controls):
        seconds = time.monotonic() - began
        return _without("control failed", _UNSOUND, controls=controls, seconds=seconds)
    students = []
    for done, size in enumerate(sizes, start=1):
        progress.update(_STAGE, done, len(sizes) + 1, f"{size} texts")
        generator = torch.Generator().manual_seed(seed)
        students.append(_told(distil(exchanged, asked[:size], unseen, spec=spec, generator=generator)))
    progress.update(_STAGE, len(sizes) + 1, len(sizes) + 1)
    return BlocksCopies(
        name=NAME,
        title=TITLE,
        reference=REFERENCE,
        status="measured",
        controls=controls,
        students=tuple(students),
        seconds=time.monotonic() - began,
    )


def _inapplicable(spec: RunSpec) -> str:
    """Why no rows go in and come out; empty where they do."""
    if spec.objective is Objective.CLASSIFICATION:
        return (
            "A classifier's head is the vendor's: the customer gets logits, and no row that comes out of the vendor's "
            "blocks."
        )
    if spec.objective is Objective.SEQ2SEQ:
        return "Encoder-decoders are not supported: rows of two stacks go in, and a text's two sides meet in them."
    if spec.cut.bottom is None:
        return (
            "With the text cut, token ids go up: the vendor holds the token table too, and no row goes into its part."
        )
    return ""


def _without(
    status: Literal["control failed", "not applicable", "not run"],
    reason: str,
    *,
    controls: tuple[Control, ...] = (),
    seconds: float = 0,
) -> BlocksCopies:
    common: dict[str, Any] = {"name": NAME, "title": TITLE, "reference": REFERENCE}
    return BlocksCopies(status=status, reason=reason, controls=controls, seconds=seconds, **common)


def _told(found: Copied) -> BlocksCopy:
    return BlocksCopy(
        texts=found.texts,
        rows=found.rows,
        kind=found.kind,
        explained=found.explained,
        explained_ci=found.explained_interval,
        agreement=found.agreement,
        agreement_ci=found.agreement_interval,
        from_answers=found.from_answers,
        from_answers_ci=found.from_answers_interval,
        from_text=found.from_text,
        from_text_ci=found.from_text_interval,
        unseen=found.unseen,
        n=found.n,
    )
