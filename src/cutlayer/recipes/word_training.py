"""Classifiers that a vendor without parts at the customer trains on privatized words, and what is read of these.

Arms differ in which words are replaced, by which, and in the public words before each text (RAPT, Table III). What the
vendor reads is counted over all words: those that leave in clear it has read without an attack, and arms differ in
their number.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from pydantic import BaseModel, Field
from torch import Tensor

from cutlayer.attacks import Attack, Measured, Outcome, TokenTruth
from cutlayer.core import Cut, DataError, Spec, Tokens
from cutlayer.customer import Objective, TrainSpec, TuningSpec
from cutlayer.customer.evidence import Evidence
from cutlayer.customer.reconstruction import Reconstruction
from cutlayer.privacy import NoPrivacy
from cutlayer.recipes.lab import Lab
from cutlayer.recipes.long_table import Level, Measure, Number
from cutlayer.recipes.options import Setting
from cutlayer.recipes.replacement import Candidates, Draw, Replacement, Source
from cutlayer.recipes.study import Results
from cutlayer.recipes.tasks import Limits, Task, TextFile
from cutlayer.recipes.training import (
    RoadCell,
    SplitRun,
    Trained,
    View,
    examined,
    settled,
    split_run,
    splits,
    told_of,
)
from cutlayer.recipes.warm_up import PublicWarmUp, warmed_model
from cutlayer.reports.audit import public_text

UA = "UA"
"""Utility: the accuracy on test texts."""
READ = "read, all words"
"""Words that an attacker has: those in clear, and of the others those that it guesses."""


class Arm(Spec):
    """One way to protect a classifier's texts.

    Attributes:
        title: For readers.
        words: Which are replaced, as of `privacy.Words`; none where text leaves as it is.
        candidates: Among which words of the vocabulary; how these are drawn, and by how many components of the space,
            as of `Replacement`.
        reconstruction: Public words before texts, and what their reconstruction counts.
        warm_up: What the vendor's model reads beforehand, if it does.
    """

    title: str
    words: tuple[str, ...] = ()
    candidates: Candidates = "category"
    # left out at their defaults: cells of before are known by what they were
    draw: Draw = Field(default="noise", exclude_if=lambda draw: draw == "noise")
    components: int | None = Field(default=None, exclude_if=lambda components: components is None)
    reconstruction: Reconstruction = Reconstruction()
    warm_up: PublicWarmUp | None = Field(default=None, exclude_if=lambda warm_up: warm_up is None)

    def replacement(self, space: Source) -> Replacement:
        """Which words become which, in a space."""
        return Replacement(
            words=self.words, candidates=self.candidates, draw=self.draw, components=self.components, space=space
        )


class WordsTrained(Trained):
    """A finished training on privatized words.

    Attributes:
        eta: At which they were drawn; `None` for unprotected text.
        clear: Share of training words that leave as they are by the mechanism's rule.
    """

    eta: float | None = None
    clear: float = 1.0


class WordsAnswered(WordsTrained):
    """The same, to be compared with others text by text.

    Attributes:
        right: Of each test text, whether it is labelled right.
    """

    right: tuple[bool, ...]

    def by_text(self, metric: str, where: Mapping[str, Level]) -> Tensor | None:
        """Whether each test text is labelled right (UA), `[1, texts]`."""
        return None if where or metric != UA else torch.tensor([self.right], dtype=torch.float64)


class WordTrainingCell(RoadCell):
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
    kept: bool = Field(default=False, exclude_if=lambda kept: not kept)

    @property
    def name(self) -> str:
        about = self.arm.title.replace(" ", "-").lower()
        share = "" if self.share is None else f"-{100 * self.share:g}"
        return f"{self.task.name}-{about}{share}-{self.tuning.method}-s{self.seed}"

    @classmethod
    def result_type(cls) -> type[BaseModel]:
        return WordsAnswered

    def run(self, lab: Lab) -> WordsTrained:
        eta = None if self.share is None else self._eta(lab, self.share)
        settings: dict[str, Any] = {
            "cut": Cut(bottom=None),
            "privacy": NoPrivacy() if eta is None else self.replacement.privacy(eta, lab),
            "reconstruction": self.arm.reconstruction,
        }
        with split_run(self, lab, str(self.seed), **settings) as run:
            if self.kept:
                lab.keep_adapter(self, run.result.adapter_id)
            found: dict[str, Any] = {}
            if eta is not None:
                found = {"clear": self._clear(lab), "attacks": tuple(self._attacked(run, lab))}
            return WordsAnswered(**{**dict(Trained.of(run.result)), "right": labelled_right(run), "eta": eta, **found})

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
        return self.arm.replacement(self.space)

    def vendor_model(self, lab: Lab) -> str | None:
        if self.arm.warm_up is None or self.share is None:
            return self.source
        return warmed_model(lab, self.replacement.privacy(self._eta(lab, self.share), lab), self.arm.warm_up)

    def _words(self, lab: Lab) -> Tokens:
        """Those of the training texts, by name; read once for all shares and seeds."""
        most = self.training.max_length or lab.model(self.source).template.max_content(1)

        def read() -> Tokens:
            return self.replacement.reading(lab).read(splits(lab, self.task, self.limits).train, max_content=most)

        return lab.once((type(self), self.replacement, self.task, self.limits, most), read)

    def _eta(self, lab: Lab, share: float) -> float:
        """That of the share, for the training texts; the same for all seeds."""

        def found() -> float:
            return self.replacement.eta(lab, self._words(lab), share)

        return lab.once((type(self), self.replacement, self.task, self.limits, share), found)

    def _clear(self, lab: Lab) -> float:
        """The share of the training texts' words that leave as they are, whatever the eta; the same for all seeds."""

        def found() -> float:
            words = self._words(lab)
            clear = self.replacement.privatizer(lab, 1.0, seed=0).clear(words)
            return sum(clear.values()) / max(1, words.total)

        return lab.once((type(self), self.replacement, self.task, self.limits, "clear"), found)

    def _granted(self, evidence: Evidence, lab: Lab) -> Evidence:
        """The run, to an attacker that has public text and the vendor's model."""
        model = lab.model(self.source)

        def read() -> Any:
            return public_text(
                self.public.read(lab.options.data), model.tokenizer, kept=lab.workspace / "public",
                max_content=model.template.max_content(1), progress=lab.progress,
            )  # fmt: skip

        return evidence.granted(lab.once((type(self), self.public, self.source), read), model.whole)

    def _attacked(self, run: SplitRun, lab: Lab) -> Iterator[Outcome]:
        if not self.attacks:
            return  # words are drawn once more for what attacks are compared with
        evidence = self._granted(run.evidence(lab), lab)

        def view(attack: Attack) -> View:
            if attack.costly and self.attacked_words is not None:
                attack = replace(attack, tokens=self.attacked_words)
            ((_, truth),) = evidence.truths(attack)
            if not isinstance(truth, TokenTruth):
                raise TypeError("words are asked for")
            # controls read made-up words of the same mechanism
            same = (self.model, self.replacement, self.share, self.attacked_words, self.public)
            return View(attack, evidence.seen_by(attack), evidence.known_to(attack), truth, same)

        yield from examined(self.attacks, lab, view)


class RateCell(RoadCell):
    """Unprotected text, measured on dev: what a learning rate is chosen by."""

    @property
    def name(self) -> str:
        return f"{self.task.name}-{self.tuning.method}-rate{self.training.learning_rate:g}-s{self.seed}"

    def run(self, lab: Lab) -> Trained:
        with split_run(self, lab, str(self.seed), cut=Cut(bottom=None), privacy=NoPrivacy(), on_dev=True) as run:
            return Trained.of(run.result)


@dataclass(frozen=True)
class Trainings:
    """What trainings of one recipe at one size have in common.

    Attributes:
        lab: Where they are run.
        task: The data set.
        limits: Its rows, at most.
        said: Settings of training, beside the defaults.
        rates: The learning rate of each method of tuning that does not take its default.
        space: Gives words their vectors.
        public: What attackers read beforehand.
        attacked_words: As of `WordTrainingCell`.
        kept: Of which trainings that stays which other cells read: arm, tuning, share.
        label_words: What an encoder-decoder writes for a label, where not the label itself.
    """

    lab: Lab
    task: Task
    limits: Limits
    said: Mapping[str, Setting]
    space: str
    public: TextFile
    attacked_words: int | None = None
    kept: Sequence[tuple[Arm, TuningSpec, float | None]] = ()
    rates: Mapping[str, float] = field(default_factory=dict)
    label_words: Mapping[str, str] = field(default_factory=dict)

    def cell(
        self, arm: Arm, tuning: TuningSpec, share: float | None, *, space: str = "", attacks: tuple[str, ...] = ()
    ) -> WordTrainingCell:
        """One of them; without a share where text leaves as it is."""
        return WordTrainingCell(
            task=self.task, limits=self.limits, model=self.lab.model().fingerprint, **self.told(tuning),
            training=self.training(tuning), arm=arm, share=share,
            space=Source.of(space or self.space, self.lab), attacks=attacks, attacked_words=self.attacked_words,
            public=self.public, kept=space in ("", self.space) and (arm, tuning, share) in self.kept,
        )  # fmt: skip

    def unprotected(self, tuning: TuningSpec, rate: float) -> RateCell:
        """A rate that is tried on text as it is."""
        said = {**self.said, "learning_rate": rate}
        return RateCell(
            task=self.task, limits=self.limits, model=self.lab.model().fingerprint, **self.told(tuning),
            training=settled(Objective.CLASSIFICATION, tuning, said, self.lab.model().learner),
        )  # fmt: skip

    def told(self, tuning: TuningSpec, source: str | None = None) -> dict[str, Any]:
        """A method, and what is written for labels, as a model is told of them, the recipe's by default."""
        return told_of(self.lab.model(source), tuning, self.label_words)

    def training(self, tuning: TuningSpec, source: str | None = None) -> TrainSpec:
        """How a method trains a model, the recipe's by default; rates that were chosen are of that one."""
        chosen = source is None and tuning.method in self.rates
        rate = {"learning_rate": self.rates[tuning.method]} if chosen else {}
        return settled(Objective.CLASSIFICATION, tuning, {**self.said, **rate}, self.lab.model(source).learner)


def labelled_right(run: SplitRun) -> tuple[bool, ...]:
    """Which test texts the published adapter labels right, asked as a customer asks.

    Raises:
        DataError: They make another accuracy than the run's own.
    """
    found = run.client.predict(run.result.adapter_id, run.data.test, progress=False)
    right = tuple(each.label == label for each, label in zip(found, run.data.test.labels or (), strict=True))
    # asked in batches of other widths, texts on the border may fall on the other side
    if abs(sum(right) - run.result.ua * run.result.ua_n) > 2 + run.result.ua_n / 1000:
        raise DataError(f"The adapter labels {sum(right)} texts right, and did so of {run.result.ua:.1%} before.")
    return right


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


def most_read(results: Results, metric: str = READ, **where: Any) -> Number:
    """What the attack that reads most of a place's words reads of all of them, or of those of another metric."""
    names = [str(name) for name in results.rows(metric=metric, **where)["attack"].unique()]
    found = [results.number(metric, attack=name, **where) for name in names]
    known = [each for each in found if each.value is not None]
    return max(known, key=lambda each: each.value or 0.0) if known else Number(None, note="no attack read these")
