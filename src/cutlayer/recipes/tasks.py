"""Public data sets as tasks: which file, which columns, how they are split, and topics where nobody wrote labels down.

The files are those of the folder that `CUTLAYER_DATA` (or `--data`) names, one per split:
`FOLDER/<name>/<split>.jsonl.gz`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import numpy as np
from pydantic import Field
from sklearn.decomposition import LatentDirichletAllocation
from sklearn.feature_extraction.text import CountVectorizer

from cutlayer.core import DataError, Spec
from cutlayer.data import Dataset, read_dataset
from cutlayer.data.read import rows_with

_WORD = r"[a-z]{3,}"
SPLIT_SEED = 0
"""All runs of a recipe see the same splits; a run's own seed varies the rest."""


class Limits(Spec):
    """Most rows of each split, for runs that shall end soon; `None` takes all."""

    train: int | None = Field(default=None, ge=2)
    dev: int | None = Field(default=None, ge=1)
    test: int | None = Field(default=None, ge=1)


class Topics(Spec):
    """How topics are found.

    Attributes:
        count: Topics of the model.
        share: A text whose main topic makes less of it than this has no label.
        least_texts: Words that fewer training texts hold are not looked at.
        most_texts: Words that a greater share of the training texts hold are not looked at.
        passes: Passes over the training texts.
    """

    count: int = Field(default=10, ge=2)
    share: float = Field(default=0.5, gt=0, lt=1)
    least_texts: int = Field(default=20, ge=1)
    most_texts: float = Field(default=0.1, gt=0, le=1)
    passes: int = Field(default=10, ge=1)


class TopicLabels(Spec):
    """The main topic of each text, or `None` where none is main enough.

    Attributes:
        of: A line for each data set.
        texts: Digest of the texts of each data set.
    """

    of: tuple[tuple[str | None, ...], ...]
    texts: tuple[str, ...]

    def apply(self, datasets: Sequence[Dataset]) -> list[Dataset]:
        """The rows that have a topic, with the topic as their label.

        Raises:
            DataError: The data sets are not those that were labelled.
        """
        if tuple(_digest(dataset) for dataset in datasets) != self.texts:
            raise DataError(
                "The topics that were kept belong to other files.", remedy="Use a new folder for this experiment."
            )
        labelled = []
        for dataset, topics in zip(datasets, self.of, strict=True):
            found = [(row, topic) for row, topic in enumerate(topics) if topic is not None]
            labelled.append(
                replace(dataset.select([row for row, _ in found]), labels=tuple(topic for _, topic in found))
            )
        return labelled


def find_topics(datasets: Sequence[Dataset], topics: Topics, *, seed: int) -> TopicLabels:
    """Fits latent Dirichlet allocation to the first data set, the training texts, and labels all of them.

    The same seed gives the same topics.

    Raises:
        DataError: The training texts have too few words in common.
    """
    texts = [[" ".join(row) for row in dataset.texts] for dataset in datasets]
    words = CountVectorizer(
        stop_words="english", token_pattern=_WORD, min_df=topics.least_texts, max_df=topics.most_texts
    )
    try:
        counts = words.fit_transform(texts[0])
    except ValueError as error:
        raise DataError(
            f"No word of the {len(texts[0])} training texts stands in at least {topics.least_texts} of them and in "
            f"{topics.most_texts:.0%} at most, so they have no topics.",
            remedy="Give more texts, or lower `least_texts`.",
        ) from error
    model = LatentDirichletAllocation(topics.count, max_iter=topics.passes, random_state=seed).fit(counts)
    return TopicLabels(
        of=tuple(_main_topics(model.transform(words.transform(part)), topics.share) for part in texts),
        texts=tuple(_digest(dataset) for dataset in datasets),
    )


def _digest(dataset: Dataset) -> str:
    return hashlib.sha256(json.dumps(dataset.texts).encode()).hexdigest()


def _main_topics(shares: np.ndarray[tuple[int, int], np.dtype[np.float64]], least: float) -> tuple[str | None, ...]:
    return tuple(
        f"topic {main}" if row[main] >= least else None for row, main in zip(shares, shares.argmax(1), strict=True)
    )


class Task(Spec):
    """A data set for classification.

    Attributes:
        name: Its folder.
        title: What the paper calls it.
        text_columns: One column, or two for pairs.
        label_column: The label.
        train: File to train on; dev is taken from it.
        test: File to measure on; neither training nor stopping sees it.
        dev_share: Share of train that is held out for stopping.
        group: A column whose values must not lie on both sides of that cut, for example the author.
        topics: Where the file's labels are not topics: how topics are found, which take their place.
        attributes: Further columns that are read: what attackers infer of a text's author.
    """

    name: str
    title: str
    text_columns: tuple[str, ...] = ("text",)
    label_column: str = "label"
    train: str = "train"
    test: str = "test"
    dev_share: float = Field(gt=0, lt=1)
    group: str | None = None
    topics: Topics | None = None
    attributes: tuple[str, ...] = Field(default=(), exclude_if=lambda columns: not columns)

    def read(self, folder: Path) -> tuple[Dataset, Dataset]:
        """Its files, to train and to measure on, with the labels that they have."""
        first, *second = self.text_columns
        train, test = (
            read_dataset(
                data_file(folder, self.name, part),
                text_column=first,
                text_pair_column=second[0] if second else None,
                label_column=self.label_column,
                attribute_columns=[*([self.group] if self.group else []), *self.attributes],
            )
            for part in (self.train, self.test)
        )
        return train, test

    def check(self, folder: Path) -> None:
        """Looks whether its files are there.

        Raises:
            DataError: One is not.
        """
        for part in (self.train, self.test):
            data_file(folder, self.name, part)

    def read_at_most(self, folder: Path, limits: Limits) -> tuple[Dataset, int]:
        """Rows of both files as one data set, those to train on first, so many at most; and how many these are."""
        train, test = (
            at_most(each, most) for each, most in zip(self.read(folder), (limits.train, limits.test), strict=True)
        )
        return Dataset(train.texts + test.texts, (train.labels or ()) + (test.labels or ())), len(train)


@dataclass(frozen=True)
class Splits:
    """A task's rows."""

    train: Dataset
    dev: Dataset
    test: Dataset

    @classmethod
    def read(cls, task: Task, folder: Path, limits: Limits, topics: TopicLabels | None = None) -> Self:
        """Reads a task, holds out dev, and takes at most so many rows of each split.

        Dev is stratified by label, or made of whole groups. Rows beyond a limit are left out at random, stratified by
        label too. `topics` are those of a task whose labels they are; by default they are found anew, which takes a
        minute for ten thousand texts.
        """
        train, test = task.read(folder)
        if task.topics is not None:
            found = topics or find_topics((train, test), task.topics, seed=SPLIT_SEED)
            train, test = found.apply((train, test))
        train, dev = train.split_off(task.dev_share, seed=SPLIT_SEED, group=task.group)
        return cls(at_most(train, limits.train), at_most(dev, limits.dev), at_most(test, limits.test))


def data_file(folder: Path, name: str, part: str) -> Path:
    """A data set's file.

    Raises:
        DataError: It is not there.
    """
    path = folder / name / f"{part}.jsonl.gz"
    if not path.is_file():
        raise DataError(
            f"The recipe needs {path}, which is not there.",
            remedy="Set CUTLAYER_DATA (or --data) to the folder that holds the public data sets.",
        )
    return path


class TextFile(Spec):
    """Single texts: the beginning of a public data set's file, so many at most.

    Attributes:
        lists: Whether the column holds lists of texts, each of which counts, such as the turns of dialogues.
    """

    name: str
    part: str
    column: str = "text"
    lists: bool = Field(default=False, exclude_if=lambda lists: not lists)
    texts: int | None = Field(default=None, ge=1)

    def path(self, folder: Path) -> Path:
        return data_file(folder, self.name, self.part)

    def read(self, folder: Path) -> Dataset:
        path = self.path(folder)
        if self.lists:
            listed = ({self.column: text} for row in rows_with(path, [self.column]) for text in row[self.column])
            whole = read_dataset(list(listed), text_column=self.column)
        else:
            whole = read_dataset(path, text_column=self.column)
        return whole if self.texts is None else whole.select(range(min(self.texts, len(whole))))


def at_most(dataset: Dataset, rows: int | None) -> Dataset:
    """So many rows of a data set at most, drawn at random; all where none is said."""
    return dataset if rows is None or rows >= len(dataset) else dataset.sample(rows, seed=SPLIT_SEED)
