"""What lengths alone tell: how long each text is, and what follows of its author or its label.

No privatizer here hides how many tokens a text has: it is read off each frame.
"""

from __future__ import annotations

import torch
from torch import Tensor

from cutlayer.attacks.attack import ATTACKS, Attack, Guesses, Question, SignalSource
from cutlayer.attacks.knowledge import Inapplicable, Knowledge, Need, known, known_labels
from cutlayer.attacks.view import View
from cutlayer.core import Payload, Tokens

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
            signal=SignalSource.LENGTHS,
        )
    )


def content_lengths(payload: Payload, knowledge: Knowledge) -> Tensor:
    """`[n, segments]` int64: content tokens of each text."""
    if isinstance(payload, Tokens):
        return torch.stack([side.lengths for side in payload.segments], 1)
    if knowledge.template is None:
        raise Inapplicable("Boundary rows were sent, and the attacker was not told where special tokens stand.")
    layout = knowledge.template.layout(payload.segment_count)
    return payload.segment_lengths - torch.tensor([layout.closing(side) for side in range(layout.segments)])
