"""What the numbers of records tell: where a file was sorted, its rows' labels, attributes and people follow.

Records are numbered in the order in which they were uploaded, and steps name them by number. Of a file that is sorted
by label, or by anything that goes with it, the number alone tells a label: together with reports that were drawn at
random it undoes the draw, for the neighbours' reports are about the same label (`hidden_markov`). And whoever holds a
list in the file's order links its rows to records without a look at any text.

Ref: this project; the hidden Markov model is Baum's and Welch's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from cutlayer.attacks.attack import ATTACKS, Attack, Guesses, Question, SignalSource
from cutlayer.attacks.knowledge import UNMARKED, Inapplicable, Knowledge, Need, known_labels
from cutlayer.attacks.labels.hidden_markov import read_in_order
from cutlayer.attacks.labels.output_gradient import told_labels
from cutlayer.attacks.view import SeenStep, Transcript, View
from cutlayer.privacy import keep_probability

_MOST_STATES = 12
"""Of a hidden Markov model, beside one for each label."""
_RECORD_SET = "record-set/"


class RecordOrder:
    """Guesses labels from what gradients report of them, record beside record."""

    def __call__(self, view: View) -> Guesses:
        """Guesses the labels of every step that named records.

        Raises:
            Inapplicable: Steps named no records, or gradients are of hidden states.
        """
        knowledge = view.knowledge
        reports = Reports.of(view.transcript.steps(), knowledge)
        read = {source: in_order(evidence).argmax(1) for source, evidence in reports.evidence.items()}
        yield from ((source, number, read[source][records]) for source, number, records in reports.steps)


class KnownInOrder:
    """Guesses labels or attributes of records from those of known ones, by their numbers alone."""

    def __call__(self, view: View) -> Guesses:
        """Guesses every stored record.

        Raises:
            Inapplicable: No records were stored, or no label of any was granted.
        """
        labelled = known_labels(view.knowledge)
        learnt = False
        for source, shards in _stored(view.transcript).items():
            told = torch.cat([labelled.of(source, number, rows) for number, rows in shards])
            marked = told != UNMARKED
            if not bool(marked.any()):
                continue  # another set: of those that training stops on, say
            learnt = True
            evidence = torch.ones(len(told), labelled.classes, dtype=torch.float64)
            evidence[marked] = torch.nn.functional.one_hot(told[marked], labelled.classes).double()
            parts = in_order(evidence).split([rows for _, rows in shards])
            yield from ((source, number, part) for (number, _), part in zip(shards, parts, strict=True))
        if not learnt:
            raise Inapplicable("The attacker knows the label of no record that was stored.")


class RecordLinkage:
    """Guesses that a record stands as far down a list as among all records."""

    def __call__(self, view: View) -> Guesses:
        """Guesses the row of every stored record.

        Raises:
            Inapplicable: No records were stored, or the attacker has no list.
        """
        listed = view.knowledge.listed
        if listed is None:
            raise Inapplicable("The attacker has no list to link records to.")
        for source, shards in _stored(view.transcript).items():
            sizes = [rows for _, rows in shards]
            # some rows of the list may be no records: they were held out, or stand there twice
            rows = ((torch.arange(sum(sizes)) + 0.5) * listed / sum(sizes)).long()
            yield from ((source, number, part) for (number, _), part in zip(shards, rows.split(sizes), strict=True))


ATTACKS.add("record-order")(
    Attack(
        RecordOrder(),
        title="labels, from what gradients report of neighbouring records",
        question=Question.LABEL,
        reference="this project; Baum et al. 1970",
        needs=frozenset({Need.CLASSES, Need.RESPONSE}),
        floor=0.9,
        signal=SignalSource.NEIGHBOURS,
    )
)
for _question, _name, _what in (
    (Question.ATTRIBUTE, "attribute-record-order", "attributes"),
    (Question.LABEL, "label-record-order", "labels"),
):
    ATTACKS.add(_name)(
        Attack(
            KnownInOrder(),
            title=f"{_what}, from the numbers of records and what is known of some",
            question=_question,
            reference="this project; Baum et al. 1970",
            needs=frozenset({Need.LABELLED}),
            floor=0.9,
            signal=SignalSource.ORDER,
        )
    )
ATTACKS.add("record-linkage")(
    Attack(
        RecordLinkage(),
        title="rows of a list in the file's order, from the numbers of records",
        question=Question.ROW,
        reference="this project",
        needs=frozenset({Need.ROWS}),
        signal=SignalSource.ORDER,
    )
)


def in_order(evidence: Tensor) -> Tensor:
    """Labels of records that lie in an order; see `read_in_order`.

    Args:
        evidence: `[records, k]`, how probable what is known of each record is, were its label each of these.

    Returns:
        `[records, k]` float64, log-probabilities.
    """
    classes = evidence.shape[1]
    states = sorted({2, 3, min(classes, _MOST_STATES)} - {1})
    return torch.from_numpy(read_in_order(evidence.double().numpy(), states=states))


@dataclass(frozen=True)
class Reports:
    """What gradients report of records' labels.

    Attributes:
        evidence: By job, `[records, k]` float64: how probable a record's report is, were its label each of these; ones
            where none was seen.
        steps: Job, number and named records `[texts]` of each step.
    """

    evidence: Mapping[str, Tensor]
    steps: tuple[tuple[str, int, Tensor], ...]

    @classmethod
    def of(cls, steps: Iterable[SeenStep], knowledge: Knowledge) -> Reports:
        """Reads each step's gradients.

        A record has one report, whatever the epoch: where gradients do not agree on it, what most of them say counts.

        Args:
            steps: Those whose gradient was sent.
            knowledge: How many labels there are, and how they were drawn.

        Raises:
            Inapplicable: Labels left as they are, steps named no records, or gradients are of hidden states.
        """
        classes, epsilon = knowledge.classes, knowledge.label_epsilon
        if classes is None:
            raise Inapplicable("How many classes there are is not known.")
        if epsilon is None:
            raise Inapplicable("Labels were not drawn at random: gradients show them as they are, each by itself.")
        named, votes = [], dict[str, Tensor]()
        for step in steps:
            if step.records is None:
                raise Inapplicable("Steps carried texts of their own, and named no record by its number.")
            before = votes.get(step.source, torch.zeros(0, classes))
            missing = max(0, 1 + int(step.records.max()) - len(before))
            cast = torch.nn.functional.one_hot(told_labels(step, classes), classes).float()
            votes[step.source] = torch.nn.functional.pad(before, (0, 0, 0, missing)).index_add(0, step.records, cast)
            named.append((step.source, step.number, step.records))
        if not named:
            raise Inapplicable("The transcript holds no output gradient.")
        keep = keep_probability(epsilon, classes)
        response = torch.full((classes, classes), (1 - keep) / (classes - 1), dtype=torch.float64)
        response.fill_diagonal_(keep)
        evidence = {}
        for source, counts in votes.items():
            seen = counts.sum(1) > 0
            evidence[source] = torch.ones(len(counts), classes, dtype=torch.float64)
            evidence[source][seen] = response[counts[seen].argmax(1)]
        return cls(evidence, tuple(named))


def _stored(transcript: Transcript) -> dict[str, list[tuple[int, int]]]:
    """By record set, each shard's number and how many records it holds.

    Raises:
        Inapplicable: None was stored.
    """
    found: dict[str, list[tuple[int, int]]] = {}
    for release in transcript.releases():
        if release.source.startswith(_RECORD_SET):
            found.setdefault(release.source, []).append((release.number, len(release.payload)))
    if not found:
        raise Inapplicable("Steps carried texts of their own, and no record has a number.")
    return {source: sorted(shards) for source, shards in found.items()}
