"""The worst case in print."""

from __future__ import annotations

import math

import pytest
import torch

from cutlayer.core import ConfigError
from cutlayer.privacy import generator, largest_distance, worst_case


def test_no_pair_is_farther_apart() -> None:
    table = torch.from_numpy(generator(bytes(16)).standard_normal((200, 16))) + 5
    largest = float(torch.cdist(table, table).max())
    assert largest <= largest_distance(table) <= 2 * largest
    assert largest_distance(torch.tensor([[0.0, 1.0], [0.0, -1.0]])) == pytest.approx(2)


def test_printed() -> None:
    table = torch.tensor([[0.0, 1.5], [0.0, -1.5]])
    assert str(worst_case(table, eta=50)) == (
        "worst case per token: e^150 (eta 50 x largest distance 3.00). This is a dial, not a small epsilon."
    )
    assert str(worst_case(table, eta=math.inf)) == "no privacy: eta = inf"
    with pytest.raises(ConfigError, match="eta = nan"):
        worst_case(table, eta=math.nan)
