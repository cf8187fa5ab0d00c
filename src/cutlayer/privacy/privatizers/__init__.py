"""A mechanism at a place: token ids to token ids, rows to noisy rows, or nothing."""

from typing import TYPE_CHECKING

from cutlayer.core.lazy import on_first_use

if TYPE_CHECKING:
    from cutlayer.privacy.privatizers.none import NoPrivacy
    from cutlayer.privacy.privatizers.privatizer import PRIVATIZERS, Privatizer, build_privatizer
    from cutlayer.privacy.privatizers.space import Space
    from cutlayer.privacy.privatizers.text_to_text import TextToText
    from cutlayer.privacy.privatizers.vector import Vector

__all__ = ["PRIVATIZERS", "NoPrivacy", "Privatizer", "Space", "TextToText", "Vector", "build_privatizer"]

on_first_use(__name__)
