"""Which eta replaces which share of tokens, or of words: measured for a table and texts, because no formula tells.

The share depends on how close rows of the table lie to each other around the tokens that texts use;
adding up the chances of all pairs over-predicts it several times. So it is found by bisection on a
sample, with the same draws at every eta: only their scale changes, and the share falls as eta grows. Of the exponential
mechanism the share that is expected is known.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from cutlayer.core import ConfigError, Fault, Tokens
from cutlayer.privacy.mechanisms import DChi
from cutlayer.privacy.neighbours import NeighbourSearch
from cutlayer.privacy.replacement import Exponential, drawn, replacements

SAMPLE_TOKENS = 2048
_LOWEST, _HIGHEST = 1e-3, 1e6
_STEPS = 14


@dataclass(frozen=True)
class Calibrated:
    """An eta and the share of tokens that it replaces.

    Attributes:
        wanted: The share that was asked for.
        eta: The privacy parameter, rounded to three digits.
        replaced: The share that it replaced in the sample.
        n: Tokens in the sample.
    """

    wanted: float
    eta: float
    replaced: float
    n: int


def etas_for_shares(
    tokens: Tokens, search: NeighbourSearch, shares: Sequence[float], *, seed: int, exponential: bool = False
) -> list[Calibrated]:
    """For each share, the eta at which privatization replaces about that share of tokens, or of words.

    Nothing is released: the draws are forgotten, so they need not be secret and repeat with the seed.

    Args:
        tokens: The texts' tokens, as ids; words by number (`customer.recorded_words.WordNumbers`).
        search: Nearest neighbours in the model's table, or in that of words; with groups, those of group `CLEAR` leave
            as they are.
        shares: Shares of all tokens to replace, those that leave as they are among them, each between 0 and 1.
        seed: Which tokens are looked at, and their noise.
        exponential: Whether they are drawn by the exponential mechanism, and not by noise.

    Raises:
        ConfigError: A share that no eta gives, because a token that is no candidate is always replaced, and one that
            leaves as it is never.
    """
    allowed = "must lie between 0 and 1, both excluded"
    faults = [Fault("shares", share, allowed) for share in shares if not 0 < share < 1]
    if faults:
        raise ConfigError(faults)
    probe = (_ExponentialProbe if exponential else _NoiseProbe)(tokens, search, seed)
    return [_bisect(probe, share) for share in shares]


class _Probe(ABC):
    """A sample of tokens, those of it that are drawn, and the share of it that becomes others.

    Attributes:
        n: Tokens of the sample.
        drawn: The share of them that do not leave as they are.
    """

    def __init__(self, tokens: Tokens, search: NeighbourSearch, seed: int) -> None:
        self._rng = np.random.Generator(np.random.PCG64(seed))
        ids = torch.cat([segment.values for segment in tokens.segments])
        chosen = ids[torch.from_numpy(self._rng.permutation(len(ids))[:SAMPLE_TOKENS])]
        self._ids = chosen[drawn(chosen, search)]
        self._search = search
        self.n = len(chosen)
        self.drawn = len(self._ids) / self.n

    @abstractmethod
    def replaced(self, eta: float) -> float:
        """The share of the sample that becomes another token at this eta."""


class _NoiseProbe(_Probe):
    """By noise: the same at every eta, but for its scale."""

    def __init__(self, tokens: Tokens, search: NeighbourSearch, seed: int) -> None:
        super().__init__(tokens, search, seed)
        self._noise = DChi().noise(etas=np.ones(len(self._ids)), width=search.table.shape[1], rng=self._rng)

    def replaced(self, eta: float) -> float:
        found = replacements(self._ids, self._noise / eta, self._search, on_lattice=False)
        return int((found != self._ids).sum()) / self.n


class _ExponentialProbe(_Probe):
    """By the exponential mechanism: the expected share, for nothing need be drawn to know it."""

    def __init__(self, tokens: Tokens, search: NeighbourSearch, seed: int) -> None:
        super().__init__(tokens, search, seed)
        words, self._times = self._ids.unique(return_counts=True)
        groups = torch.zeros_like(words) if search.groups is None else search.groups[words]
        self._scores = Exponential(search, eta=1.0).scores(search.table[words], groups)
        self._own = words[:, None] == search.candidates

    def replaced(self, eta: float) -> float:
        stays = ((eta * self._scores).softmax(1) * self._own).sum(1)
        return float((self._times * (1 - stays)).sum()) / self.n


def _bisect(probe: _Probe, share: float) -> Calibrated:
    low, high = _LOWEST, _HIGHEST
    if probe.drawn < share:
        raise ConfigError(
            f"No eta replaces as much as {share:.0%} of these words: {1 - probe.drawn:.1%} leave as they are.",
            remedy="Ask for a smaller share, or let more words be replaced.",
        )
    if probe.replaced(high) > share:
        raise ConfigError(
            f"No eta replaces as little as {share:.0%} of these tokens: {probe.replaced(high):.1%} are no candidates.",
            remedy="Ask for a larger share.",
        )
    # a factor of 2 ** (30 / 2 ** 14) is left at the end
    for _ in range(_STEPS):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if probe.replaced(middle) > share else (low, middle)
    eta = float(f"{(low * high) ** 0.5:.3g}")
    return Calibrated(wanted=share, eta=eta, replaced=probe.replaced(eta), n=probe.n)
