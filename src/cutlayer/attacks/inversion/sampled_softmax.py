"""Cross-entropy over a large vocabulary, of which each step compares a few candidates.

The loss of an item with scores s and target t is ln Σ_c exp(s_c) - s_t. The sum over all candidates is estimated from
some of them: those that a batch's targets are, which the scores must tell apart, and others drawn evenly. A candidate
that is among them with probability π_c stands for 1 / π_c in the sum, which is then right in the mean:

    ln (exp(s_t) + Σ over c among them, c ≠ t, of exp(s_c - ln π_c)) - s_t,
    π_c = 1 - (1 - share_c)^n (1 - m / vocab),

for n targets, each of which is c with probability share_c, and m of the vocabulary drawn without replacement. The
target itself is always among them, and stands for itself.

Ref: Jean et al., "On Using Very Large Target Vocabulary for Neural Machine Translation", ACL 2015, arXiv:1412.2007, §3
(the sum estimated from some of it, by importance); Horvitz & Thompson 1952, JASA 47 (weights 1 / π).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn


def sampled_cross_entropy(
    score: Callable[[Tensor], Tensor],
    targets: Tensor,
    *,
    share: Tensor,
    compared: int,
    generator: torch.Generator,
) -> Tensor:
    """Mean loss of a batch over its own targets and some other candidates.

    Args:
        score: Scores `[n, k]` of the batch's items for candidates at `[k]` int64.
        targets: `[n]` int64, candidates; at least one.
        share: `[vocab]` float64, how often each candidate is a target.
        compared: Others that are drawn; all of the vocabulary where it has no more, and then nothing is estimated.
        generator: Draws them.
    """
    vocabulary = len(share)
    others = torch.randperm(vocabulary, generator=generator)[:compared]
    some, place = torch.cat([targets, others]).unique(return_inverse=True)
    place = place[: len(targets)]
    absent = (1 - share[some]) ** len(targets) * (1 - len(others) / vocabulary)
    standing_for = (1 - absent).log().float().expand(len(targets), -1).scatter(1, place[:, None], 0.0)
    return nn.functional.cross_entropy(score(some) - standing_for, place)
