"""The customer: one road to the vendor, one door on it, and an SDK around both."""

from typing import TYPE_CHECKING

from cutlayer.core.lazy import on_first_use

if TYPE_CHECKING:
    from cutlayer.customer.account import Account
    from cutlayer.customer.client import Client
    from cutlayer.customer.columns import DataSpec
    from cutlayer.customer.embedder import Embedder
    from cutlayer.customer.entities import Protected
    from cutlayer.customer.entity_map import EntityMap
    from cutlayer.customer.estimators import EmbeddingTransformer
    from cutlayer.customer.gate import Gate
    from cutlayer.customer.home import Home, default_home
    from cutlayer.customer.preview import Draw, Preview, PreviewStream
    from cutlayer.customer.progress import Progress, Silent
    from cutlayer.customer.public_pairs import PublicDraws
    from cutlayer.customer.reconstruction import Reconstruction
    from cutlayer.customer.results import (
        Detached,
        FinetuneResult,
        Generation,
        LanguageResult,
        Prediction,
        PrivatizedText,
        RunResult,
    )
    from cutlayer.customer.session import Session, Texts
    from cutlayer.customer.settings import (
        FinetuneSpec,
        FullTuning,
        Lora,
        Objective,
        Prefix,
        Prompt,
        RunSpec,
        Sampling,
        TrainBottom,
        Training,
        TrainSpec,
        TuningSpec,
    )
    from cutlayer.customer.sources import Source

__all__ = [
    "Account",
    "Client",
    "DataSpec",
    "Detached",
    "Draw",
    "Embedder",
    "EmbeddingTransformer",
    "EntityMap",
    "FinetuneResult",
    "FinetuneSpec",
    "FullTuning",
    "Gate",
    "Generation",
    "Home",
    "LanguageResult",
    "Lora",
    "Objective",
    "Prediction",
    "Prefix",
    "Preview",
    "PreviewStream",
    "PrivatizedText",
    "Progress",
    "Prompt",
    "Protected",
    "PublicDraws",
    "Reconstruction",
    "RunResult",
    "RunSpec",
    "Sampling",
    "Session",
    "Silent",
    "Source",
    "Texts",
    "TrainBottom",
    "TrainSpec",
    "Training",
    "TuningSpec",
    "default_home",
]

on_first_use(__name__)
