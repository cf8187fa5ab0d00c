from __future__ import annotations

import math

import pytest

from cutlayer.reports import wording
from tests.unit.reports.audits import finding


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (0.371, "37 of 100"),
        (0.0, "0 of 100"),
        (0.004, "fewer than 1 of 100"),
        (0.996, "more than 99 of 100"),
        (1.0, "100 of 100"),
        (None, "–"),
        (math.nan, "–"),
    ],
)
def test_of_hundred(value, said):
    assert wording.of_hundred(value) == said


@pytest.mark.parametrize(
    ("ci", "said"),
    [
        ((0.352, 0.391), "35 to 39 of 100"),
        ((0.002, 0.007), "0.2 to 0.7 of 100"),
        ((1.0, 1.0), "100 of 100"),
        (None, "–"),
        ((math.nan, 0.4), "–"),
    ],
)
def test_range_of_hundred(ci, said):
    assert wording.range_of_hundred(ci) == said


def test_what_is_counted_is_told_of_a_hundred_and_all_else_in_per_cent():
    counted, other = finding(), finding(counted="")
    assert wording.answer(counted) == "37 of 100 words"
    assert (wording.between(counted), wording.by_chance(counted)) == ("35 to 39 of 100", "4 of 100")
    assert wording.answer(other) == "37.1 %"
    assert (wording.between(other), wording.by_chance(other)) == ("35.2 to 39.1 %", "4.2 %")
    assert wording.between(finding(counted="", ci=None)) == "–"


@pytest.mark.parametrize(("value", "said"), [(0.0004, "< 0.001"), (0.1323, "0.132"), (1.0, "1.000"), (None, "–")])
def test_probability(value, said):
    assert wording.probability(value) == said


@pytest.mark.parametrize(
    ("value", "said"),
    [(80.0, "80"), (2.1171, "2.117"), (math.inf, "∞"), (-math.inf, "−∞"), (math.nan, "–"), (12345.6, "12,346")],
)
def test_plain(value, said):
    assert wording.plain(value) == said


@pytest.mark.parametrize(
    ("seconds", "said"), [(0.2, "under 1 s"), (14.2, "14 s"), (611, "10 min"), (9000, "2 h 30 min"), (math.inf, "–")]
)
def test_duration(seconds, said):
    assert wording.duration(seconds) == said


@pytest.mark.parametrize(
    ("created", "said"),
    [
        ("2026-11-23T16:02:38+00:00", "2026-11-23 16:02 UTC"),
        ("2026-11-23T16:02:38Z", "2026-11-23 16:02 UTC"),
        ("2026-11-23T18:02:38+02:00", "2026-11-23 16:02 UTC"),
        ("2026-11-23T16:02:38", "2026-11-23 16:02 UTC"),
        ("yesterday", "yesterday"),
    ],
)
def test_day(created, said):
    assert wording.day(created) == said
