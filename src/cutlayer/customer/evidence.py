"""What an audit asks of a run: each attack the truth of its question, scored on texts that the attacker does not know.

The texts are the customer's, and are given again. What the traffic was about is read by `cutlayer.customer.recorded`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from cutlayer.attacks import (
    Attack,
    AttributeTruth,
    GreedyTruth,
    Knowledge,
    LabelTruth,
    LengthTruth,
    Noise,
    PublicText,
    Question,
    RowTruth,
    SignalSource,
    TokenTruth,
    TrainedTruth,
    Transcript,
    Truth,
)
from cutlayer.core import ConfigError, DataError, Fault, Ragged, Tokens
from cutlayer.customer.attacker import AttackerSpec
from cutlayer.customer.corpora import Corpora, split_rows
from cutlayer.customer.derived import noise_secret
from cutlayer.customer.home import Home
from cutlayer.customer.prepare import Prepared, prepare
from cutlayer.customer.recorded import RecordedRun, Stream
from cutlayer.customer.recorded_words import WordNumbers
from cutlayer.customer.results import ReleaseResult, RunResult
from cutlayer.customer.run import Run, check_version
from cutlayer.customer.settings import LabelsAt, Objective, RunSpec, TrainBottom
from cutlayer.data import UNCUT, Dataset, tokenise
from cutlayer.models import Archive
from cutlayer.privacy import UtilityImportance

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

_OF_WORDS = (Question.WORDS, Question.LENGTH)
"""What is asked of words, and of texts as so many words."""
_BY_STEP = (SignalSource.GRADIENTS, SignalSource.NEIGHBOURS, SignalSource.REPORTS)
"""Where training shows labels, step by step."""


@dataclass(frozen=True)
class Joined:
    """What several runs of one customer showed together.

    Attributes:
        transcript: Of all of them; word by word where words were drawn.
        tokens: Which tokens, or words, their texts had.
        noises: By source of a release, how it was privatized where that is not as in the first run.
    """

    transcript: Transcript
    tokens: TokenTruth
    noises: Mapping[str, Noise]


@dataclass(frozen=True)
class WordEvidence:
    """What attacks on words read where words were drawn.

    Attributes:
        numbers: Of words.
        transcript: What was released, word by word.
        knowledge: Of words in the place of tokens.
        known: Words of the records that the attacker knows, as single texts.
    """

    numbers: WordNumbers
    transcript: Transcript
    knowledge: Knowledge
    known: Tokens

    def granted(
        self, public: PublicText | None, model: PreTrainedModel | None, tokenizer: PreTrainedTokenizerBase
    ) -> WordEvidence:
        """The same to an attacker that has this text, the words of the records that it knows, and this model."""
        own = self.known.segments[0]
        found = None if not len(own.values) else PublicText(self.known, source="records", alike=len(own))
        if public is not None:
            texts = Dataset(tuple((text,) for text in public.texts))
            further = PublicText(self.numbers.read(texts, max_content=UNCUT), source=public.source)
            found = further if found is None else found.followed_by(further)
        # words of theirs that were not met before have numbers now
        knowledge = self.numbers.knowledge(self.knowledge)
        rows = None if model is None else self.numbers.rows(model, tokenizer)
        return replace(self, knowledge=replace(knowledge, public=found, model=model, rows=rows))


@dataclass(frozen=True)
class Evidence:
    """A recorded run, and what it was about.

    Attributes:
        spec: The run's settings.
        transcript: What the vendor saw.
        knowledge: What the vendor knows beside it: the parts that it handed out, and how releases are privatized.
        tokens: Which tokens the texts had of which the attacker knows nothing, and where they were released; of an
            encoder-decoder the source texts'.
        trained: Which tokens the texts of training steps had, each the label of those before it; `None` for runs
            that predict no tokens, or those that left.
        said: What the adapter's next tokens were where it was asked; `None` for runs that predict none.
        labels: Which labels they had, and what each step was about; `None` where nothing was trained on labels.
        classes: The same labels for attacks that learn from those of known records; `None` where `labels` is.
        attributes: Private attributes, by column.
        lengths: How long the texts are.
        listed: Which row of the file each text is; `None` where texts were joined and cut into blocks.
        known: The tokens of the records that the attacker knows, as single texts.
        known_records: How many these are.
        label_names: The labels in the order of their numbers.
        texts: The texts themselves; `None` where they were joined and cut into blocks.
        rows: Where each of them stands in the data that was given, counted from 0; of equal texts the first. Of blocks
            their numbers.
        archive: What the vendor handed out.
        result: What the run found, or what is promised of texts that left without a training.
        words: Where words were drawn: numbers of words, and what crossed, word by word.
        targets: Of an encoder-decoder what crossed of its target texts, which gradients and answers are about.
        joined: What several runs of this customer showed together; `None` where there is one run.
    """

    spec: RunSpec
    transcript: Transcript
    knowledge: Knowledge
    tokens: TokenTruth
    trained: TrainedTruth | None
    said: GreedyTruth | None
    labels: LabelTruth | None
    classes: AttributeTruth | None
    attributes: Mapping[str, AttributeTruth]
    lengths: LengthTruth
    listed: RowTruth | None
    known: Tokens
    known_records: int
    label_names: tuple[str, ...]
    texts: Dataset | None
    rows: tuple[int, ...]
    archive: Archive
    result: RunResult | ReleaseResult
    words: WordEvidence | None = None
    targets: Stream | None = None
    joined: Joined | None = None

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase | WordNumbers:
        """What makes texts of what attacks on words guess, and tells where each of it stands."""
        return self.archive.tokenizer if self.words is None else self.words.numbers

    def granted(self, public: PublicText | None, model: PreTrainedModel | None) -> Evidence:
        """The same to an attacker that has this text, beside the records that it knows, and this model."""
        known = None
        if self.known.total:
            source = f"{self.known_records} records that it knows"
            known = PublicText(self.known, source=source, alike=len(self.known))
        own = public if known is None else known if public is None else known.followed_by(public)
        return replace(
            self,
            knowledge=replace(self.knowledge, public=own).with_model(model),
            words=None if self.words is None else self.words.granted(public, model, self.archive.tokenizer),
        )

    @property
    def objective(self) -> str:
        """What was trained, or `embed`; empty where texts left and nothing was."""
        return self.spec.objective.value if isinstance(self.result, RunResult) else self.result.objective

    @property
    def unlabelled(self) -> bool:
        """Whether a classifier's texts left without labels, on which nothing could be trained."""
        return not self.objective

    @property
    def adapter(self) -> str:
        """The adapter that was trained."""
        if not isinstance(self.result, RunResult):
            raise TypeError("nothing was trained")
        return self.result.adapter_id

    @staticmethod
    def settings(folder: Path) -> RunSpec:
        """The settings of a run, which say which archive it needs.

        Args:
            folder: The run's folder (`--out`).

        Raises:
            ConfigError: The folder holds no finished run.
        """
        return _finished(folder).state.spec

    def seen_by(self, attack: Attack) -> Transcript:
        """What an attack reads: of several runs all, if it can."""
        if self.targets is not None and _of_targets(attack):
            return self.targets.transcript
        if attack.joint and self.joined:
            return self.joined.transcript
        return self.words.transcript if self.words is not None and attack.question in _OF_WORDS else self.transcript

    def known_to(self, attack: Attack) -> Knowledge:
        """What it is granted beside that."""
        if self.targets is not None and _of_targets(attack):
            return self.targets.knowledge
        known = self.words.knowledge if self.words is not None and attack.question in _OF_WORDS else self.knowledge
        return replace(known, noises=self.joined.noises) if attack.joint and self.joined else known

    def truths(self, attack: Attack) -> Iterator[tuple[str, Truth]]:
        """What an attack is scored on, with the column of the attribute that it is about."""
        if attack.joint and self.joined:
            yield "", self.joined.tokens
        elif attack.question is Question.WORDS:
            words = self.trained if attack.signal is SignalSource.GRADIENTS else self.tokens
            if words is not None:
                yield "", words
        elif attack.question is Question.ANSWERS:
            if self.said is not None:
                yield "", self.said
        elif attack.question is Question.LENGTH:
            yield "", self.lengths
        elif attack.question is Question.ROW:
            if self.listed is not None:
                yield "", self.listed
        elif attack.question is Question.ATTRIBUTE:
            yield from self.attributes.items()
        elif attack.question is Question.LABEL:
            by_step = attack.signal in _BY_STEP
            if by_step and self.spec.labels_at is LabelsAt.VENDOR:
                return  # the vendor took the steps, and was sent the labels
            truth = self.labels if by_step else self.classes
            if truth is not None:
                yield "", truth

    @classmethod
    def of(
        cls,
        folder: Path,
        given: Corpora,
        archive: Archive,
        *,
        home: Home,
        attacker: AttackerSpec = AttackerSpec(auxiliary_fraction=0),  # noqa: B008 - frozen
        beside: WordNumbers | None = None,
    ) -> Evidence:
        """The evidence of a run.

        Args:
            folder: The run's folder (`--out`).
            given: The data that it was run on.
            archive: What the vendor handed out for its cut, as it was handed out.
            home: The folder of the customer that ran it.
            attacker: What the attacker is taken to know of the records.
            beside: Numbers of words of another run, which is read together with this one.

        Raises:
            ConfigError: The folder holds no finished run; the data has no column that the attacker asks for; or words
                were drawn in another way than those of the other run.
            DataError: The data is not the run's.
        """
        run, spec = _finished(folder), cls.settings(folder)
        if spec.objective is Objective.LM and (attacker.secret or attacker.group is not None):
            raise ConfigError(
                "A language model's texts are joined and cut into blocks, which have no attributes of their own.",
                remedy="Leave --secret-column and --group-column out.",
            )
        check_version(run.state, folder)
        if given.digests(home.secret.derive("data digest")).content != run.state.content_digest:
            raise DataError(
                f"The run in {folder} was over other data, or another customer's.",
                remedy="Give the same files and columns (and --home) as to `cutlayer finetune`.",
            )
        rows = split_rows(given, spec, noise_secret(home, spec.unsafe_noise_seed))
        data = prepare(rows, spec, archive, home, vocab_size=archive.manifest.vocab_size)
        recorded = RecordedRun(run, rows, data, archive, home, beside=beside)
        knowledge, labels = recorded.released.knowledge, recorded.labels
        in_words = recorded.in_words
        truth = replace(recorded.words, search=in_words.knowledge.search)
        known, hidden = known_and_hidden(rows.train, data.tokens, attacker)
        where: dict[str, Any] = {"records": truth.records, "steps": truth.steps}
        classes = None
        if labels is not None:
            groups = None if attacker.group is None else _numbered(rows.train, attacker.group)[0]
            classes = AttributeTruth(labels.labels, labels.num_labels, known, groups=groups, **where)
            etas = _estimated_etas(spec, data.tokens, labels, known, vocab_size=archive.manifest.vocab_size)
            knowledge = replace(knowledge, noise=Noise(spec.privacy, etas=etas))
        if spec.objective.generates:
            places, listed = tuple(range(len(data.tokens))), None
        else:
            places = places_in(given.train, rows.train)
            listed = RowTruth(torch.tensor(places), len(given.train), **where)
        if spec.train_bottom is TrainBottom.RESAMPLE:
            links = {(f"job/{job}", step): texts for (job, step), texts in recorded.released.steps.items()}
            knowledge = replace(knowledge, links=links)
        released = recorded.released.tokens if recorded.numbers is None else truth.tokens
        words = None
        if recorded.numbers is not None:
            own = singles(released.select(known.nonzero()[:, 0]))
            words = WordEvidence(recorded.numbers, in_words.transcript, in_words.knowledge, known=own)
            content = archive.template.max_content(rows.train.segments, spec.training.max_length)
            texts_of = _as_read(data) if spec.objective.generates else rows.train  # of those, empty ones are left out
            released = tokenise(texts_of, archive.tokenizer, max_content=content)
        steps_crossed = spec.objective.generates and not spec.sends_pairs
        return cls(
            spec=spec,
            transcript=recorded.released.transcript,
            knowledge=knowledge,
            tokens=truth if bool(hidden.all()) else truth.only(hidden),
            trained=recorded.trained.only(hidden) if steps_crossed and not recorded.predicts_released else None,
            said=recorded.said if steps_crossed else None,
            labels=labels,
            classes=classes,
            attributes=attribute_truths(rows.train, known, attacker, **where),
            lengths=LengthTruth(torch.stack([side.lengths for side in truth.tokens.segments]).sum(0), **where),
            listed=listed,
            known=singles(released.select(known.nonzero()[:, 0])),
            known_records=int(known.sum()),
            label_names=data.label_names,
            texts=None if spec.objective.generates else rows.train,
            rows=places,
            archive=archive,
            result=run.result(),
            words=words,
            targets=recorded.predicted if spec.objective is Objective.SEQ2SEQ and steps_crossed else None,
        )


def _of_targets(attack: Attack) -> bool:
    """Whether an attack reads what is predicted, where that is another text than the one that is released."""
    by_gradient = attack.question is Question.WORDS and attack.signal is SignalSource.GRADIENTS
    return by_gradient or attack.question is Question.ANSWERS


def _estimated_etas(
    spec: RunSpec, tokens: Tokens, labels: LabelTruth, known: Tensor, *, vocab_size: int
) -> Tensor | None:
    """Each token's eta under CTI as the attacker estimates it: from the labels of the records that it knows.

    The customer's own importance of tokens never leaves it. `None` where etas do not depend on tokens, or where the
    attacker knows no record of some class.
    """
    cti = spec.privacy.cti
    told = labels.labels[known]
    if cti is None or len(told.unique()) < labels.num_labels:
        return None
    fitted = UtilityImportance.fit(
        tokens.select(known.nonzero()[:, 0]), told, vocab_size=vocab_size, num_labels=labels.num_labels, spec=cti
    )
    return fitted.etas(eta0=spec.privacy.eta) if not cti.class_free else fitted.unlabelled_etas(eta0=spec.privacy.eta)


def _finished(folder: Path) -> Run:
    if (folder / "run.json").exists() and (run := Run.read(folder)).state.adapter is not None:
        return run
    raise ConfigError(f"{folder} holds no finished run.", remedy="Name the folder of a finished `cutlayer finetune`.")


def equal_texts(tokens: Tokens) -> Tensor:
    """`[n]` int64: a number for each different text."""
    numbers: dict[tuple[object, ...], int] = {}
    rows = (tuple(tuple(side[row].tolist()) for side in tokens.segments) for row in range(len(tokens)))
    return torch.tensor([numbers.setdefault(row, len(numbers)) for row in rows])


def attribute_truths(texts: Dataset, known: Tensor, attacker: AttackerSpec, **where: Any) -> dict[str, AttributeTruth]:
    """What attackers are asked of each private attribute.

    Args:
        texts: With the attributes as columns.
        known: `[n]` bool, texts whose attributes the attacker knows.
        attacker: Which attributes, and what makes texts dependent.
        **where: Where texts were released: `records` and `steps` of the truth.

    Raises:
        ConfigError: The data has no such column.
    """
    groups = None if attacker.group is None else _numbered(texts, attacker.group)[0]
    found = {}
    for column in attacker.secret:
        values, names = _numbered(texts, column)
        found[column] = AttributeTruth(values, len(names), known, groups=groups, **where)
    return found


def known_texts(texts: Dataset, records: Tensor, attacker: AttackerSpec) -> Tensor:
    """`[n]` bool: texts of records that the attacker knows in full.

    Args:
        texts: All of them; where the attacker knows people, with the column of who wrote each.
        records: `[n]` int64, the record of each.
        attacker: How many it knows, and by what.
    """
    unit = records if attacker.group is None else _numbered(texts, attacker.group)[0]
    order = torch.randperm(int(unit.max()) + 1, generator=torch.Generator().manual_seed(attacker.seed))
    sizes = torch.bincount(unit)[order]
    share = attacker.auxiliary_fraction
    drawn = order[sizes.cumsum(0) - sizes < share * len(unit)] if share else order[:0]
    return torch.isin(unit, drawn)


def _as_read(data: Prepared) -> Dataset:
    """The texts of train as words were read of them."""
    rows = zip(*(side.split() for side in data.tokens.segments), strict=True)
    return Dataset(tuple(tuple(data.privatizing.reading.text(names) for names in row) for row in rows))


def _numbered(texts: Dataset, column: str) -> tuple[Tensor, tuple[str, ...]]:
    """A column's values as numbers `[n]`, and what the numbers mean."""
    if column not in texts.attributes:
        raise ConfigError(f"The data has no column {column!r}.", remedy="Name a column of the file, as it is written.")
    names = tuple(sorted(set(texts.attributes[column])))
    number = {name: place for place, name in enumerate(names)}
    return torch.tensor([number[value] for value in texts.attributes[column]]), names


def known_and_hidden(texts: Dataset, tokens: Tokens, attacker: AttackerSpec) -> tuple[Tensor, Tensor]:
    """`[n]` bool each: texts that the attacker knows, and those that it is asked for.

    Args:
        texts: All of them.
        tokens: As they were read.
        attacker: How many it knows.

    Raises:
        ConfigError: None is left to ask for.
    """
    numbers = equal_texts(tokens)
    known = known_texts(texts, numbers, attacker)
    # who knows a text has read every equal one
    hidden = ~torch.isin(numbers, numbers[known])
    if bool(hidden.any()):
        return known, hidden
    fault = Fault("auxiliary_fraction", attacker.auxiliary_fraction, f"leaves none of {len(known)} texts to ask for")
    raise ConfigError([fault], remedy="Have the attacker know a smaller share, or give more texts.")


def singles(tokens: Tokens) -> Tokens:
    """Pairs as texts of their own."""
    parts = tokens.segments
    return Tokens((Ragged(torch.cat([side.values for side in parts]), torch.cat([side.lengths for side in parts])),))


def places_in(given: Dataset, texts: Dataset) -> tuple[int, ...]:
    """Where texts stand in the data that was given, counted from 0; of equal ones the first."""
    first = {text: row for row, text in reversed(list(enumerate(given.texts)))}
    return tuple(first[text] for text in texts.texts)
