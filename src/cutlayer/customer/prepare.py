"""A customer's data as a run needs it: split, checked and tokenised before anything leaves."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from functools import cached_property
from itertools import pairwise

import torch
from torch import Tensor

from cutlayer.core import ConfigError, DataError, Fault, PrecededTokens, PrivacyError, Ragged, Tokens
from cutlayer.customer.closing import Closing, row_length
from cutlayer.customer.corpora import Labelled, Plain
from cutlayer.customer.derived import Privatizing, run_privatizing, run_reading
from cutlayer.customer.home import Home
from cutlayer.customer.label_words import label_ids
from cutlayer.customer.reading import Reading, pair_lengths
from cutlayer.customer.session import Texts
from cutlayer.customer.settings import Objective, RunSpec
from cutlayer.customer.trainer import Examples
from cutlayer.data import UNCUT, Dataset, tokenise
from cutlayer.models import Archive
from cutlayer.privacy import Excerpts, ReportedLabels, UtilityImportance
from cutlayer.wire.messages import StepSize


class Prepared(ABC):
    """A run's texts as tokens.

    Attributes:
        max_content: Content tokens per text; longer texts are cut.
        tokens: Train's.
        privatizing: How they are read and privatized.
        importance: What CTI knows of each token; `None` without CTI.
        reported: Labels as losses are computed from them; `None` where tokens are predicted, and where nothing is
            trained.
        label_names: Labels in the order of the head's outputs; none where tokens are predicted.
        label_words: Of each the ids that an encoder-decoder writes for it; `None` of other models.
        public: Texts to begin with, which anybody may read.
    """

    max_content: int
    tokens: Tokens
    privatizing: Privatizing
    importance: UtilityImportance | None = None
    reported: ReportedLabels | None = None
    label_names: tuple[str, ...] = ()
    label_words: tuple[tuple[int, ...], ...] | None = None
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
    home: Home,
    *,
    vocab_size: int,
    reported: ReportedLabels | None = None,
) -> Prepared:
    """The rows of a run as tokens, or words.

    Args:
        rows: The data.
        spec: The run's settings.
        archive: What the vendor handed out: tokenizer and template.
        home: The customer's folder.
        vocab_size: Rows of the model's table.
        reported: Labels of train and dev as the vendor may know them (`Labelled.report`).

    Raises:
        ConfigError: `max_length` leaves no room for a text, or is beyond the model's limit.
        DataError: There are no tokens to train on, or none to measure on.
        ModelError: The tokenizer has no mark to join texts with.
    """
    reading = run_reading(archive, home, spec)
    if isinstance(rows, Plain):
        kind = PairedTexts if spec.objective is Objective.SEQ2SEQ else LanguageTexts
        found: Prepared = kind(rows, spec, archive, reading)
    else:
        found = LabelledTexts(rows, spec, archive, reading=reading, vocab_size=vocab_size, reported=reported)
    found.privatizing = run_privatizing(archive, home, spec, importance=found.importance, reading=reading)
    return found


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
        reading: Reading,
        vocab_size: int,
        reported: ReportedLabels | None = None,
    ) -> None:
        self._archive = archive
        self._reading = reading
        self.reported = reported
        self._cti = spec.privacy.cti
        self.rows = rows
        self.label_names = rows.names.names
        self.label_words = label_ids(self.label_names, spec.label_words, archive)
        self.max_content = archive.template.behind(spec.tuning.positions).max_content(
            rows.train.segments, spec.training.max_length
        )
        self.tokens = reading.read(rows.train, max_content=self.max_content)
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
        return self._labelled(Texts(self.tokens, classes, trained=True), self._reported[0])

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
        return self._labelled(Texts(self._reading.read(dataset, max_content=self.max_content)), labels)

    def _labelled(self, texts: Texts, labels: Tensor) -> Examples:
        privatizer = self.privatizing.of(trained=texts.trained)
        lengths = self._archive.template.segment_lengths(privatizer.shape(texts.tokens))
        return Examples(texts, labels, lengths.sum(1))


class SelfLabelled(Prepared):
    """Texts whose tokens are their own labels."""

    def __init__(self, rows: Plain, archive: Archive, reading: Reading) -> None:
        self._archive = archive
        self._reading = reading
        self._closing = Closing.of(archive.tokenizer)
        self._train = self._tokenise(rows.train, "train")
        self.tokens = self._train.tokens
        self._dev = self._tokenise(rows.dev, "dev")
        self._test = None if rows.test is None else self._tokenise(rows.test, "test")
        if rows.public is not None:
            self.public = self._examples(replace(self._tokenise(rows.public, "the public text"), public=True))

    @cached_property
    def train(self) -> Examples:
        """Train, in blocks or pairs."""
        return self._examples(replace(self._train, trained=True))

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
    """Texts of which each token is the label of those before it; of pairs the target text's tokens alone are labels.

    Every text is closed by the tokenizer's end mark. With packing, texts are joined and cut into blocks, of which the
    last may be shorter; they are privatized and charged as the texts that they are, wherever a block ends. A target
    text stands behind its source text, in one text with it. The marks
    count as content: they are privatized like other tokens, so that they do not tell how long texts are. Where words
    are drawn, marks stand behind the texts that these make, and labels are the tokens that leave: a text's own do not
    stand in line with them. Public words before a text are not among its labels.
    """

    def __init__(self, rows: Plain, spec: RunSpec, archive: Archive, reading: Reading) -> None:
        self._packing = spec.training.packing
        self._draws_words = reading.dictionary is not None or spec.reconstruction.plain_tokens > 0
        self._pairs = rows.train.segments == 2
        if self._pairs and self._packing:
            raise ConfigError([Fault("packing", True, "must be off for pairs: a target text follows its own source")])
        self.max_content = row_length(archive.template.behind(spec.tuning.positions), spec.training.max_length)
        super().__init__(rows, archive, reading)

    @property
    def segments(self) -> int:
        """See `Prepared.segments`: a pair is joined to one text as it leaves."""
        return 2 if self._pairs else 1

    def _examples(self, texts: Texts) -> Examples:
        leaving = texts.tokens
        if self._draws_words:
            privatizer = self.privatizing.of(trained=texts.trained)
            leaving = privatizer.shape(texts.tokens)  # the very ids: the draw of a text never changes
        (ids,) = leaving.segments
        labels = self._closing.part(ids) if self._pairs else leaving
        if isinstance(leaving, PrecededTokens) and not self._pairs:
            plain, own = leaving.parted()
            labels = Tokens((plain, *own.segments))  # public words are read, and not predicted
        return Examples(texts, labels, self._archive.template.segment_lengths(leaving).sum(1))

    def _tokenise(self, dataset: Dataset, name: str) -> Texts:
        if dataset.segments != (2 if self._pairs else 1):
            raise ConfigError(
                f"{name} has {'single texts' if self._pairs else 'pairs'}, and train has not.",
                remedy="Name the same columns for all.",
            )
        texts = self._closed(dataset)
        lengths = torch.stack([side.lengths for side in texts.tokens.segments]).sum(0)
        # one position predicts nothing; words are closed when they are written, so one is enough
        more = 1 if self._reading.dictionary is None else 0
        specials = self._archive.template.special_count(1) if more else 0
        kept = (lengths + specials > more).nonzero()[:, 0]
        if not len(kept):
            raise DataError(f"{name} has no text of two tokens or more.", remedy="Give longer texts, or more of them.")
        return texts.select(kept)

    def _closed(self, dataset: Dataset) -> Texts:
        """Texts, pairs or blocks of ids, or words of texts and pairs, which are closed when they are written."""
        if self._reading.dictionary is not None:
            return Texts(self._reading.read(dataset, max_content=self.max_content))
        most = self.max_content
        if self._pairs:
            # of a pair that is too long the target's mark goes, as of a single text
            tokens = tokenise(dataset, self._archive.tokenizer, max_content=most - 1)
            content = torch.stack([side.lengths for side in tokens.segments]).sum(0)
            sides = tokens.select(content.nonzero()[:, 0]).segments
            return Texts(Tokens((self._closing.join(sides, most),)))
        (texts,) = tokenise(dataset, self._archive.tokenizer, max_content=UNCUT).segments
        texts = texts.select(texts.lengths.nonzero()[:, 0])
        if not self._packing:
            return Texts(Tokens((self._closing.join([texts], most),)))
        closed = self._closing.close(texts)
        total = len(closed.values)
        ends = [*range(most, total, most), total]
        lengths = torch.tensor([end - start for start, end in pairwise([0, *ends])])
        excerpts = Excerpts.blocks(closed, lengths.tolist())
        return Texts(Tokens((Ragged(closed.values, lengths),)), excerpts=excerpts)


class PairedTexts(SelfLabelled):
    """Source texts, and target texts of which each token is the label of those before it.

    A target text begins behind the decoder's start token and is closed by the tokenizer's end mark, which is
    predicted and never sent. Where the vendor has both texts, they are one record.
    """

    def __init__(self, rows: Plain, spec: RunSpec, archive: Archive, reading: Reading) -> None:
        self._together = spec.sends_pairs
        self.max_content, self._max_target = pair_lengths(archive, spec)
        super().__init__(rows, archive, reading)

    def _examples(self, texts: Texts) -> Examples:
        tokens = texts.tokens
        if self._together:  # as they leave, which of drawn words is another number of tokens
            leaving = self.privatizing.of(trained=texts.trained).shape(tokens)
            return Examples(texts, leaving, self._archive.template.segment_lengths(leaving).sum(1))
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
        if self._reading.dictionary is not None:
            read = self._reading.read(dataset, max_content=self.max_content + self._max_target)
            return Texts(read, apart=self._together)
        limits = (self.max_content, self._max_target)
        sides = [
            tokenise(Dataset(tuple((row[side],) for row in dataset.texts)), self._archive.tokenizer, max_content=limit)
            for side, limit in enumerate(limits)
        ]
        return Texts(Tokens(tuple(side.segments[0] for side in sides)), apart=self._together)


def largest_step(examples: Examples, archive: Archive, *, batch_size: int) -> StepSize:
    """How large a step becomes at most; an encoder-decoder's, if the longest texts of both sides meet in a batch.

    Args:
        examples: What is trained on; no text of it has left yet.
        archive: Where special tokens stand.
        batch_size: Texts of a step.
    """
    if not isinstance(examples.texts, Texts):
        raise PrivacyError("These texts were released already.")
    source, target = _longest(examples, archive)
    return StepSize(texts=min(batch_size, len(examples)), positions=source, target_positions=target)


def _longest(examples: Examples, archive: Archive) -> tuple[int, int]:
    """Positions of the longest source text, and of the longest target text where texts have one."""
    if archive.manifest.target_template is None or isinstance(examples.labels, Tensor):
        return int(examples.lengths.max()), 0
    pairs = examples.labels.segments  # as they leave
    source, target = (
        int(template.segment_lengths(Tokens((segment,))).max())
        for template, segment in zip((archive.template, archive.target_template), pairs, strict=True)
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
