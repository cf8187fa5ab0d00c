"""How long texts were."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from cutlayer.attacks.attack import Guess
from cutlayer.attacks.evaluation.places import joined_by_text
from cutlayer.attacks.evaluation.scoring import Score, SecondaryMetric
from cutlayer.attacks.evaluation.statistics import chance_of_match
from cutlayer.attacks.evaluation.traffic import CONTROL, CONTROL_ITEMS, Traffic, as_rows, form_of, packed, sent
from cutlayer.attacks.evaluation.truth import Graded
from cutlayer.attacks.knowledge import Inapplicable, Knowledge
from cutlayer.attacks.view import Transcript
from cutlayer.core import Ragged, Rows, Tokens
from cutlayer.wire.recording import Direction


@dataclass(frozen=True, eq=False)
class LengthTruth:
    """How long each text is, and where texts were released.

    Attributes:
        lengths: `[n]` int64, content tokens of each text.
        records: By record set, `[n]` int64: the record that holds each text, `ELSEWHERE` if none does.
        steps: By job and step, `[rows]` int64: each row's text.
    """

    lengths: Tensor
    records: Mapping[str, Tensor] = field(default_factory=dict)
    steps: Mapping[tuple[str, int], Tensor] = field(default_factory=dict)

    def score(self, guesses: Iterable[Guess]) -> Score:
        """The share of texts whose length is known exactly; beside it, of those that no other text has.

        Raises:
            DataError: Transcript and truth do not belong together.
        """
        texts, values = joined_by_text(guesses, self.records, self.steps)
        right = self.lengths[texts] == values
        looks = torch.bincount(texts, minlength=len(self.lengths))
        kinds, place, count = self.lengths.unique(return_inverse=True, return_counts=True)
        alone = SecondaryMetric(
            name="unique_length",
            title="share of texts that are as long as no other: known by their length alone",
            value=float((count[place] == 1).double().mean()),
            n=len(self.lengths),
        )
        different = SecondaryMetric(
            name="lengths", title="different lengths", value=float(len(kinds)), n=len(self.lengths), unit="lengths"
        )
        return Score(
            torch.zeros_like(looks).index_add(0, texts, right.long()),
            looks,
            chance_of_match(self.lengths[texts], values, looks=torch.ones_like(texts)),
            int(looks.max()),
            (alone, different),
        )

    def sample(self) -> LengthTruth:
        """Texts spread evenly over all, at most `CONTROL_ITEMS`."""
        return LengthTruth(self.lengths[:: -(-len(self.lengths) // CONTROL_ITEMS)])

    def traffic(
        self, kind: Traffic, like: Transcript, knowledge: Knowledge, *, looks: int, rng: torch.Generator
    ) -> tuple[Transcript, LengthTruth]:
        """Texts of these lengths, of lengths drawn from theirs, or in another order; their words are all alike."""
        form = form_of(like)
        order = torch.arange(len(self.lengths))
        if kind is Traffic.SHUFFLED:
            order = torch.randperm(len(order), generator=rng)
        elif kind is Traffic.NOISE:
            order = torch.randint(len(order), order.shape, generator=rng)
        lengths = self.lengths[order]
        word = 0 if knowledge.candidates is None else int(knowledge.candidates.nonzero()[0])
        sides = [Ragged(torch.full((int(lengths.sum()),), word), lengths)]
        if form.segment_count == 2:  # all tokens in the first text of each pair
            sides.append(Ragged(sides[0].values[:0], torch.zeros_like(lengths)))
        tokens = Tokens(tuple(sides))
        payload = as_rows(tokens, Traffic.UNPROTECTED, knowledge, rng) if isinstance(form, Rows) else tokens
        frames = [sent(Direction.UP, step, packed(payload, form)) for step in range(1, looks + 1)]
        steps = {(CONTROL, step): torch.arange(len(lengths)) for step in range(1, looks + 1)}
        return Transcript(lambda: frames), replace(self, steps=steps)

    def graded(self, like: Transcript, knowledge: Knowledge, *, rng: torch.Generator) -> Graded:
        """Nothing: no setting changes a length."""
        raise Inapplicable("No setting hides how long texts are: unprotected traffic is of the run's own settings.")

    def ceiling(self, knowledge: Knowledge) -> float:
        """1: any length may be guessed."""
        return 1.0

    def granted(self, transcript: Transcript, knowledge: Knowledge) -> Knowledge:
        """The same knowledge: of its lengths nothing is told."""
        return knowledge
