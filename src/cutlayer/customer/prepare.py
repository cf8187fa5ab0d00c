"""A customer's data as a run needs it: split, checked and tokenised before anything leaves."""

from __future__ import annotations

import hashlib
import json
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from cutlayer.core import ConfigError, DataError, Fault, ModelError, PrivacyError, Ragged, Tokens
from cutlayer.customer.derived import run_order, split_order
from cutlayer.customer.order import Order
from cutlayer.customer.run import DataDigests
from cutlayer.customer.session import Texts
from cutlayer.customer.settings import BLOCK_LENGTH, Objective, RunSpec
from cutlayer.customer.trainer import Examples
from cutlayer.data import UNCUT, Dataset, LabelNames, tokenise
from cutlayer.models import Archive, Template
from cutlayer.privacy import CustomerSecret, Excerpts, LabelResponse, ReportedLabels, UtilityImportance, Vault
from cutlayer.wire.messages import StepSize


@dataclass(frozen=True)
class Corpora:
    """The customer's data: what to train on, to stop on, and to measure on; and public text to begin with."""

    train: Dataset
    dev: Dataset | None
    test: Dataset | None
    public: Dataset | None = None

    def split(self, *, dev_share: float, order: Order) -> tuple[Dataset, Dataset]:
        """Train and dev; a share of train is held out where no dev was given.

        The share is drawn without looking at labels: a stratified one would make which texts are
        trained on, and so what the vendor sees, a function of the labels.

        Args:
            dev_share: The share.
            order: Draws it.
        """
        if self.dev is not None:
            return self.train, self.dev
        rows = len(self.train)
        held = math.ceil(round(dev_share * rows, 6))
        if not 0 < held < rows:
            raise ConfigError(
                [Fault("dev_share", dev_share, f"leaves one side of {rows} rows empty")],
                remedy="Give more rows, or a dev file.",
            )
        places = order.of(self.train.texts)
        return self.train.select(places[held:]), self.train.select(places[:held])

    def arranged(self, spec: RunSpec, secret: CustomerSecret) -> tuple[Dataset, Dataset, Dataset | None]:
        """Train, dev and test in the order in which a run releases them.

        Args:
            spec: The run's settings.
            secret: What its noise derives from.

        Raises:
            ConfigError: No row is left for train or dev.
        """
        order = run_order(spec.seed, spec.privacy, secret)
        train, dev = self.split(dev_share=spec.train.dev_share, order=split_order(spec, secret))
        test = None if self.test is None else self.test.select(order.of(self.test.texts))
        return train.select(order.of(train.texts)), dev.select(order.of(dev.texts)), test

    def digests(self, key: bytes) -> DataDigests:
        """Keyed digests of all texts and labels, by which a resumed run knows its data."""
        return DataDigests(
            rows=self._in_order(key), content=self._sorted(key, labels=True), texts=self._sorted(key, labels=False)
        )

    def _sorted(self, key: bytes, *, labels: bool) -> str:
        """Of rows in no order."""
        state = hashlib.blake2b(key=key, digest_size=16)
        for dataset in (self.train, self.dev, self.test, self.public):
            state.update((-1 if dataset is None else len(dataset)).to_bytes(8, signed=True))
            if dataset is None:
                continue
            named = dataset.labels if labels and dataset.labels is not None else [""] * len(dataset)
            rows = zip(dataset.texts, named, strict=True)
            for row in sorted(hashlib.blake2b(json.dumps(each).encode(), key=key).digest() for each in rows):
                state.update(row)
        return state.hexdigest()

    def _in_order(self, key: bytes) -> str:
        state = hashlib.blake2b(key=key, digest_size=16)
        for dataset in (self.train, self.dev, self.test, self.public):
            rows = -1 if dataset is None else len(dataset)
            state.update(rows.to_bytes(8, signed=True))
            if dataset is None:
                continue
            for column in (*zip(*dataset.texts, strict=True), *(() if dataset.labels is None else [dataset.labels])):
                state.update(b"column")
                for value in column:
                    # with its length, so that no two corpora are the same bytes
                    content = value.encode()
                    state.update(len(content).to_bytes(8) + content)
        return state.hexdigest()


@dataclass(frozen=True)
class Labelled:
    """A run's rows, split and with their labels as numbers: all that can be checked before the vendor is asked.

    Attributes:
        train: What to train on.
        dev: What to stop on.
        test: What to measure on, if given.
        names: The labels, of all rows that were given: a class whose few rows fell into dev has its output too.
        labels: Train's, `[n]` int64.
        dev_labels: Dev's.
        test_labels: Test's, if given.
    """

    train: Dataset
    dev: Dataset
    test: Dataset | None
    names: LabelNames
    labels: Tensor
    dev_labels: Tensor
    test_labels: Tensor | None

    @classmethod
    def of(cls, corpora: Corpora, spec: RunSpec, secret: CustomerSecret) -> Labelled:
        """Splits, puts in order and encodes.

        Raises:
            ConfigError: No row is left for train or dev.
            DataError: There is one class only, or dev or test has a label that train lacks; found after
                training, that would cost the run.
        """
        names = LabelNames.of(corpora.train.labels or ())
        for source, given in (("dev", corpora.dev), ("test", corpora.test)):
            if given is not None:
                names.encode(given.labels or (), source=source)  # an error names the file's row
        train, dev, test = corpora.arranged(spec, secret)
        return cls(
            train=train,
            dev=dev,
            test=test,
            names=names,
            labels=names.encode(train.labels or (), source="train"),
            dev_labels=names.encode(dev.labels or (), source="dev"),
            test_labels=None if test is None else names.encode(test.labels or (), source="test"),
        )

    def report(self, response: LabelResponse, tokenizer: PreTrainedTokenizerBase, *, vault: Vault) -> ReportedLabels:
        """Draws train's labels, and then dev's: gradients show the former, the choice of the best epoch the latter.

        Args:
            response: Draws them.
            tokenizer: The model's: texts that it cannot tell apart are one record.
            vault: Where they are kept.
        """
        texts = Dataset((*self.train.texts, *self.dev.texts))
        labels = torch.cat([self.labels, self.dev_labels])
        ids = tokenise(texts, tokenizer, max_content=UNCUT)
        return response.draw(texts.texts, ids, labels, self.names.names, vault=vault)


@dataclass(frozen=True)
class Plain:
    """Rows without labels beside their texts, split.

    Attributes:
        train: What to train on.
        dev: What to stop on.
        test: What to measure on, if given.
        public: What to begin with, if given; anybody may read it.
    """

    train: Dataset
    dev: Dataset
    test: Dataset | None
    public: Dataset | None

    @classmethod
    def of(cls, corpora: Corpora, spec: RunSpec, secret: CustomerSecret) -> Plain:
        """Splits and puts in order. Public text stays as it is: anybody may know its order too.

        Raises:
            ConfigError: No row is left for train or dev.
        """
        return cls(*corpora.arranged(spec, secret), corpora.public)


def split_rows(corpora: Corpora, spec: RunSpec, secret: CustomerSecret) -> Labelled | Plain:
    """The rows of a run, as its objective needs them; see `Labelled.of` and `Plain.of`."""
    kind: type[Labelled | Plain] = Plain if spec.objective.generates else Labelled
    return kind.of(corpora, spec, secret)


class Prepared(ABC):
    """A run's texts as tokens.

    Attributes:
        max_content: Content tokens per text; longer texts are cut.
        tokens: Train's.
        importance: What CTI knows of each token; `None` without CTI.
        reported: Labels as losses are computed from them; `None` where tokens are predicted, and where nothing is
            trained.
        label_names: Labels in the order of the head's outputs; none where tokens are predicted.
        public: Texts to begin with, which anybody may read.
    """

    max_content: int
    tokens: Tokens
    importance: UtilityImportance | None = None
    reported: ReportedLabels | None = None
    label_names: tuple[str, ...] = ()
    public: Examples | None = None

    @property
    def segments(self) -> int:
        """Texts a row: 1, or 2 for pairs."""
        return len(self.tokens.segments)

    @property
    @abstractmethod
    def train(self) -> Examples:
        """Train as it is released for training."""

    @property
    @abstractmethod
    def dev(self) -> Examples:
        """Dev as it is queried."""

    @property
    def stopping(self) -> Examples:
        """Dev as it chooses the epoch, which the vendor is told."""
        return self.dev

    @property
    @abstractmethod
    def test(self) -> Examples | None:
        """Test as it is queried."""

    def check(self) -> None:
        """Refuses, before anything leaves, texts that the vendor would refuse in the middle of an upload.

        Raises:
            DataError: A text has no token at all, special ones included; or no text of train has one of its own,
                from which nothing can be learned and on which nothing can be measured.
        """
        if not self.tokens.total:
            raise DataError(
                f"None of the {len(self.tokens)} texts of train has a token: they are all empty.",
                remedy="Name the column that holds the texts: --text-column, in Python text_column.",
            )
        for name, examples in (("train", self.train), ("dev", self.dev), ("test", self.test)):
            empty = 0 if examples is None else int((examples.lengths == 0).sum())
            if empty:
                raise DataError(
                    f"{empty} texts of {name} are empty, and this model adds no special tokens to them.",
                    remedy="Leave empty texts out.",
                )


def prepare(
    rows: Labelled | Plain,
    spec: RunSpec,
    archive: Archive,
    *,
    vocab_size: int,
    reported: ReportedLabels | None = None,
) -> Prepared:
    """The rows of a run as tokens.

    Args:
        rows: The data.
        spec: The run's settings.
        archive: What the vendor handed out: tokenizer and template.
        vocab_size: Rows of the model's table.
        reported: Labels of train and dev as the vendor may know them (`Labelled.report`).

    Raises:
        ConfigError: `max_length` leaves no room for a text, or is beyond the model's limit.
        DataError: There are no tokens to train on, or none to measure on.
        ModelError: The tokenizer has no mark to join texts with.
    """
    if isinstance(rows, Plain):
        kind = PairedTexts if spec.objective is Objective.SEQ2SEQ else LanguageTexts
        return kind(rows, spec, archive)
    return LabelledTexts(rows, spec, archive, vocab_size=vocab_size, reported=reported)


class LabelledTexts(Prepared):
    """Texts with a label each.

    Attributes:
        rows: The data.
    """

    def __init__(
        self,
        rows: Labelled,
        spec: RunSpec,
        archive: Archive,
        *,
        vocab_size: int,
        reported: ReportedLabels | None = None,
    ) -> None:
        self._archive = archive
        self.reported = reported
        self._cti = spec.privacy.cti
        self.rows = rows
        self.label_names = rows.names.names
        self.max_content = archive.template.max_content(rows.train.segments, spec.train.max_length)
        self.tokens = tokenise(rows.train, archive.tokenizer, max_content=self.max_content)
        if self._cti is not None:
            self.importance = UtilityImportance.fit(
                self.tokens, rows.labels, vocab_size=vocab_size, num_labels=len(rows.names), spec=self._cti
            )

    @property
    def _reported(self) -> tuple[Tensor, Tensor]:
        """Labels of train and of dev for all that the vendor sees anything of."""
        if self.reported is None:
            return self.rows.labels, self.rows.dev_labels
        train, dev = self.reported.labels.split([len(self.rows.labels), len(self.rows.dev_labels)])
        return train, dev

    @cached_property
    def train(self) -> Examples:
        """Train as it is released for training: under CTI noise may depend on the label."""
        classes = self.rows.labels if self._cti is not None and not self._cti.class_free else None
        return self._labelled(Texts(self.tokens, classes), self._reported[0])

    @cached_property
    def stopping(self) -> Examples:
        """Dev with labels as they are reported: which epoch is best, and when to stop, shows the vendor something."""
        return replace(self.dev, labels=self._reported[1])

    @cached_property
    def dev(self) -> Examples:
        """Dev as it is queried: without labels in the noise. With its true labels, which only the customer sees."""
        return self._queried(self.rows.dev, self.rows.dev_labels)

    @cached_property
    def test(self) -> Examples | None:
        """Test as it is queried."""
        if self.rows.test is None or self.rows.test_labels is None:
            return None
        return self._queried(self.rows.test, self.rows.test_labels)

    def _queried(self, dataset: Dataset, labels: Tensor) -> Examples:
        return self._labelled(Texts(tokenise(dataset, self._archive.tokenizer, max_content=self.max_content)), labels)

    def _labelled(self, texts: Texts, labels: Tensor) -> Examples:
        return Examples(texts, labels, self._archive.template.segment_lengths(texts.tokens).sum(1))


class SelfLabelled(Prepared):
    """Texts whose tokens are their own labels."""

    def __init__(self, rows: Plain, archive: Archive) -> None:
        self._archive = archive
        end = archive.tokenizer.eos_token_id
        if end is None:
            raise ModelError("The model's tokenizer has no end mark to close texts with.", remedy="Use another model.")
        self._end = int(end)
        self._train = self._tokenise(rows.train, "train")
        self.tokens = self._train.tokens
        self._dev = self._tokenise(rows.dev, "dev")
        self._test = None if rows.test is None else self._tokenise(rows.test, "test")
        if rows.public is not None:
            self.public = self._examples(replace(self._tokenise(rows.public, "the public text"), public=True))

    @cached_property
    def train(self) -> Examples:
        """Train, in blocks or pairs."""
        return self._examples(self._train)

    @cached_property
    def dev(self) -> Examples:
        """Dev, in blocks or pairs."""
        return self._examples(self._dev)

    @cached_property
    def test(self) -> Examples | None:
        """Test, in blocks or pairs."""
        return None if self._test is None else self._examples(self._test)

    @abstractmethod
    def _examples(self, texts: Texts) -> Examples:
        """Texts with their labels and lengths."""

    @abstractmethod
    def _tokenise(self, dataset: Dataset, name: str) -> Texts:
        """A data set's texts; `name` is what errors call it."""


class LanguageTexts(SelfLabelled):
    """Texts of which each token is the label of those before it.

    Every text is closed by the tokenizer's end mark. With packing, texts are joined and cut into blocks, of which the
    last may be shorter; they are privatized and charged as the texts that they are, wherever a block ends. The marks
    count as content: they are privatized like other tokens, so that they do not tell how long texts are.
    """

    def __init__(self, rows: Plain, spec: RunSpec, archive: Archive) -> None:
        self._packing = spec.train.packing
        self.max_content = _block_length(archive.template, spec.train.max_length)
        super().__init__(rows, archive)

    def _examples(self, texts: Texts) -> Examples:
        return Examples(texts, texts.tokens, self._archive.template.segment_lengths(texts.tokens).sum(1))

    def _tokenise(self, dataset: Dataset, name: str) -> Texts:
        if dataset.segments != 1:
            raise ConfigError("A language model is trained on single texts.", remedy="Leave --text-pair-column out.")
        (texts,) = tokenise(dataset, self._archive.tokenizer, max_content=UNCUT).segments
        closed = _closed(texts, self._end)
        specials = self._archive.template.special_count(1)
        excerpts = None
        if self._packing:
            total = len(closed.values)
            ends = [*range(self.max_content, total, self.max_content), total]
            lengths = torch.tensor([end - start for start, end in pairwise([0, *ends])])
            excerpts = Excerpts.blocks(closed, lengths.tolist())
            closed = Ragged(closed.values, lengths)
        else:
            closed = closed.first(closed.lengths.clamp(max=self.max_content))
        # a block of one position predicts nothing
        kept = (closed.lengths + specials > 1).nonzero()[:, 0]
        if not len(kept):
            raise DataError(f"{name} has no text of two tokens or more.", remedy="Give longer texts, or more of them.")
        return Texts(Tokens((closed,)), excerpts=excerpts).select(kept)


class PairedTexts(SelfLabelled):
    """Source texts, and target texts of which each token is the label of those before it.

    A target text begins behind the decoder's start token and is closed by the tokenizer's end mark, which is
    predicted and never sent.
    """

    def __init__(self, rows: Plain, spec: RunSpec, archive: Archive) -> None:
        settings = spec.train
        self.max_content = archive.template.max_content(1, settings.max_length)
        self._max_target = archive.target_template.max_content(1, settings.max_target_length or settings.max_length)
        super().__init__(rows, archive)

    def _examples(self, texts: Texts) -> Examples:
        tokens = texts.tokens
        templates = (self._archive.template, self._archive.target_template)
        sides = [
            template.segment_lengths(Tokens((segment,))).sum(1)
            for template, segment in zip(templates, tokens.segments, strict=True)
        ]
        # each text crosses in a frame of its own, so the longer one says how large a frame may become
        return Examples(texts, tokens, torch.stack(sides).amax(0))

    def _tokenise(self, dataset: Dataset, name: str) -> Texts:
        if dataset.segments != 2:
            raise ConfigError(f"{name} has no target texts.", remedy="Name their column: --target-column.")
        limits = (self.max_content, self._max_target)
        sides = [
            tokenise(Dataset(tuple((row[side],) for row in dataset.texts)), self._archive.tokenizer, max_content=limit)
            for side, limit in enumerate(limits)
        ]
        return Texts(Tokens(tuple(side.segments[0] for side in sides)))


def _block_length(template: Template, given: int | None) -> int:
    """Content tokens of a block.

    Raises:
        ConfigError: More than the model takes were asked for.
    """
    limit = template.max_length
    if given is not None and limit is not None and given > limit:
        raise ConfigError([Fault("max_length", given, f"must be at most {limit}, the model's limit")])
    return template.max_content(1, given or min(BLOCK_LENGTH, limit or BLOCK_LENGTH))


def _closed(texts: Ragged, end: int) -> Ragged:
    """Each text with the end mark behind it; empty texts are left out."""
    texts = texts.select(texts.lengths.nonzero()[:, 0])
    lengths = texts.lengths + 1
    values = torch.full((int(lengths.sum()),), end)
    marks = lengths.cumsum(0) - 1
    kept = torch.ones(len(values), dtype=torch.bool)
    kept[marks] = False
    values[kept] = texts.values
    return Ragged(values, lengths)


def largest_step(examples: Examples, archive: Archive, *, batch_size: int) -> StepSize:
    """How large a step becomes at most; an encoder-decoder's, if the longest texts of both sides meet in a batch.

    Args:
        examples: What is trained on; no text of it has left yet.
        archive: Where special tokens stand.
        batch_size: Texts of a step.
    """
    if not isinstance(examples.texts, Texts):
        raise PrivacyError("These texts were released already.")
    source, target = _longest(examples.texts.tokens, archive)
    return StepSize(texts=min(batch_size, len(examples)), positions=source, target_positions=target)


def _longest(tokens: Tokens, archive: Archive) -> tuple[int, int]:
    """Positions of the longest source text, and of the longest target text where texts have one."""
    if archive.manifest.target_template is None:
        return int(archive.template.segment_lengths(tokens).sum(1).max()), 0
    source, target = (
        int(template.segment_lengths(Tokens((segment,))).max())
        for template, segment in zip((archive.template, archive.target_template), tokens.segments, strict=True)
    )
    return source, target


def check_batches(lengths: Tensor, *, batch_size: int, positions: int) -> None:
    """Refuses, before anything leaves, batches that the vendor would refuse in the middle of an epoch.

    Args:
        lengths: `[n]` int64, positions of each text.
        batch_size: Texts of a step.
        positions: Of one step at most, padding included.

    Raises:
        ConfigError: The longest texts of a batch may need more.
    """
    size, longest = min(batch_size, len(lengths)), int(lengths.max())
    if size * longest <= positions:
        return
    fits = positions // longest
    raise ConfigError(
        [
            Fault(
                "batch_size",
                size,
                f"makes {size * longest} positions with texts of {longest} tokens; the vendor takes {positions} a step",
            )
        ],
        remedy=f"Use batches of {fits} texts, or a smaller max_length."
        if fits
        else f"Use a max_length of {positions} or less.",
    )
