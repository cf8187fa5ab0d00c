"""What a vendor knows of labels that were drawn at random: each text's report, and what all reports teach about texts.

Randomised response bounds what a report tells of a label, given the text. The text tells of it too, and thousands of
reports, though each may be false, teach how: the loss is of what the draw makes of a classifier's answer, so what is
learnt is the label and not its report. A text's own report has no part in the classifier that reads it; so the two may
be multiplied.

Ref: this project; Patrini et al., arXiv:1609.03683 (forward correction); Warner 1965 (randomised response).
"""

from __future__ import annotations

import torch
from torch import Tensor

from cutlayer.attacks.attack import ATTACKS, Attack, Guesses, Question, SignalSource
from cutlayer.attacks.content import mean_rows
from cutlayer.attacks.knowledge import Inapplicable, Knowledge, Need
from cutlayer.attacks.labels.record_order import Reports
from cutlayer.attacks.view import Transcript, View
from cutlayer.models.perceptron import Fitting, fit_classifier

_WEIGHTS = (0.0, 0.25, 0.5, 0.75, 1.0)
"""What the classifier's answer may count beside the report. Where texts teach nothing, nothing."""


class ReportsAndText:
    """Guesses labels by the product of what their report tells and what a classifier that learnt from others' tells.

    Args:
        folds: Parts of the records: each is read by a classifier that learnt from the others.
        hidden: Units of the classifier's hidden layer.
        fitting: How it is fitted.
    """

    def __init__(
        self,
        *,
        folds: int = 5,
        hidden: int = 256,
        fitting: Fitting = Fitting(passes=5, batch=128, learning_rate=3e-3, dropout=0.5),  # noqa: B008 - frozen
    ) -> None:
        self._folds = folds
        self._hidden = hidden
        self._fitting = fitting

    def __call__(self, view: View) -> Guesses:
        """Guesses the labels of every step that named records.

        Raises:
            Inapplicable: Labels left as they are, steps named no records, gradients are of hidden states, or no table
                was granted for released ids.
        """
        reports = Reports.of(view.transcript.steps(), view.knowledge)
        features = _features(view.transcript, view.knowledge)
        read = {source: self._read(evidence, features) for source, evidence in reports.evidence.items()}
        yield from ((source, number, read[source][records]) for source, number, records in reports.steps)

    def _read(self, evidence: Tensor, features: Tensor) -> Tensor:
        """The label `[records]` of each record.

        Args:
            evidence: `[records, k]` float64, how probable each record's report is under each label; ones without any.
            features: `[stored, f]`, of all stored records.
        """
        reported = (evidence.amax(1) > evidence.amin(1)).nonzero()[:, 0]
        if len(reported) and int(reported[-1]) >= len(features):
            raise Inapplicable("Steps named records that the transcript does not hold.")
        of_label, own = evidence[reported], features[: len(evidence)][reported]
        classes, count = evidence.shape[1], len(reported)
        targets = of_label.argmax(1)
        # a row for each label: the draw is the same for all
        response = torch.full((classes, classes), float(of_label.amin()))
        response.fill_diagonal_(float(of_label.amax()))
        answers = torch.zeros(count, classes)
        part = torch.randperm(count, generator=self._fitting.generator()) % self._folds
        for fold in range(self._folds):
            held = part == fold
            if not bool(held.any()) or bool(held.all()):
                continue
            net = fit_classifier(
                own[~held],
                targets[~held],
                classes=classes,
                hidden=self._hidden,
                fitting=self._fitting,
                response=response,
            )
            answers[held] = torch.log_softmax(net(own[held]), 1)
        told = torch.log_softmax(self._weight(answers, targets, response) * answers, 1).double() + of_label.log()
        guesses = torch.zeros(len(evidence), dtype=torch.int64)
        guesses[reported] = told.argmax(1)
        return guesses

    @staticmethod
    def _weight(answers: Tensor, targets: Tensor, response: Tensor) -> float:
        """What a classifier's answers count, by how probable they make reports that it did not learn from."""

        def likelihood(weight: float) -> float:
            drawn = torch.softmax(weight * answers, 1) @ response
            return float(drawn.gather(1, targets[:, None]).log().double().sum())

        return max(_WEIGHTS, key=likelihood)


ATTACKS.add("reports-and-text")(
    Attack(
        ReportsAndText(),
        title="labels, from what gradients report of them and what all reports teach about the texts",
        question=Question.LABEL,
        reference="this project; Patrini et al., arXiv:1609.03683",
        needs=frozenset({Need.CLASSES, Need.RESPONSE, Need.TABLE}),
        floor=0.75,  # where reports alone give 0.65
        signal=SignalSource.REPORTS,
    )
)


def _features(transcript: Transcript, knowledge: Knowledge) -> Tensor:
    """The mean of each stored record's rows `[stored, f]`, by number."""
    shards: dict[str, dict[int, Tensor]] = {}
    for release in transcript.releases():
        if release.source.startswith("record-set/"):
            shards.setdefault(release.source, {})[release.number] = mean_rows(release.payload, knowledge)
    if not shards:
        raise Inapplicable("Steps carried texts of their own, and no record has a number.")
    return torch.cat([found[number] for found in shards.values() for number in sorted(found)])
