"""Trainings compared text by text: what the difference is, and how uncertain."""

from __future__ import annotations

import math
from typing import NamedTuple

import pandas
import pytest
import torch

from cutlayer.core import Proportion
from cutlayer.recipes.long_table import Number
from cutlayer.recipes.paired import ACCURACY, EQUAL, Answers, EqualReading, Gains, gained, standard_error
from cutlayer.recipes.study import Results, Scenario
from cutlayer.recipes.word_training import READ, WordsAnswered

DRAWS = 2000


class Cell(NamedTuple):
    number: int
    seed: int = 0


def pretended(trainings):
    """Results of trainings: where each stands, what was read, and how many of ten texts it labels right."""
    scenarios, cells, rows = [], {}, []
    for number, (axes, read, right) in enumerate(trainings):
        labelled = tuple(text < right for text in range(10))
        accuracy = Proportion(value=right / 10, n=10, standard_error=0.1)
        cells[Cell(number)] = WordsAnswered(ua=accuracy, rows=(1, 1, 10), epochs=1, seconds=1.0, right=labelled)
        scenarios.append(Scenario(Cell(number), axes))
        rows.append({**axes, "metric": READ, "value": read, "attack": "any", "seed": 0, "source": "here", "note": ""})
    return Results(pandas.DataFrame(rows), cells, scenarios)


def answers(*runs):
    return Answers({seed: torch.tensor(right, dtype=torch.float64) for seed, right in enumerate(runs)})


def test_only_runs_of_one_seed_are_compared():
    one, two = answers([1, 0, 1, 0], [1, 1, 1, 1]), Answers({1: torch.zeros(4), 2: torch.ones(4)})
    assert one.gained_by(two) == (-1.0, 0.0, 4)
    assert one.gained_by(Answers({7: torch.ones(4)})) is None


def test_texts_that_both_find_hard_make_no_difference_less_certain():
    hard = torch.rand(400, generator=torch.Generator().manual_seed(1)) < 0.5
    better = hard.clone()
    better[:40] = True
    value, error, texts = answers(hard.tolist()).gained_by(answers(better.tolist()))
    assert (value, texts) == (float((better & ~hard).double().mean()), 400)
    alone = math.sqrt(2 * 0.25 / 400)
    assert 0 < error < alone / 2


@pytest.mark.parametrize(("gain", "held"), [(0.03, True), (-0.03, False), (0.01, None), (None, None)])
def test_a_gain_holds_where_its_interval_lies_above_nothing_and_fails_below(gain, held):
    class Told:
        def number(self, metric, **where):
            assert where == {"replaced": 0.4, "arm": "b", "over": "a"}
            return Number(gain, 0.01)

    gains = Gains([("a", "b"), ("a", "c")], [{"replaced": 0.4}])
    (claim,) = gains.claims({("a", "b"): "Table III"}, {"a": "A", "b": "B"}, ["40 % replaced"])
    (verdict,) = claim(Told())
    assert (verdict.claim, verdict.held) == ("40 % replaced: B is more accurate than A (Table III).", held)


@pytest.mark.parametrize(
    ("runs", "of_text", "of_run", "of_both"), [(1, 0.3, 0.0, 0.2), (6, 0.3, 0.0, 0.2), (6, 0.1, 0.1, 0.3), (6, 0, 0, 1)]
)
def test_the_error_is_that_of_other_texts_and_other_runs(runs, of_text, of_run, of_both):
    """Drawn again and again, means scatter by it; by texts alone, or runs alone, they would not."""
    rng, texts = torch.Generator().manual_seed(3), 50

    def normal(*shape):
        return torch.randn(DRAWS, *shape, generator=rng, dtype=torch.float64)

    drawn = of_text * normal(1, texts) + of_run * normal(runs, 1) + of_both * normal(runs, texts)
    scatter = float(drawn.mean((1, 2)).std())
    told = math.sqrt(sum(standard_error(each) ** 2 for each in drawn) / DRAWS)
    # which of two errors is larger is chosen, so that it is rather too large
    assert 0.95 * scatter < told < (1.4 if of_both == 1 else 1.15) * scatter


def test_accuracies_are_compared_where_as_much_is_read():
    def point(read, right):
        return read, answers([True] * right + [False] * (10 - right))

    before = [point(0.4, 6), point(0.8, 8)]
    after = [point(0.5, 7), point(0.7, 9)]
    gain = gained(before, after, None, {})
    assert gain.value == pytest.approx(0.80 - 0.70)
    assert gain.n == 10
    assert gained(before, [point(0.9, 7), point(0.95, 9)], None, {}).value is None
    assert gained(before, after, 0.5, {}).value == pytest.approx(0.70 - 0.65)
    assert gained(before, after, 0.45, {}).value is None


def test_each_arm_is_told_where_a_share_is_read_and_only_there():
    """Planted: another task stands beside, and its trainings do not count."""
    found = []
    for task, arm, share, read, right in (
        ("one", "a", 0.2, 0.8, 8), ("one", "a", 0.5, 0.4, 6), ("one", "b", 0.2, 0.7, 9), ("one", "b", 0.5, 0.5, 7),
        ("two", "a", 0.2, 0.9, 1), ("two", "a", 0.5, 0.3, 1),
    ):  # fmt: skip
        found.append(({"task": task, "arm": arm, "replaced": share, "method": "lora"}, read, right))
    measured = list(EqualReading([("a", "b")], [{"task": "one"}], at=(0.45, 0.6))(pretended(found)))
    told = {(each.metric, each.axes["arm"], each.axes["read"]): each.value for each in measured}
    assert told == {
        (ACCURACY, "a", 0.45): pytest.approx(0.625),
        (ACCURACY, "a", 0.6): pytest.approx(0.7),
        (ACCURACY, "b", 0.6): pytest.approx(0.8),
        (EQUAL, "b", 0.45): None,
        (EQUAL, "b", 0.6): pytest.approx(0.1),
    }
    assert all(each.axes["task"] == "one" for each in measured)
