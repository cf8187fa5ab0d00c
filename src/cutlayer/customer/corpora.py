"""A customer's rows: read, split, put in the order in which they leave, with labels as numbers."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from cutlayer.core import ConfigError, Fault
from cutlayer.customer.derived import run_order, split_order
from cutlayer.customer.order import Order
from cutlayer.customer.run import DataDigests
from cutlayer.customer.settings import RunSpec
from cutlayer.data import UNCUT, Dataset, LabelNames, tokenise
from cutlayer.privacy import CustomerSecret, LabelResponse, ReportedLabels, Vault

MANY = 50
"""Texts of dev that are held out of train by default; fewer choose the epoch almost by chance."""


@dataclass(frozen=True)
class Corpora:
    """The customer's data: what to train on, to stop on, and to measure on; and public text to begin with."""

    train: Dataset
    dev: Dataset | None
    test: Dataset | None
    public: Dataset | None = None

    def split(self, *, dev_share: float | None, order: Order) -> tuple[Dataset, Dataset]:
        """Train and dev; a share of train is held out where no dev was given.

        The share is drawn without looking at labels: a stratified one would make which texts are
        trained on, and so what the vendor sees, a function of the labels.

        Args:
            dev_share: The share; `None` for a tenth, or up to 50 texts where a fifth is as many.
            order: Draws it.
        """
        if self.dev is not None:
            return self.train, self.dev
        rows = len(self.train)
        held = default_held_out(rows) if dev_share is None else math.ceil(round(dev_share * rows, 6))
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
        train, dev = self.split(dev_share=spec.training.dev_share, order=split_order(spec, secret))
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


def default_held_out(rows: int) -> int:
    """Rows of dev where no share was given: an accuracy's standard error is 7 points at most, if enough is left."""
    return max(math.ceil(rows / 10), min(MANY, rows // 5))


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
