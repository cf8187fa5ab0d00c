"""Settings evaluated on the customer's own texts: a real local run for each, attacked, and its accuracy."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cutlayer.attacks import Question
from cutlayer.core import ConfigError, Cut, Place, Spec
from cutlayer.customer import FinetuneSpec, Home, Objective, Progress, Training
from cutlayer.customer.attacker import AttackerSpec
from cutlayer.customer.defaults import settle
from cutlayer.customer.derived import run_privatizing
from cutlayer.customer.handout import local_archive
from cutlayer.data import Dataset
from cutlayer.privacy import PrivacySpec, TextToText, Words
from cutlayer.privacy.replacement import ABSENT
from cutlayer.reports.audit import (
    HELD_OUT,
    Compared,
    Evaluation,
    evaluate,
    frontier,
    public_text,
    quick_attacks,
)
from cutlayer.reports.calibrate.search import Arm, Setting, Tried, best, check_search, search
from cutlayer.reports.cells import CellStore
from cutlayer.reports.replaced_share import etas_for_shares
from cutlayer.reports.schema import AuditReport

MOST_CONFIRMED: Final = 3
"""Settings that the whole suite is run on, the most accurate first."""
_ABOVE: Final = 2.0
"""Standard errors by which an accuracy must lie above guessing to be called more."""
_MOST_REPLACED, _LEAST_REPLACED = 0.995, 0.3
"""Between the etas that replace these shares of tokens the border is looked for."""
_WIDER = 4.0
"""How far below that rows of noise and contributing-token identification may need to go, and above it."""


class CalibrationSpec(Spec):
    """What is searched.

    Attributes:
        model: `starter`, a local folder or a hub id: the vendor's model.
        arms: What may be chosen, beside eta.
        target: The largest share of tokens that the strongest attack may read.
        evaluations: Settings that are tried at most; the confirmation comes on top.
        training: How each run trains.
        attacker: What the attacker knows.
        seed: Data order, and which records the attacker knows. Never noise.
    """

    model: str
    arms: tuple[Arm, ...]
    target: float
    evaluations: int = 12
    training: Training = Training(dev_share=HELD_OUT)
    attacker: AttackerSpec = AttackerSpec()
    seed: int = 0


class Cell(Spec):
    """An evaluation, by all that it depends on.

    Attributes:
        setting: What was tried.
        model: On which model.
        training: How it trained.
        attacker: What the attacker knew.
        public: Where its own text was from.
        data: Digest of the texts.
        attacks: Attacks that were run.
        seed: Of the run.
    """

    setting: Setting
    model: str
    training: Training
    attacker: AttackerSpec
    public: str
    data: str
    attacks: tuple[str, ...]
    seed: int

    @property
    def name(self) -> str:
        """For its file."""
        return f"eta-{self.setting.eta:g}"


@dataclass(frozen=True)
class Calibration:
    """What a search found.

    Attributes:
        tried: All evaluations, in their order.
        chosen: The setting to take, as the whole suite confirmed it; `None` where none reaches the target.
        report: The leak report of the chosen setting, with the frontier; `None` where there is none.
        majority: The share of the most frequent label: the accuracy of a model that has learnt nothing.
    """

    tried: tuple[Tried, ...]
    chosen: Tried | None
    report: AuditReport | None
    majority: float

    @property
    def learns(self) -> bool | None:
        """Whether the chosen setting's accuracy lies above the most frequent label's share by two standard errors.

        `None` where there is no setting, or no accuracy of it.
        """
        if self.chosen is None or self.chosen.found.utility is None or self.chosen.found.utility_error is None:
            return None
        return self.chosen.found.utility - _ABOVE * self.chosen.found.utility_error > self.majority


def calibrate(
    texts: Dataset,
    spec: CalibrationSpec,
    *,
    public: Dataset | str | Path | None,
    public_column: str,
    home: Home,
    kept: Path,
    repeat: tuple[str, ...],
    progress: Progress,
) -> Calibration:
    """Searches, and confirms what it found by every attack there is.

    Args:
        texts: The customer's, with labels.
        spec: What is searched.
        public: The attacker's own text; see `public_text`.
        public_column: Its column.
        home: The customer's folder, for parts of models and written public text.
        kept: Where evaluations are kept: the same call goes on after a stop.
        repeat: The command line, for the report.
        progress: Where to show progress.

    Raises:
        ConfigError: Settings that contradict each other, a column that is missing, or no attack that applies.
        DataError: Texts that cannot be trained on.
    """
    check_search(len(spec.arms), target=spec.target, evaluations=spec.evaluations)
    labels = Counter(texts.labels or ())
    majority = max(labels.values(), default=0) / max(1, labels.total())
    evaluator = _Evaluator(texts, spec, public=public, public_column=public_column, home=home, kept=kept, bar=progress)
    tried = search(
        spec.arms,
        [evaluator.bracket(arm) for arm in spec.arms],
        evaluator.quick,
        target=spec.target,
        evaluations=spec.evaluations,
    )
    for candidate in best(tried, spec.target)[:MOST_CONFIRMED]:
        found, report = evaluator.thorough(candidate.setting, repeat)
        confirmed = Tried(candidate.setting, found)
        tried = [confirmed if each is candidate else each for each in tried]
        if confirmed.passes(spec.target):
            drawn = frontier(
                [
                    Compared(
                        f"{each.setting.arm.label}, eta {each.setting.eta:g}",
                        each.setting.eta,
                        each.found,
                        audited=each is confirmed,
                    )
                    for each in tried
                ],
                objective=Objective.CLASSIFICATION,
                epochs=spec.training.epochs,
            )
            return Calibration(tuple(tried), confirmed, report.model_copy(update={"frontier": drawn}), majority)
    return Calibration(tuple(tried), None, None, majority)


class _Evaluator:
    def __init__(
        self,
        texts: Dataset,
        spec: CalibrationSpec,
        *,
        public: Dataset | str | Path | None,
        public_column: str,
        home: Home,
        kept: Path,
        bar: Progress,
    ) -> None:
        self._texts = texts
        self._spec = spec
        self._home = home
        self._bar = bar
        self._cells: CellStore[Cell, Evaluation] = CellStore(kept, Evaluation)
        self._archive = local_archive(home, spec.model, Cut(bottom=0))
        self._public = public_text(
            public,
            self._archive.tokenizer,
            kept=home.path / "public-text",
            max_content=self._archive.template.max_content(1),
            progress=bar,
            column=public_column,
        )
        if self._archive.table is None:
            raise ConfigError("This model has no embedding table to calibrate eta in.", remedy="Use another model.")
        self._low, self._high = self._replacing(TextToText(eta=1.0), Cut(bottom=0))
        # of whom the texts are is not written anywhere: only whether they are the same
        self._digest = hashlib.sha256(repr((texts.texts, texts.labels)).encode()).hexdigest()[:32]

    def bracket(self, arm: Arm) -> tuple[float, float]:
        """Etas between which the border is looked for."""
        if arm.words is not None:
            return self._word_bracket(arm.words)
        if arm.mechanism == "text-to-text" and not arm.cti:
            return self._low, self._high
        wider = _WIDER**2 if arm.place is Place.ACTIVATIONS else _WIDER
        return self._low / wider, self._high * wider

    def _word_bracket(self, privacy: Words) -> tuple[float, float]:
        """The same of words, in whatever space theirs are."""
        low, high = self._replacing(privacy, Cut(bottom=None))
        wider = _WIDER if privacy.exponential else 1.0
        return low / wider, high * wider

    def _replacing(self, privacy: PrivacySpec, cut: Cut) -> tuple[float, float]:
        """The etas that replace the most and the least of what is drawn."""
        # nothing is released: the noise of none of the texts is drawn
        spec = settle(FinetuneSpec(privacy=privacy, cut=cut, unsafe_noise_seed=self._spec.seed))
        privatizing = run_privatizing(self._archive, self._home, spec)
        content = self._archive.template.max_content(self._texts.segments, self._spec.training.max_length)
        ids = privatizing.reading.read(self._texts, max_content=content).values
        asked = privatizing.privatizer.replaceable(ids)
        if not len(asked.of):
            raise ConfigError(
                "No word of these texts is of a category that is replaced.", remedy="Name others with --words."
            )
        # others at any eta are words that the vocabulary does not have
        drawn, always = len(asked.of) / len(ids), float((asked.own[asked.of] == ABSENT).double().mean())
        shares = [drawn * (always + (1 - always) * share) for share in (_MOST_REPLACED, _LEAST_REPLACED)]
        low, high = etas_for_shares(ids, privatizing.privatizer, shares, seed=self._spec.seed)
        return low.eta, high.eta

    def quick(self, setting: Setting) -> Evaluation:
        """By attacks that take seconds; what was evaluated before is read."""
        attacks = quick_attacks()
        cell = Cell(
            setting=setting,
            model=self._spec.model,
            training=self._spec.training,
            attacker=self._spec.attacker,
            public=self._public.source,
            data=self._data(setting),
            attacks=attacks,
            seed=self._spec.seed,
        )
        found = self._cells.get(cell)
        if found is None:
            found, _ = self._evaluate(setting, attacks, (), shown=0)
            self._cells.put(cell, found)
        return found

    def _data(self, setting: Setting) -> str:
        """Tells texts, and a vocabulary where words are drawn, from others: a file may have been written anew."""
        if setting.arm.words is None:
            return self._digest
        return hashlib.sha256(f"{self._digest} {setting.arm.words.identity}".encode()).hexdigest()[:32]

    def thorough(self, setting: Setting, repeat: tuple[str, ...]) -> tuple[Evaluation, AuditReport]:
        """By every attack that applies, with fresh noise."""
        return self._evaluate(setting, None, repeat, shown=8)

    def _evaluate(
        self, setting: Setting, attacks: tuple[str, ...] | None, repeat: tuple[str, ...], *, shown: int
    ) -> tuple[Evaluation, AuditReport]:
        local = FinetuneSpec(
            model=self._spec.model,
            privacy=setting.privacy,
            cut=Cut(bottom=setting.arm.bottom),
            training=self._spec.training,
            seed=self._spec.seed,
        )
        found, report = evaluate(
            self._texts,
            local,
            attacker=self._spec.attacker,
            public=self._public,
            attacks=attacks,
            shown=shown,
            repeat=repeat,
            progress=self._bar,
        )
        if found is None:
            words = next((each.sentence for each in report.strongest if each.question == Question.WORDS), "")
            raise ConfigError(f"No attack applies to {setting.arm.label}, so nothing is known of it. {words}".strip())
        return found, report
