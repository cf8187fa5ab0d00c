from __future__ import annotations

import math

import pytest
from pydantic import ValidationError

from cutlayer.core import Cut, Proportion


@pytest.mark.parametrize(
    ("cut", "slug"),
    [(Cut(), "0"), (Cut(bottom=3), "3"), (Cut(bottom=1, tail=0), "1-t0"), (Cut(bottom=None), "text")],
)
def test_a_cut_has_a_word_for_urls(cut: Cut, slug: str) -> None:
    assert cut.slug == slug
    assert cut.is_text == (slug == "text")


def test_a_cut_is_not_negative() -> None:
    with pytest.raises(ValidationError):
        Cut(bottom=-1)


def test_a_proportion_carries_its_error() -> None:
    share = Proportion.of(30, 100)
    assert share.value == 0.3
    assert math.isclose(share.standard_error, math.sqrt(0.3 * 0.7 / 100))
    assert str(share) == "30.00 % ± 4.58 (n = 100)"
    other = share.complement()
    assert (other.value, other.n, other.standard_error) == (0.7, 100, share.standard_error)
