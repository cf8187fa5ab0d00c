"""The search for a setting, on curves that are known."""

from __future__ import annotations

import math

import pytest

from cutlayer.core import ConfigError
from cutlayer.reports.calibrate import Arm, Calibration, Evaluation, best, nearest, search

PLAIN, CTI, DEEP = Arm(), Arm(cti=True), Arm(bottom=3)
BORDERS = {PLAIN: 40.0, CTI: 30.0, DEEP: 20.0}
"""The eta at which a tenth is read."""
ACCURACY = {PLAIN: 0.0, CTI: 0.1, DEEP: -0.2}


class Curve:
    """Reads a share that grows with eta, as a logistic curve in ln eta; accuracy grows with it."""

    def __init__(self, *, width=0.0, floor=0.0):
        self.asked = []
        self._width, self._floor = width, floor

    def __call__(self, setting):
        self.asked.append(setting)
        away = math.log(setting.eta / BORDERS[setting.arm])
        read = max(self._floor, 1 / (1 + 9 * math.exp(-3 * away)))
        return Evaluation(
            recovered=read,
            interval=(read - self._width, read + self._width),
            attack="a",
            attacks=("a",),
            utility=0.5 + 0.1 * math.tanh(away) + ACCURACY[setting.arm],
            utility_error=0.01,
            utility_n=100,
            replaced=None,
            seconds=1.0,
        )


def run(arms, curve, *, evaluations=12, bracket=(1.0, 1000.0), target=0.1):
    return search(arms, [bracket] * len(arms), curve, target=target, evaluations=evaluations)


def test_the_border_of_one_arm_is_found():
    chosen = best(run([PLAIN], Curve(), evaluations=20), 0.1)[0]
    assert 40 / 1.06 < chosen.setting.eta <= 40.01


def test_it_stops_where_the_border_is_known():
    curve = Curve()
    run([PLAIN], curve, evaluations=100)
    assert 5 < len(curve.asked) < 12


def test_the_most_accurate_arm_wins_and_each_has_its_turn():
    curve = Curve()
    tried = run([PLAIN, CTI, DEEP], curve, evaluations=18)
    assert {arm: sum(each.arm == arm for each in curve.asked) for arm in BORDERS} == dict.fromkeys(BORDERS, 6)
    assert best(tried, 0.1)[0].setting.arm == CTI


def test_a_setting_passes_with_its_whole_interval():
    narrow, wide = (best(run([PLAIN], Curve(width=width), evaluations=20), 0.1)[0] for width in (0.0, 0.03))
    assert wide.setting.eta < narrow.setting.eta
    assert wide.found.recovered <= 0.07


def test_nothing_passes_and_the_nearest_is_named():
    tried = run([PLAIN, DEEP], Curve(floor=0.3), evaluations=8)
    assert best(tried, 0.1) == []
    assert nearest(tried).found.recovered == pytest.approx(0.3)


@pytest.mark.parametrize(
    ("changes", "named"),
    [({"target": 0.0}, "target"), ({"target": 1.0}, "target"), ({"evaluations": 1}, "evaluations")],
)
def test_what_cannot_be_searched_is_refused_before_anything_is_run(changes, named):
    curve = Curve()
    with pytest.raises(ConfigError, match=named):
        run([PLAIN, CTI], curve, **changes)
    assert curve.asked == []


@pytest.mark.parametrize(("majority", "learns"), [(0.46, True), (0.49, False), (0.6, False)])
def test_an_accuracy_within_its_error_of_guessing_is_no_learning(majority, learns):
    (tried,) = run([PLAIN], Curve(), evaluations=1, bracket=(20.0, 80.0))
    assert (tried.found.utility, tried.found.utility_error) == (pytest.approx(0.5), 0.01)
    assert Calibration((tried,), tried, None, majority).learns is learns


def test_where_nothing_was_chosen_nothing_is_said_of_learning():
    assert Calibration((), None, None, 0.5).learns is None
