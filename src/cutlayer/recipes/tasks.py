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
        labels: The labels whose rows are kept; `None` keeps all.
    """

    name: str
    title: str
    text_columns: tuple[str, ...] = ("text",)
    label_column: str = "label"
    train: str = "train"
    test: str = "test"
    dev_share: float = Field(gt=0, lt=1)
    group: str | None = None
    labels: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Splits:
    """A task's rows."""

    train: Dataset
    dev: Dataset
    test: Dataset

    @classmethod
    def read(cls, task: Task, folder: Path, limits: Limits) -> Self:
        """Reads a task, holds out dev, and takes at most so many rows of each split.

        Dev is stratified by label, or made of whole groups. Rows beyond a limit are left out at
        random, stratified by label too.

        Raises:
            DataError: A file is missing.
        """
        train, dev = _read(task, folder, task.train).split_off(task.dev_share, seed=SPLIT_SEED, group=task.group)
        test = _read(task, folder, task.test)
        return cls(_at_most(train, limits.train), _at_most(dev, limits.dev), _at_most(test, limits.test))


def _read(task: Task, folder: Path, split: str) -> Dataset:
    path = folder / task.name / f"{split}.jsonl.gz"
    if not path.is_file():
        raise DataError(
            f"Task {task.name} needs {path}, which is not there.",
            remedy="Set CUTLAYER_DATA (or --data) to the folder that holds the public data sets.",
        )
    first, *second = task.text_columns
    dataset = read_dataset(
        path,
        text_column=first,
        text_pair_column=second[0] if second else None,
        label_column=task.label_column,
        attribute_columns=[task.group] if task.group else [],
    )
    if task.labels is None:
        return dataset
    return dataset.select([row for row, label in enumerate(dataset.labels or ()) if label in task.labels])


def _at_most(dataset: Dataset, rows: int | None) -> Dataset:
    return dataset if rows is None or rows >= len(dataset) else dataset.sample(rows, seed=SPLIT_SEED)
