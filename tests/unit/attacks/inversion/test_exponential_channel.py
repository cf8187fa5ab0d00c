"""An attacker knows the exponential mechanism's channel exactly: what it computes is what the mechanism draws."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from cutlayer.attacks.inversion.channel import ExponentialChannel
from cutlayer.privacy.neighbours import NeighbourSearch
from cutlayer.privacy.replacement import CLEAR
from tests.unit.privacy.word_draws import log_shares, ungrouped, vocabulary

VOCABULARIES = pytest.mark.parametrize("search", [vocabulary(), ungrouped()], ids=["groups", "one"])
ETAS = pytest.mark.parametrize("eta", [0.5, 3.0, 40.0])
IMPOSSIBLE = -1e3


def expected(search: NeighbourSearch, *, eta: float) -> Tensor:
    """`[released, true]` float64 ln P, in the mechanism's own order of candidates; -inf of what is no pair."""
    rows = []
    for word in range(len(search.table)):
        if search.groups is not None and search.groups[word] == CLEAR:
            rows.append(torch.where(torch.arange(len(search.table)) == word, 0.0, -torch.inf).double())
        else:
            rows.append(log_shares(search, word, eta=eta))
    return torch.stack(rows, dim=1)[search.candidates]


def known(found: Tensor) -> Tensor:
    """As the channel has it, where what cannot be is as improbable as none."""
    return torch.where(found < IMPOSSIBLE, -torch.inf, found.double())


@VOCABULARIES
@ETAS
def test_each_pair_is_as_probable_as_the_mechanism_makes_it(search: NeighbourSearch, eta: float) -> None:
    """Asked for at once, one by one, and again: normalisers are kept."""
    released, true = search.candidates, torch.arange(len(search.table))
    channel = ExponentialChannel(search, eta=eta)
    exact = expected(search, eta=eta)
    for _ in range(2):
        found = channel.log_probability(released, true.repeat(len(released), 1))
        torch.testing.assert_close(known(found), exact, rtol=1e-5, atol=1e-5)
    single = ExponentialChannel(search, eta=eta)
    for word in true.tolist():
        one = single.log_probability(released, torch.full((len(released), 1), word))
        torch.testing.assert_close(known(one)[:, 0], exact[:, word], rtol=1e-5, atol=1e-5)


@VOCABULARIES
@ETAS
def test_what_is_released_of_a_word_makes_one(search: NeighbourSearch, eta: float) -> None:
    true = torch.arange(len(search.table))
    released = search.candidates
    found = ExponentialChannel(search, eta=eta).log_probability(released, true.repeat(len(released), 1))
    assert torch.allclose(found.double().exp().sum(0), torch.ones(len(true)).double(), atol=1e-5)


@VOCABULARIES
@ETAS
def test_evidence_and_the_likeliest_words_follow_from_them(search: NeighbourSearch, eta: float) -> None:
    true = torch.arange(len(search.table))
    prior = torch.linspace(-3, -1, len(true)).log_softmax(0)
    channel = ExponentialChannel(search, eta=eta)
    posterior = expected(search, eta=eta) + prior.double()
    evidence = channel.log_evidence(search.candidates, true, prior)
    torch.testing.assert_close(evidence.double(), posterior.logsumexp(1), rtol=1e-5, atol=1e-5)
    (best,) = channel.likeliest(search.candidates, true, prior, 1).unbind(1)
    assert torch.equal(best, posterior.argmax(1))
    assert channel.shrunk(3.0) is channel
