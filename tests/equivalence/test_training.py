"""Promise 2 over time: twenty AdamW steps, all weights or adapters, end at equal parameters (rate: SAP §5.1)."""

from __future__ import annotations

import pytest

from cutlayer.core import Cut
from cutlayer.models import Head
from tests.equivalence.checks import FP32, Case, compare_adapters, compare_training
from tests.equivalence.test_step import heads
from tests.equivalence.zoo import CONFIGURATIONS, families_first, make_model

CUTS = (Cut(bottom=None), Cut(bottom=0), Cut(bottom=2), Cut(bottom=1, tail=1), Cut(bottom=0, tail=0))


@pytest.mark.parametrize("name", families_first(CONFIGURATIONS))
def test_twenty_steps_of_all_weights(name: str) -> None:
    """Tied tables are one parameter here; across two parties `check_trainable` refuses what would drift."""
    head = heads(name)[-1]
    for cut in CUTS[2:4]:
        found = compare_training(make_model(name, head), Case(name, head, cut))
        assert max(found.values()) <= FP32, (cut, found)


@pytest.mark.parametrize("name", families_first(CONFIGURATIONS))
def test_twenty_steps_of_adapters(name: str) -> None:
    for head, cut in zip(heads(name) * 2, CUTS[1:4:2], strict=False):
        found = compare_adapters(make_model(name, head), Case(name, head, cut))
        assert max(found.values()) <= FP32, (cut, found)


@pytest.mark.slow
@pytest.mark.parametrize("cut", CUTS, ids=lambda cut: cut.slug)
@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_twenty_steps_for_every_head_and_cut(name: str, cut: Cut) -> None:
    for head in heads(name):
        found = compare_training(make_model(name, head), Case(name, head, cut))
        assert max(found.values()) <= FP32, (head, found)
        if cut.tail == 0 and head is Head.CLASSIFICATION:
            continue  # a tail without blocks has no low-rank adapter, so its head would stay as it is
        found = compare_adapters(make_model(name, head), Case(name, head, cut))
        assert max(found.values()) <= FP32, (head, found)
