"""Shares and their 95 % intervals over texts, and what guesses would hit by chance."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from scipy.special import betainc, betaincinv
from torch import Tensor

from cutlayer.core import DataError, Proportion
from cutlayer.core.proportion import LEVEL

_RESAMPLES = 2000
_WEIGHTS = 1 << 20
"""Of resamples at a time."""
_DEALS = 200
_SEED = 2026
"""Which texts a resample takes hides nothing, so an interval may repeat: the same run is told in the same way."""


def clustered(successes: Tensor, trials: Tensor) -> Proportion:
    """A share whose trials come in clusters (the tokens of a text), which are not independent.

    The variance is the ratio estimator's, m / (m - 1) · Σ (s_i - p n_i)² / (Σ n_i)² over m clusters;
    a single cluster gets the binomial one.

    Args:
        successes: `[m]`, successes in each cluster.
        trials: `[m]`, trials in each cluster; clusters without trials do not count.

    Raises:
        DataError: There is no trial at all.

    Ref: Cochran, "Sampling Techniques", 1977, §9A (clusters of unequal sizes: ratio to size).
    """
    hits, counts = successes[trials > 0].double(), trials[trials > 0].double()
    n, m = int(counts.sum()), len(counts)
    if n == 0:
        raise DataError("There is nothing to score: no text that was released has a token.")
    share = float(hits.sum()) / n
    if m == 1:
        return Proportion.of(int(hits.sum()), n).model_copy(update={"independent": 1.0})
    variance = m / (m - 1) * float(((hits - share * counts) ** 2).sum()) / n**2
    return Proportion(value=share, n=n, standard_error=math.sqrt(variance), independent=independent(counts))


def independent(trials: Tensor) -> float:
    """How many trials there are at least for what none or all of them tell: clusters, each by its weight.

    Where nothing was hit, nothing tells how much alike the trials of a cluster are, so each cluster counts as one
    trial; of unequal ones as many as (Σ n_i)² / Σ n_i².

    Args:
        trials: `[m]`, in each cluster.

    Ref: Kish, "Survey Sampling", 1965, §11.7.
    """
    counts = trials[trials > 0].double()
    return float(counts.sum() ** 2 / counts.square().sum())


def exact_interval(share: float, trials: float) -> tuple[float, float]:
    """Clopper's and Pearson's 95 % interval of a share of independent trials, which may be fractions.

    Args:
        share: What succeeded.
        trials: Independent trials.

    Ref: Clopper and Pearson, Biometrika 26, 1934.
    """
    tail, hits = (1 - LEVEL) / 2, share * trials
    low = 0.0 if share <= 0 else float(betaincinv(hits, trials - hits + 1, tail))
    high = 1.0 if share >= 1 else float(betaincinv(hits + 1, trials - hits, 1 - tail))
    return low, high


def bootstrap(successes: Tensor, trials: Tensor) -> tuple[float, float]:
    """The 95 % percentile interval of a clustered share: clusters are drawn with replacement.

    Clusters that all show the same share, as where nothing was hit or everything, show no spread; then it is exact,
    with as many trials as are independent at least.

    Args:
        successes: `[m]`, of each cluster; the sum of what is averaged need not be whole, but lies between 0 and trials.
        trials: `[m]`, in each cluster; clusters without trials do not count.

    Ref: Efron and Tibshirani, "An Introduction to the Bootstrap", 1993, §13.
    """
    low, high = resampled(successes, trials)
    if low < high:
        return low, high
    return exact_interval(float(successes.sum()) / float(trials.sum()), independent(trials))


def resampled(sums: Tensor, trials: Tensor) -> tuple[float, float]:
    """The same of an average that is no share: without width where clusters do not differ.

    Args:
        sums: `[m]`, of what is averaged over each cluster.
        trials: `[m]`, in each cluster; clusters without trials do not count.
    """
    kept = trials > 0
    added, counts = sums[kept].double().numpy(), trials[kept].double().numpy()
    return _interval((drawn @ added) / (drawn @ counts) for drawn in _drawn(len(added), items=len(added)))


def bootstrap_of(
    statistic: Callable[[NDArray[np.float64]], NDArray[np.float64]], groups: Tensor, *, trials: float
) -> tuple[float, float]:
    """The 95 % percentile interval of a statistic of items: their groups are drawn with replacement.

    Args:
        statistic: Shares `[draws]`; called with `[draws, items]`, how often each item was drawn.
        groups: `[items]` int64, the group of each.
        trials: As many independent trials stand behind it at least, where it does not vary.
    """
    of_item = groups.unique(return_inverse=True)[1].numpy()
    count, items = 1 + int(of_item.max()), len(of_item)
    low, high = _interval(statistic(drawn[:, of_item]) for drawn in _drawn(count, items=items))
    return (low, high) if low < high else exact_interval(float(statistic(np.ones((1, items)))[0]), trials)


def _drawn(clusters: int, *, items: int) -> Iterator[NDArray[np.float64]]:
    """How often each cluster was drawn, `[resamples, clusters]`, some resamples at a time.

    Args:
        clusters: Of which as many are drawn with replacement.
        items: That are weighted by each resample; what is in memory at a time is bounded by them.
    """
    rng = np.random.Generator(np.random.PCG64(_SEED))
    most = max(1, _WEIGHTS // items)
    for start in range(0, _RESAMPLES, most):
        count = min(most, _RESAMPLES - start)
        picked = rng.integers(clusters, size=(count, clusters)) + clusters * np.arange(count)[:, None]
        times = np.bincount(picked.ravel(), minlength=count * clusters)
        yield times.reshape(count, clusters).astype(np.float64)


def _interval(values: Iterator[NDArray[np.float64]]) -> tuple[float, float]:
    found = np.concatenate(list(values))
    found = found[np.isfinite(found)]
    low, high = np.quantile(found, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def area_under_curve(
    scores: Tensor, positive: Tensor, weights: NDArray[np.float64] | None = None
) -> NDArray[np.float64]:
    """How probable it is that a positive item scores higher than a negative one; ties count half.

    Args:
        scores: `[items]`, higher for items that are held to be positive.
        positive: `[items]` bool.
        weights: `[..., items]`, how often each item counts; once where it is left out.

    Returns:
        The area under the ROC curve `[...]`, not a number where one kind is missing.

    Ref: Hanley and McNeil, "The meaning and use of the area under a ROC curve", Radiology 143, 1982.
    """
    if weights is None:
        weights = np.ones(len(scores))
    ordered, order = scores.sort()
    first = torch.cat([torch.ones(1, dtype=torch.bool), ordered[1:] != ordered[:-1]])  # of those of one score
    starts, true = first.nonzero()[:, 0].numpy(), positive[order].numpy()
    sorted_weights = weights[..., order.numpy()]
    above, below = (np.add.reduceat(sorted_weights * kind, starts, axis=-1) for kind in (true, ~true))
    pairs = above.sum(-1) * below.sum(-1)
    won = (above * (below.cumsum(-1) - below / 2)).sum(-1)
    area: NDArray[np.float64] = np.divide(won, pairs, out=np.full(np.shape(pairs), math.nan), where=pairs > 0)
    return area


def area_by_item(scores: Tensor, positive: Tensor) -> Tensor:
    """What each item adds to the area under the ROC curve, so that errors and pairs of it are those of a mean.

    Args:
        scores: `[items]`, higher for items that are held to be positive.
        positive: `[items]` bool, of both kinds.

    Returns:
        `[items]` float64, whose mean is the area; not a number where one kind is missing.

    Ref: DeLong, DeLong and Clarke-Pearson, Biometrics 44, 1988: placements.
    """
    won = torch.empty(len(scores), dtype=torch.float64)
    for kind, sign in ((positive, 1), (~positive, -1)):
        others = (sign * scores[~kind]).sort().values
        own = sign * scores[kind]
        below, ties = (torch.searchsorted(others, own, right=right).double() for right in (False, True))
        won[kind] = (below + ties) / 2 / len(others)
    area = won[positive].mean()
    # of either kind as if there were as many as of both together
    shares = torch.where(positive, positive.double().mean(), (~positive).double().mean())
    return area + (won - area) / shares


def p_value(success: Proportion, chance: float) -> float:
    """How probable so large a share is where each trial succeeds with probability `chance`: one-sided.

    Exact for independent trials, by the binomial distribution. Trials of one text are not: as many
    independent ones count as have the same standard error, or all of them where that is smaller.
    """
    if success.value <= chance:
        return 1.0
    independent = success.value * (1 - success.value) / success.n
    design = max(1.0, success.standard_error**2 / independent) if independent else 1.0
    trials = success.n / design
    hits = success.value * trials
    # P(Binomial(n, p) >= k) = I_p(k, n - k + 1), which takes fractions, too
    return float(betainc(hits, trials - hits + 1, chance))


def chance_of_match(
    truth: Tensor,
    guesses: Tensor,
    *,
    looks: Tensor,
    places: Tensor | None = None,
    guessed_at: Tensor | None = None,
) -> float:
    """The share of items that guesses would hit if they were dealt out at random among items of one kind of place.

    An item of value w that is looked at E times is hit by chance with probability 1 - (1 - q(w))^E,
    where q(w) is how often w stands among all guesses about such places. An attack may know without
    any look at the traffic that a text ends with a full stop: that is chance, too.

    Args:
        truth: `[items]` int64, true values.
        guesses: `[guesses]` int64, all guesses of all looks.
        looks: `[items]` int64, how often each item was looked at.
        places: `[items]` int64, the kind of each item's place; all are of one kind where it is left out.
        guessed_at: `[guesses]` int64, the same of each guess.
    """
    places = torch.zeros_like(truth) if places is None else places
    guessed_at = torch.zeros_like(guesses) if guessed_at is None else guessed_at
    size = 1 + int(torch.cat([truth, guesses]).max())
    missed = torch.zeros(len(truth), dtype=torch.float64)
    for kind in places.unique():
        here, there = places == kind, guessed_at == kind
        share = torch.bincount(guesses[there], minlength=size).double() / max(1, int(there.sum()))
        missed[here] = (1 - share[truth[here]]) ** looks[here]
    return float((1 - missed).mean())


def matched_groups(groups: Tensor, labels: Tensor) -> Tensor:
    """Which label each group stands for where as many items as can be agree: the Hungarian method.

    Args:
        groups: `[items]` int64, the group of each item.
        labels: `[items]` int64, its label.

    Returns:
        `[groups]` int64; -1 for a group that is left without a label of its own.

    Ref: Kuhn, "The Hungarian method for the assignment problem", 1955.
    """
    size = 1 + int(groups.max())
    counts = _contingency(groups, labels, size=size, classes=1 + int(labels.max()))
    rows, columns = linear_sum_assignment(counts, maximize=True)
    found = torch.full((size,), -1)
    found[torch.from_numpy(rows)] = torch.from_numpy(columns)
    return found


def chance_of_groups(groups: Tensor, labels: Tensor, texts: Tensor) -> float:
    """The share of items that groups would agree with, matched at their best, if labels were dealt out anew to texts.

    A match fits chance, too: of two random halves the better naming is right for more than half. So labels are
    dealt out and matched again, many times. All rows of a text keep one label, as they do in truth.

    The p-value of a `Score` with this chance is on the safe side: a best match varies less than single guesses do.

    Args:
        groups: `[items]` int64.
        labels: `[texts]` int64.
        texts: `[items]` int64, each item's text.
    """
    rng = torch.Generator().manual_seed(_SEED)
    size, classes = 1 + int(groups.max()), 1 + int(labels.max())
    agreed = 0.0
    for _ in range(_DEALS):
        dealt = labels[torch.randperm(len(labels), generator=rng)][texts]
        counts = _contingency(groups, dealt, size=size, classes=classes)
        rows, columns = linear_sum_assignment(counts, maximize=True)
        agreed += float(counts[rows, columns].sum())
    return agreed / (_DEALS * len(groups))


def _contingency(groups: Tensor, labels: Tensor, *, size: int, classes: int) -> NDArray[np.int64]:
    """`[groups, labels]`, how many items are of both."""
    return torch.bincount(groups * classes + labels, minlength=size * classes).view(size, classes).numpy()
