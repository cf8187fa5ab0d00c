from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
import torch
from scipy.stats import chisquare
from torch import Tensor

from cutlayer.privacy import LATTICE
from cutlayer.privacy.neighbours import NeighbourSearch
from cutlayer.privacy.replacement import CLEAR, Exponential, noisy_rows, replacements
from tests.unit.privacy.word_draws import crowd, distance, log_normaliser, log_shares, ungrouped, vocabulary

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
        shares = log_shares(search, word, eta=wrong * eta).exp()
        assert not counts[shares == 0].any(), "a word of another group came out, or one that may not"
        possible = shares > 0
        least = min(least, chisquare(counts[possible].numpy(), (shares[possible] * draws).numpy()).pvalue)
    assert (least > 1e-4) == (wrong == 1.0)


def drawn_words(search: NeighbourSearch) -> tuple[Tensor, Tensor]:
    """Those that do not leave as they are, and the group of each."""
    groups = torch.zeros(len(search.table), dtype=torch.int64) if search.groups is None else search.groups
    words = (groups != CLEAR).nonzero()[:, 0]
    return words, groups[words]


def told(search: NeighbourSearch, *, eta: float) -> tuple[Tensor, Tensor]:
    """ln of the probabilities that the code draws by, `[words, all]`, and its normalisers, `[words]`."""
    words, groups = drawn_words(search)
    mechanism = Exponential(search, eta=eta)
    shares = torch.full((len(words), len(search.table)), -torch.inf, dtype=torch.float64)
    shares[:, search.candidates] = mechanism.scores(search.table[words], groups).log_softmax(1)
    return shares, mechanism.log_normalisers(search.table[words], groups)


VOCABULARIES = pytest.mark.parametrize("search", [vocabulary(), crowd(), ungrouped()], ids=["groups", "crowd", "one"])


@VOCABULARIES
@pytest.mark.parametrize("eta", [0.1, 2.0, 60.0])
def test_the_exponential_mechanism_has_the_probabilities_that_it_states(search: NeighbourSearch, eta: float) -> None:
    """Of each word of each group, whether it may come out itself or not."""
    words, _ = drawn_words(search)
    shares, normalisers = told(search, eta=eta)
    expected = torch.stack([log_shares(search, word, eta=eta) for word in words.tolist()])
    torch.testing.assert_close(shares, expected, rtol=1e-9, atol=1e-9)
    sums = [log_normaliser(search, word, eta=eta) for word in words.tolist()]
    torch.testing.assert_close(normalisers, torch.tensor(sums, dtype=torch.float64), rtol=1e-9, atol=1e-9)


def most_told(search: NeighbourSearch, *, eta: float) -> float:
    """How well two words of a group can be told apart by what came out, at best, as a share of eta · distance."""
    words, groups = drawn_words(search)
    shares, _ = told(search, eta=eta)
    largest = 0.0
    for one, other in combinations(range(len(words)), 2):
        if groups[one] == groups[other]:
            possible = shares[one] > -torch.inf
            assert torch.equal(possible, shares[other] > -torch.inf), "what one word becomes, the other does, too"
            ratio = float((shares[one] - shares[other])[possible].abs().max())
            largest = max(largest, ratio / (eta * distance(search, int(words[one]), int(words[other]))))
    return largest


@VOCABULARIES
@pytest.mark.parametrize("eta", [0.1, 2.0, 60.0])
def test_the_exponential_mechanism_is_as_private_as_it_states(search: NeighbourSearch, eta: float) -> None:
    assert most_told(search, eta=eta) <= 1 + 1e-9


def test_a_word_beside_a_crowd_is_told_apart_about_as_well_as_it_may_be() -> None:
    """So that the bound is no empty one: twice the score would break it."""
    assert most_told(crowd(), eta=2.0) > 0.95


@VOCABULARIES
@pytest.mark.parametrize("numbers", [1, 2**23])
def test_even_numbers_are_drawn_as_evenly_as_words_are_probable(
    search: NeighbourSearch, numbers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is drawn is what the probabilities say, without chance, word by word or all at once."""
    monkeypatch.setattr("cutlayer.privacy.replacement._NUMBERS", numbers)
    eta, even = 2.0, 2000
    words, groups = drawn_words(search)
    of = torch.arange(len(words)).repeat(even)
    uniform = ((torch.arange(even, dtype=torch.float64) + 0.5) / even).repeat_interleave(len(words))
    drawn = Exponential(search, eta=eta).draw(search.table[words], groups, of, uniform)
    for place, word in enumerate(words.tolist()):
        counts = torch.bincount(drawn[of == place], minlength=len(search.table))
        expected = log_shares(search, word, eta=eta).exp()
        assert not counts[expected == 0].any()
        assert (counts - even * expected).abs().max() <= 1


def test_distances_of_rows_that_almost_meet_keep_their_digits() -> None:
    """A product of rows loses them to the difference of two squares: far from the origin all of them."""
    table = torch.from_numpy(np.random.Generator(np.random.PCG64(2)).normal(size=(40, 16)))
    table[20:] = table[:20] + 1e-9 * table[:20].roll(1, dims=1)
    table += 1.5
    search = NeighbourSearch(table, candidates=torch.arange(40))
    scores = Exponential(search, eta=2.0).scores(table, torch.zeros(40, dtype=torch.int64))
    expected = -(table[:, None] - table[search.candidates]).norm(dim=2)
    torch.testing.assert_close(scores, expected, rtol=1e-11, atol=0)
