"""What lengths alone tell: how long each text is, and what follows of its author or its label.

No privatizer here hides how many tokens a text has: it is read off each frame.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from cutlayer.attacks.attack import ATTACKS, Attack, Clue, Guess, Guesses, Question
from cutlayer.attacks.attributes.mlp import known, known_labels
from cutlayer.attacks.evaluation.scoring import Further, Score, chance_of_match
from cutlayer.attacks.evaluation.truth import (
    CONTROL,
    CONTROL_ITEMS,
    Graded,
    Traffic,
    as_rows,
    by_text,
    form_of,
    packed,
    sent,
)
from cutlayer.attacks.knowledge import Inapplicable, Knowledge, Need
from cutlayer.attacks.view import Transcript, View
from cutlayer.core import DataError, Payload, Ragged, Rows, Tokens
from cutlayer.wire.recording import Direction

_BINS_A_CLASS = 4


class Lengths:
    """Reads how many tokens each released text has, special tokens left out."""

    def __call__(self, view: View) -> Guesses:
        """Reads every release.

        Raises:
            Inapplicable: Rows were sent, and the attacker was not told how many special tokens are among them.
        """
        for release in view.transcript.releases():
            yield release.source, release.number, content_lengths(release.payload, view.knowledge).sum(1)


class LengthClassifier:
    """Guesses the class of each released text from its length: how often texts of each class are about so long.

    Args:
        bins: Kinds of lengths that are told apart; four a class where that is more.
        smoothing: Texts of each class that each kind is taken to have had before any was seen.
    """

    def __init__(self, *, bins: int = 16, smoothing: float = 1.0) -> None:
        self._bins = bins
        self._smoothing = smoothing

    def __call__(self, view: View) -> Guesses:
        """Guesses every released text.

        Raises:
            Inapplicable: No label of any released text was granted.
        """
        labelled = known_labels(view.knowledge)
        seen = [
            (release.source, release.number, content_lengths(release.payload, view.knowledge))
            for release in view.transcript.releases()
        ]
        labels = [labelled.of(source, number, len(lengths)) for source, number, lengths in seen]
        lengths, targets = known([lengths for *_, lengths in seen], labels)
        everything = torch.cat([lengths for *_, lengths in seen])
        shares = torch.bincount(targets, minlength=labelled.classes).double() + self._smoothing
        sides = []
        for side in range(everything.shape[1]):
            edges = self._edges(everything[:, side], labelled.classes)
            counts = torch.full((labelled.classes, len(edges) + 1), self._smoothing, dtype=torch.float64)
            kinds = torch.bucketize(lengths[:, side], edges, right=True)
            counts.index_put_((targets, kinds), torch.ones(len(targets), dtype=torch.float64), accumulate=True)
            sides.append((edges, (counts / counts.sum(1, keepdim=True)).log()))
        for source, number, found in seen:
            scores = shares.log().expand(len(found), -1).clone()
            for side, (edges, logs) in enumerate(sides):
                scores += logs[:, torch.bucketize(found[:, side].contiguous(), edges, right=True)].T
            yield source, number, torch.log_softmax(scores, 1)

    def _edges(self, lengths: Tensor, classes: int) -> Tensor:
        """Where one kind of length ends and the next begins: about as many texts are of each."""
        bins = max(self._bins, _BINS_A_CLASS * classes)
        values = lengths.unique()
        if len(values) > bins:
            ordered = lengths.sort().values
            values = ordered[(torch.arange(bins) * len(ordered)) // bins].unique()
        edges: Tensor = values[1:]
        return edges


ATTACKS.add("lengths")(
    Attack(
        Lengths(),
        title="how many tokens each text has, read off its frame",
        question=Question.LENGTH,
        reference="this project; what no privatizer here hides",
    )
)
for _question, _name, _title in (
    (Question.ATTRIBUTE, "attribute-lengths", "attributes, from how long texts are"),
    (Question.LABEL, "label-lengths", "labels, from how long texts are"),
):
    ATTACKS.add(_name)(
        Attack(
            LengthClassifier(),
            title=_title,
            question=_question,
            reference="this project; what no privatizer here hides",
            needs=frozenset({Need.LABELLED}),
            clue=Clue.LENGTHS,
        )
    )


def content_lengths(payload: Payload, knowledge: Knowledge) -> Tensor:
    """`[n, segments]` int64: content tokens of each text."""
    if isinstance(payload, Tokens):
        return torch.stack([side.lengths for side in payload.segments], 1)
    if knowledge.template is None:
        raise Inapplicable("Boundary rows were sent, and the attacker was not told where special tokens stand.")
    layout = knowledge.template.layout(payload.segment_lengths.shape[1])
    return payload.segment_lengths - torch.tensor([layout.closing(side) for side in range(layout.segments)])


# ---------------------------------------------------------------- truth


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
        found = list(by_text(guesses, self.records, self.steps))
        if not found:
            raise DataError(
                "The transcript shows none of the texts that the truth names.", remedy="Give that of the same run."
            )
        texts, values = (torch.cat(column) for column in zip(*found, strict=True))
        right = self.lengths[texts] == values
        looks = torch.bincount(texts, minlength=len(self.lengths))
        kinds, place, count = self.lengths.unique(return_inverse=True, return_counts=True)
        alone = Further(
            name="unique_length",
            title="share of texts that are as long as no other: known by their length alone",
            value=float((count[place] == 1).double().mean()),
            n=len(self.lengths),
        )
        different = Further(
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
        if _segments(form) == 2:  # all tokens in the first text of each pair
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
        """All of them."""
        return 1.0

    def granted(self, transcript: Transcript, knowledge: Knowledge) -> Knowledge:
        """The same knowledge: of its lengths nothing is told."""
        return knowledge


def _segments(form: Payload) -> int:
    return form.segment_lengths.shape[1] if isinstance(form, Rows) else len(form.segments)
