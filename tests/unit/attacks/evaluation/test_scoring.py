from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest

from cutlayer.attacks import Score, clustered
from cutlayer.attacks.evaluation.scoring import allowance
from cutlayer.attacks.evaluation.statistics import (
    area_under_curve,
    bootstrap,
    bootstrap_of,
    chance_of_match,
    exact_interval,
    p_value,
    resampled,
)
from cutlayer.core import DataError, Proportion
from tests.unit.attacks.worlds import generator


def test_clusters_of_one_give_the_binomial_standard_error():
    hits = torch.tensor([1, 0, 0, 1, 1, 0, 1, 1, 1, 1] * 10)
    found = clustered(hits, torch.ones_like(hits))
    assert found.value == pytest.approx(0.7)
    assert found.n == 100
    assert found.standard_error == pytest.approx(math.sqrt(0.7 * 0.3 / 99))


def test_whole_texts_right_or_wrong_count_as_one_trial_each():
    sizes = torch.full((40,), 25)
    hits = torch.where(torch.arange(40) % 2 == 0, 25, 0)
    found = clustered(hits, sizes)
    assert found.n == 1000
    # 1,000 independent tokens would claim 0.016
    assert found.standard_error == pytest.approx(math.sqrt(0.25 / 39))


def test_the_standard_error_is_the_spread_that_repetition_shows():
    rng = generator(3)
    estimates, claims = [], []
    for _ in range(400):
        sizes = torch.randint(1, 30, (60,), generator=rng)
        rates = torch.rand(60, generator=rng)
        found = clustered(torch.binomial(sizes.float(), rates, generator=rng).long(), sizes)
        estimates.append(found.value)
        claims.append(found.standard_error)
    spread = float(torch.tensor(estimates).std())
    assert sum(claims) / len(claims) == pytest.approx(spread, rel=0.15)


def test_empty_texts_do_not_count():
    with_empty = clustered(torch.tensor([1, 0, 2]), torch.tensor([2, 0, 2]))
    assert with_empty == clustered(torch.tensor([1, 2]), torch.tensor([2, 2]))


def test_nothing_to_score():
    with pytest.raises(DataError, match="nothing to score"):
        clustered(torch.zeros(3), torch.zeros(3))


def test_one_text():
    assert clustered(torch.tensor([3]), torch.tensor([4])).standard_error == pytest.approx(math.sqrt(0.75 * 0.25 / 4))


@given(st.lists(st.integers(0, 5), min_size=1, max_size=30), st.lists(st.integers(0, 9), min_size=1, max_size=30))
def test_one_look_hits_by_the_product_of_both_frequencies(truth, guesses):
    expected = sum(guesses.count(value) / len(guesses) for value in truth) / len(truth)
    found = chance_of_match(torch.tensor(truth), torch.tensor(guesses), looks=torch.ones(len(truth)))
    assert found == pytest.approx(expected)


@pytest.mark.parametrize("looks", [1, 3, 8])
def test_chance_is_what_shuffled_guesses_hit(looks):
    rng = generator(looks)
    truth = torch.multinomial(1 / torch.arange(1, 50), 4000, replacement=True, generator=rng)
    guesses = [
        torch.multinomial(torch.rand(80, generator=rng), 4000, replacement=True, generator=rng) for _ in range(looks)
    ]
    hit = torch.stack([each[torch.randperm(4000, generator=rng)] == truth for each in guesses]).any(0)
    expected = chance_of_match(truth, torch.cat(guesses), looks=torch.full((4000,), looks))
    assert float(hit.double().mean()) == pytest.approx(expected, abs=4 * math.sqrt(expected / 4000))


def test_a_full_stop_at_the_end_is_chance():
    """Whoever sees that a text ends here may guess how texts end, without having read a word."""
    ends = torch.arange(1000) % 10 == 9
    truth = torch.where(ends, 3, torch.randint(100, 200, (1000,), generator=generator(1)))
    guesses = torch.where(ends, 3, torch.full((1000,), 5))
    looks = torch.ones(1000)
    assert chance_of_match(truth, guesses, looks=looks, places=ends.long(), guessed_at=ends.long()) == 0.1
    assert chance_of_match(truth, guesses, looks=looks) == pytest.approx(0.01)


def test_the_interval_covers_the_share_as_often_as_it_says():
    rng = generator(8)
    rates = torch.rand(4000, generator=rng)
    sizes = torch.randint(1, 20, (4000,), generator=rng)
    true = float((rates * sizes).sum() / sizes.sum())
    covered = 0
    for _ in range(100):
        some = torch.randint(4000, (150,), generator=rng)
        low, high = bootstrap(torch.binomial(sizes[some].float(), rates[some], generator=rng), sizes[some])
        covered += low <= true <= high
    assert 88 <= covered <= 100
    assert bootstrap(torch.tensor([1, 0, 2]), torch.tensor([2, 0, 2])) == bootstrap(
        torch.tensor([1, 2]), torch.tensor([2, 2])
    )


def test_chance_alone_is_rarely_called_a_leak():
    """Guesses that come in clusters: whole texts right by luck count as one piece of luck each."""
    rng = generator(11)
    called = 0
    for _ in range(400):
        sizes = torch.randint(5, 30, (80,), generator=rng)
        lucky = torch.rand(80, generator=rng) < 0.1
        called += p_value(clustered(sizes * lucky, sizes), 0.1) < 0.05
    assert called < 0.1 * 400


def test_a_leak_is_called_one():
    assert p_value(Proportion.of(30, 1000), 0.01) < 1e-6
    assert p_value(Proportion.of(10, 1000), 0.01) > 0.4
    assert p_value(Proportion.of(0, 1000), 0.01) == 1
    assert p_value(Proportion.of(1000, 1000), 0.01) == 0
    # Binomial(20, 1/2): P(X >= 15) = 0.0207
    assert p_value(Proportion.of(15, 20), 0.5) == pytest.approx(0.0207, abs=1e-4)


def test_the_area_under_the_curve_counts_pairs():
    scores = torch.tensor([0.1, 0.2, 0.2, 0.3, 0.9])
    positive = torch.tensor([False, True, False, False, True])
    # of six pairs: the best beats all three, the other one beats one, ties one and loses one
    assert area_under_curve(scores, positive) == pytest.approx(4.5 / 6)
    assert area_under_curve(-scores, positive) == pytest.approx(1.5 / 6)
    assert area_under_curve(torch.zeros(5), positive) == 0.5
    assert math.isnan(area_under_curve(scores, torch.ones(5, dtype=torch.bool)))


def test_items_that_count_twice_are_as_if_they_stood_there_twice():
    rng = generator(2)
    scores, positive = torch.randn(30, generator=rng), torch.rand(30, generator=rng) < 0.4
    times = torch.randint(0, 4, (30,), generator=rng)
    repeated = area_under_curve(scores.repeat_interleave(times), positive.repeat_interleave(times))
    assert area_under_curve(scores, positive, times.double().numpy()) == pytest.approx(repeated)


def test_an_interval_of_a_mean_is_that_of_a_share():
    rng = generator(4)
    groups = torch.randint(50, (400,), generator=rng)
    right = (torch.rand(400, generator=rng) < 0.3).long()
    values = right.double().numpy()
    hits, trials = (torch.bincount(groups, weights=each.double()) for each in (right, torch.ones(400)))
    found = bootstrap_of(lambda weights: weights @ values / weights.sum(-1), groups, trials=50)
    assert found == pytest.approx(bootstrap(hits, trials))


@pytest.mark.parametrize("hits", [0, 1])
def test_no_interval_is_without_width(hits):
    sizes = torch.tensor([5, 9, 3, 7, 6, 5, 8, 4])
    low, high = bootstrap(hits * sizes, sizes)
    # eight texts, of which unequal ones count for less
    independently = float(sizes.sum() ** 2 / (sizes**2).sum())
    far = 1 - 0.025 ** (1 / independently)
    assert (low, high) == pytest.approx((0, far) if hits == 0 else (1 - far, 1))
    assert 7 < independently < 8
    share = clustered(hits * sizes, sizes)
    assert share.interval == pytest.approx((low, high))


def test_one_text_tells_next_to_nothing_of_others():
    low, high = bootstrap(torch.tensor([50]), torch.tensor([100]))
    assert low < 0.05
    assert high > 0.95


def test_the_exact_interval_covers_a_rare_share_as_often_as_it_says():
    """Where texts are read whole or not at all; a resampled interval of none is [0, 0], and covers nothing."""
    rng = generator(5)
    texts, truth = 60, 0.02
    sizes = torch.full((texts,), 20)
    covered = none = 0
    for _ in range(300):
        hits = sizes * (torch.rand(texts, generator=rng) < truth)
        if not bool(hits.any()):
            none += 1
            covered += bootstrap(hits, sizes)[1] >= truth
    assert none > 50
    assert covered == none


def test_the_exact_interval_is_scipys():
    for hits, trials in ((0, 30), (30, 30), (7, 30)):
        expected = binomtest(hits, trials).proportion_ci(method="exact")
        assert exact_interval(hits / trials, trials) == pytest.approx((expected.low, expected.high))


def test_an_average_that_is_no_share_has_no_exact_interval():
    assert resampled(torch.tensor([-3.0, -3.0]), torch.tensor([1, 1])) == (-3, -3)


def test_a_curve_without_any_error_is_not_certain():
    low, high = bootstrap_of(lambda weights: np.ones(len(weights)), torch.arange(40), trials=8)
    assert (low, high) == pytest.approx((0.025 ** (1 / 8), 1))


def scored(hits, trials):
    return Score(torch.tensor(hits), torch.tensor(trials), chance=0.0, looks=1)


def test_what_reads_the_same_is_allowed_nothing():
    one = scored([3, 0, 5] * 20, [9, 2, 5] * 20)
    assert allowance(one, one, share=1.0, risk=3e-7) == 0


def test_of_one_text_all_is_allowed():
    assert allowance(scored([3], [9]), scored([9], [9]), share=1.0, risk=3e-7) == 1


def test_the_allowance_is_five_standard_errors_of_the_paired_difference():
    rng = generator(6)
    trials = torch.full((400,), 10)
    one, other = (torch.randint(0, 11, (400,), generator=rng) for _ in range(2))
    found = allowance(Score(one, trials, 0.0, 1), Score(other, trials, 0.0, 1), share=0.5, risk=2.867e-7)
    difference = (one - 0.5 * other) / 10
    assert found == pytest.approx(5 * float(difference.std()) / 20, rel=0.05)


def test_few_texts_are_allowed_more():
    def of(texts):
        rng = generator(7)
        return allowance(
            Score(torch.randint(0, 11, (texts,), generator=rng), torch.full((texts,), 10), 0.0, 1),
            Score(torch.randint(0, 11, (texts,), generator=rng), torch.full((texts,), 10), 0.0, 1),
            share=1.0,
            risk=3e-7,
        )

    assert of(4) > 1 > of(200)
