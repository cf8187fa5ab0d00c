"""From finished runs to tables and JSON; each number with its standard error."""

from cutlayer.reports.calibrate import Calibrated, calibrate
from cutlayer.reports.cells import CellStore, digest, write_json
from cutlayer.reports.estimate import Estimate, Gain
from cutlayer.reports.table import Table, percent
from cutlayer.reports.write import write_report

__all__ = [
    "Calibrated",
    "CellStore",
    "Estimate",
    "Gain",
    "Table",
    "calibrate",
    "digest",
    "percent",
    "write_json",
    "write_report",
]
