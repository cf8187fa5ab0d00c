"""From finished runs and mechanisms to tables, pages and JSON; each number with its standard error."""

from typing import TYPE_CHECKING

from cutlayer.core.lazy import on_first_use

if TYPE_CHECKING:
    from cutlayer.reports.audit_files import read_audit, write_audit
    from cutlayer.reports.cells import CellStore, digest, write_json
    from cutlayer.reports.conformance import Conformance, ConformanceCheck, Replacement, TokenSample, check_mechanism
    from cutlayer.reports.estimate import Estimate, Gain
    from cutlayer.reports.page.render import render
    from cutlayer.reports.parameterisations import (
        PARAMETERISATIONS,
        Conversion,
        Equivalent,
        Etas,
        Parameterisation,
        convert_eta,
        eta_of,
    )
    from cutlayer.reports.replaced_share import Calibrated, Leaking, etas_for_recovery, etas_for_shares
    from cutlayer.reports.schema import AuditReport
    from cutlayer.reports.summary import summary
    from cutlayer.reports.table import Table, percent
    from cutlayer.reports.write import write_report

__all__ = [
    "PARAMETERISATIONS",
    "AuditReport",
    "Calibrated",
    "CellStore",
    "Conformance",
    "ConformanceCheck",
    "Conversion",
    "Equivalent",
    "Estimate",
    "Etas",
    "Gain",
    "Leaking",
    "Parameterisation",
    "Replacement",
    "Table",
    "TokenSample",
    "check_mechanism",
    "convert_eta",
    "digest",
    "eta_of",
    "etas_for_recovery",
    "etas_for_shares",
    "percent",
    "read_audit",
    "render",
    "summary",
    "write_audit",
    "write_json",
    "write_report",
]

on_first_use(__name__)
