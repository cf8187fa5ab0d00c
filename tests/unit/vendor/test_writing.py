"""What a customer may ask a vendor to write: checked before anything is computed."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from cutlayer.models import BeamSearch
from cutlayer.serving.refusal import Refusal
from cutlayer.vendor.checks import check_room, read_search

CARD: Any = SimpleNamespace(info=SimpleNamespace(name="tiny", vocab_size=100, max_length=32))


def test_a_search_is_read() -> None:
    found = read_search(CARD, torch.tensor([5, 20, 0.5, 2]))
    assert found == BeamSearch(num_beams=5, max_new_tokens=20, length_penalty=0.5, end=2, vocabulary=100)


@pytest.mark.parametrize(
    "told",
    [
        [0, 20, 1, 2],
        [51, 20, 1, 2],
        [1.5, 20, 1, 2],
        [5, 0, 1, 2],
        [5, 33, 1, 2],
        [5, 20, math.nan, 2],
        [math.inf, 20, 1, 2],
        [5, 20, 1, 100],
        [5, 20, 1, -1],
        [5, 20, 1],
        [5, 20, 1, 2, 3],
    ],
)
def test_what_cannot_be_searched_for_is_refused(told: list[float]) -> None:
    with pytest.raises(Refusal, match="1 to 50 beams"):
        read_search(CARD, torch.tensor(told))


def test_a_text_beyond_the_models_positions_is_refused() -> None:
    check_room(CARD, 32)
    with pytest.raises(Refusal, match="33 positions"):
        check_room(CARD, 33)
