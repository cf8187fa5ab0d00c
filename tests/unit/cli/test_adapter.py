"""How an adapter's texts left, in words."""

from __future__ import annotations

import pytest

from cutlayer.cli.adapter import _in_words

PLAIN: dict[str, object] = {
    "mechanism": "text-to-text",
    "eta": 80.0,
    "noise": "d-chi",
    "cti": False,
    "cti_class_free": False,
    "resampled": False,
}
WORDS = PLAIN | {
    "mechanism": "words", "words": ["noun", "verb"], "candidates": "category", "draw": "noise", "space": "starter:16",
}  # fmt: skip


@pytest.mark.parametrize(
    ("privacy", "words"),
    [
        (None, "trained elsewhere"),
        (PLAIN | {"mechanism": "none"}, "none"),
        (PLAIN, "eta 80, text-to-text"),
        (PLAIN | {"noise": "laplace"}, "eta 80, text-to-text, noise laplace"),
        (PLAIN | {"cti": True}, "eta 80, text-to-text, CTI"),
        (PLAIN | {"cti": True, "cti_class_free": True}, "eta 80, text-to-text, CTI class-free"),
        (PLAIN | {"mechanism": "vector", "resampled": True}, "eta 80, vector, resampled each epoch"),
        (WORDS, "eta 80, words, noun+verb by words of their category, space starter:16"),
        (
            WORDS | {"words": ["all"], "candidates": "all", "draw": "exponential", "space": "starter"},
            "eta 80, words, all by any words, space starter, exponential draw",
        ),
    ],
)
def test_two_settings_that_protect_unlike_are_told_apart(privacy: dict[str, object] | None, words: str) -> None:
    assert _in_words(privacy) == words
