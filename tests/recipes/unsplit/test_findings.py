"""What numbers say about a claim."""

from __future__ import annotations

import pytest

from cutlayer.core import Proportion
from cutlayer.recipes.unsplit.cells import Reading
from cutlayer.recipes.unsplit.findings import Pooled, Verdict, alike, both, correlation, fails, falls


def proportion(value, error=0.01):
    return Proportion(value=value, n=256, standard_error=error)


def reading(right, counted=(8, 8), shuffled=(1, 0)):
    return Reading(
        true=("the cat sat", "on a mat"), guessed=("the cat ran", "on a mat"), right=right, counted=counted,
        shuffled=shuffled, chance=0.03,
    )  # fmt: skip


def test_readings_of_several_seeds_are_one_sample_of_texts():
    found = Pooled.of([reading((8, 4)), reading((8, 0))])
    assert (found.accuracy.value, found.accuracy.n, found.texts) == (20 / 32, 32, 4)
    assert found.shuffled.value == 2 / 32
    # texts differ much more than 32 independent tokens would
    assert found.accuracy.standard_error > 2 * (0.625 * 0.375 / 32) ** 0.5
    assert found.overlap is not None
    assert found.overlap.rouge1.value == pytest.approx((2 / 3 + 1) / 2)
    assert found.chance == pytest.approx(0.03)


def test_texts_without_a_word_have_no_overlap():
    found = Pooled.of([reading((1, 1)).model_copy(update={"true": ("?!", "…"), "guessed": ("a", "b")})])
    assert found.overlap is None


@pytest.mark.parametrize(
    ("values", "held"),
    [([0.02], True), ([0.02, 0.5], False), ([0.09], None), ([0.11], None), ([0.131], False), ([0.05, 0.079], True)],
)
def test_an_attack_fails_if_the_best_case_is_below_the_papers_own_bar(values, held):
    found = fails("It fails.", [(f"case {value}", proportion(value)) for value in values])
    assert found.held is held
    assert all(f"case {value}" in found.because for value in values)


@pytest.mark.parametrize(
    ("before", "after", "falls_", "alike_"),
    [(0.9, 0.5, True, False), (0.5, 0.9, False, False), (0.9, 0.89, None, True), (0.9, 0.9, None, True)],
)
def test_a_fall_needs_two_standard_errors(before, after, falls_, alike_):
    pair = ("before", proportion(before)), ("after", proportion(after))
    assert falls("It falls.", *pair).held is falls_
    assert alike("It stays.", *pair).held is alike_


@pytest.mark.parametrize(
    ("parts", "held"), [((True, True), True), ((True, False), False), ((True, None), None), ((None, False), False)]
)
def test_a_claim_of_two_parts_needs_both(parts, held):
    assert both("Both.", *(Verdict(claim="", held=part, because="x.") for part in parts)).held is held


def test_a_verdict_says_claim_word_and_numbers():
    assert str(fails("It fails.", [("(here)", proportion(0.5))])) == (
        "It fails. Did not hold here: 50.0 ± 1.0 % (here); the bar is 10 %."
    )


def test_correlation_of_logarithms():
    assert correlation([1, 10, 100], [2, 4, 8]) == pytest.approx(1)
    assert correlation([1, 10, 100], [8, 4, 2]) == pytest.approx(-1)
    assert correlation([1, 1, 1], [1, 2, 3]) is None
    assert correlation([1, 2], [1, 2]) is None
