"""Does a mechanism do what it states? Statistical and exact checks, for any mechanism, plug-ins included."""

from typing import TYPE_CHECKING

from cutlayer.core.lazy import on_first_use

if TYPE_CHECKING:
    from cutlayer.reports.conformance.check import ALPHA, Conformance, ConformanceCheck, Replacement
    from cutlayer.reports.conformance.kit import ETAS, SAMPLES, WIDTHS, check_mechanism
    from cutlayer.reports.conformance.replacement import TokenSample

__all__ = [
    "ALPHA",
    "ETAS",
    "SAMPLES",
    "WIDTHS",
    "Conformance",
    "ConformanceCheck",
    "Replacement",
    "TokenSample",
    "check_mechanism",
]

on_first_use(__name__)
