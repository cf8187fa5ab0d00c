"""The worst case in print."""

from __future__ import annotations

import math

import pytest
import torch

from cutlayer.privacy import WorstCase, generator, largest_distance


def test_no_pair_is_farther_apart() -> None:
    table = torch.from_numpy(generator(bytes(16)).standard_normal((200, 16))) + 5
    largest = float(torch.cdist(table, table).max())
    assert largest <= largest_distance(table) <= 2 * largest
    assert largest_distance(torch.tensor([[0.0, 1.0], [0.0, -1.0]])) == pytest.approx(2)


def test_printed() -> None:
    assert str(WorstCase(eta=50, distance=3)) == (
        "worst case per token: e^150 (eta 50 x largest distance 3.00). This is a dial, not a small epsilon."
    )
    assert str(WorstCase(eta=math.inf, distance=3)) == "no privacy: eta = inf"
