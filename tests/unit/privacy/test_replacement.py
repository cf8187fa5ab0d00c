from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.stats import chisquare
from torch import Tensor

from cutlayer.privacy import LATTICE
from cutlayer.privacy.neighbours import NeighbourSearch
from cutlayer.privacy.replacement import Exponential, noisy_rows, replacements

TABLE = torch.randn(200, 12, generator=torch.Generator().manual_seed(1))
CANDIDATES = torch.arange(200) % 3 > 0
IDS = torch.randint(200, (500,), generator=torch.Generator().manual_seed(2))
NOISE = np.random.Generator(np.random.PCG64(3)).normal(size=(500, 12))


@pytest.mark.parametrize("on_lattice", [True, False])
def test_the_nearest_candidate_to_each_noisy_row(on_lattice):
    noise, table = NOISE.copy(), TABLE.clone()
    found = replacements(IDS, noise, NeighbourSearch(table, CANDIDATES), on_lattice=on_lattice)
    rows = TABLE[IDS].double().numpy() + NOISE
    if on_lattice:
        rows = np.round(rows / LATTICE) * LATTICE
    away = ((rows[:, None] - TABLE.double().numpy()) ** 2).sum(-1)
    away[:, ~CANDIDATES.numpy()] = np.inf
    assert found.tolist() == away.argmin(1).tolist()
    assert np.array_equal(noise, NOISE)
    assert torch.equal(table, TABLE)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_sums_are_of_float64_and_on_the_lattice_where_they_leave(dtype):
    rows = TABLE[IDS].to(dtype)
    exact = rows.double().numpy() + NOISE
    kept = noisy_rows(rows, NOISE, on_lattice=False)
    assert kept.dtype is torch.float64
    assert np.array_equal(kept.numpy(), exact)
    sent = noisy_rows(rows, torch.from_numpy(NOISE))
    assert np.array_equal(sent.numpy(), np.round(exact / LATTICE) * LATTICE)
    assert torch.equal(rows, TABLE[IDS].to(dtype))


def test_no_token_is_replaced_by_none():
    search = NeighbourSearch(TABLE, CANDIDATES)
    assert replacements(IDS[:0], NOISE[:0], search).tolist() == []


def vocabulary() -> NeighbourSearch:
    """Nine words of two groups, of which all may come out but one, and one that leaves as it is."""
    table = torch.randn(9, 5, generator=torch.Generator().manual_seed(3))
    candidates = torch.tensor([True] * 7 + [False, True])
    return NeighbourSearch(table, candidates, groups=torch.tensor([0, 1, 0, 1, 0, 0, 0, 0, -1]))


def exact(search: NeighbourSearch, word: int, *, eta: float) -> Tensor:
    """exp(-eta d / 2), normalised over the word's group, one word after the other."""
    shares = torch.zeros(len(search.table), dtype=torch.float64)
    for other in search.candidates.tolist():
        if search.groups[other] == search.groups[word]:
            shares[other] = math.exp(-eta * float((search.table[word].double() - search.table[other]).norm()) / 2)
    return shares / shares.sum()


@pytest.mark.parametrize("wrong", [1.0, 2 / 3, 3 / 2])
def test_the_exponential_mechanism_draws_what_it_states_and_nothing_else(wrong: float) -> None:
    search, eta, draws = vocabulary(), 2.0, 20_000
    words = torch.tensor([0, 1, 7])
    of = torch.arange(3).repeat(draws)
    uniform = 1 - np.random.Generator(np.random.PCG64(1)).random(3 * draws)
    drawn = Exponential(search, eta=eta).draw(search.table[words], search.groups[words], of, uniform)
    least = 1.0
    for place, word in enumerate(words.tolist()):
        counts = torch.bincount(drawn[of == place], minlength=9)
        shares = exact(search, word, eta=wrong * eta)
        assert not counts[shares == 0].any(), "a word of another group came out, or one that may not"
        possible = shares > 0
        least = min(least, chisquare(counts[possible].numpy(), (shares[possible] * draws).numpy()).pvalue)
    assert (least > 1e-4) == (wrong == 1.0)


def test_the_exponential_mechanism_is_as_private_as_it_states() -> None:
    search, eta = vocabulary(), 3.0
    for one, other in ((0, 2), (0, 7), (1, 3)):
        shares = [exact(search, word, eta=eta) for word in (one, other)]
        distance = float((search.table[one].double() - search.table[other]).norm())
        possible = shares[0] > 0
        assert (shares[0][possible].log() - shares[1][possible].log()).abs().max() <= eta * distance


def test_distances_of_rows_that_almost_meet_keep_their_digits() -> None:
    """A product of rows loses them to the difference of two squares: far from the origin all of them."""
    table = torch.from_numpy(np.random.Generator(np.random.PCG64(2)).normal(size=(40, 16)))
    table[20:] = table[:20] + 1e-9 * table[:20].roll(1, dims=1)
    table += 1.5
    search = NeighbourSearch(table, candidates=torch.arange(40))
    scores = Exponential(search, eta=2.0).scores(table, torch.zeros(40, dtype=torch.int64))
    expected = -(table[:, None] - table[search.candidates]).norm(dim=2)
    torch.testing.assert_close(scores, expected, rtol=1e-11, atol=0)
