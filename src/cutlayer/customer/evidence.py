"""What a run's transcript was about: who measures it holds the texts, an attack does not.

A run's folder holds the transcript and the settings. The texts are the customer's, and are given again. Which
record holds which text, and which texts each step took, follows from both.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from pydantic import Field
from torch import Tensor

from cutlayer.attacks import (
    Attack,
    AttributeTruth,
    GreedyTruth,
    Knowledge,
    LabelTruth,
    LengthTruth,
    Noise,
    Question,
    RowTruth,
    SignalSource,
    TokenTruth,
    TrainedTruth,
    Transcript,
    Truth,
)
from cutlayer.core import ConfigError, DataError, Fault, Ragged, Spec, Tokens
from cutlayer.customer.derived import noise_secret, run_order, run_privatizer
from cutlayer.customer.home import Home
from cutlayer.customer.order import Order
from cutlayer.customer.prepare import Corpora, Labelled, Prepared, prepare, split_rows
from cutlayer.customer.results import RunResult
from cutlayer.customer.run import Run, check_version
from cutlayer.customer.session import Texts
from cutlayer.customer.settings import Objective, RunSpec, TrainBottom
from cutlayer.customer.trainer import Examples, best_step, training_order
from cutlayer.customer.tuning import AnyTail, put_back, trained_parameters, tune
from cutlayer.customer.upload import BLOCK_TOKENS, blocks
from cutlayer.data import Dataset
from cutlayer.models import Archive
from cutlayer.privacy import Privatizer, UtilityImportance
from cutlayer.wire import Form

_BY_STEP = (SignalSource.GRADIENTS, SignalSource.NEIGHBOURS, SignalSource.REPORTS)
"""Where training shows labels, step by step."""


class AttackerSpec(Spec):
    """What the attacker is taken to know of the customer's records, and what it asks of them.

    Attributes:
        known: The share of records that it knows in full: text, label and private attributes. It learns from them, and
            is scored on the others.
        group: The column of what must be known of all or of none: who wrote the text.
        secret: Columns of private attributes, which it asks for.
        seed: Which records it knows.
    """

    known: float = Field(default=0.2, ge=0, lt=1)
    group: str | None = None
    secret: tuple[str, ...] = ()
    seed: int = 0


@dataclass(frozen=True)
class Joined:
    """What several runs of one customer showed together.

    Attributes:
        transcript: Of all of them.
        tokens: Which tokens their texts had.
        noises: By source of a release, how it was privatized where that is not as in the first run.
    """

    transcript: Transcript
    tokens: TokenTruth
    noises: Mapping[str, Noise]


@dataclass(frozen=True)
class Evidence:
    """A recorded run, and what it was about.

    Attributes:
        spec: The run's settings.
        transcript: What the vendor saw.
        knowledge: What the vendor knows beside it: the parts that it handed out, and how releases are privatized.
        tokens: Which tokens the texts had of which the attacker knows nothing, and where they were released.
        trained: Which tokens the texts of training steps had, each the label of those before it; `None` for runs
            that predict no tokens.
        said: What the adapter's next tokens were where it was asked; `None` for runs that predict none.
        labels: Which labels they had, and what each step was about; `None` for runs without labels, and where the
            texts had none (`unlabelled`).
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
        result: What the run found.
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
    result: RunResult
    joined: Joined | None = None

    @property
    def unlabelled(self) -> bool:
        """Whether a classifier was trained on texts that have no labels: on some that were made up for the run."""
        return self.labels is None and not self.spec.objective.generates

    def without_labels(self) -> Evidence:
        """The same of a run whose labels were made up: there is nothing to ask of them."""
        texts = None if self.texts is None else replace(self.texts, labels=None)
        return replace(self, labels=None, classes=None, label_names=(), texts=texts)

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
        return self.joined.transcript if attack.joint and self.joined else self.transcript

    def known_to(self, attack: Attack) -> Knowledge:
        """What it is granted beside that."""
        return replace(self.knowledge, noises=self.joined.noises) if attack.joint and self.joined else self.knowledge

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
            truth = self.labels if attack.signal in _BY_STEP else self.classes
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
        attacker: AttackerSpec = AttackerSpec(known=0),  # noqa: B008 - frozen
    ) -> Evidence:
        """The evidence of a run.

        Args:
            folder: The run's folder (`--out`).
            given: The data that it was run on.
            archive: What the vendor handed out for its cut, as it was handed out.
            home: The folder of the customer that ran it.
            attacker: What the attacker is taken to know of the records.

        Raises:
            ConfigError: The folder holds no finished run, or one of an encoder-decoder; or the data has no column that
                the attacker asks for.
            DataError: The data is not the run's.
        """
        run, spec = _finished(folder), cls.settings(folder)
        if spec.objective is Objective.SEQ2SEQ:
            raise ConfigError(
                "Runs of encoder-decoders are not audited yet.",
                remedy="Their result says what the vendor read of them: cutlayer finetune shows it again.",
            )
        if spec.objective.generates and (attacker.secret or attacker.group is not None):
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
        secret = noise_secret(home, spec.unsafe_noise_seed)
        rows = split_rows(given, spec, secret)
        data = prepare(rows, spec, archive, vocab_size=archive.manifest.vocab_size)
        steps = _steps(run, data, run_order(spec.seed, spec.privacy, secret))
        if spec.stores:
            privatizer = run_privatizer(archive, spec, secret, data.importance)
            records = {run.identifier("train"): record_numbers(privatizer, data.train)}
            truth = TokenTruth(data.tokens, records=records)
        else:
            truth = TokenTruth(data.tokens, steps=steps)
        labels = (
            LabelTruth(rows.labels, len(rows.names), steps, epsilon=spec.label_epsilon)
            if isinstance(rows, Labelled)
            else None
        )
        knowledge = granted(spec, archive)
        truth = replace(truth, search=knowledge.search)
        texts = equal_texts(data.tokens)
        known = _known(rows.train, texts, attacker)
        # who knows a text has read every equal one
        hidden = ~torch.isin(texts, texts[known])
        if not bool(hidden.any()):
            raise ConfigError(
                [Fault("known", attacker.known, f"leaves none of {len(known)} texts to ask for")],
                remedy="Have the attacker know a smaller share, or give more texts.",
            )
        where: dict[str, Any] = {"records": truth.records, "steps": truth.steps}
        groups = None if attacker.group is None else _numbered(rows.train, attacker.group)[0]
        classes = None
        if labels is not None:
            classes = AttributeTruth(labels.labels, labels.num_labels, known, groups=groups, **where)
        if spec.objective.generates:
            places, listed = tuple(range(len(data.tokens))), None
        else:
            places = _places(rows.train, given.train)
            listed = RowTruth(torch.tensor(places), len(given.train), **where)
        transcript = Transcript.recorded(run.transcript)
        trained = said = None
        if spec.objective.generates:
            skipped = 0 if archive.template.opening else 1
            trained = TrainedTruth(data.tokens, steps=steps, skipped=skipped).only(hidden)
            said = _said(run, archive, transcript, knowledge, texts=len(data.train), skipped=skipped)
        attributes = {}
        for column in attacker.secret:
            values, names = _numbered(rows.train, column)
            attributes[column] = AttributeTruth(values, len(names), known, groups=groups, **where)
        if labels is not None:
            etas = _estimated_etas(spec, data.tokens, labels, known, vocab_size=archive.manifest.vocab_size)
            knowledge = replace(knowledge, noise=Noise(spec.privacy, etas=etas))
        if spec.train_bottom is TrainBottom.REDRAW:
            links = {(f"job/{job}", step): texts for (job, step), texts in steps.items()}
            knowledge = replace(knowledge, links=links)
        return cls(
            spec=spec,
            transcript=transcript,
            knowledge=knowledge,
            tokens=truth if bool(hidden.all()) else truth.only(hidden),
            trained=trained,
            said=said,
            labels=labels,
            classes=classes,
            attributes=attributes,
            lengths=LengthTruth(torch.stack([side.lengths for side in data.tokens.segments]).sum(0), **where),
            listed=listed,
            known=_singles(data.tokens.select(known.nonzero()[:, 0])),
            known_records=int(known.sum()),
            label_names=data.label_names,
            texts=None if spec.objective.generates else rows.train,
            rows=places,
            archive=archive,
            result=run.result(),
        )


def _said(
    run: Run, archive: Archive, transcript: Transcript, knowledge: Knowledge, *, texts: int, skipped: int
) -> GreedyTruth:
    """What the customer's own tail made of the answers to the queries of the run's adapter."""
    source = f"adapter/{run.state.adapter}/infer"
    answers = (answer for answer in transcript.answers() if answer.source == source)
    tail = _trained_tail(run, archive, best_step(run.state, texts))
    return GreedyTruth.of(tail, answers, knowledge, skipped=skipped)


def _trained_tail(run: Run, archive: Archive, step: int) -> AnyTail:
    """The customer's tail after a step; what was handed out stays as it is, for that is what the vendor knows."""
    bottom, tail = copy.deepcopy((archive.bottom, archive.tail))  # together: weights may be tied
    parts = tune(replace(archive, bottom=bottom, tail=tail), run.state.spec)
    parameters = trained_parameters(parts.bottom, parts.tail)
    if parameters:
        put_back(parameters, run.read_trained(step))
    if parts.tail is None:
        raise TypeError("a language model's customer holds the tail")
    return parts.tail.eval()


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


def equal_texts(tokens: Tokens) -> Tensor:
    """`[n]` int64: a number for each different text."""
    numbers: dict[tuple[object, ...], int] = {}
    rows = (tuple(tuple(side[row].tolist()) for side in tokens.segments) for row in range(len(tokens)))
    return torch.tensor([numbers.setdefault(row, len(numbers)) for row in rows])


def _known(texts: Dataset, records: Tensor, attacker: AttackerSpec) -> Tensor:
    """`[n]` bool: texts of records that the attacker knows in full."""
    unit = records if attacker.group is None else _numbered(texts, attacker.group)[0]
    order = torch.randperm(int(unit.max()) + 1, generator=torch.Generator().manual_seed(attacker.seed))
    sizes = torch.bincount(unit)[order]
    drawn = order[sizes.cumsum(0) - sizes < attacker.known * len(unit)] if attacker.known else order[:0]
    return torch.isin(unit, drawn)


def _numbered(texts: Dataset, column: str) -> tuple[Tensor, tuple[str, ...]]:
    """A column's values as numbers `[n]`, and what the numbers mean."""
    if column not in texts.attributes:
        raise ConfigError(f"The data has no column {column!r}.", remedy="Name a column of the file, as it is written.")
    names = tuple(sorted(set(texts.attributes[column])))
    number = {name: place for place, name in enumerate(names)}
    return torch.tensor([number[value] for value in texts.attributes[column]]), names


def _singles(tokens: Tokens) -> Tokens:
    """Pairs as texts of their own."""
    parts = tokens.segments
    return Tokens((Ragged(torch.cat([side.values for side in parts]), torch.cat([side.lengths for side in parts])),))


def _places(texts: Dataset, given: Dataset) -> tuple[int, ...]:
    first = {text: row for row, text in reversed(list(enumerate(given.texts)))}
    return tuple(first[text] for text in texts.texts)


def _steps(run: Run, data: Prepared, order: Order) -> dict[tuple[str, int], Tensor]:
    """By job and step, the texts that it was about."""
    spec, job = run.state.spec, run.identifier("job")
    lengths = data.train.lengths
    steps: dict[tuple[str, int], Tensor] = {}
    number = spec.public_iterations
    for epoch in range(len(run.state.dev)):
        for batch in training_order(spec, order, lengths, epoch):
            number += 1
            steps[job, number] = batch
    return steps
