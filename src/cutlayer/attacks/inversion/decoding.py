"""The likeliest token of each place, given what was seen of all places of its text and what texts look like.

Forward-backward over the candidates of each place: the token with the largest posterior, not the likeliest
whole text. The share of tokens that are right is what counts, and this is what maximises it.

Ref: Rabiner, "A tutorial on hidden Markov models", Proc. IEEE 77, 1989, §III, eq. (27) to (29).
"""

from __future__ import annotations

import torch
from torch import Tensor

from cutlayer.attacks.inversion.emission import Candidates
from cutlayer.attacks.inversion.prior import Bigram
from cutlayer.core.deadline import check_time

_ELEMENTS = 2**22
"""Transitions in memory at a time."""
_LEAST = 1e-30


def decode(candidates: Candidates, lengths: Tensor, prior: Bigram, *, weight: float) -> Tensor:
    """The token of each place with the largest posterior.

    Args:
        candidates: Of the places of all texts, text by text.
        lengths: `[texts]` int64, places of each text; none is empty.
        prior: What texts look like.
        weight: Exponent of the prior: below 1 where it is less sure of these texts than it says.

    Returns:
        `[places]` int64.
    """
    k = candidates.ids.shape[1]
    found = torch.empty(len(candidates.ids), dtype=torch.int64)
    starts = lengths.cumsum(0) - lengths
    order = lengths.argsort()
    while len(order):
        check_time()
        # texts of about one length, longest last, so that padding is short
        longest = lengths[order[-1]]
        some = order[-max(1, _ELEMENTS // (int(longest) * k * k)) :]
        order = order[: len(order) - len(some)]
        places, chosen = _best(candidates, starts[some], lengths[some], prior, weight)
        found[places] = chosen
    return found


def _best(
    candidates: Candidates, starts: Tensor, lengths: Tensor, prior: Bigram, weight: float
) -> tuple[Tensor, Tensor]:
    """Places of these texts and the token chosen for each."""
    longest = int(lengths.max())
    steps = torch.arange(longest)
    # behind its end a text repeats its last place; what is found there is not read
    at = starts[:, None] + torch.minimum(steps[None], lengths[:, None] - 1)
    ids, scores = candidates.ids[at], candidates.scores[at]
    # each place has a constant of its own; against underflow the likeliest token's is 1
    seen = (scores - scores.amax(2, keepdim=True)).exp().float()
    forward = [prior.probability(torch.tensor(prior.begin), ids[:, 0]).pow(weight) * seen[:, 0]]
    moves: list[Tensor] = []
    for step in range(1, longest):
        moves.append(prior.probability(ids[:, step - 1, :, None], ids[:, step, None, :]).pow_(weight))
        forward.append(_scaled((forward[-1][:, None] @ moves[-1])[:, 0] * seen[:, step]))
    ends = prior.probability(ids, torch.tensor(prior.end)).pow(weight)
    backward = ends[:, -1]
    chosen = torch.empty(len(starts), longest, dtype=torch.int64)
    for step in range(longest - 1, -1, -1):
        if step < longest - 1:
            later = (moves[step] @ (seen[:, step + 1] * backward)[:, :, None])[:, :, 0]
            backward = _scaled(torch.where((lengths - 1 == step)[:, None], ends[:, step], later))
        best = (forward[step] * backward).argmax(1, keepdim=True)
        chosen[:, step] = ids[:, step].gather(1, best)[:, 0]
    real = steps[None] < lengths[:, None]
    return at[real], chosen[real]


def _scaled(values: Tensor) -> Tensor:
    """The same up to a factor of each row: the largest is 1."""
    return (values / values.amax(1, keepdim=True)).clamp(min=_LEAST)
