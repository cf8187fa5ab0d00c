"""The channel of text-to-text privatization: how probable each released token is, given the true one.

P(w' | w) is the share of the noise around w's row that lies nearest to row w'; no formula gives it. The
attacker draws pairs (w, w') itself and fits

    ln P(w' | w) = a e_w · e_w' + b ‖e_w'‖² + c ‖e_w'‖ + s [w' = w] - ln Z(w)

by maximum likelihood. The first two terms are what the squared distance is made of, in units of the noise;
long rows catch more of it (c); and a token survives more often than its neighbours' pull tells (s). Counted
pairs may be mixed in: P = (n(w, w') + m P) / (n(w) + m). With as many draws as an attacker can afford that
makes it worse, because most pairs that matter were drawn once or never: m is chosen on the attacker's own
text, and is infinite wherever this was measured.

Ref: SAP §4.3, eq. (3), (4), for the mechanism; this project's study of the channel.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Self

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor
from torch.nn.functional import embedding

from cutlayer.core.deadline import check_time
from cutlayer.privacy import PrivacySpec
from cutlayer.privacy.mechanisms import find_mechanism
from cutlayer.privacy.mechanisms.mechanism import Float64
from cutlayer.privacy.neighbours import NeighbourSearch
from cutlayer.privacy.replacement import CLEAR, Exponential, drawn, replacements

_FITTED_PAIRS = 1500
"""Pairs that the four numbers are fitted on: their errors are then below a hundredth of the numbers."""
_ROWS = 512
_DRAWN = 16_384
_PRODUCTS = 2**26
"""Products of rows in memory while it is fitted: 256 MiB; of larger tables fewer pairs are taken."""
_MOST_STEPS = 40
_IMPOSSIBLE = -1e4
"""ln of a probability that is as good as none."""
_START = np.array([0.4, -0.8, 1.6, 0.0])
_SURVIVES = np.array([0.0, 0.0, 0.0, 3.0])
"""Where the fit ends for MiniLM's table, about: the first three per eta² / width. It saves steps."""


def draw_ids(
    ids: Tensor, search: NeighbourSearch, *, privacy: PrivacySpec, etas: Tensor, rng: np.random.Generator
) -> Tensor:
    """What the mechanism releases for tokens: a draw of the attacker's own.

    Args:
        ids: `[n]` int64.
        search: Of the table.
        privacy: How they are replaced.
        etas: `[n]` float64, the parameter of each.
        rng: Of the attacker, who need not keep it secret.

    Returns:
        `[n]` int64; rows on the way are not rounded to the lattice: nobody sees them.
    """
    released, places = ids.clone(), drawn(ids, search).nonzero()[:, 0]
    if privacy.exponential:
        distinct, of = ids[places].unique(return_inverse=True)
        groups = torch.zeros_like(distinct) if search.groups is None else search.groups[distinct]
        mechanism = Exponential(search, eta=privacy.eta)
        released[places] = mechanism.draw(search.table[distinct], groups, of, rng.random(len(places)))
        return released
    noise = find_mechanism(privacy.noise)
    for some in places.split(_DRAWN):
        own = noise.noise(etas=etas[some].numpy(), width=search.table.shape[1], rng=rng)
        released[some] = replacements(ids[some], own, search, on_lattice=False)
    return released


@dataclass(frozen=True)
class Pairs:
    """Tokens and what became of them, drawn by the attacker.

    Attributes:
        true: `[pairs]` int64, drawn as often as the prior has them.
        released: `[pairs]` int64.
    """

    true: Tensor
    released: Tensor

    @classmethod
    def drawn(
        cls,
        count: int,
        search: NeighbourSearch,
        unigram: Tensor,
        *,
        privacy: PrivacySpec,
        etas: Callable[[Tensor], Tensor],
        rng: np.random.Generator,
    ) -> Pairs:
        """Draws pairs.

        Args:
            count: How many.
            search: Of the table.
            unigram: `[vocab]` float64, ln of how often each token stands.
            privacy: How tokens are replaced.
            etas: The parameter `[n]` of each of the tokens `[n]`.
            rng: Draws tokens and noise.
        """
        share = unigram.exp().numpy() * drawn(torch.arange(len(unigram)), search).numpy()
        true = torch.from_numpy(rng.choice(len(share), size=count, p=share / share.sum()))
        return cls(true, draw_ids(true, search, privacy=privacy, etas=etas(true), rng=rng))


class ExponentialChannel:
    """ln P(released | true) of the exponential mechanism, which is known: nothing is fitted.

    Its methods are those of `Channel`.

    Args:
        search: Of words' vectors, with candidates and groups.
        eta: Of the mechanism.
    """

    def __init__(self, search: NeighbourSearch, *, eta: float) -> None:
        self._table = search.table.detach().float()
        self._groups = search.groups
        self._eta = eta
        self._exponential = Exponential(search, eta=eta)
        self._partition = torch.full((len(self._table),), torch.nan)

    def shrunk(self, _: float) -> Self:
        """The same: no counts are mixed into what is known."""
        return self

    def log_probability(self, released: Tensor, true: Tensor) -> Tensor:
        """`[n, k]` float32, of `released` `[n]` and `true` `[n, k]`, int64."""
        self._prepare(true.unique())
        distances = (self._table[released][:, None] - self._table[true]).norm(dim=2)
        score: Tensor = -self._eta / 2 * distances - self._partition[true]
        _keep_apart(score, self._groups, released[:, None], true)
        return score

    def likeliest(self, released: Tensor, true: Tensor, prior: Tensor, k: int) -> Tensor:
        """`[n, k]` int64, those of `true` `[m]` with the largest posterior under `prior` `[m]`."""
        best = [(score + prior).topk(min(k, len(true)), dim=1, sorted=False) for score in self._every(released, true)]
        return torch.cat([true[found.indices] for found in best])

    def log_evidence(self, released: Tensor, true: Tensor, prior: Tensor) -> Tensor:
        """ln P(released) `[n]` float32, whatever stood there."""
        return torch.cat([(score + prior).logsumexp(1) for score in self._every(released, true)])

    def _every(self, released: Tensor, true: Tensor) -> Iterator[Tensor]:
        self._prepare(true)
        for part in released.split(_ROWS):
            score = torch.cdist(self._table[part], self._table[true]).mul_(-self._eta / 2) - self._partition[true]
            _keep_apart(score, self._groups, part[:, None], true)
            yield score

    def _prepare(self, true: Tensor) -> None:
        unknown = true[self._partition[true].isnan()]
        groups = torch.zeros_like(unknown) if self._groups is None else self._groups[unknown]
        found = self._exponential.log_normalisers(self._table[unknown], groups) if len(unknown) else torch.empty(0)
        # a word in clear is drawn from nothing
        self._partition[unknown] = torch.where(groups == CLEAR, 0.0, found).float()


def _keep_apart(score: Tensor, groups: Tensor | None, released: Tensor, true: Tensor) -> None:
    """Makes what is no pair of the mechanism improbable in `score`, to whose shape the ids `[...]` are broadcast.

    A word is replaced within its group, and one that leaves as it is by nothing.
    """
    if groups is None:
        return
    group = groups[released]
    score.masked_fill_(group != groups[true], _IMPOSSIBLE)
    score.masked_fill_((group == CLEAR) & (released != true), _IMPOSSIBLE)
    score.masked_fill_((group == CLEAR) & (released == true), 0.0)


class Channel:
    """ln P(released | true) for tokens of a table, and of words within their group.

    Args:
        search: Of the table, with its candidates: nothing else is released.
        pairs: What it is fitted on.
        eta: What they were drawn at, or about: the fit begins there, and ends in the same place wherever it begins.

    Attributes:
        weights: a, b, c and s.
        pairs: How many were drawn.
        shrinkage: m: how many draws of a token the formula is worth; infinite leaves counts out.
    """

    def __init__(self, search: NeighbourSearch, pairs: Pairs, *, eta: float) -> None:
        self._table = search.table.detach().float()
        # to choose candidates by: a rounded product changes a score by about a hundredth
        self._coarse = self._table.to(search.coarse)
        self._released = search.candidates
        rows = self._table[self._released]
        self._square, self._norm = rows.square().sum(1), rows.norm(dim=1)
        self._rows = rows.T.contiguous()
        self._groups = search.groups
        self._place = torch.full((len(self._table),), -1)
        self._place[self._released] = torch.arange(len(self._released))
        self._drawn = pairs
        self.pairs = len(pairs.true)
        self.shrinkage = math.inf
        self._counts: _Counts | None = None
        self._partition = torch.full((len(self._table),), torch.nan)
        self.weights = self._fit(eta)

    def shrunk(self, shrinkage: float, pairs: Pairs | None = None) -> Channel:
        """The same formula, with counted pairs mixed in.

        Args:
            shrinkage: m; infinite leaves them out.
            pairs: Those that are counted; all that it was fitted on where they are left out.
        """
        mixed = copy.copy(self)
        mixed.shrinkage = shrinkage
        mixed._counts = None if math.isinf(shrinkage) else _Counts(pairs or self._drawn, len(self._table))
        return mixed

    def draw(self, true: Tensor, rng: np.random.Generator) -> Tensor:
        """Released tokens `[n]` int64 that the formula draws for tokens `[n]`; those in clear are themselves."""
        released, places = true.clone(), torch.arange(len(true))
        if self._groups is not None:
            places = (self._groups[true] != CLEAR).nonzero()[:, 0]
        for some in places.split(_ROWS):
            ends = self._scores(true[some]).double().softmax(1).cumsum(1)
            drawn = torch.from_numpy(rng.random(len(some)))[:, None] * ends[:, -1:]
            released[some] = self._released[torch.searchsorted(ends, drawn)[:, 0].clamp(max=len(self._released) - 1)]
        return released

    def log_probability(self, released: Tensor, true: Tensor) -> Tensor:
        """ln P(released | true).

        Args:
            released: `[n]` int64.
            true: `[n, k]` int64, tokens to compare for each.

        Returns:
            `[n, k]` float32.
        """
        self._prepare(true.unique())
        a, b, c, s = self.weights
        row = self._table[released]
        score = a * (row[:, None] @ embedding(true, self._table).transpose(1, 2))[:, 0]
        score += (b * row.square().sum(1) + c * row.norm(dim=1))[:, None] - self._partition[true]
        score += s * (released[:, None] == true)
        _keep_apart(score, self._groups, released[:, None], true)
        if self._counts is None:
            return score
        counted, drawn = self._counts.of(released, true)
        return ((counted + self.shrinkage * score.exp()) / (drawn + self.shrinkage)).clamp(min=1e-30).log()

    def likeliest(self, released: Tensor, true: Tensor, prior: Tensor, k: int) -> Tensor:
        """The tokens with the largest posterior by the formula, without counts.

        Args:
            released: `[n]` int64.
            true: `[m]` int64, ascending, tokens to choose from; the released ones should be among them.
            prior: `[m]` float32, ln of how probable each is.
            k: How many.

        Returns:
            `[n, k]` int64.
        """
        self._prepare(true)
        a, _, _, s = self.weights
        # what depends on the released token alone changes no order
        offset = prior - self._partition[true]
        matrix = self._coarse[true].T.contiguous()
        chosen = []
        for part in released.split(_ROWS):
            score = (self._coarse[part] @ matrix).float().mul_(a).add_(offset)
            own = torch.searchsorted(true, part).clamp(max=len(true) - 1)
            found = (true[own] == part).nonzero()[:, 0]
            score[found, own[found]] += s
            _keep_apart(score, self._groups, part[:, None], true)
            chosen.append(true[score.topk(min(k, len(true)), dim=1, sorted=False).indices])
        return torch.cat(chosen)

    def log_evidence(self, released: Tensor, true: Tensor, prior: Tensor) -> Tensor:
        """ln P(released) by the formula, whatever stood there.

        Args:
            released: `[n]` int64.
            true: `[m]` int64, tokens that may have stood there.
            prior: `[m]` float32, ln of how probable each is.

        Returns:
            `[n]` float32.
        """
        self._prepare(true)
        a, b, c, s = self.weights
        offset = prior - self._partition[true]
        found = []
        for part in released.split(_ROWS):
            row = self._table[part]
            score = torch.addmm(offset, row, self._table[true].T, alpha=a)
            score += s * (part[:, None] == true)
            _keep_apart(score, self._groups, part[:, None], true)
            found.append(score.logsumexp(1) + b * row.square().sum(1) + c * row.norm(dim=1))
        return torch.cat(found)

    def _prepare(self, true: Tensor) -> None:
        """Finds ln Z of tokens for which it is not known yet."""
        for part in true[self._partition[true].isnan()].split(_ROWS):
            self._partition[part] = self._scores(part).logsumexp(1)

    def _scores(self, true: Tensor) -> Tensor:
        """`[n, candidates]`: ln of how probable each candidate is, up to ln Z of each of the tokens `[n]`."""
        a, b, c, s = self.weights
        offset = b * self._square + c * self._norm
        score = torch.addmm(offset, self._table[true], self._rows, alpha=a)
        own = self._place[true]
        known = (own >= 0).nonzero()[:, 0]
        score[known, own[known]] += s
        _keep_apart(score, self._groups, self._released, true[:, None])
        return score

    def _fit(self, eta: float) -> tuple[float, float, float, float]:
        """Maximum likelihood by Newton steps in a trust region: four numbers, one maximum."""
        count = max(1, min(self.pairs, _FITTED_PAIRS, _PRODUCTS // len(self._released)))
        true, released = self._drawn.true[:count], self._place[self._drawn.released[:count]]
        products = self._table[true] @ self._rows
        own = self._place[true]
        known = (own >= 0).nonzero()[:, 0]
        own = own[known]
        at = torch.arange(count)
        ids = self._drawn.true[:count, None]
        shape = torch.stack([self._square, self._norm])
        # of the released token: a product, two of its shape, and whether it is the true one
        was = torch.stack([products[at, released], *shape[:, released], (released == self._place[true]).float()])

        @lru_cache(maxsize=1)
        def moments(weights: tuple[float, ...]) -> tuple[float, Float64, Float64]:
            """Mean loss, its gradient and its Hessian."""
            check_time()
            a, b, c, s = weights
            score = (products * a).add_(b * self._square + c * self._norm)
            score[known, own] += s
            _keep_apart(score, self._groups, self._released, ids)
            total = score.logsumexp(1)
            loss = float((total - score[at, released]).double().mean())
            share = score.sub_(total[:, None]).exp_()
            alone = share[known, own]
            weighed = share * products
            shaped = share @ shape.T
            survives = torch.zeros(count).index_add(0, known, alone)
            mean = torch.stack([weighed.sum(1), *shaped.T, survives]).double()
            second = torch.zeros(4, 4, dtype=torch.float64)
            second[0, 0] = weighed.mul(products).sum()
            second[0, 1:3] = (weighed @ shape.T).sum(0)
            second[0, 3] = (alone * products[known, own]).sum()
            second[1, 1], second[1, 2], second[2, 2] = (
                share @ torch.stack([shape[0] ** 2, shape[0] * shape[1], shape[1] ** 2], 1)
            ).sum(0)
            second[1:3, 3] = (alone * shape[:, own]).sum(1)
            second[3, 3] = alone.sum()
            second = second.triu() + second.triu(1).T
            curve = second - mean @ mean.T
            return loss, ((mean - was).sum(1) / count).numpy(), (curve / count).numpy()

        found = minimize(
            lambda weights: moments(tuple(weights))[0],
            eta**2 / self._table.shape[1] * _START + _SURVIVES,
            jac=lambda weights: moments(tuple(weights))[1],
            hess=lambda weights: moments(tuple(weights))[2],
            method="trust-exact",
            options={"maxiter": _MOST_STEPS, "gtol": 1e-3},
        )
        a, b, c, s = (float(weight) for weight in found.x)
        return a, b, c, s


class _Counts:
    """How often pairs were drawn."""

    def __init__(self, pairs: Pairs, size: int) -> None:
        self._size = size
        self._keys, self._counts = (pairs.true * size + pairs.released).unique(return_counts=True)
        self._drawn = torch.bincount(pairs.true, minlength=size)

    def of(self, released: Tensor, true: Tensor) -> tuple[Tensor, Tensor]:
        key = true * self._size + released[:, None]
        at = torch.searchsorted(self._keys, key).clamp(max=len(self._keys) - 1)
        return torch.where(self._keys[at] == key, self._counts[at], 0), self._drawn[true]
