"""A mechanism at a place: token ids to token ids, rows to noisy rows, or nothing."""

from typing import TYPE_CHECKING

from cutlayer.core.lazy import on_first_use

if TYPE_CHECKING:
    from cutlayer.privacy.privatizers.none import NoPrivacyPrivatizer
    from cutlayer.privacy.privatizers.privatizer import PRIVATIZERS, Privatizer, build_privatizer
    from cutlayer.privacy.privatizers.space import Space
    from cutlayer.privacy.privatizers.text_to_text import TextToTextPrivatizer
    from cutlayer.privacy.privatizers.vector import VectorPrivatizer

__all__ = [
    "PRIVATIZERS",
    "NoPrivacyPrivatizer",
    "Privatizer",
    "Space",
    "TextToTextPrivatizer",
    "VectorPrivatizer",
    "build_privatizer",
]

on_first_use(__name__)
