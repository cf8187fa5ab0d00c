"""The words that every room shares: cuts, ragged tokens, guarantees, specs, errors."""

from typing import TYPE_CHECKING

from cutlayer.core.lazy import on_first_use

if TYPE_CHECKING:
    from cutlayer.core.cut import Cut, Place
    from cutlayer.core.deviation import Deviation
    from cutlayer.core.errors import (
        AuthError,
        BudgetError,
        ConfigError,
        ConformanceError,
        CutlayerError,
        CutlayerWarning,
        DataError,
        Fault,
        IncompleteError,
        MissingExtraError,
        ModelError,
        PrivacyError,
        Stopped,
        StorageError,
        TargetError,
        UnsupportedArchitectureError,
        VendorError,
        WorkerError,
    )
    from cutlayer.core.guarantee import Claim, Guarantee
    from cutlayer.core.perplexity import Perplexity
    from cutlayer.core.proportion import Proportion
    from cutlayer.core.ragged import Payload, PrecededTokens, Ragged, Rows, Tokens
    from cutlayer.core.setting import Shown
    from cutlayer.core.spec import Registry, SettingsSpec, Spec, SpecFamily, checked

__all__ = [
    "AuthError",
    "BudgetError",
    "Claim",
    "ConfigError",
    "ConformanceError",
    "Cut",
    "CutlayerError",
    "CutlayerWarning",
    "DataError",
    "Deviation",
    "Fault",
    "Guarantee",
    "IncompleteError",
    "MissingExtraError",
    "ModelError",
    "Payload",
    "Perplexity",
    "Place",
    "PrecededTokens",
    "PrivacyError",
    "Proportion",
    "Ragged",
    "Registry",
    "Rows",
    "SettingsSpec",
    "Shown",
    "Spec",
    "SpecFamily",
    "Stopped",
    "StorageError",
    "TargetError",
    "Tokens",
    "UnsupportedArchitectureError",
    "VendorError",
    "WorkerError",
    "checked",
]

on_first_use(__name__)
