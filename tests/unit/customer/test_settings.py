"""Settings of a run, and what they say of the paper."""

from __future__ import annotations

import pytest

from cutlayer.customer import TrainSpec
from cutlayer.models import FAMILIES


@pytest.mark.parametrize(("max_length", "told"), [(None, []), (64, ["64 at most, special tokens included"])])
def test_a_cut_of_texts_is_a_deviation(max_length: int | None, told: list[str]) -> None:
    """The paper does not say how long a text may be."""
    deviations = TrainSpec(max_length=max_length).deviations(FAMILIES["bert"])
    found = [each for each in deviations if each.what == "tokens per text"]
    assert [each.ours.partition(";")[0] for each in found] == told
    assert all(each.value_in_paper == "not stated" for each in found)
