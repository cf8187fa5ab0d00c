from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cutlayer.core import DataError
from cutlayer.data import LabelNames


@given(st.lists(st.text(min_size=1, max_size=5), min_size=2, max_size=20).filter(lambda labels: len(set(labels)) > 1))
def test_names_and_numbers_invert_each_other(labels):
    names = LabelNames.of(labels)
    assert [names.names[number] for number in names.encode(labels, source="train")] == labels
    assert names.encode(labels, source="train").dtype == torch.int64
    assert names == LabelNames.of(reversed(labels))


def test_numbers_keep_their_order_and_stand_before_words():
    assert LabelNames.of(["10", "9", "0", "no", "Yes"]).names == ("0", "9", "10", "Yes", "no")


@pytest.mark.parametrize("labels", [[], ["a"], ["a", "a"]])
def test_fewer_than_two_classes(labels):
    with pytest.raises(DataError, match="at least 2"):
        LabelNames.of(labels)


def test_a_repeated_name():
    with pytest.raises(DataError, match="twice"):
        LabelNames(("a", "b", "a"))


def test_an_unknown_label_is_located_and_not_repeated():
    with pytest.raises(DataError, match="Row 2 of dev") as caught:
        LabelNames(("a", "b")).encode(["a", "wombat"], source="dev")
    assert "wombat" not in str(caught.value)
