from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutlayer.core import Proportion
from cutlayer.reports import Estimate, Gain


def point(ua, ep, error=0.01):
    ua, ep = (Estimate(value=value, standard_error=error, n=1000, runs=1) for value in (ua, ep))
    return ua, ep


def test_one_run_has_the_error_of_its_texts():
    one = Proportion.of(80, 100)
    estimate = Estimate.of([one])
    assert (estimate.value, estimate.standard_error) == (0.8, pytest.approx(one.standard_error))


def test_runs_add_their_spread_to_the_error_of_the_texts_they_share():
    runs = [Proportion.of(right, 1000) for right in (700, 720, 740)]
    estimate = Estimate.of(runs)
    assert estimate.value == pytest.approx(0.72)
    assert estimate.runs == 3
    sampling = sum(run.standard_error**2 for run in runs) / 3
    assert estimate.standard_error == pytest.approx(math.sqrt(0.02**2 / 3 + sampling))


LINE = [point(0.6, 0.9), point(0.8, 0.5), point(0.9, 0.0)]


@given(lift=st.floats(-0.3, 0.3), eps=st.lists(st.floats(0, 0.9), min_size=1, max_size=8))
def test_a_shifted_curve_gains_its_shift_wherever_it_is_read(lift, eps):
    def height(ep):
        return 0.8 - (ep - 0.5) / 0.4 * 0.2 if ep > 0.5 else 0.9 - ep / 0.5 * 0.1

    gain = Gain.of([point(height(ep) + lift, ep) for ep in eps], LINE)
    assert gain.value == pytest.approx(lift)
    assert gain.points == len(eps)
    assert gain.standard_error <= 0.01 * math.sqrt(2) / math.sqrt(len(eps)) + 1e-9


@pytest.mark.parametrize(("lift", "verdict"), [(0.1, "helps"), (-0.1, "hurts"), (0.01, "no clear difference")])
def test_a_verdict_needs_two_standard_errors(lift, verdict):
    assert Gain.of([point(0.8 + lift, 0.5)], LINE).verdict == verdict


def test_points_beyond_the_baseline_are_not_compared():
    assert Gain.of([point(0.5, 0.95)], LINE) is None
    assert Gain.of([point(0.5, 0.95), point(0.9, 0.5)], LINE).points == 1
