"""Trainings compared text by text: what the difference is, and how uncertain."""

from __future__ import annotations

import math
from typing import NamedTuple

import pandas
import pytest
import torch

from cutlayer.core import Proportion
from cutlayer.recipes.embedding_cells import Scored
from cutlayer.recipes.long_table import Number
from cutlayer.recipes.paired import ACCURACY, EQUAL, Answers, EqualReading, Gains, _measured, gained, standard_error
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
    return Answers({seed: torch.tensor([right], dtype=torch.float64) for seed, right in enumerate(runs)})


def gain(before, after):
    return _measured("gained", before.gained_by(after), {})


def test_only_runs_of_one_seed_are_compared():
    one, two = answers([1, 0, 1, 0], [1, 1, 1, 1]), Answers({1: torch.zeros(1, 4), 2: torch.ones(1, 4)})
    found = gain(one, two)
    assert (found.value, found.se, found.n) == (-1.0, 0.0, 4)
    assert gain(one, Answers({7: torch.ones(1, 4)})).value is None


def test_runs_of_a_seed_have_it_in_common_so_that_each_seed_counts_once():
    """Planted: customers differ, their networks do not. As nine trials of one kind they would seem to be certain."""
    rng = torch.Generator().manual_seed(2)
    customers = [torch.full((3, 500), float(value), dtype=torch.float64) for value in (0.0, 0.1, 0.2)]
    nothing = Answers({seed: torch.zeros(1, 500, dtype=torch.float64) for seed in range(3)})
    found = gain(nothing, Answers(dict(enumerate(customers))))
    assert (found.value, found.n) == (pytest.approx(0.1), 500)
    assert found.se == pytest.approx(0.1 / 3**0.5)
    # three customers that differ: Student's interval with two degrees of freedom reaches below nothing
    assert found.lower == pytest.approx(0.1 - 4.3027 * found.se, abs=1e-4)
    networks = 0.1 * torch.randn(3, 1, generator=rng, dtype=torch.float64) + torch.zeros(3, 500)
    assert gain(Answers({0: nothing.by_seed[0]}), Answers({0: networks})).se == pytest.approx(
        float(networks[:, 0].std()) / 3**0.5
    )


def test_methods_of_one_cell_are_compared_where_they_stand():
    """Planted: the same methods stand at another eta, and one of them has no such number."""
    scenarios, cells = [], {}
    for number, (eta, values) in enumerate(((50, (0.0, 1.0)), (100, (1.0, 0.0)))):
        methods = {name: {"AUC": torch.full((2, 4), value)} for name, value in zip("ab", values, strict=True)}
        cells[Cell(number)] = Scored.of({**methods, "c": {"MSE": torch.zeros(1, 4)}})
        scenarios.append(Scenario(Cell(number), {"eta": eta}))
    results = Results(pandas.DataFrame([]), cells, scenarios)
    found = list(Gains([("a", "b"), ("a", "c")], [{"eta": 50}, {"eta": 100}], "method", ("AUC",))(results))
    assert [each.value for each in found] == [1.0, None, -1.0, None]
    assert found[0].axes == {"eta": 50, "method": "b", "over": "a"}
    assert found[1].note


def test_texts_that_both_find_hard_make_no_difference_less_certain():
    hard = torch.rand(400, generator=torch.Generator().manual_seed(1)) < 0.5
    better = hard.clone()
    better[:40] = True
    found = gain(answers(hard.tolist()), answers(better.tolist()))
    assert (found.value, found.n) == (float((better & ~hard).double().mean()), 400)
    alone = math.sqrt(2 * 0.25 / 400)
    assert 0 < found.se < alone / 2
    assert found.upper - found.value == pytest.approx(1.966 * found.se, abs=1e-4), "of many texts it is the normal one"


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
