"""From finished runs and mechanisms to tables and JSON; each number with its standard error."""

from cutlayer.reports.calibrate import Calibrated, calibrate
from cutlayer.reports.cells import CellStore, digest, write_json
from cutlayer.reports.conformance import Conformance, ConformanceCheck, Replacement, TokenSample, check_mechanism
from cutlayer.reports.estimate import Estimate, Gain
from cutlayer.reports.parameterisations import PARAMETERISATIONS, Conversion, Parameterisation, convert_eta, eta_of
from cutlayer.reports.table import Table, percent
from cutlayer.reports.write import write_report

__all__ = [
    "PARAMETERISATIONS",
    "Calibrated",
    "CellStore",
    "Conformance",
    "ConformanceCheck",
    "Conversion",
    "Estimate",
    "Gain",
    "Parameterisation",
    "Replacement",
    "Table",
    "TokenSample",
    "calibrate",
    "check_mechanism",
    "convert_eta",
    "digest",
    "eta_of",
    "percent",
    "write_json",
    "write_report",
]
