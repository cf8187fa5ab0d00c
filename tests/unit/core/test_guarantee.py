from __future__ import annotations

import math

import pytest

from cutlayer.core import Claim, Guarantee, PrivacyError


def metric(budget: float, *, unit: str = "1/distance", per: str = "token", caveat: str = "a") -> Guarantee:
    return Guarantee(claim=Claim.METRIC, budget=budget, unit=unit, per=per, caveats=(caveat,))


def test_budgets_of_one_unit_add() -> None:
    both = metric(30).compose(metric(50, caveat="b"))
    assert (both.budget, both.unit, both.caveats) == (80, "1/distance", ("a", "b"))


@pytest.mark.parametrize("other", [metric(1, unit="epsilon"), metric(1, per="text")])
def test_unlike_units_are_never_added(other: Guarantee) -> None:
    with pytest.raises(PrivacyError, match="unlike units"):
        metric(1).compose(other)


def test_nothing_swallows_every_promise() -> None:
    nothing = Guarantee.nothing("labels are visible")
    for composed in (nothing.compose(metric(1)), metric(1).compose(nothing)):
        assert composed.claim is Claim.NONE
        assert math.isinf(composed.budget)
        assert set(composed.caveats) == {"a", "labels are visible"}


def test_a_budget_is_positive() -> None:
    with pytest.raises(ValueError, match="greater than 0"):
        metric(0)


def test_none_is_read_back_from_json():
    nothing = Guarantee.nothing("no noise")
    assert Guarantee.model_validate_json(nothing.model_dump_json()) == nothing
