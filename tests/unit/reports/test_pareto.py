"""Which settings are worth choosing, how two ways compare by them, and what is claimed of that."""

from __future__ import annotations

import pytest

from cutlayer.reports.pareto import Point, draw_pareto, frontier, leads


def point(privacy, utility, error=0.0):
    return Point(f"{privacy}", privacy, utility, error, error)


def test_settings_that_another_is_better_than_are_left_out():
    best, middle, hidden = point(0.0, 0.9), point(0.4, 0.8), point(0.5, 0.5)
    worse = [point(0.3, 0.8), point(0.4, 0.7), point(0.0, 0.9)]
    assert frontier([hidden, *worse, middle, best]) == [best, middle, hidden]


def test_a_way_is_compared_along_straight_lines_and_never_beyond_what_it_hides():
    ours = [point(0.2, 0.9, 0.01), point(0.6, 0.5, 0.01)]
    low, middle, far = leads(ours, [point(0.0, 0.8, 0.02), point(0.4, 0.6, 0.02), point(0.7, 0.3)])
    # what hides more counts where less is asked for
    assert low.value == pytest.approx(0.1)
    assert low.error == pytest.approx((0.01**2 + 0.02**2) ** 0.5)
    assert middle.value == pytest.approx(0.1)
    # of the place along, too: the line falls by one point for each
    assert middle.error == pytest.approx((2 * 0.005**2 + 0.02**2 + 2 * 0.005**2 + 0.02**2) ** 0.5)
    assert far.value is None


def test_a_picture_has_a_panel_for_each_attack_and_each_way_once_in_its_legend():
    ways = {"ours": [point(0.2, 0.9, 0.01), point(0.6, 0.5, 0.01)], "theirs": [point(0.1, 0.4)]}
    drawn = draw_pareto({"one": ways, "other": ways}, title="t", hidden="h", useful="u")
    assert len(drawn.axes) == 2
    (legend,) = drawn.legends
    assert [text.get_text() for text in legend.get_texts()] == ["ours", "theirs"]
