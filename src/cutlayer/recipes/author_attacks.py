"""What attackers infer of the authors of a classifier's training texts, however these are protected."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from pydantic import BaseModel

from cutlayer.attacks import (
    ATTACKS,
    AttributeTruth,
    ControlFailed,
    Knowledge,
    Measured,
    NotApplicable,
    Transcript,
    examine,
)
from cutlayer.core import Cut, Spec
from cutlayer.customer.attacker import AttackerSpec
from cutlayer.privacy import NoPrivacy, PrivacySpec, Vector
from cutlayer.recipes.lab import Lab
from cutlayer.recipes.long_table import Level, Measure
from cutlayer.recipes.study import Results
from cutlayer.recipes.training import Trained, calibrated, split_run
from cutlayer.recipes.word_training import WordsTrained, WordTrainingCell, share_in_clear

STRONGEST = "strongest"
"""In the place of an attack: whichever infers most."""


class AuthorReading(Spec):
    """What an attack infers of one attribute.

    Attributes:
        column: The attribute.
        outcome: What came of it.
    """

    column: str
    outcome: Measured | ControlFailed | NotApplicable


def read_authors(
    attack: str,
    seen: Transcript,
    knowledge: Knowledge,
    truths: Mapping[str, AttributeTruth],
    lab: Lab,
    *,
    alike: object,
) -> Iterator[AuthorReading]:
    """What an attack infers of each attribute.

    Args:
        attack: Its name.
        seen: What was released.
        knowledge: What the attacker is granted beside that.
        truths: By attribute, which it knows, and which it is asked for.
        lab: Keeps what controls gave.
        alike: Tells releases apart by their form and mechanism: controls are made-up texts of these.
    """
    for column, truth in truths.items():
        key = ("controls", attack, column, truth.classes, alike)
        outcome = examine(attack, seen, knowledge=knowledge, truth=truth, controls=lab.shared.get(key)).outcome
        if not isinstance(outcome, NotApplicable):
            lab.shared[key] = outcome.controls
        yield AuthorReading(column=column, outcome=outcome)


def released_readings(readings: Iterable[AuthorReading]) -> Iterator[Measure]:
    """Numbers of readings, and empirical privacy, by attribute."""
    for reading in readings:
        outcome = reading.outcome
        for each in Measure.outcome(outcome):
            yield replace(each, axes={"column": reading.column})
        if isinstance(outcome, Measured):
            private = Measure.share("EP", outcome.privacy, attack=outcome.attack)
            yield replace(private, axes={"column": reading.column})


class AuthorsRead(WordsTrained):
    """A finished training over the road.

    Attributes:
        readings: What attacks infer of the authors of training texts.
    """

    readings: tuple[AuthorReading, ...] = ()


class AuthorsCell(WordTrainingCell):
    """A classifier that is trained over the road, and what is read of its texts' authors.

    Attributes:
        vector: Whether noisy embeddings leave in the place of words (Qu et al.): the share is then of tokens whose
            nearest row another one is.
        attacker: What it knows of authors, and asks of the others.
    """

    vector: bool = False
    attacker: AttackerSpec

    @property
    def name(self) -> str:
        return f"{super().name}-authors"

    @classmethod
    def result_type(cls) -> type[BaseModel]:
        return AuthorsRead

    def run(self, lab: Lab) -> AuthorsRead:
        """Trains, and reads what left."""
        eta = None if self.share is None else self._own_eta(lab, self.share)
        settings: dict[str, Any] = {
            "cut": Cut(bottom=0 if self.vector else None),
            "privacy": self._privacy(eta, lab),
            "reconstruction": self.arm.reconstruction,
        }
        with split_run(self, lab, str(self.seed), **settings) as run:
            evidence = run.evidence(lab, self.attacker).granted(None, lab.model().whole)
            clear = share_in_clear(evidence.tokens) if self.arm.words else float(eta is None)
            readings: list[AuthorReading] = []
            for number, name in enumerate(self.attacks):
                lab.progress.update("attacks", number, len(self.attacks), name)
                attack, alike = ATTACKS[name], (type(self), self.vector, self.arm, self.share)
                seen, knowledge = evidence.seen_by(attack), evidence.known_to(attack)
                readings += read_authors(name, seen, knowledge, evidence.attributes, lab, alike=alike)
            lab.progress.update("attacks", len(self.attacks), len(self.attacks))
            found = {"eta": eta, "clear": clear, "readings": tuple(readings)}
            return AuthorsRead(**{**dict(Trained.of(run.result)), **found})

    def measures(self, result: Any) -> Iterator[Measure]:
        yield from super(WordTrainingCell, self).measures(result)
        yield Measure("eta", result.eta)
        yield Measure("replaced", result.replaced)
        yield Measure("in clear", result.clear)
        yield from released_readings(result.readings)

    def _own_eta(self, lab: Lab, share: float) -> float:
        if not self.vector:
            return self._eta(lab, share)
        (point,) = calibrated(lab, self.task, self.limits, [share], max_length=self.training.max_length)
        return point.eta

    def _privacy(self, eta: float | None, lab: Lab) -> PrivacySpec:
        if eta is None:
            return NoPrivacy()
        return Vector(eta=eta) if self.vector else self.replacement.privacy(eta, lab)


def strongest(
    results: Results, *, metric: str = "EP", axes: Sequence[str] = ("arm", "setting", "column"), highest: bool = False
) -> Iterator[Measure]:
    """A metric of whichever attack is strongest, by place: by default empirical privacy, of which least is left.

    Args:
        results: With two attacks at least; of one nothing is told.
        metric: What attacks are compared by.
        axes: What tells places apart.
        highest: Whether more of it is stronger.
    """
    rows = results.rows(metric=metric)
    if rows.empty or rows["attack"].nunique() < 2:
        return
    for place, group in rows[rows["value"].notna()].groupby(list(axes), sort=False):
        found = {attack: results.pooled(own) for attack, own in group.groupby("attack", sort=False)}
        attack, number = (max if highest else min)(found.items(), key=lambda each: each[1].value or 0.0)
        yield Measure(
            metric, number.value, number.error, number.n, attack=STRONGEST, note=str(attack),
            independent=number.independent, axes=dict(zip(axes, cast("tuple[Level, ...]", place), strict=True)),
        )  # fmt: skip
