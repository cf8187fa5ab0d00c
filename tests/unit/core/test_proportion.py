from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest

from cutlayer.core import Proportion
from cutlayer.core.proportion import in_percent, interval


@given(st.integers(1, 5000))
def test_of_none_and_of_all_the_interval_is_exact(n):
    none, everything = Proportion.of(0, n).interval, Proportion.of(n, n).interval
    exact = binomtest(0, n).proportion_ci(method="exact")
    assert none == pytest.approx((0, exact.high))
    assert everything == pytest.approx((1 - exact.high, 1))


def test_between_them_it_is_by_the_standard_error():
    found = Proportion.of(300, 1000)
    half = 1.959964 * math.sqrt(0.3 * 0.7 / 1000)
    assert found.interval == pytest.approx((0.3 - half, 0.3 + half), rel=1e-6)
    assert interval(0.01, 0.02, 50)[0] == 0


def test_what_is_not_independent_tells_less():
    tokens = Proportion(value=0, n=10_000, standard_error=0, independent=20)
    assert tokens.interval[1] == pytest.approx(1 - 0.025 ** (1 / 20))


@pytest.mark.parametrize(
    ("value", "n", "told"),
    [(0.0, 1000, "0.0 [0.0, 0.4]"), (1.0, 1000, "100.0 [99.6, 100.0]"), (0.0, 10**7, "0.0 [0.0, 0.1]")],
)
def test_an_interval_that_is_printed_has_a_width(value, n, told):
    assert in_percent(value, 0.0, n) == told


def test_other_shares_are_told_with_their_standard_error():
    assert in_percent(0.123, 0.004, 99, digits=2, unit=" %") == "12.30 % ± 0.40"
    assert str(Proportion.of(0, 100)) == "0.00 % [0.00, 3.63] (n = 100)"
    assert str(Proportion.of(50, 100)) == "50.00 % ± 5.00 (n = 100)"
