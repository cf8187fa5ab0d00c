"""Which setting to take: the best accuracy under which attacks read little enough."""

from typing import TYPE_CHECKING

from cutlayer.core.lazy import on_first_use

if TYPE_CHECKING:
    from cutlayer.reports.audit import Evaluation
    from cutlayer.reports.calibrate.run import Calibration, CalibrationSpec, calibrate
    from cutlayer.reports.calibrate.search import Arm, Setting, Tried, best, nearest, search

__all__ = [
    "Arm",
    "Calibration",
    "CalibrationSpec",
    "Evaluation",
    "Setting",
    "Tried",
    "best",
    "calibrate",
    "nearest",
    "search",
]

on_first_use(__name__, extra="audit")
