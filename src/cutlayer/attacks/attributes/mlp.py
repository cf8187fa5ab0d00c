"""A private attribute of a text's author, or its label, inferred from the mean of what was released of it.

The attacker knows the answer for some records. It takes the mean of the rows that each text was released as, and fits
to those a network with one hidden layer of 768 rectified units. Of released ids it takes the rows of the table.

Ref: RAPT §IV-A2, arXiv:2305.06212; SnD §4.3 and A.7, arXiv:2310.09130; both after Plant et al.
"""

from __future__ import annotations

import torch
from torch import Tensor

from cutlayer.attacks.attack import ATTACKS, Attack, Guesses, Question
from cutlayer.attacks.knowledge import UNMARKED, Inapplicable, Knowledge, Labelled, Need
from cutlayer.attacks.perceptron import Fitting, fit_classifier
from cutlayer.attacks.view import View
from cutlayer.core import Payload, Ragged, Rows


class AttributeMlp:
    """Guesses the class of each released text.

    Args:
        hidden: Units of the hidden layer.
        fitting: How the network is fitted.
    """

    def __init__(
        self,
        *,
        hidden: int = 768,
        fitting: Fitting = Fitting(passes=20, batch=32, learning_rate=3e-4, dropout=0.5),  # noqa: B008 - frozen
    ) -> None:
        self._hidden = hidden
        self._fitting = fitting

    def __call__(self, view: View) -> Guesses:
        """Guesses every released text.

        Raises:
            Inapplicable: No label of any released text was granted, or no table for released ids.
        """
        seen = [
            (release.source, release.number, mean_rows(release.payload, view.knowledge))
            for release in view.transcript.releases()
        ]
        labelled = known_labels(view.knowledge)
        labels = [labelled.of(source, number, len(means)) for source, number, means in seen]
        features, targets = known([means for *_, means in seen], labels)
        net = fit_classifier(features, targets, classes=labelled.classes, hidden=self._hidden, fitting=self._fitting)
        for source, number, means in seen:
            yield source, number, torch.log_softmax(net(means), 1)


for _question, _name, _title in (
    (Question.ATTRIBUTE, "attribute-mlp", "a perceptron on the mean of each text's rows, learnt from some attributes"),
    (Question.LABEL, "label-mlp", "a perceptron on the mean of each text's rows, learnt from some labels"),
):
    ATTACKS.add(_name)(
        Attack(
            AttributeMlp(),
            title=_title,
            question=_question,
            reference="RAPT §IV-A2; SnD §4.3, A.7",
            needs=frozenset({Need.LABELLED, Need.TABLE}),
            floor=0.9,
        )
    )


# ---------------------------------------------------------------- what attacks that learn from labels share


def known_labels(knowledge: Knowledge) -> Labelled:
    """The labels that were granted.

    Raises:
        Inapplicable: None were.
    """
    if knowledge.labelled is None:
        raise Inapplicable("The attacker learns from records whose label it knows, and it was granted none.")
    return knowledge.labelled


def known(features: list[Tensor], labels: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Features `[m, f]` and labels `[m]` of the texts whose label is known.

    Args:
        features: Of each release, `[rows, f]`.
        labels: Of each release, `[rows]` int64.

    Raises:
        Inapplicable: No label of any released text is known.
    """
    if not labels or not bool((told := torch.cat(labels) != UNMARKED).any()):
        raise Inapplicable("The attacker knows the label of no record that was released.")
    return torch.cat(features)[told], torch.cat(labels)[told]


def mean_rows(payload: Payload, knowledge: Knowledge) -> Tensor:
    """The mean `[texts, width]` of each text's rows, special tokens' among them, or of its ids' rows; 0 of none.

    Raises:
        Inapplicable: Ids were sent, and no table was granted.
    """
    if isinstance(payload, Rows):
        return _means(payload.packed.values, [payload.packed])
    if knowledge.table is None:
        raise Inapplicable("Token ids were sent, and the attacker was granted no embedding table.")
    table = knowledge.table.detach()
    return _means(torch.cat([table[side.values] for side in payload.segments]), list(payload.segments))


def _means(rows: Tensor, sides: list[Ragged]) -> Tensor:
    owner = torch.cat([torch.arange(len(side)).repeat_interleave(side.lengths) for side in sides])
    counts = torch.stack([side.lengths for side in sides]).sum(0)
    sums = torch.zeros(len(counts), rows.shape[1]).index_add(0, owner, rows.float())
    return sums / counts.clamp(min=1)[:, None]
