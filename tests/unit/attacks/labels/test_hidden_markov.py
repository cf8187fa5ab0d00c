from __future__ import annotations

import math

import numpy as np
import pytest

from cutlayer.attacks.labels.hidden_markov import Chain, _states, read_in_order

EPSILON_HALF = 1 / (1 + math.exp(-0.5))
"""Probability that a report is right, of two labels."""


def drawn(states, classes, count, rng):
    initial, transition, labels = rng.random(states), rng.random((states, states)), rng.random((states, classes))
    return (
        Chain(*(each / each.sum(-1, keepdims=True) for each in (initial, transition, labels))),
        rng.random((count, classes)),
    )


@pytest.mark.parametrize("count", [2, 3, 16, 17, 37, 100])
@pytest.mark.parametrize("states", [1, 2, 4])
def test_forward_and_backward_is_exact(count, states):
    """The same as one record after the other, without any scale: it is short enough."""
    chain, evidence = drawn(states, 3, count, np.random.default_rng(count))
    seen = evidence @ chain.labels.T
    forward, backward = np.zeros_like(seen), np.ones_like(seen)
    forward[0] = chain.initial * seen[0]
    for at in range(1, count):
        forward[at] = (forward[at - 1] @ chain.transition) * seen[at]
    for at in reversed(range(count - 1)):
        backward[at] = chain.transition @ (seen[at + 1] * backward[at + 1])
    likelihood = forward[-1].sum()
    moves = sum(np.outer(forward[at], seen[at + 1] * backward[at + 1]) * chain.transition for at in range(count - 1))
    shares, found, log_likelihood = _states(chain, evidence)
    assert shares == pytest.approx(forward * backward / likelihood)
    assert found == pytest.approx(moves / likelihood)
    assert log_likelihood == pytest.approx(math.log(likelihood))


def reported(labels, keep, classes, rng):
    other = (labels + rng.integers(1, classes, len(labels))) % classes
    reports = np.where(rng.random(len(labels)) < keep, labels, other)
    evidence = np.where(reports[:, None] == np.arange(classes), keep, (1 - keep) / (classes - 1))
    return reports, evidence


def read(labels, keep=EPSILON_HALF, classes=2, seed=0):
    """The shares of reports and of guesses that are right."""
    reports, evidence = reported(labels, keep, classes, np.random.default_rng(seed))
    guesses = read_in_order(evidence, states=(2, 3)).argmax(1)
    return float((reports == labels).mean()), float((guesses == labels).mean())


def test_a_sorted_file_is_read_from_reports_that_are_hardly_right():
    alone, found = read(np.arange(1000) // 560)
    assert alone < 0.66
    assert found > 0.98


def test_labels_that_alternate_are_read_too():
    assert read(np.arange(1000) % 2)[1] > 0.98


def test_parts_in_which_a_label_is_more_frequent_tell_it():
    rng = np.random.default_rng(3)
    labels = (rng.random(3000) < np.where(np.arange(3000) < 1500, 0.1, 0.9)).astype(int)
    alone, found = read(labels)
    # who knew the border would read nine of ten; reports at this epsilon leave it open by some hundred records
    assert 0.85 < found < 0.92
    assert found > alone + 0.2


def test_many_labels_are_read_where_each_has_its_part():
    alone, found = read(np.arange(2000) * 10 // 2000, keep=0.4, classes=10)
    assert found > 0.95 > 0.5 > alone


@pytest.mark.slow
def test_records_in_no_order_are_read_one_by_one():
    gains = []
    for seed in range(20):
        alone, found = read(np.random.default_rng(100 + seed).integers(0, 2, 600), seed=seed)
        gains.append(found - alone)
    assert gains.count(0.0) >= 18
    assert abs(sum(gains)) / len(gains) < 0.01


def test_known_records_tell_of_those_between_them():
    labels = np.arange(900) // 300
    known = np.random.default_rng(0).random(900) < 0.1
    evidence = np.ones((900, 3))
    evidence[known] = np.eye(3)[labels[known]]
    assert (read_in_order(evidence, states=(2, 3)).argmax(1) == labels).mean() > 0.97


def test_nothing_seen_tells_nothing():
    assert read_in_order(np.ones((5, 4)), states=(2,)) == pytest.approx(np.full((5, 4), -math.log(4)))
