"""What a run's traffic was about: the customer knows, an attack does not.

A run's folder holds the transcript and the settings. The texts are the customer's. Which record holds which text, and
which texts each step took, follows from both. What a result tells of a run and what an audit asks of it are read here.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from cutlayer.attacks import GreedyTruth, Knowledge, LabelTruth, Noise, TokenTruth, TrainedTruth, Transcript
from cutlayer.core import Cut, Tokens
from cutlayer.customer.corpora import Labelled, Plain
from cutlayer.customer.derived import noise_secret, run_order
from cutlayer.customer.home import Home
from cutlayer.customer.prepare import Prepared
from cutlayer.customer.recorded_words import WordNumbers, word_stream
from cutlayer.customer.run import Run
from cutlayer.customer.session import Texts
from cutlayer.customer.settings import Objective, RunSpec
from cutlayer.customer.trainer import Examples, best_step, training_order
from cutlayer.customer.tuning import AnyTail, put_back, trained_parameters, tune
from cutlayer.customer.upload import BLOCK_TOKENS, blocks
from cutlayer.models import Archive
from cutlayer.privacy import Privatizer
from cutlayer.wire import Form, routes

Steps = dict[tuple[str, int], Tensor]
"""By job and step, numbers `[texts]` of the texts that the step was about."""


@dataclass(frozen=True)
class Stream:
    """Texts of one kind that a run released.

    Attributes:
        transcript: What crossed of them.
        knowledge: What the vendor knows beside it: the parts that it handed out, and how releases are privatized.
        tokens: The texts.
        steps: Which of them each step was about.
    """

    transcript: Transcript
    knowledge: Knowledge
    tokens: Tokens
    steps: Steps

    @property
    def skipped(self) -> int:
        """First tokens of each text that nothing precedes, so that nobody predicts them."""
        template = self.knowledge.template
        return 0 if template is not None and template.opening else 1


class RecordedRun:
    """A run's traffic, with what the customer knows of it. What is asked for is computed then.

    Args:
        run: The run, whose epochs are over.
        rows: Its data.
        data: The same as tokens.
        archive: What the vendor handed out, not as the customer trained it.
        home: The customer's folder.
        tail: The customer's upper part as the best epoch left it, if it is at hand.
        beside: Numbers of words of another run, which is read together with this one.
    """

    def __init__(
        self,
        run: Run,
        rows: Labelled | Plain,
        data: Prepared,
        archive: Archive,
        home: Home,
        *,
        tail: AnyTail | None = None,
        beside: WordNumbers | None = None,
    ) -> None:
        self.run = run
        self.rows = rows
        self.data = data
        self.archive = archive
        self._secret = noise_secret(home, run.state.spec.unsafe_noise_seed)
        self._tail = tail
        self._beside = beside

    @property
    def spec(self) -> RunSpec:
        """The run's settings."""
        return self.run.state.spec

    @property
    def lengths(self) -> Tensor:
        """`[n]` int64: positions of each text, of a pair those of the longer one."""
        return self.data.train.lengths

    @cached_property
    def crossed(self) -> Transcript:
        """All that crossed."""
        return Transcript.recorded(self.run.transcript)

    @cached_property
    def released(self) -> Stream:
        """Texts as they were released: of an encoder-decoder its source texts, of others all."""
        knowledge = granted(self.spec, self.archive)
        if not self._pairs:
            return Stream(self.crossed, knowledge, self.data.tokens, self._steps)
        steps = {(f"{job}/source", step): texts for (job, step), texts in self._steps.items()}
        return Stream(self.crossed.only(routes.SOURCE), knowledge, _side(self.data.tokens, 0), steps)

    @cached_property
    def predicted(self) -> Stream:
        """Texts whose tokens are predicted: of an encoder-decoder its target texts, of a language model all."""
        if not self._pairs:
            return self.released
        knowledge, cut = self.released.knowledge, self.spec.cut
        return Stream(
            self.crossed.targets(),
            replace(
                knowledge,
                cut=Cut(bottom=cut.target, tail=cut.tail),
                template=self.archive.target_template,
                source_template=knowledge.template,
            ),
            _side(self.data.tokens, 1),
            self._steps,
        )

    @cached_property
    def records(self) -> dict[str, Tensor]:
        """By record set, the number of the record that holds each text; empty where each step released its own."""
        if not self.spec.stores:
            return {}
        return {self.run.identifier("train"): self._record_numbers(self.data.privatizing.privatizer)}

    def _record_numbers(self, privatizer: Privatizer) -> Tensor:
        if self.spec.sends_pairs:
            return torch.arange(len(self.data.train))  # equal pairs are records of their own
        return record_numbers(privatizer, self.data.train)

    @cached_property
    def numbers(self) -> WordNumbers | None:
        """Numbers of words, where words were drawn."""
        if self.spec.privacy.mechanism != "words":
            return None
        return WordNumbers(self.data.privatizing, beside=self._beside)

    @cached_property
    def _worded(self) -> tuple[Transcript, TokenTruth] | None:
        if self.numbers is None:
            return None
        return word_stream(
            self.numbers,
            self.data.tokens,
            self._record_numbers(self.numbers.privatizer),
            record_set=self.run.identifier("train"),
            archive=self.archive,
            seen=self.crossed,
        )

    @property
    def in_words(self) -> Stream:
        """Texts as attacks on words read them: token by token, or word by word where words were drawn."""
        if self.numbers is None or self._worded is None:
            return self.released
        transcript, truth = self._worded
        knowledge = self.numbers.knowledge(self.released.knowledge)
        return Stream(transcript, knowledge, truth.tokens, {})

    @property
    def words(self) -> TokenTruth:
        """Which tokens, or words, the texts had, and where they were released."""
        if self._worded is not None:
            return self._worded[1]
        stream = self.released
        if self.spec.stores:
            return TokenTruth(stream.tokens, records=self.records)
        return TokenTruth(stream.tokens, steps=stream.steps)

    @property
    def predicts_released(self) -> bool:
        """Whether what is predicted are tokens that left: where words were drawn, if only plain ones before texts."""
        return self.numbers is not None or self.spec.reconstruction.plain_tokens > 0

    @property
    def labels(self) -> LabelTruth | None:
        """The true labels, whatever losses were computed from; `None` where there are none."""
        if not isinstance(self.rows, Labelled):
            return None
        epsilon = self.spec.label_epsilon
        return LabelTruth(self.rows.labels, len(self.rows.names), self._steps, epsilon=epsilon)

    @property
    def trained(self) -> TrainedTruth:
        """Which tokens steps were computed from, each the label of those before it."""
        stream = self.predicted
        labels, begins = self.data.train.labels, None
        if not self._pairs and isinstance(labels, Tokens) and len(labels.segments) > 1:
            begins = labels.segments[0].lengths  # a decoder's target texts stand behind their source texts
        return TrainedTruth(stream.tokens, steps=stream.steps, skipped=stream.skipped, begins=begins)

    @cached_property
    def said(self) -> GreedyTruth:
        """The adapter's most probable next tokens where it was asked, by the customer's own tail."""
        stream = self.predicted
        source = f"adapter/{self.run.identifier('job')}/infer"  # an adapter has its job's name
        answers = (answer for answer in stream.transcript.answers() if answer.source == source)
        return GreedyTruth.of(self._trained_tail(), answers, stream.knowledge, skipped=stream.skipped)

    def first_records(self) -> Tensor:
        """Numbers `[records]` of the texts that the stored records are of, each once."""
        (numbers,) = self.records.values()
        last = torch.full((int(numbers.max()) + 1,), len(numbers))
        return last.scatter_reduce(0, numbers, torch.arange(len(numbers)), "amin")

    @property
    def _pairs(self) -> bool:
        """Whether source and target texts crossed by themselves."""
        return self.spec.objective is Objective.SEQ2SEQ and not self.spec.sends_pairs

    @cached_property
    def _steps(self) -> Steps:
        spec, job = self.spec, self.run.identifier("job")
        order = run_order(spec.seed, spec.privacy, self._secret)
        steps: Steps = {}
        number = spec.public_iterations
        for epoch in range(len(self.run.state.dev)):
            for batch in training_order(spec, order, self.lengths, epoch):
                number += 1
                steps[job, number] = batch
        return self._crossing_once(steps) if self._pairs else steps

    def _crossing_once(self, steps: Steps) -> Steps:
        """Of each step a pair that stands twice in it once, as it crosses."""
        source, target = self.data.tokens.segments
        known = [(tuple(source[row].tolist()), tuple(target[row].tolist())) for row in range(len(source))]
        found: Steps = {}
        for key, batch in steps.items():
            first = {known[row]: row for row in reversed(batch.tolist())}
            found[key] = torch.tensor([row for row in batch.tolist() if first[known[row]] == row])
        return found

    def _trained_tail(self) -> AnyTail:
        """The customer's tail; what was handed out stays as it is, for that is what the vendor knows."""
        if self._tail is not None:
            return self._tail
        bottom, tail = copy.deepcopy((self.archive.bottom, self.archive.tail))  # together: weights may be tied
        parts = tune(replace(self.archive, bottom=bottom, tail=tail), self.spec)
        parameters = trained_parameters(parts.bottom, parts.tail)
        if parameters:
            put_back(parameters, self.run.read_trained(best_step(self.run.state, len(self.data.train))))
        if parts.tail is None:
            raise TypeError("a language model's customer holds the tail")
        return parts.tail.eval()


def _side(tokens: Tokens, side: int) -> Tokens:
    return Tokens((tokens.segments[side],))


def granted(spec: RunSpec, archive: Archive) -> Knowledge:
    """What the vendor knows of a run's releases: what it handed out, and how they are privatized.

    Args:
        spec: The run's settings.
        archive: What was handed out, not as the customer trained it.
    """
    cut = spec.cut
    if spec.form is Form.IDS:
        cut = cut.model_copy(update={"bottom": None})
    return Knowledge(
        cut=cut,
        table=archive.table,
        # without noise a row of any token may have left, one for unknown words too
        candidates=None if spec.privacy.mechanism == "none" else archive.candidates,
        template=archive.template,
        bottom=archive.bottom,
        tail=archive.tail,
        noise=Noise(spec.privacy),
    )


def record_numbers(privatizer: Privatizer, examples: Examples) -> Tensor:
    """`[n]` int64: the number of the record that holds each text; texts of one release share one.

    Args:
        privatizer: Names releases.
        examples: Texts in the order in which they are uploaded.
    """
    texts = examples.texts
    if not isinstance(texts, Texts):
        raise TypeError("stored texts have numbers already")
    numbers: dict[bytes, int] = {}
    found = []
    for chosen in blocks(texts.tokens, BLOCK_TOKENS):
        some = texts.select(chosen)
        named = privatizer.named(some.tokens, labels=some.cti_classes, excerpts=some.excerpts)
        found += [numbers.setdefault(identity, len(numbers)) for identity in named.identities]
    return torch.tensor(found)
