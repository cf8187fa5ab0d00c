"""Words that a mechanism leaves as they are, by its own rule."""

from __future__ import annotations

import warnings
from collections.abc import Mapping

from cutlayer.core import CutlayerWarning
from cutlayer.privacy.words import IDENTIFYING


def warn_of_clear_words(clear: Mapping[str, int], words: int, *, of: str) -> None:
    """Tells, before anything leaves, of those that identify people more often than others: numbers, addresses.

    Args:
        clear: By kind, how many leave as they are.
        words: Of how many.
        of: What they stand in.
    """
    told = [f"{clear[kind]} of the kind {kind}" for kind in IDENTIFYING if clear.get(kind)]
    if told:
        warnings.warn(
            f"Of {words} words of {of} {sum(clear.values())} leave as they are, {', '.join(told)} among them. --words "
            "all draws every word; numeral, other and the like add categories.",
            CutlayerWarning,
            stacklevel=3,
        )
