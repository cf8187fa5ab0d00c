"""Public data sets as tasks: which file, which columns, how they are split.

The files are those of the folder that `CUTLAYER_DATA` (or `--data`) names, one per split:
`FOLDER/<name>/<split>.jsonl.gz`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Self

from pydantic import Field

from cutlayer.core import DataError, Spec
from cutlayer.data import Dataset, read_dataset
from cutlayer.recipes.topics import TopicLabels, Topics, find_topics

SPLIT_SEED = 0
"""All runs of a recipe see the same splits; a run's own seed varies the rest."""


class Limits(Spec):
    """Most rows of each split, for runs that shall end soon; `None` takes all."""

    train: int | None = Field(default=None, ge=2)
    dev: int | None = Field(default=None, ge=1)
    test: int | None = Field(default=None, ge=1)


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

    def read(self, folder: Path) -> tuple[Dataset, Dataset]:
        """Its files, to train and to measure on, with the labels that they have."""
        first, *second = self.text_columns
        train, test = (
            read_dataset(
                data_file(folder, self.name, part),
                text_column=first,
                text_pair_column=second[0] if second else None,
                label_column=self.label_column,
                attribute_columns=[self.group] if self.group else [],
            )
            for part in (self.train, self.test)
        )
        return train, test


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
        return cls(_at_most(train, limits.train), _at_most(dev, limits.dev), _at_most(test, limits.test))


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
    """Single texts: the beginning of a public data set's file, so many at most."""

    name: str
    part: str
    column: str = "text"
    texts: int | None = Field(default=None, ge=1)

    def path(self, folder: Path) -> Path:
        return data_file(folder, self.name, self.part)

    def read(self, folder: Path) -> Dataset:
        whole = read_dataset(self.path(folder), text_column=self.column)
        return whole if self.texts is None else whole.select(range(min(self.texts, len(whole))))


def _at_most(dataset: Dataset, rows: int | None) -> Dataset:
    return dataset if rows is None or rows >= len(dataset) else dataset.sample(rows, seed=SPLIT_SEED)
