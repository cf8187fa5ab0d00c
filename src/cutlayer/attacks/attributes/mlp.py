"""A private attribute of a text's author, or its label, inferred from the mean of what was released of it.

The attacker knows the answer for some records. It takes the mean of the rows that each text was released as, and fits
to those a network with one hidden layer of 768 rectified units. Of released ids it takes the rows of the table.

Ref: RAPT §IV-A2, arXiv:2305.06212; SnD §4.3 and A.7, arXiv:2310.09130; both after Plant et al.
"""

from __future__ import annotations

import torch

from cutlayer.attacks.attack import ATTACKS, Attack, Guesses, Question
from cutlayer.attacks.content import mean_rows
from cutlayer.attacks.knowledge import Need, known, known_labels
from cutlayer.attacks.view import View
from cutlayer.models.perceptron import Fitting, fit_classifier


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
