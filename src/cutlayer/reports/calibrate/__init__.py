"""Which setting to take: the best accuracy under which attacks read little enough."""

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
