"""Which row of a list in the file's order each text was."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from cutlayer.attacks.attack import Guess
from cutlayer.attacks.evaluation.places import joined_by_text
from cutlayer.attacks.evaluation.scoring import Score, SecondaryMetric
from cutlayer.attacks.evaluation.statistics import bootstrap_of
from cutlayer.attacks.evaluation.traffic import CONTROL, Traffic, stored_words
from cutlayer.attacks.evaluation.truth import Graded
from cutlayer.attacks.knowledge import Inapplicable, Knowledge
from cutlayer.attacks.view import Transcript

_TOLERANCE = 0.01
"""Of a list's length: how far off a row may be that counts as linked."""
_CONTROL_ROWS = 1024


@dataclass(frozen=True, eq=False)
class RowTruth:
    """Which row of a list each text is, and where texts were released.

    Attributes:
        rows: `[n]` int64, counted from 0.
        listed: How many rows the list has.
        records: By record set, `[n]` int64: the record that holds each text, `ELSEWHERE` if none does.
        steps: By job and step, `[rows]` int64: each row's text.
    """

    rows: Tensor
    listed: int
    records: Mapping[str, Tensor] = field(default_factory=dict)
    steps: Mapping[tuple[str, int], Tensor] = field(default_factory=dict)

    @property
    def tolerance(self) -> int:
        """Rows that a guess may be off."""
        return max(1, round(_TOLERANCE * self.listed))

    def score(self, guesses: Iterable[Guess]) -> Score:
        """The share of texts whose row was guessed to within a hundredth of the list; beside it the rank correlation.

        Raises:
            DataError: Transcript and truth do not belong together.
        """
        texts, values = joined_by_text(guesses, self.records, self.steps)
        true = self.rows[texts]
        near = (true - values).abs() <= self.tolerance
        looks = torch.bincount(texts, minlength=len(self.rows))
        ordered = true.sort().values
        around = [
            torch.searchsorted(ordered, values + side, right=side > 0) for side in (-self.tolerance, self.tolerance)
        ]
        own, guessed = _ranks(true), _ranks(values)
        correlation = SecondaryMetric(
            name="rank_correlation",
            title="rank correlation of guessed and true rows (Spearman), without its sign",
            value=float(_correlation(own, guessed, torch.ones(len(true)))),
            interval=bootstrap_of(
                lambda weights: _correlation(own, guessed, torch.from_numpy(weights)).numpy(),
                texts,
                trials=len(texts.unique()),
            ),
            n=len(true),
            unit="correlation",
        )
        return Score(
            torch.zeros_like(looks).index_add(0, texts, near.long()),
            looks,
            float((around[1] - around[0]).double().mean()) / len(true),
            int(looks.max()),
            (correlation,),
        )

    def sample(self) -> RowTruth:
        """A list of a control's length."""
        return RowTruth(torch.arange(_CONTROL_ROWS), _CONTROL_ROWS)

    def traffic(
        self, kind: Traffic, like: Transcript, knowledge: Knowledge, *, looks: int, rng: torch.Generator
    ) -> tuple[Transcript, RowTruth]:
        """Records of one word each, in the list's order or in none."""
        numbers = torch.arange(len(self.rows))
        if kind is not Traffic.UNPROTECTED:
            numbers = numbers[torch.randperm(len(numbers), generator=rng)]
        transcript = stored_words(len(numbers), like, knowledge, rng=rng)
        return transcript, replace(self, records={CONTROL: numbers}, steps={})

    def graded(self, like: Transcript, knowledge: Knowledge, *, rng: torch.Generator) -> Graded:
        """Nothing: no setting changes the order by more or less."""
        raise Inapplicable("No noise is added to numbers of records: unprotected traffic is of the run's own settings.")

    def ceiling(self, knowledge: Knowledge) -> float:
        """1: any row may be guessed."""
        return 1.0

    def granted(self, transcript: Transcript, knowledge: Knowledge) -> Knowledge:
        """Knowledge with the list's length; of no text its row."""
        return replace(knowledge, listed=self.listed)


def _ranks(values: Tensor) -> Tensor:
    """Mean ranks `[n]` float64."""
    _, place, counts = values.unique(return_inverse=True, return_counts=True)
    ends = counts.cumsum(0).double()
    ranks: Tensor = (ends - (counts - 1) / 2)[place]
    return ranks


def _correlation(one: Tensor, other: Tensor, times: Tensor) -> Tensor:
    """`[...]` without sign, of ranks `[n]` that count `times` `[..., n]` each; 0 where one side does not vary."""
    total = times.sum(-1, keepdim=True)
    a, b = (each - (times * each).sum(-1, keepdim=True) / total for each in (one, other))
    spread = ((times * a * a).sum(-1) * (times * b * b).sum(-1)).sqrt()
    return torch.where(spread > 0, (times * a * b).sum(-1).abs() / spread, 0.0)
