"""From finished runs to tables, pages and JSON; each number with its standard error."""

from cutlayer.reports.audit_files import read_audit, write_audit
from cutlayer.reports.calibrate import Calibrated, calibrate
from cutlayer.reports.cells import CellStore, digest, write_json
from cutlayer.reports.estimate import Estimate, Gain
from cutlayer.reports.render import render
from cutlayer.reports.schema import AuditReport
from cutlayer.reports.summary import summary
from cutlayer.reports.table import Table, percent
from cutlayer.reports.write import write_report

__all__ = [
    "AuditReport",
    "Calibrated",
    "CellStore",
    "Estimate",
    "Gain",
    "Table",
    "calibrate",
    "digest",
    "percent",
    "read_audit",
    "render",
    "summary",
    "write_audit",
    "write_json",
    "write_report",
]
