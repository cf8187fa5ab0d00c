"""Fine-tune and query a vendor's language model without showing it your text."""

from typing import TYPE_CHECKING

from cutlayer.core.lazy import on_first_use

if TYPE_CHECKING:
    from cutlayer.core import Cut
    from cutlayer.customer import (
        Client,
        Embedder,
        EmbeddingTransformer,
        FullTuning,
        Lora,
        Prefix,
        Prompt,
        Reconstruction,
        Sampling,
        Training,
    )
    from cutlayer.privacy import CtiSpec, NoPrivacy, TextToText, Vector
    from cutlayer.reports.audit.leak_report import audit

__all__ = [
    "Client",
    "CtiSpec",
    "Cut",
    "Embedder",
    "EmbeddingTransformer",
    "FullTuning",
    "Lora",
    "NoPrivacy",
    "Prefix",
    "Prompt",
    "Reconstruction",
    "Sampling",
    "TextToText",
    "Training",
    "Vector",
    "audit",
]

on_first_use(__name__)
