"""Texts with their labels, in memory, at the customer."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from cutlayer.core import ConfigError, DataError, Fault


@dataclass(frozen=True, eq=False)
class Dataset:
    """Texts, or pairs of texts, with an optional label each.

    Attributes:
        texts: One tuple a row: the text, or the two texts of a pair. All rows have as many.
        labels: One name a row, or `None` for texts without labels.
        attributes: Further columns that were asked for, by name, one value a row: what an evaluation
            needs beside the label, for example who wrote the text.
    """

    texts: tuple[tuple[str, ...], ...]
    labels: tuple[str, ...] | None = None
    attributes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        widths = {len(row) for row in self.texts}
        if widths - {1, 2} or len(widths) > 1:
            raise DataError("Rows hold one text or two, and all rows as many.")
        columns = [*self.attributes.values(), *([] if self.labels is None else [self.labels])]
        if any(len(column) != len(self.texts) for column in columns):
            raise DataError("Labels and attributes need one value for each text.")
        for column in (*zip(*self.texts, strict=True), *columns):
            _check_characters(column)

    def __len__(self) -> int:
        return len(self.texts)

    @property
    def segments(self) -> int:
        """Texts a row: 1, or 2 for pairs."""
        return len(self.texts[0]) if self.texts else 1

    def select(self, indices: Sequence[int]) -> Dataset:
        """The rows at `indices`, in that order."""
        return Dataset(
            tuple(self.texts[i] for i in indices),
            None if self.labels is None else tuple(self.labels[i] for i in indices),
            {name: tuple(values[i] for i in indices) for name, values in self.attributes.items()},
        )

    def split_off(self, share: float, *, seed: int, group: str | None = None) -> tuple[Dataset, Dataset]:
        """Splits rows in two at random, keeping each label's share (or each group whole).

        Both parts keep the order of rows. The smaller part has ceil(share * n) rows, so 1 % of the
        67,349 phrases of SST-2 are SAP's 674 (Table 1); with groups about as many.

        Args:
            share: Share of rows to split off, between 0 and 1.
            seed: Which split; the same seed gives the same split on every machine.
            group: An attribute whose values must not lie on both sides, for example the author. Then
                whole groups are drawn at random until the part is full, and labels are not balanced.

        Returns:
            The rest, and the part split off.

        Raises:
            ConfigError: The share is not between 0 and 1, or leaves one side empty.
        """
        if not 0 < share < 1:
            raise ConfigError([Fault("share", share, "must lie between 0 and 1, both excluded")])
        wanted = math.ceil(round(share * len(self), 6))
        if not 0 < wanted < len(self):
            raise ConfigError(
                [Fault("share", share, f"leaves one side of {len(self)} rows empty")],
                remedy="Give more rows, or the held-out rows as a file of their own.",
            )
        rng = np.random.Generator(np.random.PCG64(seed))
        part = set(self._whole_groups(wanted, group, rng) if group else self._stratified(wanted, rng))
        if len(part) == len(self):
            raise ConfigError(f"Column {group!r} has one value in all rows, so no group can be split off.")
        return (
            self.select([i for i in range(len(self)) if i not in part]),
            self.select([i for i in range(len(self)) if i in part]),
        )

    def sample(self, rows: int, *, seed: int) -> Dataset:
        """So many rows at random, keeping each label's share; in their order."""
        rng = np.random.Generator(np.random.PCG64(seed))
        return self.select(sorted(self._stratified(rows, rng)))

    def _stratified(self, wanted: int, rng: np.random.Generator) -> Iterator[int]:
        """Largest-remainder shares of `wanted` rows over the labels, drawn without replacement."""
        rows: defaultdict[str, list[int]] = defaultdict(list)
        for i, label in enumerate(self.labels or [""] * len(self)):
            rows[label].append(i)
        exact = {label: wanted * len(members) / len(self) for label, members in sorted(rows.items())}
        counts = {label: math.floor(value) for label, value in exact.items()}
        by_remainder = sorted(exact, key=lambda label: (counts[label] - exact[label], label))
        for label in by_remainder[: wanted - sum(counts.values())]:
            counts[label] += 1
        for label, count in counts.items():
            yield from (rows[label][k] for k in rng.permutation(len(rows[label]))[:count])

    def _whole_groups(self, wanted: int, group: str, rng: np.random.Generator) -> Iterator[int]:
        rows: defaultdict[str, list[int]] = defaultdict(list)
        for i, value in enumerate(self.attributes[group]):
            rows[value].append(i)
        names = sorted(rows)
        taken = 0
        for k in rng.permutation(len(names)):
            if taken >= wanted:
                return
            taken += len(rows[names[k]])
            yield from rows[names[k]]


def _check_characters(column: Sequence[str]) -> None:
    for number, value in enumerate(column, start=1):
        if not isinstance(value, str):
            raise DataError(f"Row {number} holds a value of type {type(value).__name__}, where a text is needed.")
        check_characters(value, f"Row {number}")


def check_characters(text: str, row: str) -> None:
    """Refuses what is no text in any encoding.

    Args:
        text: A value.
        row: What errors call the row that it stands in.

    Raises:
        DataError: It holds half of a surrogate pair.
    """
    if text.isascii():
        return
    try:
        text.encode()
    except UnicodeEncodeError:
        # the error's own text quotes the row, hence no `from error`
        raise DataError(
            f"{row} holds half of a surrogate pair, which is no character.",
            remedy="JSON writes it as \\ud800 to \\udfff; take it out, or write both halves.",
        ) from None
