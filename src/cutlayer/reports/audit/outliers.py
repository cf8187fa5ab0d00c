"""Texts of which far more was read than of the others: left by mistake, or protected less."""

from __future__ import annotations

import torch
from scipy.special import betainc
from torch import Tensor

from cutlayer.attacks import Reading
from cutlayer.reports.metrics import holm


def stand_out(reading: Reading, *, alpha: float) -> Tensor:
    """Texts of which so much was read that the share of the others explains it in none of them.

    Each token is compared with how often the same token was read in the other texts, for tokens differ in how
    well noise hides them; of tokens that stand in one text alone, with all others. A text's hits are then held
    against a binomial with the mean of these shares, which is wider than their own distribution. Holm's correction
    over all texts: where all are protected alike, one or more are named with probability alpha at most.

    Args:
        reading: What was read.
        alpha: The probability of naming any where there is none.

    Returns:
        `[m]` int64, texts in order.
    """
    seen, right, owners = reading.seen, reading.right & reading.seen, reading.owners
    values = torch.cat([side.values for side in reading.tokens.segments])
    _, kind = values.unique(return_inverse=True)
    texts = len(reading.tokens)
    count = torch.bincount(kind[seen], minlength=int(kind.max()) + 1).double()
    hits = torch.bincount(kind[right], minlength=len(count)).double()
    # of the same token in the same text, too: what stands here must not explain itself
    pair = kind * texts + owners
    _, place = pair.unique(return_inverse=True)
    own_count = torch.bincount(place[seen], minlength=int(place.max()) + 1).double()[place]
    own_hits = torch.bincount(place[right], minlength=int(place.max()) + 1).double()[place]
    per_text = reading.per_text(seen).double()
    right_in = reading.per_text(right).double()
    rest = ((right_in.sum() - right_in) / (per_text.sum() - per_text).clamp(min=1))[owners]
    elsewhere = count[kind] - own_count
    # a handful of tokens says little: the others' share counts as much as _PRIOR of them
    expected = (hits[kind] - own_hits + _PRIOR * rest) / (elsewhere + _PRIOR)
    mean = torch.zeros(texts, dtype=torch.float64).index_add(0, owners[seen], expected[seen]) / per_text.clamp(min=1)
    p_values = {}
    for text in (per_text > 0).nonzero()[:, 0].tolist():
        n, k, share = int(per_text[text]), int(right_in[text]), float(mean[text])
        p_values[str(text)] = 1.0 if k <= n * share else float(betainc(k, n - k + 1, share))
    found = sorted(int(text) for text, named in holm(p_values, alpha=alpha).items() if named)
    return torch.tensor(found, dtype=torch.int64)


_PRIOR = 5.0
