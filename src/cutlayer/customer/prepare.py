"""A customer's data as a run needs it: split, checked and tokenised before anything leaves."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from cutlayer.core import ConfigError, DataError, Fault
from cutlayer.customer.session import Texts
from cutlayer.customer.settings import RunSpec
from cutlayer.customer.trainer import Examples
from cutlayer.data import Dataset, LabelNames, tokenise
from cutlayer.models import Archive
from cutlayer.privacy import UtilityImportance


@dataclass(frozen=True)
class Corpora:
    """The customer's data: what to train on, to stop on, and to measure on."""

    train: Dataset
    dev: Dataset | None
    test: Dataset | None

    def split(self, *, dev_share: float, seed: int) -> tuple[Dataset, Dataset]:
        """Train and dev; a share of train is held out where no dev was given.

        The share is drawn without looking at labels: a stratified one would make which texts are
        trained on, and so what the vendor sees, a function of the labels.
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
        order = torch.randperm(rows, generator=torch.Generator().manual_seed(seed)).tolist()
        return self.train.select(sorted(order[held:])), self.train.select(sorted(order[:held]))

    def digest(self, key: bytes) -> str:
        """A keyed digest of all texts and labels, by which a resumed run knows its data."""
        state = hashlib.blake2b(key=key, digest_size=16)
        for dataset in (self.train, self.dev, self.test):
            for row, label in zip(dataset.texts, dataset.labels or (), strict=False) if dataset else ():
                state.update("\x1f".join((*row, label)).encode() + b"\x1e")
            state.update(b"\x1d")
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
    def of(cls, corpora: Corpora, spec: RunSpec) -> Labelled:
        """Splits and encodes.

        Raises:
            ConfigError: No row is left for train or dev.
            DataError: There is one class only, or dev or test has a label that train lacks; found after
                training, that would cost the run.
        """
        train, dev = corpora.split(dev_share=spec.train.dev_share, seed=spec.seed)
        names = LabelNames.of(corpora.train.labels or ())
        return cls(
            train=train,
            dev=dev,
            test=corpora.test,
            names=names,
            labels=names.encode(train.labels or (), source="train"),
            dev_labels=names.encode(dev.labels or (), source="dev"),
            test_labels=None if corpora.test is None else names.encode(corpora.test.labels or (), source="test"),
        )


class Prepared:
    """A run's texts as tokens.

    Args:
        rows: The data.
        spec: The run's settings.
        archive: What the vendor handed out: tokenizer and template.
        vocab_size: Rows of the model's table.

    Raises:
        ConfigError: `max_length` leaves no room for a text.

    Attributes:
        rows: The data.
        max_content: Content tokens per text; longer texts are cut.
        tokens: Train's.
        importance: What CTI knows of each token; `None` without CTI.
    """

    def __init__(self, rows: Labelled, spec: RunSpec, archive: Archive, *, vocab_size: int) -> None:
        self._archive = archive
        self._cti = spec.privacy.cti
        self.rows = rows
        self.max_content = archive.template.max_content(self.segments, spec.train.max_length)
        self.tokens = tokenise(rows.train, archive.tokenizer, max_content=self.max_content)
        self.importance = (
            None
            if self._cti is None
            else UtilityImportance.fit(
                self.tokens, rows.labels, vocab_size=vocab_size, num_labels=len(rows.names), spec=self._cti
            )
        )

    @property
    def segments(self) -> int:
        """Texts a row: 1, or 2 for pairs."""
        return self.rows.train.segments

    @cached_property
    def train(self) -> Examples:
        """Train as it is released for training: under CTI noise may depend on the label."""
        classes = self.rows.labels if self._cti is not None and not self._cti.class_free else None
        return self._labelled(Texts(self.tokens, classes), self.rows.labels)

    @cached_property
    def dev(self) -> Examples:
        """Dev as it is queried: without labels in the noise."""
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
