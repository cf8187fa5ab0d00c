"""The customer: one road to the vendor, one door on it, and an SDK around both."""

from typing import TYPE_CHECKING

from cutlayer.core.lazy import on_first_use

if TYPE_CHECKING:
    from cutlayer.customer.account import Account
    from cutlayer.customer.client import Client, Mechanism, Source
    from cutlayer.customer.gate import Gate
    from cutlayer.customer.home import Home, default_home
    from cutlayer.customer.preview import Draw, Preview, PreviewStream
    from cutlayer.customer.progress import Progress, Silent
    from cutlayer.customer.results import (
        FinetuneResult,
        Generation,
        LanguageResult,
        Prediction,
        PrivatizedText,
        RunResult,
    )
    from cutlayer.customer.sampling import Sampling
    from cutlayer.customer.session import Session, Texts
    from cutlayer.customer.settings import Method, Objective, RunSpec, TrainBottom, TrainSpec

__all__ = [
    "Account",
    "Client",
    "Draw",
    "FinetuneResult",
    "Gate",
    "Generation",
    "Home",
    "LanguageResult",
    "Mechanism",
    "Method",
    "Objective",
    "Prediction",
    "Preview",
    "PreviewStream",
    "PrivatizedText",
    "Progress",
    "RunResult",
    "RunSpec",
    "Sampling",
    "Session",
    "Silent",
    "Source",
    "Texts",
    "TrainBottom",
    "TrainSpec",
    "default_home",
]

on_first_use(__name__)
