from __future__ import annotations

import pytest
import torch

from cutlayer.core import ConfigError, Ragged, Tokens
from cutlayer.privacy.mechanisms import DChi
from cutlayer.privacy.neighbours import NeighbourSearch
from cutlayer.privacy.randomness import generator
from cutlayer.privacy.replacement import CLEAR, Exponential
from cutlayer.reports import etas_for_shares

VOCAB, WIDTH = 500, 16
TABLE = torch.randn(VOCAB, WIDTH, generator=torch.Generator().manual_seed(1))
CANDIDATES = torch.arange(VOCAB) >= 10
SHARES = (0.9, 0.75, 0.6, 0.4, 0.25, 0.1)


def some_tokens(lowest=10, n=4000):
    ids = torch.randint(lowest, VOCAB, (n,), generator=torch.Generator().manual_seed(2))
    return Tokens((Ragged(ids[: n // 2], torch.tensor([n // 2])), Ragged(ids[n // 2 :], torch.tensor([n // 2]))))


@pytest.fixture(scope="module")
def search():
    return NeighbourSearch(TABLE, CANDIDATES)


def test_fresh_draws_at_the_eta_replace_the_share(search):
    tokens = some_tokens()
    ids = torch.cat([segment.values for segment in tokens.segments])
    points = etas_for_shares(tokens, search, SHARES, seed=0)
    assert [point.eta for point in points] == sorted(point.eta for point in points)
    for number, point in enumerate(points):
        etas = torch.full((len(ids),), point.eta, dtype=torch.float64).numpy()
        noise = DChi().noise(etas=etas, width=WIDTH, rng=generator(bytes([number] * 16)))
        drawn = search.nearest(TABLE[ids].double() + torch.from_numpy(noise))
        fresh = float((drawn != ids).double().mean())
        # two samples of 2,048 and 4,000
        assert fresh == pytest.approx(point.wanted, abs=0.05)
        assert point.replaced == pytest.approx(point.wanted, abs=0.01)


def test_of_the_exponential_mechanism_fresh_draws_replace_the_share(search):
    ids = torch.cat([segment.values for segment in some_tokens().segments])
    points = etas_for_shares(some_tokens(), search, SHARES, seed=0, exponential=True)
    noise = etas_for_shares(some_tokens(), search, SHARES, seed=0)
    groups = torch.zeros(VOCAB, dtype=torch.int64)
    for number, (point, other) in enumerate(zip(points, noise, strict=True)):
        uniform = torch.rand(len(ids), generator=torch.Generator().manual_seed(number), dtype=torch.float64)
        fresh = Exponential(search, eta=point.eta).draw(TABLE, groups, ids, 1 - uniform) != ids
        assert float(fresh.double().mean()) == pytest.approx(point.wanted, abs=0.03)
        assert point.eta != other.eta


def test_it_repeats(search):
    assert etas_for_shares(some_tokens(), search, [0.5], seed=3) == etas_for_shares(
        some_tokens(), search, [0.5], seed=3
    )


def test_tokens_that_are_no_candidates_are_always_replaced(search):
    half = some_tokens(lowest=0)
    ids = half.segments[0].values
    struck = half.segments[0].with_values(torch.where(torch.arange(len(ids)) % 2 == 0, ids % 10, ids))
    with pytest.raises(ConfigError, match="no candidates"):
        etas_for_shares(Tokens((struck,)), search, [0.25], seed=0)


def test_of_words_the_share_is_of_all_though_some_leave_as_they_are():
    """Every third stands for itself, and the others are of two groups."""
    groups = torch.arange(VOCAB) % 3 - 1
    tokens = some_tokens()
    ids = torch.cat([segment.values for segment in tokens.segments])
    search = NeighbourSearch(TABLE, CANDIDATES & (groups != CLEAR), groups=groups)
    (point,) = etas_for_shares(tokens, search, [0.4], seed=0)
    chosen = ids[groups[ids] != CLEAR]
    etas = torch.full((len(chosen),), point.eta, dtype=torch.float64).numpy()
    noise = DChi().noise(etas=etas, width=WIDTH, rng=generator(bytes(16)))
    fresh = search.nearest(TABLE[chosen].double() + torch.from_numpy(noise), groups[chosen])
    assert bool((groups[fresh] == groups[chosen]).all())
    assert int((fresh != chosen).sum()) / len(ids) == pytest.approx(0.4, abs=0.04)
    assert point.replaced == pytest.approx(0.4, abs=0.01)
    assert point.n == 2048
    with pytest.raises(ConfigError, match="leave as they are"):
        etas_for_shares(tokens, search, [0.7], seed=0)


@pytest.mark.parametrize("share", [0, 1, -0.5, float("nan")])
def test_shares_out_of_range(search, share):
    with pytest.raises(ConfigError, match="shares"):
        etas_for_shares(some_tokens(), search, [0.5, share], seed=0)
