"""Classifiers that a vendor without parts at the customer trains on privatized words, and what is read of these.

Arms differ in which words are replaced, by which, and in the public words before each text (RAPT, Table III). What the
vendor reads is counted over all words: those that leave in clear it has read without an attack, and arms differ in
their number.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from pydantic import BaseModel

from cutlayer.attacks import ATTACKS, Measured, NotApplicable, Outcome, TokenTruth, examine
from cutlayer.core import Cut, Spec
from cutlayer.customer.evidence import Evidence
from cutlayer.customer.reconstruction import Reconstruction
from cutlayer.privacy import NoPrivacy
from cutlayer.recipes.lab import Lab
from cutlayer.recipes.long_table import Level, Measure, Number
from cutlayer.recipes.replacement import Candidates, Replacement, Source
from cutlayer.recipes.study import Results
from cutlayer.recipes.tasks import TextFile
from cutlayer.recipes.training import Trained, TrainingCell, client_of, discard, split_run, splits
from cutlayer.reports.audit import public_text

READ = "read, all words"
"""Words that an attacker has: those in clear, and of the others those that it guesses."""


class Arm(Spec):
    """One way to protect a classifier's texts.

    Attributes:
        title: For readers.
        words: Which are replaced, as of `privacy.Words`; none where text leaves as it is.
        candidates: Among which words of the vocabulary.
        reconstruction: Public words before texts, and what their reconstruction counts.
    """

    title: str
    words: tuple[str, ...] = ()
    candidates: Candidates = "category"
    reconstruction: Reconstruction = Reconstruction()


class WordsTrained(Trained):
    """A finished training on privatized words.

    Attributes:
        eta: At which they were drawn; `None` for unprotected text.
        clear: Share of training words that leave as they are by the mechanism's rule.
    """

    eta: float | None = None
    clear: float = 1.0


class WordTrainingCell(TrainingCell):
    """A classifier of one arm.

    Attributes:
        share: Of all words of training texts, which the eta shall replace.
        space: Gives words their vectors.
        attacks: What reads the recorded traffic.
        attacked_words: On how many words those are measured that take long.
        public: What the attacker reads beforehand.
        kept: Whether what was trained stays, for cells that read it (`Lab.adapter`).
    """

    arm: Arm
    share: float | None = None
    space: Source
    attacks: tuple[str, ...] = ()
    attacked_words: int | None = None
    public: TextFile
    kept: bool = False

    @property
    def name(self) -> str:
        about = self.arm.title.replace(" ", "-").lower()
        share = "" if self.share is None else f"-{100 * self.share:g}"
        return f"{self.task.name}-{about}{share}-{self.tuning.method}-s{self.seed}"

    @classmethod
    def result_type(cls) -> type[BaseModel]:
        return WordsTrained

    def run(self, lab: Lab) -> WordsTrained:
        eta = None if self.share is None else self._eta(lab, self.share)
        settings: dict[str, Any] = {
            "cut": Cut(bottom=None),
            "privacy": NoPrivacy() if eta is None else self.replacement.privacy(eta),
            "reconstruction": self.arm.reconstruction,
        }
        with split_run(self, lab, str(self.seed), **settings) as run:
            if self.kept:
                lab.keep_adapter(self, run.result.adapter_id)
            found: dict[str, Any] = {}
            if eta is not None:
                evidence = self._granted(run.evidence(lab), lab)
                found = {"clear": share_in_clear(evidence.tokens), "attacks": tuple(self._attacked(evidence, lab))}
            return WordsTrained(**{**dict(Trained.of(run.result)), "eta": eta, **found})

    def clear(self, lab: Lab) -> None:
        discard(self, client_of(lab, str(self.seed), self.source), lab)

    def measures(self, result: Any) -> Iterator[Measure]:
        yield from super().measures(result)
        yield Measure("eta", result.eta)
        yield Measure("replaced", result.replaced)
        yield Measure("in clear", result.clear)
        for outcome in result.attacks:
            yield from Measure.outcome(outcome)
            yield from read_of_all(outcome, clear=result.clear)

    @property
    def replacement(self) -> Replacement:
        """Which words become which."""
        return Replacement(words=self.arm.words, candidates=self.arm.candidates, space=self.space)

    def _eta(self, lab: Lab, share: float) -> float:
        """That of the share, for the training texts; the same for all seeds."""

        def found() -> float:
            reading, train = self.replacement.reading(lab), splits(lab, self.task, self.limits).train
            tokens = reading.read(
                train, max_content=self.training.max_length or lab.model(self.source).template.max_content(1)
            )
            return self.replacement.eta(lab, tokens, share)

        return lab.once((type(self), self.replacement, self.task, self.limits, share), found)

    def _granted(self, evidence: Evidence, lab: Lab) -> Evidence:
        """The run, to an attacker that has public text and the vendor's model."""
        model = lab.model(self.source)

        def read() -> Any:
            return public_text(
                self.public.read(lab.options.data), model.tokenizer, kept=lab.workspace / "public",
                max_content=model.template.max_content(1), progress=lab.progress,
            )  # fmt: skip

        return evidence.granted(lab.once((type(self), self.public, self.source), read), model.whole)

    def _attacked(self, evidence: Evidence, lab: Lab) -> Iterator[Any]:
        for number, name in enumerate(self.attacks):
            lab.progress.update("attacks", number, len(self.attacks), name)
            attack = ATTACKS[name]
            if attack.costly and self.attacked_words is not None:
                attack = replace(attack, tokens=self.attacked_words)
            ((_, truth),) = evidence.truths(attack)
            # controls read made-up words of the same mechanism
            key = (type(self), name, self.replacement, self.share, self.attacked_words, self.public)
            outcome = examine(
                name, evidence.seen_by(attack), knowledge=evidence.known_to(attack), truth=truth, run=attack,
                controls=lab.shared.get(key),
            ).outcome  # fmt: skip
            if not isinstance(outcome, NotApplicable):
                lab.shared[key] = outcome.controls
            yield outcome
        lab.progress.update("attacks", len(self.attacks), len(self.attacks))


def read_of_all(outcome: Outcome, *, clear: float) -> Iterator[Measure]:
    """What an attack on drawn words has of all words, of which a share left in clear."""
    if isinstance(outcome, Measured):
        own, hidden = outcome.success, 1 - clear
        yield Measure(
            READ, clear + hidden * own.value, hidden * own.standard_error, own.n, attack=outcome.attack,
            independent=own.independent,
        )  # fmt: skip


def share_in_clear(truth: TokenTruth) -> float:
    """The share of words that nothing is asked about, because they left as they are."""
    if truth.uncounted is None:
        return 0.0
    return float(truth.uncounted[truth.tokens.values].double().mean())


def most_read(results: Results, **where: Any) -> Number:
    """What the attack that reads most of a place's words reads of all of them."""
    names = [str(name) for name in results.rows(metric=READ, **where)["attack"].unique()]
    found = [results.number(READ, attack=name, **where) for name in names]
    known = [each for each in found if each.value is not None]
    return max(known, key=lambda each: each.value or 0.0) if known else Number(None, note="no attack read these")


def at_equal_reading(results: Results, arms: Sequence[str], *, attacked: Mapping[str, Level]) -> Iterator[Measure]:
    """By how much an arm's accuracy exceeds that of the arm before it where the strongest attack reads as much of both.

    Accuracies are read along straight lines between the shares that were run, in the middle of what both arms reach.

    Args:
        results: Of the part.
        arms: In the order in which a paper finds that they gain.
        attacked: Where attacks were run: a release is the same under every method of tuning.
    """
    for method in results.levels("method"):
        lines = {arm: _line(results, arm, method, attacked) for arm in arms}
        for first, second in pairwise(arms):
            axes: dict[str, Level] = {"method": method, "arm": second}
            yield _gain(lines[first], lines[second], axes)


def _line(results: Results, arm: str, method: Level, attacked: Mapping[str, Level]) -> list[tuple[float, Number]]:
    found = []
    for share in results.levels("replaced", arm=arm):
        read = most_read(results, **{**attacked, "arm": arm, "replaced": share})
        accuracy = results.number("UA", arm=arm, method=method, replaced=share)
        if read.value is not None and accuracy.value is not None:
            found.append((read.value, accuracy))
    return sorted(found, key=lambda each: each[0])


def _gain(before: Sequence[tuple[float, Number]], after: Sequence[tuple[float, Number]], axes: Any) -> Measure:
    metric = "UA gained at equal reading"
    if min(len(before), len(after)) < 2:
        return Measure(metric, None, note="fewer than two shares", axes=axes)
    low, high = max(before[0][0], after[0][0]), min(before[-1][0], after[-1][0])
    if low >= high:
        return Measure(metric, None, note="no reading that both reach", axes=axes)
    place = (low + high) / 2
    (own, error), (other, its) = _at(after, place), _at(before, place)
    return Measure(metric, own - other, (error**2 + its**2) ** 0.5, note=f"at {100 * place:.0f} % read", axes=axes)


def _at(line: Sequence[tuple[float, Number]], place: float) -> tuple[float, float]:
    """The accuracy at a place between two points, and its standard error."""
    for (left, lower), (right, upper) in pairwise(line):
        if left <= place <= right:
            part = (place - left) / (right - left)
            first, second = (lower.value or 0.0), (upper.value or 0.0)
            error = ((1 - part) ** 2 * lower.error**2 + part**2 * upper.error**2) ** 0.5
            return first + part * (second - first), error
    raise ValueError("the place lies outside")
