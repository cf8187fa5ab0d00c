"""Small vocabularies, and what the exponential mechanism draws of their words, one probability after the other."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from cutlayer.privacy.neighbours import NeighbourSearch
from cutlayer.privacy.replacement import CLEAR


def vocabulary() -> NeighbourSearch:
    """Nine words of two groups, of which all may come out but one, and one that leaves as it is."""
    table = torch.randn(9, 5, generator=torch.Generator().manual_seed(3))
    candidates = torch.tensor([True] * 7 + [False, True])
    return NeighbourSearch(table, candidates, groups=torch.tensor([0, 1, 0, 1, 0, 0, 0, 0, CLEAR]))


def crowd() -> NeighbourSearch:
    """A word at distance 1 from a hundred that lie together, and a few of another group among these.

    At eta 2 the hundred tell it from themselves almost as well as is allowed, by scores and by normalisers alike.
    """
    table = 1e-3 * torch.randn(104, 3, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    table[1:, 0] += 1
    groups = torch.zeros(104, dtype=torch.int64)
    groups[101:] = 1
    return NeighbourSearch(table, torch.ones(104, dtype=torch.bool), groups=groups)


def ungrouped() -> NeighbourSearch:
    """Words that may all become each other."""
    table = torch.randn(12, 4, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    return NeighbourSearch(table, torch.arange(12) != 3)


def distance(search: NeighbourSearch, one: int, other: int) -> float:
    """Between two words' vectors."""
    return math.dist(search.table[one].tolist(), search.table[other].tolist())


def _scores(search: NeighbourSearch, word: int, *, eta: float) -> dict[int, float]:
    return {
        other: -eta * distance(search, word, other) / 2
        for other in search.candidates.tolist()
        if search.groups is None or search.groups[other] == search.groups[word]
    }


def log_normaliser(search: NeighbourSearch, word: int, *, eta: float) -> float:
    """ln of the sum of exp(-eta d / 2) over the candidates of the word's group."""
    scores = _scores(search, word, eta=eta).values()
    return max(scores) + math.log(math.fsum(math.exp(score - max(scores)) for score in scores))


def log_shares(search: NeighbourSearch, word: int, *, eta: float) -> Tensor:
    """`[words]` float64: ln of the probability of each; -inf of what cannot come out."""
    normaliser = log_normaliser(search, word, eta=eta)
    found = torch.full((len(search.table),), -torch.inf, dtype=torch.float64)
    for other, score in _scores(search, word, eta=eta).items():
        found[other] = score - normaliser
    return found
