"""Results compared text by text: two runs of one seed are measured on the same test texts.

Two accuracies on some hundred texts are uncertain by points, mostly because some texts are hard for both. Of their
difference that is left out. Its error is over texts and over runs, as another study would have other ones of both.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, product
from typing import Final, Protocol, Self, TypeAlias, runtime_checkable

import torch
from torch import Tensor

from cutlayer.recipes.claims import above
from cutlayer.recipes.long_table import Level, Measure
from cutlayer.recipes.study import Claim, Results
from cutlayer.recipes.word_training import READ, UA, most_read
from cutlayer.reports.estimate import mean_interval, standard_error

GAINED: Final = f"{UA} gained"
EQUAL: Final = "UA gained at equal reading"
ACCURACY: Final = "UA at equal reading"


@runtime_checkable
class ByText(Protocol):
    """A cell's result that is known of each text."""

    def by_text(self, metric: str, where: Mapping[str, Level]) -> Tensor | None:
        """What each text adds to a mean, `[runs, texts]` float64.

        Args:
            metric: The mean's name in the long table.
            where: Where it stands on axes that the cell does not; the result has none of other places.
        """
        ...


@dataclass(frozen=True)
class Answers:
    """What the cells of a place make of the test texts.

    Attributes:
        by_seed: `[runs, texts]` float64 each: 1 where a text is labelled right, and between two places a part of it.
    """

    by_seed: Mapping[int, Tensor]

    @classmethod
    def at(cls, results: Results, metric: str = UA, **axes: Level) -> Self:
        """Those of the finished cells that stand there."""
        found = {}
        for scenario in results.scenarios:
            result, own = results.cells.get(scenario.cell), scenario.axes
            if isinstance(result, ByText) and all(own.get(each, at) == at for each, at in axes.items()):
                values = result.by_text(metric, {each: at for each, at in axes.items() if each not in own})
                if values is not None:
                    found[scenario.cell.seed] = values
        return cls(found)

    @property
    def accuracy(self) -> tuple[float, float, int]:
        """The share of texts that are labelled right, with the standard error, and of how many texts."""
        values = _of_runs(list(self.by_seed.values()))
        return float(values.mean()), standard_error(values), values.shape[1]

    def towards(self, other: Answers, part: float) -> Answers:
        """A part of the way to another place, along a straight line."""
        return Answers({seed: (1 - part) * one + part * two for seed, one, two in self._paired(other)})

    def gained_by(self, other: Answers) -> Tensor | None:
        """By how much the others are more accurate on each text, `[runs, texts]`; none where no run has both."""
        paired = [two - one for _, one, two in self._paired(other)]
        return _of_runs(paired) if paired else None

    def _paired(self, other: Answers) -> Iterator[tuple[int, Tensor, Tensor]]:
        for seed in sorted(self.by_seed.keys() & other.by_seed.keys()):
            yield seed, self.by_seed[seed], other.by_seed[seed]


def _of_runs(of_seeds: Sequence[Tensor]) -> Tensor:
    """`[runs, texts]` of each seed as runs that have nothing in common.

    Runs of one seed have something in common, which they have not with those of others: each seed counts as one, and
    its runs where there is no other.
    """
    return of_seeds[0] if len(of_seeds) == 1 else torch.stack([each.mean(0) for each in of_seeds])


@dataclass(frozen=True)
class Gains:
    """By how much each arm exceeds another at the same place, text by text.

    Attributes:
        pairs: Of arms: the one that is compared with, and the other.
        places: Where pairs are compared, on axes of the scenarios.
        axis: On which arms stand.
        metrics: What is compared: `METRIC gained` in the long table.
    """

    pairs: Sequence[tuple[str, str]]
    places: Sequence[Mapping[str, Level]]
    axis: str = "arm"
    metrics: Sequence[str] = (UA,)

    def __call__(self, results: Results) -> Iterator[Measure]:
        for place, (before, after), metric in product(self.places, self.pairs, self.metrics):
            first, second = (Answers.at(results, metric, **{**place, self.axis: arm}) for arm in (before, after))
            axes: dict[str, Level] = {**place, self.axis: after, "over": before}
            yield _measured(f"{metric} gained", first.gained_by(second), axes)

    def claims(self, by: Mapping[tuple[str, str], str], titles: Mapping[str, str], said: Sequence[str]) -> list[Claim]:
        """That arms are more accurate than those that they are compared with.

        Args:
            by: Who says so, of each pair of which somebody does.
            titles: Of arms.
            said: What stands before the sentence, of each place.
        """
        return [
            above(
                f"{about}: {titles[after]} is more accurate than {titles[before]} ({source}).", GAINED,
                {**place, "arm": after, "over": before}, refuted_below=True,
            )
            for place, about in zip(self.places, said, strict=True)
            for (before, after), source in by.items()
        ]  # fmt: skip


Line: TypeAlias = Sequence[tuple[float, Answers]]
"""Answers by what was read, which rises."""


@dataclass(frozen=True)
class EqualReading:
    """By how much one arm's accuracy exceeds another's where the strongest attack reads as much of both.

    Attributes:
        pairs: Of arms: the one that is compared with, and the other.
        places: Where pairs are compared, on axes of the scenarios.
        attacked: Where attacks were run instead: a release is the same under every method of tuning.
        metric: What counts as read.
        at: How much is read, where each arm's accuracy is told, too; by default the middle of what both reach.
    """

    pairs: Sequence[tuple[str, str]]
    places: Sequence[Mapping[str, Level]]
    attacked: Mapping[str, Level] = field(default_factory=dict)
    metric: str = READ
    at: tuple[float, ...] = ()

    def __call__(self, results: Results) -> Iterator[Measure]:
        for place in self.places:
            arms = dict.fromkeys(arm for pair in self.pairs for arm in pair)
            lines = {arm: self._line(results, {**place, "arm": arm}) for arm in arms}
            for (arm, line), read in product(lines.items(), self.at):
                if (right := _at(line, read)) is not None:
                    yield Measure(ACCURACY, *right.accuracy, axes={**place, "arm": arm, "read": read})
            for (before, after), share in product(self.pairs, self.at or (None,)):
                axes: dict[str, Level] = {**place, "arm": after, "over": before}
                at = axes if share is None else {**axes, "read": share}
                yield gained(lines[before], lines[after], share, at)

    def _line(self, results: Results, place: Mapping[str, Level]) -> Line:
        found = []
        for share in results.levels("replaced", **place):
            here = {**place, "replaced": share}
            read, answers = most_read(results, self.metric, **{**here, **self.attacked}), Answers.at(results, **here)
            if read.value is not None and answers.by_seed:
                found.append((read.value, answers))
        return sorted(found, key=lambda each: each[0])


def gained(before: Line, after: Line, read: float | None, axes: Mapping[str, Level]) -> Measure:
    """By how much accuracy is higher on a line than on the one before it, along straight lines between their points.

    Args:
        before: The line that is compared with.
        after: The other.
        read: Where; `None` for the middle of what both reach.
        axes: Where the number stands.
    """
    if min(len(before), len(after)) < 2:
        return Measure(EQUAL, None, note="fewer than two shares", axes=axes)
    low, high = max(before[0][0], after[0][0]), min(before[-1][0], after[-1][0])
    place = (low + high) / 2 if read is None else read
    if low >= high or not low <= place <= high:
        return Measure(EQUAL, None, note="no reading that both reach", axes=axes)
    first, second = _at(before, place), _at(after, place)
    found = None if first is None or second is None else first.gained_by(second)
    return _measured(EQUAL, found, axes, note=f"at {100 * place:.0f} % read")


def _at(line: Line, place: float) -> Answers | None:
    """The answers at a place between two points; none outside."""
    for (left, lower), (right, upper) in pairwise(line):
        if left <= place <= right:
            return lower.towards(upper, (place - left) / (right - left))
    return None


def _measured(metric: str, found: Tensor | None, axes: Mapping[str, Level], *, note: str = "") -> Measure:
    """The mean of differences `[runs, texts]`, with its interval."""
    if found is None:
        return Measure(metric, None, note="not both are there under one seed", axes=axes)
    error, low, high = mean_interval(found)
    return Measure(metric, float(found.mean()), error, found.shape[1], low, high, note=note, axes=axes)
