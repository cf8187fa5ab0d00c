"""Finished cells as numbers with n and standard error, and what they say about a claim of the paper."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from pydantic import BaseModel, ConfigDict

from cutlayer.attacks import TextOverlap, clustered, text_overlap
from cutlayer.core import DataError, Proportion
from cutlayer.recipes.unsplit.cells import Reading

FAILS_BELOW = 0.10
"""Token accuracy below which the paper says that an attack fails: "around or above 10%, not able to reveal privacy"
(§3.3.4)."""
_ERRORS = 2.0
"""Standard errors that a verdict needs."""


class Pooled(BaseModel):
    """The readings of one setting, over seeds.

    Attributes:
        accuracy: Share of content tokens read, clustered by text.
        overlap: ROUGE of the texts; `None` where no true text has a word.
        chance: The share that guesses with these frequencies hit by chance.
        shuffled: The share right when the true tokens are dealt out anew, a control of the score.
        texts: How many.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    accuracy: Proportion
    overlap: TextOverlap | None
    chance: float
    shuffled: Proportion
    texts: int

    @classmethod
    def of(cls, readings: Sequence[Reading]) -> Pooled:
        """All texts of all readings together."""
        counted = torch.tensor([n for reading in readings for n in reading.counted])
        right, shuffled = (
            clustered(torch.tensor([n for reading in readings for n in getattr(reading, name)]), counted)
            for name in ("right", "shuffled")
        )
        true = [text for reading in readings for text in reading.true]
        try:
            overlap = text_overlap(true, [text for reading in readings for text in reading.guessed])
        except DataError:
            overlap = None
        chance = math.fsum(reading.chance for reading in readings) / len(readings)
        return cls(accuracy=right, overlap=overlap, chance=chance, shuffled=shuffled, texts=len(true))


class Verdict(BaseModel):
    """Whether a claim of the paper held here.

    Attributes:
        claim: The paper's, in our words, with its place.
        held: `None` where these numbers do not decide it.
        because: The numbers.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    claim: str
    held: bool | None
    because: str

    def __str__(self) -> str:
        word = {True: "Held here", False: "Did not hold here", None: "Not decided here"}[self.held]
        return f"{self.claim} {word}: {self.because}"


def fails(claim: str, cases: Sequence[tuple[str, Proportion]]) -> Verdict:
    """Whether attacks fail, by the paper's own bar: all of them, by two standard errors."""
    highest = max((value for _, value in cases), key=lambda value: value.value)
    margin = _ERRORS * highest.standard_error
    held = None
    if abs(highest.value - FAILS_BELOW) > margin:
        held = highest.value < FAILS_BELOW
    return Verdict(claim=claim, held=held, because=f"{_listed(cases)}; the bar is {100 * FAILS_BELOW:.0f} %.")


def falls(claim: str, before: tuple[str, Proportion], after: tuple[str, Proportion]) -> Verdict:
    """Whether the second share is lower than the first (or higher), by two standard errors of the difference."""
    fall, error = _fall(before[1], after[1])
    held = True if fall > _ERRORS * error else False if fall < -_ERRORS * error else None
    return Verdict(claim=claim, held=held, because=f"{_listed([before, after])}; {_said(fall, error)}.")


def alike(claim: str, before: tuple[str, Proportion], after: tuple[str, Proportion]) -> Verdict:
    """Whether two shares differ by less than two standard errors."""
    fall, error = _fall(before[1], after[1])
    return Verdict(
        claim=claim, held=abs(fall) <= _ERRORS * error, because=f"{_listed([before, after])}; {_said(fall, error)}."
    )


def _fall(before: Proportion, after: Proportion) -> tuple[float, float]:
    return before.value - after.value, math.hypot(before.standard_error, after.standard_error)


def _said(fall: float, error: float) -> str:
    return f"a fall of {100 * fall:.1f} ± {100 * error:.1f} points"


def _listed(cases: Sequence[tuple[str, Proportion]]) -> str:
    return ", ".join(f"{value.percent()} % {name}" for name, value in cases)


def both(claim: str, *verdicts: Verdict) -> Verdict:
    """A claim of several parts: it holds if all of them do."""
    states = [verdict.held for verdict in verdicts]
    held = False if False in states else None if None in states else True
    return Verdict(claim=claim, held=held, because=" ".join(verdict.because for verdict in verdicts))


def correlation(x: Sequence[float], y: Sequence[float]) -> float | None:
    """Pearson's, of logarithms; `None` where one is constant or there are fewer than three."""
    pairs = [(math.log(a), math.log(b)) for a, b in zip(x, y, strict=True) if a > 0 and b > 0]
    if len(pairs) < 3:
        return None
    table = torch.tensor(pairs, dtype=torch.float64).T
    if bool((table.std(1) == 0).any()):
        return None
    return float(torch.corrcoef(table)[0, 1])
