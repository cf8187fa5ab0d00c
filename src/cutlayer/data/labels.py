"""Which output of the head stands for which label."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from cutlayer.core import DataError


@dataclass(frozen=True)
class LabelNames:
    """The labels of a task in the order of the head's outputs. They leave the customer as words that are written alone.

    Attributes:
        names: At least two different names.
    """

    names: tuple[str, ...]

    def __post_init__(self) -> None:
        if len(self.names) != len(set(self.names)):
            raise DataError("A label name stands twice in the list of labels.")
        if len(self.names) < 2:
            raise DataError(
                f"The label column holds {len(self.names)} class{'' if len(self.names) == 1 else 'es'}; "
                "a classifier needs at least 2.",
                remedy="Check that the label column is the right one and that the rows are not filtered by label.",
            )

    @classmethod
    def of(cls, labels: Sequence[str]) -> LabelNames:
        """The labels that occur, whole numbers in numeric order and before words in alphabetical order."""
        return cls(tuple(sorted(set(labels), key=_order)))

    def __len__(self) -> int:
        return len(self.names)

    def encode(self, labels: Sequence[str], *, source: str) -> Tensor:
        """Numbers of labels, `[n]` int64.

        Args:
            labels: The labels of rows.
            source: What to call these rows in an error, for example `test`.

        Raises:
            DataError: A row has a label that is not in the list; the row is named, the label is not.
        """
        numbers = {name: number for number, name in enumerate(self.names)}
        for row, label in enumerate(labels, start=1):
            if label not in numbers:
                raise DataError(
                    f"Row {row} of {source} has a label that does not occur in the training rows "
                    f"({len(self)} labels do).",
                    remedy="Train on rows of all labels, or leave such rows out.",
                )
        return torch.tensor([numbers[label] for label in labels], dtype=torch.int64)


def _order(label: str) -> tuple[int, int, str]:
    # 10 classes named 0 to 9, or 77 named 0 to 76, keep their own numbers
    return (0, int(label), label) if label.isascii() and label.isdigit() else (1, 0, label)
