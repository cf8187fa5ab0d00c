"""Which eta replaces which share of tokens or words, and at which an attack reads which: measured, as no formula tells.

The share depends on how close rows of the table lie to each other around the tokens that texts use;
adding up the chances of all pairs over-predicts it several times. So it is found by bisection on a
sample, with the same draws at every eta: only their scale changes, and the share falls as eta grows. Of the exponential
mechanism the share that is expected is known.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from cutlayer.core import ConfigError, Fault, Proportion
from cutlayer.privacy import Privatizer
from cutlayer.privacy.replacement import Exponential

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


def etas_for_shares(ids: Tensor, privatizer: Privatizer, shares: Sequence[float], *, seed: int) -> list[Calibrated]:
    """For each share, the eta at which a privatizer replaces about that share of tokens, or of words.

    Nothing is released: the draws are forgotten, so they need not be secret and repeat with the seed.

    Args:
        ids: `[n]` int64, the texts' tokens, or names of their words.
        privatizer: What would replace them; its own eta is not asked.
        shares: Shares of all tokens to replace, those that leave as they are among them, each between 0 and 1.
        seed: Which tokens are looked at, and their noise.

    Raises:
        ConfigError: A privatizer that replaces no tokens; a share that no eta gives, because a token that is no
            candidate is always replaced, and one that leaves as it is never.
    """
    allowed = "must lie between 0 and 1, both excluded"
    faults = [Fault("shares", share, allowed) for share in shares if not 0 < share < 1]
    if faults:
        raise ConfigError(faults)
    probe = (_ExponentialProbe if privatizer.spec.exponential else _NoiseProbe)(ids, privatizer, seed)
    return [_bisect(probe, share) for share in shares]


class _Probe(ABC):
    """A sample of tokens, those of it that are drawn, and the share of it that becomes others.

    Attributes:
        n: Tokens of the sample.
        drawn: The share of them that do not leave as they are.
    """

    def __init__(self, ids: Tensor, privatizer: Privatizer, seed: int) -> None:
        self._rng = np.random.Generator(np.random.PCG64(seed))
        chosen = ids[torch.from_numpy(self._rng.permutation(len(ids))[:SAMPLE_TOKENS])]
        self._asked = privatizer.replaceable(chosen)
        self._mechanism = privatizer.mechanism
        self.n = len(chosen)
        self.drawn = len(self._asked.of) / self.n

    @abstractmethod
    def replaced(self, eta: float) -> float:
        """The share of the sample that becomes another token at this eta."""


class _NoiseProbe(_Probe):
    """By noise: the same draws at every eta."""

    def replaced(self, eta: float) -> float:
        etas, width = np.full(len(self._asked.of), eta), self._asked.rows.shape[1]
        return self._asked.changed(self._mechanism.noise(etas=etas, width=width, rng=deepcopy(self._rng))) / self.n


class _ExponentialProbe(_Probe):
    """By the exponential mechanism: the expected share, for nothing need be drawn to know it."""

    def __init__(self, ids: Tensor, privatizer: Privatizer, seed: int) -> None:
        super().__init__(ids, privatizer, seed)
        asked = self._asked
        self._scores = Exponential(asked.search, eta=1.0).scores(asked.rows, asked.groups)
        self._own = asked.own[:, None] == asked.search.candidates
        self._times = asked.of.bincount(minlength=len(asked.own))

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


@dataclass(frozen=True)
class Leaking:
    """An eta, and what an attack reads at it.

    Attributes:
        wanted: The share that was asked for.
        eta: The privacy parameter, rounded to three digits.
        read: What was read there.
    """

    wanted: float
    eta: float
    read: Proportion


def etas_for_recovery(
    read: Callable[[float], Proportion], leaks: Sequence[float], *, between: tuple[float, float], most: int = 8
) -> list[Leaking]:
    """For each share, the eta at which an attack reads about that share of tokens.

    An attack takes long, so what was read at an eta serves all shares, and a search ends where the share that was asked
    for lies within the standard error of what was read.

    Args:
        read: What an attack reads at an eta: more at a higher one.
        leaks: Shares, each between 0 and 1.
        between: Etas to look between.
        most: Etas that are tried for a share at most, beside these two.

    Raises:
        ConfigError: A share that is read at none of these etas.
    """
    allowed = "must lie between 0 and 1, both excluded"
    if faults := [Fault("leaks", leak, allowed) for leak in leaks if not 0 < leak < 1]:
        raise ConfigError(faults)
    known = {eta: read(eta) for eta in between}
    return [_leaking(read, leak, known, most) for leak in leaks]


def _leaking(read: Callable[[float], Proportion], leak: float, known: dict[float, Proportion], most: int) -> Leaking:
    for _ in range(most + 1):
        eta = min(known, key=lambda each: abs(known[each].value - leak))
        below = [each for each, found in known.items() if found.value < leak]
        above = [each for each, found in known.items() if found.value >= leak]
        if not below or not above:
            raise ConfigError(
                f"No eta between {min(known):g} and {max(known):g} has an attack read {leak:.0%}: it reads "
                f"{known[min(known)].value:.1%} to {known[max(known)].value:.1%}.",
                remedy="Look between others, or ask for another share.",
            )
        middle = float(f"{(max(below) * min(above)) ** 0.5:.3g}")
        if abs(known[eta].value - leak) <= known[eta].standard_error or middle in known:
            break
        known[middle] = read(middle)
    eta = min(known, key=lambda each: abs(known[each].value - leak))
    return Leaking(wanted=leak, eta=eta, read=known[eta])
