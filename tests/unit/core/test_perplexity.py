from __future__ import annotations

import json
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from cutlayer.core import Perplexity, Ragged


def texts(m: int, *, seed: int, spread: float = 1.0) -> tuple[torch.Tensor, torch.Tensor]:
    """Summed losses and counts of texts whose tokens have something in common."""
    rng = torch.Generator().manual_seed(seed)
    counts = torch.randint(1, 60, (m,), generator=rng)
    rate = (3 + spread * torch.randn(m, generator=rng)).clamp(min=0.1)
    return rate * counts, counts


def test_it_is_per_token_and_not_per_text() -> None:
    found = Perplexity.of(torch.tensor([2.0, 30.0]), torch.tensor([2, 10]))
    assert found.value == pytest.approx(math.exp(32 / 12))
    assert found.n == 12
    assert found.value != pytest.approx(math.exp((1 + 3) / 2))


def test_equal_texts_leave_no_doubt() -> None:
    found = Perplexity.of(torch.tensor([6.0, 12.0, 3.0]), torch.tensor([2, 4, 1]))
    assert found.value == pytest.approx(math.exp(3))
    assert found.standard_error == pytest.approx(0, abs=1e-9)


@given(st.integers(2, 40), st.integers(0, 2**16))
def test_the_standard_error_is_the_ratio_estimators(m: int, seed: int) -> None:
    losses, counts = texts(m, seed=seed)
    found = Perplexity.of(losses, counts)
    mean = sum(losses.tolist()) / sum(counts.tolist())
    left = [loss - mean * count for loss, count in zip(losses.tolist(), counts.tolist(), strict=True)]
    variance = m / (m - 1) * sum(each**2 for each in left) / sum(counts.tolist()) ** 2
    assert found.standard_error == pytest.approx(math.exp(mean) * math.sqrt(variance), rel=1e-5)


def test_the_standard_error_is_about_the_jackknifes() -> None:
    losses, counts = texts(400, seed=3, spread=0.3)
    total, n = losses.double().sum(), counts.sum()
    left_out = ((total - losses.double()) / (n - counts)).exp()
    m = len(losses)
    jackknife = float(((m - 1) / m * (left_out - left_out.mean()).square().sum()).sqrt())
    assert Perplexity.of(losses, counts).standard_error == pytest.approx(jackknife, rel=0.05)


def test_the_standard_error_is_what_other_samples_differ_by() -> None:
    """Both ways: one that took tokens for independent would be several times too small."""
    samples = [Perplexity.of(*texts(60, seed=seed, spread=0.3)) for seed in range(300)]
    values = torch.tensor([sample.value for sample in samples])
    mean_error = sum(sample.standard_error for sample in samples) / len(samples)
    assert 0.8 < mean_error / float(values.std()) < 1.25


def test_a_single_text_has_no_standard_error() -> None:
    found = Perplexity.of(torch.tensor([30.0]), torch.tensor([10]))
    assert (found.value, found.n, found.standard_error) == (pytest.approx(math.exp(3)), 10, 0)
    assert str(found) == "20.09 ± 0.00 (n = 10 tokens)"


def test_a_model_that_has_diverged_has_a_number_still() -> None:
    found = Perplexity.of(torch.tensor([1e6, 2e6]), torch.tensor([10, 10]))
    assert found.value == pytest.approx(math.exp(700))
    assert math.isfinite(found.value)
    again = Perplexity.model_validate_json(found.model_dump_json())
    assert again == found


def test_infinity_survives_json() -> None:
    found = Perplexity(value=math.inf, n=3, standard_error=math.inf)
    assert json.loads(found.model_dump_json())["value"] == "Infinity"
    assert Perplexity.model_validate_json(found.model_dump_json()) == found


def test_nothing_predicted_is_no_perplexity() -> None:
    with pytest.raises((ValidationError, ZeroDivisionError)):
        Perplexity.of(torch.zeros(2), torch.zeros(2))


# ---------------------------------------------------------------- ragged

lists = st.lists(st.lists(st.integers(0, 99), max_size=5), min_size=1, max_size=6)


@given(lists, st.data())
def test_the_first_of_each(given_lists: list[list[int]], data: st.DataObject) -> None:
    packed = Ragged.from_lists(given_lists)
    kept = [data.draw(st.integers(0, len(each))) for each in given_lists]
    found = packed.first(torch.tensor(kept, dtype=torch.int64))
    assert [found[at].tolist() for at in range(len(found))] == [
        each[:count] for each, count in zip(given_lists, kept, strict=True)
    ]


@given(lists, st.lists(st.integers(100, 199), max_size=3))
def test_the_same_before_each(given_lists: list[list[int]], items: list[int]) -> None:
    found = Ragged.from_lists(given_lists).preceded_by(torch.tensor(items, dtype=torch.int64))
    assert [found[at].tolist() for at in range(len(found))] == [items + each for each in given_lists]


def test_rows_before_rows() -> None:
    packed = Ragged(torch.arange(6.0).reshape(3, 2), torch.tensor([1, 0, 2]))
    found = packed.preceded_by(torch.tensor([[9.0, 9.0]]))
    assert found.lengths.tolist() == [2, 1, 3]
    assert found.values.tolist() == [[9, 9], [0, 1], [9, 9], [9, 9], [2, 3], [4, 5]]
