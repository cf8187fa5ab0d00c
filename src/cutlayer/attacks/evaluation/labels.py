"""Which labels texts had, for attacks that read them from what training shows."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from cutlayer.attacks.attack import Guess, SignalSource
from cutlayer.attacks.evaluation.places import joined_by_text
from cutlayer.attacks.evaluation.scoring import Score, SecondaryMetric
from cutlayer.attacks.evaluation.statistics import chance_of_groups, chance_of_match, matched_groups
from cutlayer.attacks.evaluation.telling import telling_like
from cutlayer.attacks.evaluation.traffic import (
    CONTROL,
    CONTROL_ITEMS,
    Traffic,
    as_rows,
    form_of,
    packed,
    released_again,
    sent,
    stored,
)
from cutlayer.attacks.evaluation.truth import Graded
from cutlayer.attacks.knowledge import Inapplicable, Knowledge
from cutlayer.attacks.view import SeenFrame, Transcript
from cutlayer.core import Rows
from cutlayer.privacy import keep_probability
from cutlayer.wire.recording import Direction

_REPORTED, _FALSE = 2048, 0.35
"""Of a control with drawn labels: how many records it has, and which share of reports is another label."""
_LEARNT, _SPREAD = 2.0, 0.1
"""Of a control's model: by how much a text's logit of its own label is larger, and how much logits vary beside that."""

REPORTS_ALONE = "reports_alone"
"""Name of the number beside a score of drawn labels: what reports alone tell."""


@dataclass(frozen=True)
class LabelTruth:
    """Which labels the texts had, and which texts each step was about.

    Attributes:
        labels: `[n]` int64.
        num_labels: How many labels there are.
        steps: By job and step, `[rows]` int64: each row's text.
        named: Whether guesses are labels, or numbers of groups, which are matched with labels at their best.
        epsilon: Of the randomised response that losses were computed from; `None` if from labels as they are.
        signal: What controls plant labels in.
    """

    labels: Tensor
    num_labels: int
    steps: Mapping[tuple[str, int], Tensor] = field(default_factory=dict)
    named: bool = True
    epsilon: float | None = None
    signal: SignalSource = SignalSource.GRADIENTS

    def score(self, guesses: Iterable[Guess]) -> Score:
        """Compares guesses with the truth; each row of each step is one trial, clustered by text.

        Raises:
            DataError: Guesses and steps differ in length: transcript and truth do not belong together.
        """
        rows, values = joined_by_text(guesses, {}, self.steps, named="steps")
        if self.named:
            chance = chance_of_match(self.labels[rows], values, looks=torch.ones_like(rows))
        else:
            chance = chance_of_groups(values, self.labels, rows)
            values = matched_groups(values, self.labels[rows])[values]
        right = self.labels[rows] == values
        looks = torch.bincount(rows, minlength=len(self.labels))
        hits = torch.zeros_like(looks).index_add(0, rows, right.long())
        return Score(hits, looks, chance, int(looks.max()), self._further(len(rows)))

    def _further(self, looks: int) -> tuple[SecondaryMetric, ...]:
        if self.epsilon is None:
            return ()
        cap = SecondaryMetric(
            name=REPORTS_ALONE,
            title="the most that reports alone tell of labels that are equally frequent: e^ε / (e^ε + K - 1)",
            value=keep_probability(self.epsilon, self.num_labels),
            n=looks,
            higher_is_leak=False,
        )
        return (cap,)

    def sample(self) -> LabelTruth:
        """Texts spread evenly over all, at most `CONTROL_ITEMS`."""
        return replace(self, labels=self.labels[:: -(-len(self.labels) // CONTROL_ITEMS)], steps={})

    def traffic(
        self, kind: Traffic, like: Transcript, knowledge: Knowledge, *, looks: int, rng: torch.Generator
    ) -> tuple[Transcript, LabelTruth]:
        """One step about these texts, by a model that has learnt their labels, and how frequent each label is.

        Its output is of logits, or of hidden states below a head of the customer's, as in `like`. Gradients show labels
        as they are; for an attack that looks further than that they show reports of which a third is false, of
        records that lie in the order of their labels, or whose words tell these.
        """
        if self.signal is SignalSource.GRADIENTS:
            told = (
                self.labels[torch.randperm(len(self.labels), generator=rng)]
                if kind is Traffic.SHUFFLED
                else self.labels
            )
            plain = replace(self, epsilon=None)
            frames = plain._step(kind, like, told, told, rng, records=self._numbers(told))
            return Transcript(lambda: frames), plain._seen()
        truth = self._reported_labels(rng)
        truth = replace(truth, epsilon=math.log((1 / _FALSE - 1) * (self.num_labels - 1)))
        told = truth.labels
        if kind is Traffic.SHUFFLED:
            # told in its order all the same: what is read is right of others
            truth = replace(truth, labels=told[torch.randperm(len(told), generator=rng)])
        frames = truth._step(kind, like, told, truth._reports(told, rng), rng, records=truth._numbers(told))
        if self.signal is SignalSource.REPORTS:
            form = form_of(like)
            labels = None if kind is Traffic.NOISE else told
            tokens = telling_like(form, labels, len(told), self.num_labels, SignalSource.WORDS, knowledge, rng)
            payload = as_rows(tokens, kind, knowledge, rng) if isinstance(form, Rows) else tokens
            frames.insert(0, stored(packed(payload, form)))
        return Transcript(lambda: frames), truth._seen()

    def graded(self, like: Transcript, knowledge: Knowledge, *, rng: torch.Generator) -> Graded:
        """The same step about reports that are drawn as the run's were, beside the signs of their gradients.

        Raises:
            Inapplicable: Labels left as they are.
        """
        if self.epsilon is None:
            raise Inapplicable("Labels were not drawn at random: unprotected traffic is of the run's own settings.")
        truth = self if self.signal is SignalSource.GRADIENTS else self._reported_labels(rng)
        reports = truth._reports(truth.labels, rng)
        frames = truth._step(Traffic.UNPROTECTED, like, reports, reports, rng, records=truth._numbers(truth.labels))
        if self.signal is SignalSource.REPORTS:
            form = form_of(like)
            tokens = telling_like(form, truth.labels, len(reports), self.num_labels, SignalSource.WORDS, knowledge, rng)
            if knowledge.noise is None or knowledge.noise.privacy.mechanism == "none":
                payload = as_rows(tokens, Traffic.UNPROTECTED, knowledge, rng) if isinstance(form, Rows) else tokens
            else:
                _, payload = released_again(tokens, like, knowledge, rng=rng)
            frames.insert(0, stored(packed(payload, form)))
        # of hidden states no sign tells a label
        signs = (
            reports if _width(like) == self.num_labels else torch.full_like(reports, int(truth.labels.mode().values))
        )
        return Graded(Transcript(lambda: frames), truth._seen(), ((f"job/{CONTROL}", 1, signs),))

    def _reported_labels(self, rng: torch.Generator) -> LabelTruth:
        """As many labels as a control has, in the shares that they have here."""
        labels = self.labels.repeat(-(-_REPORTED // len(self.labels)))
        return replace(self, labels=labels[torch.randperm(len(labels), generator=rng)[:_REPORTED]])

    def _numbers(self, told: Tensor) -> Tensor:
        """The number `[n]` of each text's record: sorted by label, where that is to tell labels."""
        return (
            told.argsort(stable=True).argsort() if self.signal is SignalSource.NEIGHBOURS else torch.arange(len(told))
        )

    def _reports(self, labels: Tensor, rng: torch.Generator) -> Tensor:
        """Randomised response."""
        if self.epsilon is None:
            raise TypeError("labels are reported as they are")
        kept = torch.rand(len(labels), generator=rng) < keep_probability(self.epsilon, self.num_labels)
        others = torch.randint(1, self.num_labels, labels.shape, generator=rng)
        return torch.where(kept, labels, (labels + others) % self.num_labels)

    def _step(
        self, kind: Traffic, like: Transcript, learnt: Tensor, told: Tensor, rng: torch.Generator, *, records: Tensor
    ) -> list[SeenFrame]:
        """A step about all texts: a model that has learnt some labels, and gradients that tell some."""
        width, n = _width(like), len(self.labels)
        if kind is Traffic.NOISE:
            learnt = torch.randint(self.num_labels, (n,), generator=rng)
        shares = torch.bincount(self.labels, minlength=self.num_labels) / n
        logits = (shares + 1 / n).log() + _LEARNT * torch.nn.functional.one_hot(learnt, self.num_labels)
        output = logits + _SPREAD * torch.randn(logits.shape, generator=rng)
        gradient = torch.softmax(output, 1) - torch.nn.functional.one_hot(told, self.num_labels)
        if width != self.num_labels:
            head, states = torch.randn(2, self.num_labels, width, generator=rng)
            output = states[learnt] + _SPREAD * torch.randn(n, width, generator=rng)
            gradient = gradient @ head
        if kind is Traffic.NOISE:
            gradient = torch.randn(gradient.shape, generator=rng)
        return [
            sent(Direction.UP, 1, {"records": records}),
            sent(Direction.DOWN, 1, {"output": output}),
            sent(Direction.UP, 2, {"gradient": gradient / n, "records": records}),
        ]

    def _seen(self) -> LabelTruth:
        return replace(self, steps={(CONTROL, 1): torch.arange(len(self.labels))})

    def ceiling(self, knowledge: Knowledge) -> float:
        """1: any label may be guessed."""
        return 1.0

    def granted(self, transcript: Transcript, knowledge: Knowledge) -> Knowledge:
        """Knowledge with how many labels there are, how frequent each is and how they were drawn; of no text's any."""
        shares = torch.bincount(self.labels, minlength=self.num_labels) / len(self.labels)
        return replace(knowledge, classes=self.num_labels, shares=shares, label_epsilon=self.epsilon)


def _width(like: Transcript) -> int:
    """Numbers that a step's gradient has for each text."""
    first = next(iter(like.steps()), None)
    if first is None:
        raise Inapplicable("The transcript holds no output gradient.")
    return first.gradient.shape[1]
