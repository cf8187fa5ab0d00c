"""What the attacked data really was: held by whoever measures, never by an attack.

A truth scores guesses. It also makes the traffic that an attack is checked with: about the same
texts and in the same form, but unprotected, pure noise, or shuffled.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol, Self

import torch

from cutlayer.attacks.attack import Guess
from cutlayer.attacks.evaluation.scoring import Score
from cutlayer.attacks.evaluation.traffic import Traffic
from cutlayer.attacks.knowledge import Knowledge
from cutlayer.attacks.view import Transcript


@dataclass(frozen=True)
class Graded:
    """Traffic as the run's own settings make it, and what the simplest attack makes of that.

    Attributes:
        transcript: The traffic.
        truth: What to score it with.
        simplest: Guesses of the simplest attack on the same signal source.
    """

    transcript: Transcript
    truth: Truth
    simplest: tuple[Guess, ...]


class Truth(Protocol):
    """What a measurement needs of the truth."""

    def score(self, guesses: Iterable[Guess]) -> Score:
        """Compares guesses with the truth."""
        ...

    def sample(self) -> Self:
        """About `CONTROL_ITEMS` items of it."""
        ...

    def traffic(
        self, kind: Traffic, like: Transcript, knowledge: Knowledge, *, looks: int, rng: torch.Generator
    ) -> tuple[Transcript, Self]:
        """A control's transcript, and the truth to score it with."""
        ...

    def graded(self, like: Transcript, knowledge: Knowledge, *, rng: torch.Generator) -> Graded:
        """The same released with noise of the control's own, as the run releases it, one look at each text.

        It is about the texts under attack, not about the attacker's: an attack that learnt from these may know them by
        heart.

        Raises:
            Inapplicable: There is nothing between what unprotected traffic shows and what the run's shows, or it is not
                known how the run releases.
        """
        ...

    def ceiling(self, knowledge: Knowledge) -> float:
        """The share of items that an attack may guess at all."""
        ...

    def granted(self, transcript: Transcript, knowledge: Knowledge) -> Knowledge:
        """Knowledge with what an attacker is told of this truth itself: labels of some records."""
        ...
