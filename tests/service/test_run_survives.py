"""kill -9 of the vendor, the customer and both: the run goes on and ends with the same bits.

The reference is the same run left alone. Noise comes from a seed here, so that two customers draw
the same; what must be equal is the digest of the adapter's weights, and what the ledger charged.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.service.kills import Kills, combinations

POINTS = {
    "while releasing": ("privatize and release dev", 1),
    "in an epoch": ("epoch 1", 3),
    "before the last evaluation": ("epoch 2", 4),
    "after publishing": ("test", 1),
}
RELEASING_UNSTORED = ("dev after epoch 1", 1)
"""Of a trained bottom nothing is stored: each step and each evaluation makes releases of its own."""
MODES: dict[str, dict[str, Any]] = {
    "frozen": {},
    "frozen block": {"bottom": 1},
    "redraw": {"train_bottom": "resample"},
    "memoised": {"train_bottom": "cached", "bottom": 1},
}

FAST = {
    # every victim, point and mode; behind the last checkpoint, so that both go back two steps and train them again
    ("frozen", "vendor", "in an epoch"),
    ("redraw", "customer", "while releasing"),
    ("frozen block", "customer", "in an epoch"),
    ("memoised", "both", "before the last evaluation"),
    ("frozen", "vendor", "after publishing"),
}


@pytest.mark.parametrize(
    ("mode", "victim", "point"),
    combinations(MODES, POINTS, fast=FAST),
)
def test_a_killed_run_ends_bit_identical(mode: str, victim: str, point: str, kills: Kills) -> None:
    stored = "train_bottom" not in MODES[mode]
    when = POINTS[point] if stored or point != "while releasing" else RELEASING_UNSTORED
    expected = kills.undisturbed(mode, MODES[mode])
    assert kills.survived(victim, when, MODES[mode]) == expected
