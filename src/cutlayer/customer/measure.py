"""What a finished run is measured by: how useful the adapter is, and what its traffic gave away."""

from __future__ import annotations

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Generic, TypeVar

import torch
from torch import Tensor

from cutlayer.attacks import (
    MEASURED_TOKENS,
    GreedyTruth,
    Inapplicable,
    Knowledge,
    LabelTruth,
    Measured,
    NotApplicable,
    Outcome,
    SearchedTruth,
    TokenTruth,
    Traffic,
    TrainedTruth,
    Transcript,
    measure,
    measure_empirical_privacy,
    measure_label_recovery,
)
from cutlayer.core import Cut, Deviation, Guarantee, Proportion, Tokens
from cutlayer.customer.advice import classifier_advice, language_advice
from cutlayer.customer.prepare import LabelledTexts, Prepared
from cutlayer.customer.progress import Progress
from cutlayer.customer.results import FinetuneResult, LanguageResult, RunResult
from cutlayer.customer.run import Run
from cutlayer.customer.session import Session, Texts
from cutlayer.customer.settings import Objective
from cutlayer.customer.trainer import Examples, Score, Trainer, evaluate
from cutlayer.customer.upload import Uploaded
from cutlayer.models import Template
from cutlayer.privacy import LABELS_SHOWN, RunBytes, keep_probability
from cutlayer.wire import routes
from cutlayer.wire.messages import AdapterInfo

R = TypeVar("R", bound=RunResult)

_SEARCHED_TOKENS = 1024
"""Tokens on which the search from the left is measured, which runs the bottom for each token that it tries."""


@dataclass(frozen=True)
class _Steps:
    """Some steps that follow one another.

    Attributes:
        texts: The texts that they are about, each once.
        places: By job and step, each row's place among these texts.
        first: The first step.
        last: The last.
    """

    texts: Tensor
    places: dict[tuple[str, int], Tensor]
    first: int
    last: int


class Measures(ABC, Generic[R]):
    """The numbers of one run.

    Args:
        data: The run's data.
        session: The road, with a link to the published adapter.
        run: The run's state and transcript.
        trainer: The loop that trained it.
        uploaded: Train's records at the vendor; `None` where each step released its own.
    """

    _ATTACKS: ClassVar[int]
    """How many are run."""
    _UNCOVERED: ClassVar[tuple[str, ...]] = ()
    """What of this objective no guarantee covers."""

    def __init__(self, data: Prepared, session: Session, run: Run, trainer: Trainer, uploaded: Uploaded | None) -> None:
        self._data = data
        self._session = session
        self._run = run
        self._spec = run.state.spec
        self._trainer = trainer
        self._uploaded = uploaded

    def utility(self, *, positions: int, progress: Progress) -> Score | None:
        """What the published adapter reaches on test; `None` where there is none, as dev was measured already.

        Args:
            positions: Of one frame at most, as the vendor says.
            progress: Where to show progress.
        """
        test = self._data.test
        if test is None:
            return None
        return evaluate(self._session, test, positions=positions, progress=progress, stage="test")

    def result(
        self,
        adapter: AdapterInfo,
        utility: Score | None,
        knowledge: Knowledge,
        *,
        spent: RunBytes,
        looks: int,
        deviations: tuple[Deviation, ...],
        seconds: float,
        caveats: tuple[str, ...],
        labels: Guarantee | None,
    ) -> R:
        """All that a run tells.

        Args:
            adapter: What the vendor published.
            utility: What `utility` returned.
            knowledge: What the vendor knows.
            spent: What was sent and received.
            looks: Largest number of draws of one text that were sent.
            deviations: Where the run's settings differ from the paper.
            seconds: How long it took.
            caveats: What the run's guarantee does not cover, beside what the privatizer says.
            labels: What is promised of labels, if there are any.
        """
        self._show(0, "nearest neighbours")
        inversion = self._inversion(knowledge)
        measured = inversion if isinstance(inversion, Measured) else None
        privatizer = self._session.privatizer
        state, spec, data = self._run.state, self._spec, self._data
        # every draw is a look of its own, and looks at one text add up, wherever it stands in train, dev and test
        guarantee = functools.reduce(Guarantee.compose, [privatizer.guarantee] * looks)
        told = self._told(
            utility,
            knowledge,
            labels,
            adapter_id=adapter.adapter,
            adapter_sha256=adapter.sha256,
            ep=measured.privacy.value if measured else None,
            ep_n=measured.privacy.n if measured else 0,
            ep_standard_error=measured.privacy.standard_error if measured else None,
            ep_note=_note(inversion),
            replaced=self._replaced(),
            n_train=len(data.train),
            n_dev=len(data.dev),
            n_test=0 if data.test is None else len(data.test),
            uplink_bytes={**spent.uplink, "total": sum(spent.uplink.values())},
            downlink_bytes=spent.downlink,
            tokens_released=spent.tokens,
            seconds=seconds,
            steps=self._trainer.link.step,
            epochs=len(state.dev),
            best_epoch=state.best_epoch,
            dev=tuple(state.dev),
            eta=spec.privacy.eta,
            no_privacy=spec.privacy.mechanism == "none",
            unsafe_noise=spec.unsafe_noise_seed is not None,
            looks=looks,
            guarantee=guarantee.model_copy(update={"caveats": guarantee.caveats + self._UNCOVERED + caveats}),
            largest_distance=privatizer.largest_distance(),
            deviations=privatizer.deviations + deviations,
            spec=spec,
            folder=self._run.folder,
        )
        self._show(self._ATTACKS)
        return told

    def _show(self, done: int, attack: str = "") -> None:
        self._trainer.progress.update("what the vendor could read", done, self._ATTACKS, attack)

    @abstractmethod
    def _told(self, utility: Score | None, knowledge: Knowledge, labels: Guarantee | None, **common: Any) -> R:
        """The result of this objective, from what all have in common."""

    def _replaced(self) -> float | None:
        """Share of tokens that the (first epoch's) draws replaced; `None` for rows of noise."""
        changed = self._replaced_in_steps() if self._uploaded is None else self._uploaded.replaced
        return None if changed is None else changed / max(1, self._data.tokens.total)

    def _replaced_in_steps(self) -> int | None:
        """The first epoch's draws are made again, not charged again."""
        changed = 0
        for _, batch in self._trainer.numbered_batches(0):
            texts, _ = self._trainer.train.batch(batch)
            if isinstance(texts, Texts):
                drawn = self._session.count_replaced(texts, look=self._trainer.look(0))
                if drawn is None:
                    return None
                changed += drawn
        return changed

    def _texts_of_steps(self) -> dict[tuple[str, int], Tensor]:
        """Which texts each step was about: the customer knows, an attack does not."""
        epochs = range(len(self._run.state.dev))
        numbered = (pair for epoch in epochs for pair in self._trainer.numbered_batches(epoch))
        return {(self._trainer.link.job, step): batch for step, batch in numbered}

    def _inversion(self, knowledge: Knowledge) -> Outcome:
        """Embedding inversion of what was recorded (SAP §5.1; for a trainable bottom, Appendix A)."""
        if self._uploaded is not None:
            records = {self._run.identifier("train"): torch.tensor(self._uploaded.record_of)}
            truth = TokenTruth(self._data.tokens, records=records)
        else:
            truth = TokenTruth(self._data.tokens, steps=self._texts_of_steps())
        return measure_empirical_privacy(self._run.transcript, knowledge=knowledge, truth=truth)


class ClassifierMeasures(Measures[FinetuneResult]):
    """The numbers of a run with labels."""

    _ATTACKS = 2

    def utility(self, *, positions: int, progress: Progress) -> Score | None:
        """As of any run; where reported labels chose the epoch, the adapter's accuracy on dev's true ones, too."""
        found = super().utility(positions=positions, progress=progress)
        if found is None and self._spec.label_epsilon is not None:
            return evaluate(self._session, self._data.dev, positions=positions, progress=progress, stage="dev")
        return found

    def _told(
        self, utility: Score | None, knowledge: Knowledge, labels: Guarantee | None, **common: Any
    ) -> FinetuneResult:
        dev, epsilon, classes = len(self._trainer.dev), self._spec.label_epsilon, len(self._data.label_names)
        accuracy = utility or Proportion.of(round(max(self._run.state.dev) * dev), dev)
        if not isinstance(accuracy, Proportion):
            raise TypeError("a classifier's utility is an accuracy")
        baseline = self._majority_baseline()
        self._show(1, "labels")
        read = self._label_recovery()
        return FinetuneResult(
            ua=accuracy.value,
            ua_on="dev" if self._data.test is None else "test",
            ua_n=accuracy.n,
            ua_standard_error=accuracy.standard_error,
            majority_baseline=baseline,
            advice=classifier_advice(accuracy, baseline=baseline),
            label_recovery=read.success.value if isinstance(read, Measured) else None,
            label_guarantee=labels or Guarantee.nothing(LABELS_SHOWN),
            label_keep=None if epsilon is None else keep_probability(epsilon, classes),
            **common,
        )

    def _majority_baseline(self) -> float:
        """Of the texts that accuracy is measured on, the share that has train's most frequent label."""
        measured = self._data.dev if self._data.test is None else self._data.test
        if not isinstance(self._data, LabelledTexts) or not isinstance(measured.labels, Tensor):
            raise TypeError("a classifier's texts have labels")
        most = self._data.rows.labels.bincount().argmax()
        return float((measured.labels == most).double().mean())

    def _label_recovery(self) -> Outcome:
        """Of the true labels, whatever losses were computed from."""
        if not isinstance(self._data, LabelledTexts):
            raise TypeError("a classifier's texts have labels")
        rows, classes = self._data.rows, len(self._data.label_names)
        truth = LabelTruth(rows.labels, classes, self._texts_of_steps(), epsilon=self._spec.label_epsilon)
        return measure_label_recovery(self._run.transcript, truth=truth)


class LanguageMeasures(Measures[LanguageResult]):
    """The numbers of a language model's run."""

    _ATTACKS = 5
    _UNCOVERED = (
        "Covers tokens that go up. Gradients name the true ones without any noise: see what is read from gradients.",
    )

    def _told(
        self, utility: Score | None, knowledge: Knowledge, labels: Guarantee | None, **common: Any
    ) -> LanguageResult:
        state = self._run.state
        predicted = self._predicted(self._trainer.dev)
        transcript = self._transcript()
        self._show(1, "gradients")
        trained = self._tokens_trained_on(transcript, knowledge, self._first_steps(MEASURED_TOKENS))
        self._show(2, "gradients of the last steps")
        at_end = self._tokens_trained_on(transcript, knowledge, self._last_steps(MEASURED_TOKENS))
        self._show(3, "answers")
        said = self._tokens_said(transcript, knowledge)
        self._show(4, "rows, from left to right")
        rows = self._tokens_in_rows(transcript, knowledge)
        return LanguageResult(
            perplexity=min(state.dev) if utility is None else utility.value,
            perplexity_on="dev" if utility is None else "test",
            perplexity_n=predicted if utility is None else utility.n,
            perplexity_standard_error=None if utility is None else utility.standard_error,
            dev_before=math.nan if state.untrained is None else state.untrained,
            token_recovery_first_steps=_share(trained),
            token_recovery_first_steps_note=_reason(trained),
            token_recovery_last_steps=_share(at_end),
            token_recovery_last_steps_note=_reason(at_end),
            token_recovery_from_answers=_share(said),
            token_recovery_from_answers_note=_reason(said),
            token_recovery_from_boundary=_share(rows),
            token_recovery_from_boundary_note=_reason(rows),
            token_recovery_without_blocks=self._tokens_without_blocks(transcript, knowledge),
            advice=language_advice(
                trained=_share(trained),
                said=_share(said),
                rows=_share(rows),
                eta=self._spec.privacy.eta,
                vocabulary=len(self._session.archive.candidates),
            ),
            **common,
        )

    def utility(self, *, positions: int, progress: Progress) -> Score | None:
        """As of any run; without test the adapter answers some of dev, so that there are answers of its own to read."""
        found = super().utility(positions=positions, progress=progress)
        if found is None:
            dev = self._data.dev  # its texts: an adapter holds no records
            some = torch.arange(len(dev))[dev.lengths.cumsum(0) - dev.lengths < MEASURED_TOKENS]
            texts, labels = dev.batch(some)
            shown = Examples(texts, labels, dev.lengths[some])
            evaluate(self._session, shown, positions=positions, progress=progress, stage="dev, by the adapter")
        return found

    def _transcript(self) -> Transcript:
        """What crossed of the texts that are predicted."""
        return Transcript.recorded(self._run.transcript)

    @property
    def _template(self) -> Template:
        """Where special tokens stand in them."""
        return self._session.archive.template

    @property
    def _learnt(self) -> Tokens:
        """Train's texts that are predicted."""
        return self._data.tokens

    def _predicted(self, examples: Examples) -> int:
        """How many tokens are predicted."""
        return int((examples.lengths - 1).sum())

    @property
    def _skipped(self) -> int:
        """First tokens of each text that nothing precedes, so that nobody predicts them."""
        return 0 if self._template.opening else 1

    def _tokens_trained_on(self, transcript: Transcript, knowledge: Knowledge, some: _Steps) -> Outcome:
        """Share of these steps' tokens that the vendor reads from gradients, by the tail as it was handed out."""
        truth = TrainedTruth(self._learnt.select(some.texts), steps=some.places, skipped=self._skipped)
        shown = transcript.first_steps(some.last, after=some.first - 1)
        return measure("tail-gradient", shown, knowledge=knowledge, truth=truth)

    def _first_steps(self, most: int) -> _Steps:
        """The first private steps, of about so many tokens."""
        return self._some_steps(list(self._texts_of_steps().items()), most)

    def _last_steps(self, most: int) -> _Steps:
        """The last steps, of about so many tokens."""
        return self._some_steps(list(self._texts_of_steps().items())[::-1], most)

    def _some_steps(self, steps: Iterable[tuple[tuple[str, int], Tensor]], most: int) -> _Steps:
        chosen: dict[tuple[str, int], Tensor] = {}
        tokens = 0
        for key, batch in steps:
            if tokens >= most:
                break
            chosen[key] = batch
            tokens += int(self._data.train.lengths[batch].sum())
        texts = torch.cat(list(chosen.values())).unique()
        numbers = {int(text): place for place, text in enumerate(texts)}
        places = {key: torch.tensor([numbers[int(text)] for text in batch]) for key, batch in chosen.items()}
        numbered = [step for _, step in chosen]
        return _Steps(texts, places, min(numbered), max(numbered))

    def _tokens_in_rows(self, transcript: Transcript, knowledge: Knowledge) -> Outcome:
        """Share of the first texts' tokens that the vendor reads from the rows that came up."""
        if not self._spec.stores:
            some = self._first_steps(_SEARCHED_TOKENS)
            shown = transcript.first_steps(some.last, after=some.first - 1)
            searched = SearchedTruth(self._learnt.select(some.texts), steps=some.places)
        elif not knowledge.cut.bottom:
            reason = "Each text was released once, without blocks below: empirical privacy says what that shows."
            return NotApplicable(attack="prefix-search", reason=reason)
        else:
            record_set, texts = self._run.identifier("train"), self._first_records(_SEARCHED_TOKENS)
            shown = transcript.first_records(record_set, len(texts))
            searched = SearchedTruth(self._learnt.select(texts), records={record_set: torch.arange(len(texts))})
        if not knowledge.cut.bottom:
            rows = TokenTruth(searched.tokens, steps=searched.steps)
            return measure("nearest-neighbour", shown, knowledge=knowledge, truth=rows)
        return measure("prefix-search", shown, knowledge=knowledge, truth=searched)

    def _tokens_without_blocks(self, transcript: Transcript, knowledge: Knowledge) -> Proportion | None:
        """What a table lookup reads of the same texts where no block stands below the cut: why one does by default."""
        if not knowledge.cut.bottom or self._spec.privacy.mechanism != "none":
            return None
        most = _SEARCHED_TOKENS
        texts = self._first_records(most) if self._spec.stores else self._first_steps(most).texts
        bare = replace(knowledge, cut=knowledge.cut.model_copy(update={"bottom": 0}))
        looked_up = TokenTruth(self._learnt.select(texts))
        shown, truth = looked_up.traffic(Traffic.UNPROTECTED, transcript, bare, looks=1, rng=torch.Generator())
        return _share(measure("nearest-neighbour", shown, knowledge=bare, truth=truth))

    def _first_records(self, most: int) -> Tensor:
        """The texts of the first stored records, about so many tokens."""
        if self._uploaded is None:
            raise TypeError("stored texts were uploaded")
        texts = torch.tensor(self._uploaded.first_text)
        before = self._data.train.lengths[texts].cumsum(0) - self._data.train.lengths[texts]
        return texts[before < most]

    def _tokens_said(self, transcript: Transcript, knowledge: Knowledge) -> Outcome:
        """Share of the customer's most probable tokens that the vendor reads from what it sent down itself.

        Measured on the published adapter's answers about test, or dev, where the true tokens stand before each.
        """
        tail = self._session.tail
        if tail is None:
            raise TypeError("a language model's customer holds the tail")
        source = f"adapter/{self._trainer.link.job}/infer"
        answers = (answer for answer in transcript.answers() if answer.source == source)
        try:
            truth = GreedyTruth.of(tail, answers, knowledge, skipped=self._skipped)
        except Inapplicable as refused:
            return NotApplicable(attack="forward-leak", reason=refused.reason)
        return measure("forward-leak", transcript, knowledge=knowledge, truth=truth)


class Seq2SeqMeasures(LanguageMeasures):
    """The numbers of an encoder-decoder's run, whose target texts are what is predicted.

    What is said of the tail is said of target texts, and empirical privacy is that of source texts.
    """

    def _told(
        self, utility: Score | None, knowledge: Knowledge, labels: Guarantee | None, **common: Any
    ) -> LanguageResult:
        cut = Cut(bottom=self._spec.target, tail=self._spec.tail)
        granted = replace(knowledge, cut=cut, template=self._template, source_template=knowledge.template)
        return super()._told(utility, granted, labels, **common)

    @property
    def _template(self) -> Template:
        return self._session.archive.target_template

    def _tokens_in_rows(self, transcript: Transcript, knowledge: Knowledge) -> Outcome:
        return super()._tokens_in_rows(super()._transcript() if knowledge.cut.bottom else transcript, knowledge)

    def _transcript(self) -> Transcript:
        return super()._transcript().targets()

    @property
    def _learnt(self) -> Tokens:
        return Tokens((self._data.tokens.segments[1],))

    def _predicted(self, examples: Examples) -> int:
        if isinstance(examples.labels, Tensor):
            raise TypeError("an encoder-decoder's labels are its target texts")
        return int((examples.labels.segments[1].lengths + 1).sum())

    def _texts_of_steps(self) -> dict[tuple[str, int], Tensor]:
        """Which texts each step was about: a pair that stands twice in a batch crosses once."""
        found = super()._texts_of_steps()
        source, target = self._data.tokens.segments
        known = [(tuple(source[row].tolist()), tuple(target[row].tolist())) for row in range(len(source))]
        for key, batch in found.items():
            first = {known[row]: row for row in reversed(batch.tolist())}
            found[key] = torch.tensor([row for row in batch.tolist() if first[known[row]] == row])
        return found

    def _inversion(self, knowledge: Knowledge) -> Outcome:
        """Embedding inversion of the source texts that were recorded."""
        steps = {(f"{job}/source", step): texts for (job, step), texts in self._texts_of_steps().items()}
        truth = TokenTruth(Tokens((self._data.tokens.segments[0],)), steps=steps)
        transcript = Transcript.recorded(self._run.transcript).only(routes.SOURCE)
        return measure("nearest-neighbour", transcript, knowledge=knowledge, truth=truth)


def _share(outcome: Outcome) -> Proportion | None:
    return outcome.success if isinstance(outcome, Measured) else None


def _reason(outcome: Outcome) -> str:
    return "" if isinstance(outcome, Measured) else outcome.reason


MEASURES: Mapping[Objective, type[Measures[Any]]] = {
    Objective.CLASSIFICATION: ClassifierMeasures,
    Objective.LM: LanguageMeasures,
    Objective.SEQ2SEQ: Seq2SeqMeasures,
}
"""How a run of each objective is measured."""


def _note(outcome: Outcome) -> str:
    """What the number of an attack covers, in a sentence."""
    if isinstance(outcome, Measured):
        return (
            "Empirical privacy is 1 - share of training tokens that nearest-neighbour inversion recovered from the "
            "recorded transcript "
            f"({outcome.looks} release{'s' if outcome.looks > 1 else ''} of each text); stronger attacks exist."
        )
    return outcome.reason
