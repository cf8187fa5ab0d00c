"""What a vendor could learn from a setting, on the customer's own data: traffic, attacks, and the report."""

from typing import TYPE_CHECKING

from cutlayer.core.lazy import on_first_use

if TYPE_CHECKING:
    from cutlayer.reports.audit.blocks import copy_blocks, study_blocks, unasked
    from cutlayer.reports.audit.frontier import (
        HELD_OUT,
        Compared,
        Evaluation,
        beside,
        evaluate,
        evaluate_beside,
        frontier,
        quick_attacks,
    )
    from cutlayer.reports.audit.leak_report import LeakReport
    from cutlayer.reports.audit.public import public_text
    from cutlayer.reports.audit.report import ALPHA, METRICS, Attacked, audit
    from cutlayer.reports.audit.runs import SeveralRuns, check_runs, several_runs
    from cutlayer.reports.audit.students import train_students
    from cutlayer.reports.audit.traffic import local_answers, local_evidence, local_exchange, recorded_evidence

__all__ = [
    "ALPHA",
    "HELD_OUT",
    "METRICS",
    "Attacked",
    "Compared",
    "Evaluation",
    "LeakReport",
    "SeveralRuns",
    "audit",
    "beside",
    "check_runs",
    "copy_blocks",
    "evaluate",
    "evaluate_beside",
    "frontier",
    "local_answers",
    "local_evidence",
    "local_exchange",
    "public_text",
    "quick_attacks",
    "recorded_evidence",
    "several_runs",
    "study_blocks",
    "train_students",
    "unasked",
]

on_first_use(__name__, extra="audit")
