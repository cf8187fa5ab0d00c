from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from cutlayer.core import ConfigError, DataError
from cutlayer.data import Dataset, bin_columns
from cutlayer.data.bins import equal_bins

NUMBERS = st.lists(st.integers(-50, 50) | st.floats(-50, 50), min_size=2, max_size=60)


def people(**columns):
    rows = len(next(iter(columns.values())))
    return Dataset((("a text",),) * rows, None, columns)


def test_bins_are_named_by_their_ends_and_equal_in_size():
    found = equal_bins([1955, 1970, 1963, 1981, 1956, 1969], 2, column="born")
    assert found == ("1955-1963", "1969-1981", "1955-1963", "1969-1981", "1955-1963", "1969-1981")
    assert equal_bins([1, 2, 3, 4, 5, 6], 3, column="x") == ("1-2", "1-2", "3-4", "3-4", "5-6", "5-6")


def test_names_of_fractions_and_of_numbers_below_zero_can_be_read():
    assert equal_bins([0.5, 1.5, 2, 3], 2, column="x") == ("0.5-1.5", "0.5-1.5", "2-3", "2-3")
    assert equal_bins([-5, -1, 2, 3], 2, column="x") == ("-5 to -1", "-5 to -1", "2-3", "2-3")
    assert equal_bins([7, 7, 7, 9], 2, column="x") == ("7", "7", "7", "9")


@given(NUMBERS, st.integers(2, 8))
def test_equal_values_share_a_bin_and_bins_keep_the_order(values, bins):
    if len(set(values)) < bins:
        with pytest.raises(ConfigError, match="different values"):
            equal_bins(values, bins, column="x")
        return
    found = equal_bins(values, bins, column="x")
    assert len(set(found)) == bins
    held = {value: {name for name, other in zip(found, values, strict=True) if other == value} for value in values}
    assert all(len(names) == 1 for names in held.values())
    ordered = [name for _, name in sorted(zip(values, found, strict=True))]
    assert len(list(dict.fromkeys(ordered))) == bins
    changes = sum(one != other for one, other in pairwise(ordered))
    assert changes == bins - 1


@given(st.sets(st.integers(-(2**53), 2**53), min_size=2, max_size=60), st.integers(2, 8))
def test_different_values_fill_bins_equally(values, bins):
    assume(len(values) >= bins)
    sizes = Counter(equal_bins(sorted(values), bins, column="x")).values()
    assert max(sizes) - min(sizes) <= 1


def test_columns_of_words_stay_beside_columns_of_numbers():
    found = bin_columns(people(age=("20", "30", "40", "50.5"), sex=("f", "m", "f", "m")), ["age", "sex"], 2)
    assert found.attributes == {"age": ("20-30", "20-30", "40-50.5", "40-50.5"), "sex": ("f", "m", "f", "m")}


@pytest.mark.parametrize("value", ["wombat", "", "nan", "inf", "1_0", "20s"])
def test_a_row_without_a_number_is_named_and_not_shown(value):
    with pytest.raises(DataError, match="Row 2 has no number in column 'age'") as refused:
        bin_columns(people(age=("20", value, "30")), ["age"], 2)
    assert "wombat" not in str(refused.value)


@pytest.mark.parametrize(
    ("columns", "bins", "message"),
    [
        ({"sex": ("f", "m", "f")}, 2, "none of the columns sex holds numbers"),
        ({"age": ("20", "30", "20")}, 3, "column 'age' has 2 different values"),
        ({"age": ("20", "30", "40")}, 1, "at least 2"),
    ],
)
def test_bins_that_cannot_be_are_refused(columns, bins, message):
    with pytest.raises(ConfigError, match=message):
        bin_columns(people(**columns), list(columns), bins)
