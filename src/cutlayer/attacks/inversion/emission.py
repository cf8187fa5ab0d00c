"""How well each possible token explains what was seen in its place: ln P(observed | token), for the likeliest.

One class per form of release. Of released ids it is the channel; of noisy rows the density of the noise,
clipped or not; of rows behind blocks a map learnt from public text.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from cutlayer.attacks.inversion.channel import Channel, ExponentialChannel

_QUERIES = 1024
_NEWTON = 6
"""Steps to the peak: its place is then known to the last digits for any noise that hides anything."""
_LENGTHS = 48
"""Of a shortened row, at which another mechanism's density is added up."""
_LENGTHS_REACH = 3.0
"""The longest of them, in mean norms of the noise."""
_SURE = 50.0
"""ln of how much more probable a token is that was released as it is than any other."""


@dataclass(frozen=True)
class Candidates:
    """Tokens that may have been in each place.

    Attributes:
        ids: `[places, k]` int64.
        scores: `[places, k]` float64, ln P(observed | token) up to a constant of each place.
    """

    ids: Tensor
    scores: Tensor


class Emission(Protocol):
    """What is seen of a place, given each token."""

    def candidates(self, observed: Tensor, k: int) -> Candidates:
        """The k tokens that are likeliest under the prior, fewer where there are fewer.

        Args:
            observed: `[places, ...]`, ids or rows.
            k: How many.
        """
        ...

    def scores(self, observed: Tensor, ids: Tensor) -> Tensor:
        """How well tokens explain what was observed.

        Args:
            observed: `[places, ...]`, ids or rows.
            ids: `[places, k]` int64, tokens to compare in each place.

        Returns:
            `[places, k]` float64, ln P(observed | token) up to a constant of each place.
        """
        ...


class Released:
    """Ids that a text-to-text draw released.

    Args:
        channel: What was drawn for which token.
        unigram: `[vocab]` float64, ln of how often each token stands.
        sources: `[k]` int64, tokens that a text may have, beside those that were released.
    """

    def __init__(self, channel: Channel | ExponentialChannel, unigram: Tensor, sources: Tensor) -> None:
        self._channel = channel
        self._unigram = unigram
        self._sources = sources

    def candidates(self, observed: Tensor, k: int) -> Candidates:
        """See `Emission.candidates`."""
        kinds, which = observed.unique(return_inverse=True)
        sources = self._with(kinds)
        ids = self._channel.likeliest(kinds, sources, self._unigram[sources].float(), k)
        return Candidates(ids[which], self.scores(kinds, ids)[which])

    def log_evidence(self, kinds: Tensor) -> Tensor:
        """ln P(released) `[kinds]` float64 of tokens `[kinds]` int64, each once, whatever stood there."""
        sources = self._with(kinds)
        return self._channel.log_evidence(kinds, sources, self._unigram[sources].float()).double()

    def _with(self, kinds: Tensor) -> Tensor:
        # a token that was never seen may still have survived
        known: Tensor = torch.cat([self._sources, kinds]).unique()
        return known

    def scores(self, observed: Tensor, ids: Tensor) -> Tensor:
        """See `Emission.scores`."""
        parts = zip(observed.split(_QUERIES), ids.split(_QUERIES), strict=True)
        return torch.cat([self._channel.log_probability(seen, tried) for seen, tried in parts]).double()


class Unchanged:
    """Ids that left as they are."""

    def candidates(self, observed: Tensor, k: int) -> Candidates:
        """The released token `[places]` alone, with score 0: nothing else explains it."""
        return Candidates(observed[:, None], torch.zeros(len(observed), 1, dtype=torch.float64))

    def scores(self, observed: Tensor, ids: Tensor) -> Tensor:
        """See `Emission.scores`."""
        return torch.where(ids == observed[:, None], 0.0, -_SURE).double()


@dataclass(frozen=True)
class Stated:
    """What a mechanism states of its noise, where that is no d_chi noise.

    Attributes:
        log_density: `[...]` float64 of noise `[..., width]`.
        length: The noise's mean norm, by which candidates are chosen as if it were d_chi noise.
    """

    log_density: Callable[[Tensor], Tensor]
    length: float


class NoisyRows:
    """Rows y = e_w + n of the table with noise of density ∝ exp(-eta ‖n‖), perhaps shortened to a largest norm.

    Without clipping, ln P(y | w) = -eta ‖y - e_w‖. A row that was shortened to norm C tells its direction
    u = y / C alone, and the density is the integral over all lengths r >= C of r^(d-1) exp(-eta ‖r u - e_w‖): its
    logarithm is taken at its peak r*, with the peak's width (Laplace). r* is about d / eta, the noise's own length.

    Nearest neighbour on the shortened row weighs ‖e_w‖² r* / C times too much, and finds the shortest rows.

    Where eta depends on the token (CTI), the attacker does not know which is whose: a wrong one costs d ln(eta / eta')
    and reads less than none. So ln eta is taken as normal about the common one's with standard deviation σ, and with it
    the length of the noise r: ln P(y | w) = -d ln r - (ln r - ln(d / eta))² / 2 (1/d + σ²).

    Args:
        table: `[vocab, width]`.
        eta: The mechanism's parameter.
        stated: The density of other noise than d_chi noise; rows that were shortened have its sum over lengths.
        clip: The largest norm; `None` where rows are not shortened.
        unigram: `[vocab]` float64, ln of how often each token stands.
        sources: `[k]` int64, tokens that a text may have.
        spread: σ of ln eta over tokens; 0 where all have the same. Not of shortened rows.

    Ref: SAP §4.3, eq. (3); SnD (clipping). Undoing it is this project's.
    """

    def __init__(
        self,
        table: Tensor,
        *,
        eta: float,
        clip: float | None,
        unigram: Tensor,
        sources: Tensor,
        spread: float = 0.0,
        stated: Stated | None = None,
    ) -> None:
        self._table = table.detach().float()
        self._spread = spread
        self._stated = stated
        eta = eta if stated is None else table.shape[1] / stated.length
        self._eta = eta
        self._clip = clip
        self._sources = sources
        rows = self._table[sources]
        length = math.sqrt((rows.shape[1] / eta) ** 2 + float(rows.square().sum(1).mean()))
        self._rows = rows.T.contiguous()
        self._offset = unigram[sources].float() / eta - rows.square().sum(1) / (2 * length)

    def candidates(self, observed: Tensor, k: int) -> Candidates:
        """See `Emission.candidates`; chosen by the density's linear part, in which all lengths are alike."""
        ids, scores = [], []
        for part in observed.split(_QUERIES):
            rows = part.float()
            direction = rows / rows.norm(dim=1, keepdim=True).clamp(min=1e-12)
            _, best = torch.addmm(self._offset, direction, self._rows).topk(min(k, len(self._sources)), dim=1)
            ids.append(self._sources[best])
            scores.append(self.scores(part, ids[-1]))
        return Candidates(torch.cat(ids), torch.cat(scores))

    def scores(self, observed: Tensor, ids: Tensor) -> Tensor:
        """See `Emission.scores`."""
        found = []
        for part, tried in zip(observed.split(_QUERIES), ids.split(_QUERIES), strict=True):
            rows, table = part.double(), self._table[tried].double()
            length = rows.norm(dim=1, keepdim=True)
            if self._stated is not None:
                found.append(self._by_density(self._stated, rows, table, length))
                continue
            score = self._of_distance((rows[:, None] - table).norm(dim=2), rows.shape[1])
            if self._clip is not None:
                along = (table @ (rows / length.clamp(min=1e-12))[:, :, None])[:, :, 0]
                across = (table.square().sum(2) - along.square()).clamp(min=0)
                # a row on the sphere was shortened, up to the wire's rounding; one inside was not
                on_sphere = length >= self._clip * (1 - 2.0**-7)
                score = torch.where(on_sphere, self._shortened(along, across, rows.shape[1]), score)
            found.append(score)
        return torch.cat(found)

    def _by_density(self, stated: Stated, rows: Tensor, table: Tensor, length: Tensor) -> Tensor:
        """ln of a stated density; of a row on the sphere, its sum over the lengths that the row may have had."""
        score = stated.log_density(rows[:, None] - table)
        if self._clip is None:
            return score
        shortened = (length >= self._clip * (1 - 2.0**-7))[:, 0]
        if bool(shortened.any()):
            some, tried = rows[shortened] / length[shortened], table[shortened]
            longest = max(_LENGTHS_REACH * stated.length, 2 * self._clip)
            radii = torch.logspace(math.log10(self._clip), math.log10(longest), _LENGTHS, dtype=torch.float64)
            each = [
                stated.log_density(radius * some[:, None] - tried) + rows.shape[1] * radius.log() for radius in radii
            ]
            score[shortened] = torch.stack(each).logsumexp(0)  # dr = r d(ln r): the radii's steps are alike
        return score

    def _of_distance(self, distance: Tensor, width: int) -> Tensor:
        """ln of the density of noise of this length, up to a constant."""
        if not self._spread:
            return -self._eta * distance
        length = distance.clamp(min=1e-12).log()
        off = length - math.log(width / self._eta)
        return -width * length - off.square() / (2 * (1 / width + self._spread**2))

    def _shortened(self, along: Tensor, across: Tensor, width: int) -> Tensor:
        """ln of the integral of r^(d-1) exp(-eta sqrt((r - a)² + b²)) over r, with a `along` and b² `across`."""
        clip, eta, power = self._clip or 0.0, self._eta, width - 1
        radius = (along + power / eta).clamp(min=clip)
        for _ in range(_NEWTON):
            apart = ((radius - along).square() + across).sqrt().clamp(min=1e-12)
            slope = power / radius - eta * (radius - along) / apart
            bend = -power / radius.square() - eta * across / apart**3
            radius = (radius - slope / bend).clamp(min=clip)
        apart = ((radius - along).square() + across).sqrt().clamp(min=1e-12)
        bend = power / radius.square() + eta * across / apart**3
        return power * radius.log() - eta * apart - bend.log() / 2
