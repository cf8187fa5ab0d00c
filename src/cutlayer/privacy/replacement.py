"""Noise on rows, the lattice that they are rounded to, and the token that is nearest: one piece for all who need it.

A release, an attacker's own draws and measurements that release nothing do the same, and differ in where their noise
comes from: a release has streams of the customer's secret, all others a generator of their own.

Ref: SAP §4.3, eq. (3), (4).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from cutlayer.privacy.mechanisms import round_to_lattice
from cutlayer.privacy.mechanisms.mechanism import Float64
from cutlayer.privacy.neighbours import NeighbourSearch

_NUMBERS: Final = 2**23
"""Probabilities that are held at a time: 64 MiB."""
_CANCELS: Final = 1e-4
"""Share of a row's own square, of which squared distances below lose digits to the difference of larger numbers."""
CLEAR: Final = -1
"""The group of words that leave as they are."""
ABSENT: Final = -1
"""The number of a word that is not in the vocabulary."""


def noisy_rows(
    rows: Tensor, noise: Float64 | Tensor, *, on_lattice: bool = True, longest: float | None = None
) -> Tensor:
    """Rows with noise, added in float64, and clipped to `longest` where it is given.

    Args:
        rows: `[n, width]`, of any floating type.
        noise: `[n, width]` float64, as `Mechanism.noise` returns it.
        on_lattice: Whether they are rounded to multiples of `LATTICE`, as all that is released is. Rows that nobody
            sees need not be.
        longest: What `largest_norm` returned: longer rows are shortened to that, after they were rounded.

    Returns:
        `[n, width]` float64; neither argument is changed.
    """
    sums = torch.add(rows.detach(), torch.as_tensor(noise))
    noisy = round_to_lattice(sums) if on_lattice else sums
    return noisy if longest is None else _clipped(noisy, longest)


def largest_norm(table: Tensor, candidates: Tensor | None) -> float:
    """To what noisy rows are shortened: no row that a token may have is longer.

    Args:
        table: `[vocabulary, width]`.
        candidates: `[vocabulary]` bool; `None` for all of them.

    Ref: SnD §3.3, C of eq. (2).
    """
    rows = table.detach() if candidates is None else table.detach()[candidates]
    return float(rows.double().norm(dim=1).max())


def _clipped(rows: Tensor, longest: float) -> Tensor:
    """Rows `[n, width]`, each in its direction and none longer than that; SnD §3.3, eq. (2)."""
    clipped: Tensor = rows * (longest / rows.norm(dim=1, keepdim=True).clamp(min=longest))
    return clipped


def replacements(ids: Tensor, noise: Float64 | Tensor, search: NeighbourSearch, *, on_lattice: bool = True) -> Tensor:
    """What each token becomes: the candidate that is nearest to its noisy row, of its group where there are groups.

    Args:
        ids: `[n]` int64; where there are groups, none of those that leave as they are (`drawn`).
        noise: As for `noisy_rows`, in the width of the table.
        search: Of the token-embedding table, among the candidates.
        on_lattice: As for `noisy_rows`.

    Returns:
        `[n]` int64.
    """
    rows = noisy_rows(search.table[ids], noise, on_lattice=on_lattice)
    return search.nearest(rows, None if search.groups is None else search.groups[ids])


@dataclass(frozen=True)
class Replaceable:
    """Tokens or words that are to be drawn: what a search is asked for, and what it returns where nothing changes.

    Attributes:
        search: Among what may come out.
        rows: `[distinct, width]`, of each of them once.
        own: `[distinct]` int64, by the search's numbers; `ABSENT` of a word that cannot come out.
        groups: `[distinct]` int64.
        of: `[n]` int64, which of them stands in each place.
    """

    search: NeighbourSearch
    rows: Tensor
    own: Tensor
    groups: Tensor
    of: Tensor

    def changed(self, noise: Float64 | Tensor) -> int:
        """How many become others by noise `[n, width]`. Nothing is released, so sums need not be on the lattice."""
        rows = noisy_rows(self.rows[self.of], noise, on_lattice=False)
        found = self.search.nearest(rows, None if self.search.groups is None else self.groups[self.of])
        return int((found != self.own[self.of]).sum())


class Exponential:
    """The exponential mechanism over a word's candidates: Pr[w → w'] ∝ exp(-eta · d(w, w') / 2), w' of w's group.

    Two words x, x' differ in each score by eta · d(x, x') / 2 at most, and in the logarithm of the normaliser by as
    much: so eta · d(x, x') bounds the log-ratio of what is drawn of them. No noise is drawn, and the channel is known
    exactly.

    Ref: McSherry & Talwar, "Mechanism Design via Differential Privacy", FOCS 2007.

    Args:
        search: Words' vectors, candidates and groups.
        eta: The privacy parameter.
    """

    def __init__(self, search: NeighbourSearch, *, eta: float) -> None:
        self._search = search
        self._eta = eta
        self._candidates = search.table[search.candidates].double()
        self._squares = self._candidates.square().sum(1)
        self._groups = None if search.groups is None else search.groups[search.candidates]

    def scores(self, vectors: Tensor, groups: Tensor) -> Tensor:
        """-eta · d / 2 for each candidate, `[n, candidates]` float64; -inf for those of other groups.

        Args:
            vectors: `[n, width]`.
            groups: `[n]` int64.
        """
        scores = self._distances(vectors.double()).mul_(-self._eta / 2)
        return scores if self._groups is None else scores.masked_fill_(self._groups != groups[:, None], -torch.inf)

    def _distances(self, vectors: Tensor) -> Tensor:
        """`[n, candidates]` float64, from one product; where that would cancel, from differences."""
        own = vectors.square().sum(1, keepdim=True)
        squares = torch.addmm(own + self._squares, vectors, self._candidates.T, alpha=-2)
        row, column = (squares < _CANCELS * own).nonzero(as_tuple=True)
        squares[row, column] = (vectors[row] - self._candidates[column]).square().sum(1)
        return squares.sqrt_()

    def log_normalisers(self, vectors: Tensor, groups: Tensor) -> Tensor:
        """ln of the sum of exp(score) over a word's candidates, `[n]` float64."""
        found = (self.scores(some, own).logsumexp(1) for some, own in self._parts(vectors, groups))
        return torch.cat([torch.zeros(0, dtype=torch.float64), *found])

    def draw(self, vectors: Tensor, groups: Tensor, of: Tensor, uniform: Float64 | Tensor) -> Tensor:
        """Draws a candidate for each place.

        Args:
            vectors: `[distinct, width]`, of words that stand in places.
            groups: `[distinct]` int64.
            of: `[n]` int64, which of them stands in each place.
            uniform: `[n]` in (0, 1].

        Returns:
            `[n]` int64, ids.
        """
        uniform = torch.as_tensor(uniform)
        # the places of each word side by side, so that one search along its row serves them all
        order, times = of.argsort(stable=True), torch.bincount(of, minlength=len(vectors))
        ends_of = times.cumsum(0)
        slot = torch.arange(len(of)) - (ends_of - times)[of[order]]
        found = torch.empty_like(of)
        start = 0
        for some, own in self._parts(vectors, groups):
            ends = self.scores(some, own).softmax(1).cumsum(1)
            stop = start + len(some)
            begun = slice(int(ends_of[start] - times[start]), int(ends_of[stop - 1]))
            here, row, column = order[begun], of[order[begun]] - start, slot[begun]
            asked = torch.zeros(len(some), int(times[start:stop].max()), dtype=ends.dtype)
            asked[row, column] = uniform[here] * ends[row, -1]
            found[here] = self._search.candidates[torch.searchsorted(ends, asked)[row, column]]
            start = stop
        return found

    def _parts(self, vectors: Tensor, groups: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        at_once = max(1, _NUMBERS // len(self._candidates))
        if not len(vectors):
            return iter(())  # none is split into one part, of none
        return zip(vectors.split(at_once), groups.split(at_once), strict=True)


def drawn(ids: Tensor, search: NeighbourSearch) -> Tensor:
    """`[n]` bool: which of these tokens are drawn at all; those of group `CLEAR` leave as they are."""
    return torch.ones_like(ids, dtype=torch.bool) if search.groups is None else search.groups[ids] != CLEAR
