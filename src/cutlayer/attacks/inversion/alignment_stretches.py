"""Related stretches along a diagonal of two texts: a hidden Markov model of two states, and how often stretches occur.

Ref: Durbin et al., "Biological sequence analysis", 1998, §4.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

ENDS = 0.02
"""How probable it is that a place is the last of a related stretch, before any was seen."""


@dataclass(frozen=True)
class Rates:
    """What is expected of diagonals.

    Attributes:
        opens: How probable it is that two texts begin alike.
        starts: How probable it is that a related stretch begins at two places within texts.
        parts: Of texts that begin alike, how probable it is that a place is the last at which they are.
        ends: Of other stretches, how probable it is that a place is the last.
        sure: How probable it must be that two places of such texts are of one original.
    """

    opens: float
    starts: float
    parts: float
    ends: float
    sure: float


class StretchCounts:
    """Related stretches that were found, by which the next ones are judged."""

    def __init__(self) -> None:
        self._begun = self._opened = self._parted = self._ended = 0
        self._together = self._apart = 0
        self._texts = self._cells = 0.0

    def add(self, related: Tensor, together: Tensor, lengths: Tensor) -> None:
        """Counts the stretches of diagonals.

        Args:
            related: `[n, longest]` bool.
            together: `[n]` bool, whether both texts begin there.
            lengths: `[n]` int64.
        """
        before, behind = torch.zeros_like(related), torch.zeros_like(related)
        before[:, 1:], behind[:, :-1] = related[:, :-1], related[:, 1:]
        starts, ends = related & ~before, related & ~behind
        # where a text ends, no stretch does
        ends[torch.arange(len(lengths)), lengths - 1] = False
        begun = int((starts[:, 0] & together).sum())
        self._begun += begun
        self._opened += int(starts.sum()) - begun
        self._parted += int(ends[together].sum())
        self._ended += int(ends[~together].sum())
        self._together += int(related[together].sum())
        self._apart += int(related[~together].sum())

    def compared(self, texts: Tensor, others: Tensor) -> None:
        """Counts what was compared: `[n]` and `[m]` places, given by their texts, ascending."""
        kinds = [len(side.unique_consecutive()) for side in (texts, others)]
        self._texts += kinds[0] * kinds[1] / 2
        self._cells += len(texts) * len(others) / 2

    def rates(self, sure: float) -> Rates:
        """How often, with one more of each: what was not seen yet is not impossible."""
        return Rates(
            opens=(self._begun + 1) / (self._texts + 2),
            starts=(self._opened + 1) / (self._cells + 2),
            parts=(self._parted + 1) / (self._together + 1 / ENDS),
            ends=(self._ended + 1) / (self._apart + 1 / ENDS),
            sure=sure,
        )


def related_probability(evidence: Tensor, lengths: Tensor, *, begins: Tensor, starts: float, ends: Tensor) -> Tensor:
    """`[n, longest]`: how probable it is that a place is of a related stretch; forward-backward over two states.

    Args:
        evidence: `[n, longest]`, ln of how much more probable a place is if it is.
        lengths: `[n]` int64.
        begins: `[n]`, how probable it is that the first place is.
        starts: How probable it is that a stretch begins at any other place.
        ends: `[n]`, how probable it is that a place is a stretch's last.
    """
    count, longest = evidence.shape
    ends = ends.double()
    likelihood = evidence.double().clamp(-30, 30).exp()
    begins = begins.double()
    forward = torch.empty(longest, count, 2, dtype=torch.float64)
    related, not_related = begins * likelihood[:, 0], 1 - begins
    for step in range(longest):
        if step:
            before, not_before = forward[step - 1].unbind(1)
            related = (before * (1 - ends) + not_before * starts) * likelihood[:, step]
            not_related = before * ends + not_before * (1 - starts)
        total = related + not_related
        forward[step] = torch.stack([related / total, not_related / total], 1)
    found = torch.empty(count, longest)
    backward = torch.ones(count, 2, dtype=torch.float64)
    for step in range(longest - 1, -1, -1):
        if step < longest - 1:
            later, not_later = likelihood[:, step + 1] * backward[:, 0], backward[:, 1]
            moved = torch.stack([(1 - ends) * later + ends * not_later, starts * later + (1 - starts) * not_later], 1)
            moved = moved / moved.amax(1, keepdim=True)
            # behind its end a diagonal tells nothing
            backward = torch.where((step + 1 < lengths)[:, None], moved, 1.0)
        both = forward[step] * backward
        found[:, step] = (both[:, 0] / both.sum(1)).float()
    return found
