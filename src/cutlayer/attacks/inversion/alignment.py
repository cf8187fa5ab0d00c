"""Which released tokens stand in the place of one original token, in whatever text and run they left.

A text that leaves again under another cut is drawn again, and so is a passage that stands in many texts. An attacker
is not told which places are of one original. It finds out as sequences are aligned elsewhere: pairs of places that
agree improbably well are seeds, seeds on one diagonal of two texts vote for it, and along the best diagonals a hidden
Markov model tells related places from unrelated ones by

    P(released here, released there | one original token) / (P(released here) P(released there))
        = sum over tokens w of P(w | released here) P(released there | w) / P(released there),

which the channel and the frequencies of tokens give. What was aligned before is read together, so that the more looks
there are, the better the next one is found.

Places that are of one original and show the same draw tell as much as one of them. Places are taken to show one draw
where so many in a row are equal that two draws would be so improbably: few where most aligned places are equal, many
where no more are than two draws are.

Ref: this project. Seeds and extension: Altschul et al., BLAST, 1990; pairs of states: Durbin et al., "Biological
sequence analysis", 1998, §4.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from cutlayer.attacks.inversion.alignment_seeds import seeds, summed
from cutlayer.attacks.inversion.alignment_stretches import ENDS, Rates, StretchCounts, related_probability
from cutlayer.attacks.inversion.emission import Candidates
from cutlayer.core import Ragged
from cutlayer.core.deadline import check_time

_KEPT = 16
"""Tokens that are considered in a place while places are compared."""
_SEEDING = 4
"""Of these, so many of the likeliest are looked up elsewhere."""
_VOTES = 7.0
"""The least that the seeds of a diagonal must tell together, for the diagonal to be looked at."""
_CELLS = 2**22
"""Places of diagonals that are looked at for a batch of texts."""
_BATCH = 2**15
"""Places whose texts are compared with others at a time."""
_FIRST, _AGAIN = 0.9, 0.5
"""How probable it must be that two places of texts that begin alike are of one original: at first, and once others are
aligned. What is joined wrongly at first misleads what follows; what is missed is found again."""
_WITHIN = 0.98
"""The same of places within texts. Much more is compared there, and all that has common phrases would grow together."""
_IMPOSSIBLE = -6.0
"""Places that tell so much against it are not of one original, whatever stands around them."""
_LEAST_TIED = 1e-3
"""The least share of aligned places that is taken to show the same draw."""
_SURE_TIED = 9.0
"""Odds at which places are taken to show one draw."""


@dataclass(frozen=True)
class Kinds:
    """What each kind of released token tells of the true one.

    Attributes:
        released: `[kinds]` int64, ascending: the released tokens.
        candidates: `[kinds, k]`, ln P(released | token) of the likeliest tokens.
        evidence: `[kinds]` float64, ln P(released).
        unigram: `[vocab]` float64, ln of how often each token stands.
    """

    released: Tensor
    candidates: Candidates
    evidence: Tensor
    unigram: Tensor


@dataclass(frozen=True)
class Looks:
    """Which places look at the same.

    Attributes:
        original: `[places]` int64: places of one number are of one original token.
        draw: `[places]` int64: of these, places of one number show the same draw.
    """

    original: Tensor
    draw: Tensor

    @property
    def most(self) -> int:
        """The most draws that were seen of one original."""
        distinct = torch.stack([self.original, self.draw]).unique(dim=1)
        return int(torch.bincount(distinct[0]).max()) if distinct.numel() else 0


def aligned_looks(released: Ragged, kinds: Kinds) -> Looks:
    """Finds the places of texts that are of one original.

    Time grows with the number of places times what they have in common; memory with the number of places.

    Args:
        released: `[n]` released texts as ids, of one run behind those of another.
        kinds: What they tell; of all tokens in them.
    """
    return _Alignment(released, kinds).looks()


class _Alignment:
    """Texts that are compared, batch by batch, with all before."""

    def __init__(self, released: Ragged, kinds: Kinds) -> None:
        self._texts = released
        self._values = released.values
        total = len(released.values)
        self._text = torch.arange(len(released)).repeat_interleave(released.lengths)
        self._at = torch.arange(total) - released.offsets[:-1][self._text]
        self._kind = torch.searchsorted(kinds.released, released.values)
        self._unigram = kinds.unigram.float()
        self._original = torch.arange(total)
        self._rates = Rates(
            opens=1 / max(2, len(released)), starts=1 / max(2, total), parts=ENDS, ends=ENDS, sure=_FIRST
        )
        self._seen = StretchCounts()
        ids, scores = kinds.candidates.ids, kinds.candidates.scores.float()
        prior = self._unigram[ids]
        best = (scores + prior).topk(min(_KEPT, ids.shape[1]), dim=1).indices
        self._ids, self._scores = ids.gather(1, best), scores.gather(1, best)
        joint = (self._scores + prior.gather(1, best)).exp()
        evidence = kinds.evidence.float()
        # what is left for tokens that are not considered, alike for all of them
        rest = (evidence.exp() - joint.sum(1)).clamp(min=1e-3 * evidence.exp())
        left = (1 - prior.gather(1, best).exp().sum(1)).clamp(min=1e-3)
        self._floor = (rest / left).log()
        # of two independent draws of what stands in a place, the second is the first with this probability
        again = ((joint * self._scores.exp()).sum(1) / evidence.exp())[self._kind]
        self._agree = float(again.mean().clamp(1e-3, 0.9)) if total else 0.5

    def looks(self) -> Looks:
        """See `aligned_looks`."""
        batches = list(self._batches())
        for start, end in batches:
            self._join(start, end, before=end)
        # what was compared first was compared with few others, of which little was known
        self._seen, self._rates = StretchCounts(), replace(self._rates, sure=_AGAIN)
        for start, end in batches:
            self._join(start, end, before=len(self._values))
        return Looks(self._original, self._draws())

    def _batches(self) -> Iterator[tuple[int, int]]:
        """First place and end of whole texts with about so many places."""
        ends = self._texts.lengths.cumsum(0)
        number = (ends - 1).clamp(min=0) // _BATCH
        start = 0
        for batch in number.unique().tolist():
            end = int(ends[number == batch][-1])
            yield start, end
            start = end

    # ------------------------------------------------------------ one batch

    def _join(self, start: int, end: int, *, before: int) -> None:
        """Compares places `start` to `end` with all before a place."""
        beliefs = self._beliefs(before)
        here, there = self._related(beliefs, *self._diagonals(beliefs, start, end))
        self._seen.compared(self._text[start:end], self._text[:before])
        self._rates = self._seen.rates(self._rates.sure)
        if not len(here):
            return
        joined = _components(self._original[here], self._original[there], len(self._original))
        self._original = joined[self._original]

    def _beliefs(self, end: int) -> _Beliefs:
        """What is known of each original up to a place, by all draws of it."""
        places = torch.arange(end)
        originals = self._original[:end]
        firsts = (originals == places).nonzero()[:, 0]
        where = torch.full((end,), -1)
        where[firsts] = torch.arange(len(firsts))
        ids, scores, floor = (part[self._kind[firsts]].clone() for part in (self._ids, self._scores, self._floor))
        draws = self._draws()[:end]
        distinct = torch.stack([originals, draws]).unique(dim=1)
        counts = torch.bincount(distinct[0], minlength=end)
        several = counts[distinct[0]] > 1
        if bool(several.any()):
            owner, kind = where[distinct[0][several]], self._kind[distinct[1][several]]
            pooled = _pooled(owner, self._ids[kind], self._scores[kind], self._floor[kind], self._unigram)
            ids[pooled.owner], scores[pooled.owner], floor[pooled.owner] = pooled.ids, pooled.scores, pooled.floor
        prior = self._unigram[ids]
        joint = scores + prior
        other = floor + (1 - prior.exp().sum(1)).clamp(min=1e-3).log()
        total = torch.logaddexp(joint.logsumexp(1), other)
        share = (joint - total[:, None]).exp()
        # text that is not like the attacker's own has other words often: what is often read is no sign
        weight = torch.bincount(where[originals], minlength=len(firsts)).float()[:, None] / end
        common = torch.zeros_like(self._unigram).index_add(0, ids.flatten(), (share * weight).flatten())
        common = torch.maximum(common, self._unigram.exp())
        return _Beliefs(where[originals], firsts, ids, share, (other - total).exp(), share / common[ids])

    def _diagonals(self, beliefs: _Beliefs, start: int, end: int) -> tuple[Tensor, Tensor, Tensor]:
        """Pairs of texts, and how far apart places are in them, that seeds vote for."""
        best = beliefs.share.topk(min(_SEEDING, beliefs.share.shape[1]), dim=1).indices
        known, share = beliefs.ids.gather(1, best), beliefs.share.gather(1, best).log()
        asked = beliefs.of[start:end]
        left, right, vote = seeds(
            known.numpy(),
            share.numpy(),
            known[asked].numpy(),
            beliefs.ratio.gather(1, best).log()[asked].numpy(),
            before=beliefs.firsts.numpy(),
            here=np.arange(start, end),
        )
        texts, longest = len(self._texts), int(self._texts.lengths.max())
        text, at = self._text.numpy(), self._at.numpy()
        shift = at[left] - at[right] + longest
        keys = (text[left] * texts + text[right]) * (2 * longest + 1) + shift
        keys, votes = summed(keys, vote)
        good = votes >= _VOTES
        keys, votes = keys[good], votes[good]
        keys = keys[np.argsort(-votes, kind="stable")]
        pair, shift = keys // (2 * longest + 1), keys % (2 * longest + 1) - longest
        found = torch.from_numpy(pair // texts), torch.from_numpy(pair % texts), torch.from_numpy(shift)
        first = (-found[2]).clamp(min=0)
        lengths = torch.minimum(self._texts.lengths[found[1]], self._texts.lengths[found[0]] - found[2]) - first
        kept = lengths.cumsum(0) <= _CELLS
        return found[0][kept], found[1][kept], found[2][kept]

    def _related(self, beliefs: _Beliefs, one: Tensor, other: Tensor, shift: Tensor) -> tuple[Tensor, Tensor]:
        """Places of diagonals that are of one original, `[n]` each."""
        offsets = self._texts.offsets
        first = (-shift).clamp(min=0)
        lengths = torch.minimum(self._texts.lengths[other], self._texts.lengths[one] - shift) - first
        right = offsets[other] + first
        left = right - offsets[other] + offsets[one] + shift
        order = lengths.argsort()
        found: list[tuple[Tensor, Tensor]] = []
        rates = self._rates
        while len(order):
            check_time()
            longest = int(lengths[order[-1]])
            some = order[-max(1, _BATCH // longest) :]
            order = order[: len(order) - len(some)]
            steps = torch.arange(longest)
            real = steps < lengths[some, None]
            here, there = left[some, None] + steps, right[some, None] + steps
            evidence = torch.zeros(len(some), longest)
            evidence[real] = self._compared(beliefs, here[real], there[real])
            # texts that begin alike are the commonest of all that have something in common
            together = (shift[some] == 0) & (first[some] == 0)
            begins = torch.where(together, rates.opens, rates.starts)
            ends = torch.where(together, rates.parts, rates.ends)
            sure = torch.where(together, rates.sure, _WITHIN)[:, None]
            related = (
                related_probability(evidence, lengths[some], begins=begins, starts=rates.starts, ends=ends) >= sure
            )
            related &= real & (evidence > _IMPOSSIBLE)
            self._seen.add(related, together, lengths[some])
            found.append((here[related], there[related]))
        if not found:
            return torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=torch.int64)
        here, there = (torch.cat(side) for side in zip(*found, strict=True))
        return here, there

    def _compared(self, beliefs: _Beliefs, here: Tensor, there: Tensor) -> Tensor:
        """ln of how much more probable `there` is if its original is that of `here`."""
        told = torch.empty(len(here))
        for part in torch.arange(len(here)).split(_BATCH):
            one, other = beliefs.of[here[part]], beliefs.of[there[part]]
            ids, share, rest = beliefs.ids[one], beliefs.share[one], beliefs.rest[one]
            tried, ratio, asked = beliefs.ids[other], beliefs.ratio[other], beliefs.share[other]
            both, matched, explained = torch.zeros(3, len(part))
            for column in range(tried.shape[1]):
                alike = ids == tried[:, column, None]
                mass = (share * alike).sum(1)
                both += mass * ratio[:, column]
                matched += mass
                explained += asked[:, column] * alike.any(1)
            # tokens that are considered in one place alone, and in none
            unmatched = (1 - rest - matched).clamp(min=0) * beliefs.rest[other]
            told[part] = (both + unmatched + rest * (1 - explained).clamp(min=0)).clamp(min=1e-6).log()
        return told

    # ------------------------------------------------------------ draws

    def _draws(self) -> Tensor:
        """`[places]` int64: the first place that shows the same draw of the same original."""
        draw = torch.arange(len(self._values))
        key = self._original * (int(self._values.max()) + 1) + self._values
        _, symbol = key.unique(return_inverse=True)
        width = self._width()
        inside = self._at + width <= self._texts.lengths[self._text]
        starts = inside.nonzero()[:, 0]
        if not len(starts):
            return draw
        gram = symbol[starts]
        for step in range(1, width):
            _, gram = (gram * (int(symbol.max()) + 1) + symbol[starts + step]).unique(return_inverse=True)
        first = torch.full((int(gram.max()) + 1,), len(draw)).scatter_reduce(0, gram, starts, "amin")[gram]
        again = first < starts
        steps = torch.arange(width)
        here = (starts[again, None] + steps).flatten()
        there = (first[again, None] + steps).flatten()
        return _components(here, there, len(draw))

    def _width(self) -> int:
        """How many places in a row must be equal to be taken for one draw, by how often places are."""
        again = (self._original != torch.arange(len(self._original))).nonzero()[:, 0]
        equal = (self._values[again] == self._values[self._original[again]]).double().mean() if len(again) else 0.0
        one = min(max((float(equal) - self._agree) / (1 - self._agree), _LEAST_TIED), 1 - _LEAST_TIED)
        # each equal place makes one draw more probable by what it is improbable under two
        return max(1, math.ceil(math.log(_SURE_TIED * (1 - one) / one) / -math.log(self._agree)))


@dataclass(frozen=True)
class _Beliefs:
    """What is known of originals.

    Attributes:
        of: `[places]` int64, which original's each place is.
        firsts: `[originals]` int64, the first place of each.
        ids: `[originals, k]` int64.
        share: `[originals, k]`, how probable each of these is.
        rest: `[originals]`, how probable any other.
        ratio: `[originals, k]`, how much more probable each is than without any look.
    """

    of: Tensor
    firsts: Tensor
    ids: Tensor
    share: Tensor
    rest: Tensor
    ratio: Tensor


@dataclass(frozen=True)
class _Pooled:
    """Several looks together.

    Attributes:
        owner: `[n]` int64, at which originals.
        ids: `[n, k]` int64.
        scores: `[n, k]`.
        floor: `[n]`, the score of any other token.
    """

    owner: Tensor
    ids: Tensor
    scores: Tensor
    floor: Tensor


def _components(one: Tensor, other: Tensor, count: int) -> Tensor:
    """`[count]` int64: the first of all that each is connected with, by edges from `one` to `other`."""
    edges = coo_matrix((np.ones(len(one)), (one.numpy(), other.numpy())), shape=(count, count))
    _, found = connected_components(edges, directed=False)
    group = torch.from_numpy(found).long()
    first = torch.full((count,), count).scatter_reduce(0, group, torch.arange(count), "amin")
    return first[group]


def _pooled(owner: Tensor, ids: Tensor, scores: Tensor, floor: Tensor, unigram: Tensor) -> _Pooled:
    """Scores of several looks together: of each token that any considers; where one does not, its floor counts.

    Args:
        owner: `[looks]` int64, the original of which each is a draw.
        ids: `[looks, k]` int64.
        scores: `[looks, k]`.
        floor: `[looks]`.
        unigram: `[vocab]`.
    """
    size, k = int(owner.max()) + 1, ids.shape[1]
    floors = torch.zeros(size).index_add(0, owner, floor)
    key, inverse = (owner[:, None] * len(unigram) + ids).flatten().unique(return_inverse=True)
    sums = torch.zeros(len(key)).index_add(0, inverse, (scores - floor[:, None]).flatten())
    owners, tokens = key // len(unigram), key % len(unigram)
    rank = sums + floors[owners] + unigram[tokens]
    by_rank = rank.argsort(descending=True, stable=True)
    by_rank = by_rank[owners[by_rank].argsort(stable=True)]
    counts = torch.bincount(owners, minlength=size)
    place = torch.arange(len(key)) - (counts.cumsum(0) - counts)[owners[by_rank]]
    best = by_rank[place < k]
    place = place[place < k]
    rows = owner.unique()
    row = torch.full((size,), -1)
    row[rows] = torch.arange(len(rows))
    out_ids = torch.zeros(len(rows), k, dtype=torch.int64)
    out_scores = torch.zeros(len(rows), k)
    out_ids[row[owners[best]], place] = tokens[best]
    out_scores[row[owners[best]], place] = (sums + floors[owners])[best]
    # a constant of each original: against underflow
    most = out_scores.amax(1)
    return _Pooled(rows, out_ids, out_scores - most[:, None], floors[rows] - most)
