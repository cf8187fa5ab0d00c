"""Which label or private attribute texts had, for attacks that know it of some of them.

The attacker has labels of some records, learns from their releases what a release tells of them, and is scored on
the others. Texts of one author tell the same attribute and the same habits: authors are either known or attacked,
never both, and it is authors that an interval is drawn over.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from cutlayer.attacks.attack import Guess, SignalSource
from cutlayer.attacks.evaluation.places import ELSEWHERE, OTHER_RUN, by_text, source_of
from cutlayer.attacks.evaluation.scoring import Score, SecondaryMetric
from cutlayer.attacks.evaluation.simplest import nearest_class
from cutlayer.attacks.evaluation.statistics import area_under_curve, bootstrap_of, chance_of_match
from cutlayer.attacks.evaluation.telling import telling_like, vocabulary_of
from cutlayer.attacks.evaluation.traffic import (
    CONTROL,
    Traffic,
    as_rows,
    form_of,
    packed,
    released_again,
    sent,
    stored_words,
)
from cutlayer.attacks.evaluation.truth import Graded
from cutlayer.attacks.knowledge import UNMARKED, Inapplicable, Knowledge, Labelled, Noise
from cutlayer.attacks.simulate import simulate
from cutlayer.attacks.view import Transcript
from cutlayer.core import DataError, Payload, Ragged, Rows, Tokens
from cutlayer.privacy import CtiSpec, TextToText
from cutlayer.wire import routes
from cutlayer.wire.recording import Direction

CONTROL_KNOWN, CONTROL_ATTACKED = 512, 1024
"""Texts of a control whose label the attacker knows, and those it is scored on: few enough to be learnt from in
seconds, enough to tell one in eight that is known from elsewhere from chance."""
_SURVIVING = 48
"""Tokens of a control text of which some survive."""
_KEPT, _DROWNED = 1e4, 1.0
"""eta times the mean length of rows, of tokens that survive and of those that do not."""
_SEED = 2026


@dataclass(frozen=True, eq=False)
class AttributeTruth:
    """Which label each text had, of which the attacker knows it, and where texts were released.

    Several looks at a text are put together: what the attacker makes of each is added up.

    Attributes:
        labels: `[n]` int64.
        classes: How many labels there are.
        known: `[n]` bool, texts whose label the attacker knows; it is scored on the others.
        records: By record set, `[n]` int64: the record that holds each text, counted through the set's shards;
            `ELSEWHERE` if none does.
        steps: By job and step, `[rows]` int64: each row's text.
        groups: `[n]` int64, what makes texts dependent: their author. `None`: each text stands for itself.
        signal: What controls plant labels in.
        noise: What control traffic was made with, where that is planted, too.

    Raises:
        DataError: A group has texts that are known and texts that are attacked, or nothing is attacked.
    """

    labels: Tensor
    classes: int
    known: Tensor
    records: Mapping[str, Tensor] = field(default_factory=dict)
    steps: Mapping[tuple[str, int], Tensor] = field(default_factory=dict)
    groups: Tensor | None = None
    signal: SignalSource = SignalSource.WORDS
    noise: Noise | None = None

    def __post_init__(self) -> None:
        if bool(self.known.all()):
            raise DataError("The attacker knows every label, so there is none left to guess.")
        if self.groups is not None:
            shared = torch.isin(self.groups[self.known], self.groups[~self.known])
            if bool(shared.any()):
                raise DataError(
                    f"{len(self.groups[self.known][shared].unique())} groups have texts whose label is known and texts "
                    "that are attacked: to know the author is to know the attribute.",
                    remedy="Split by group.",
                )

    def granted(self, transcript: Transcript, knowledge: Knowledge) -> Knowledge:
        """Knowledge with the labels of the known texts, where the transcript holds their releases."""
        told = torch.where(self.known, self.labels, UNMARKED)
        labels = {(source_of(job), step): told[rows] for (job, step), rows in self.steps.items()}
        for name, record_of in self.records.items():
            held = torch.full((1 + int(record_of.max()),), UNMARKED, dtype=torch.int64)
            here = self.known & (record_of != ELSEWHERE)
            held[record_of[here]] = self.labels[here]
            start = 0
            for number, rows in sorted(_shards(transcript, name).items()):
                own = held[start : start + rows]
                missing = torch.full((rows - len(own),), UNMARKED, dtype=torch.int64)
                labels[f"record-set/{name}", number] = torch.cat([own, missing])
                start += rows
        known = replace(knowledge, labelled=Labelled(labels, self.classes))
        return known if self.noise is None else replace(known, noise=self.noise)

    def score(self, guesses: Iterable[Guess]) -> Score:
        """The share of attacked texts whose label was guessed; clusters are groups.

        Guesses are labels, or log-probabilities of each, from which the area under the curve follows for two.

        Raises:
            DataError: Transcript and truth do not belong together.
        """
        read = self._read(guesses)
        attacked = (~self.known & (read.looks > 0)).nonzero()[:, 0]
        if not len(attacked):
            raise DataError("The transcript shows none of the attacked texts.", remedy=OTHER_RUN)
        truth, guessed = self.labels[attacked], read.votes[attacked].argmax(1)
        groups = torch.arange(len(attacked)) if self.groups is None else self.groups[attacked]
        cluster = groups.unique(return_inverse=True)[1]
        empty = torch.zeros(1 + int(cluster.max()), dtype=torch.int64)
        chance = chance_of_match(truth, guessed, looks=torch.ones_like(truth))
        return Score(
            hits=empty.index_add(0, cluster, (truth == guessed).long()),
            trials=empty.index_add(0, cluster, torch.ones_like(truth)),
            chance=chance,
            looks=int(read.looks[attacked].max()),
            further=self._further(truth, read, attacked, groups),
        )

    def sample(self) -> AttributeTruth:
        """Labels of as many texts as a control has, in the shares that they have here."""
        rng = torch.Generator().manual_seed(_SEED)
        wanted = CONTROL_KNOWN + CONTROL_ATTACKED
        order = torch.cat([torch.randperm(len(self.labels), generator=rng) for _ in range(-(-wanted // len(self)))])
        known = torch.arange(wanted) < CONTROL_KNOWN
        return AttributeTruth(self.labels[order[:wanted]], self.classes, known, signal=self.signal)

    def __len__(self) -> int:
        return len(self.labels)

    def traffic(
        self, kind: Traffic, like: Transcript, knowledge: Knowledge, *, looks: int, rng: torch.Generator
    ) -> tuple[Transcript, AttributeTruth]:
        """Made-up texts that tell their labels where the attack looks, in the form of those in `like`.

        They do so by a word, by their length, by which of their words survive a noise of the control's own, or by the
        order of their records. For
        shuffled traffic each text tells another's label: what is learnt of known texts is then as wrong as what is
        guessed of the others.
        """
        if self.signal is SignalSource.ORDER:
            return self._ordered(kind, like, knowledge, rng=rng)
        form = form_of(like)
        labels = self.labels[torch.randperm(len(self), generator=rng)] if kind is Traffic.SHUFFLED else self.labels
        told = None if kind is Traffic.NOISE else labels
        if self.signal is SignalSource.SURVIVAL:
            return self._surviving(told, form, knowledge, looks=looks, rng=rng)
        tokens = telling_like(form, told, len(self), self.classes, self.signal, knowledge, rng)
        frames = []
        for step in range(1, looks + 1):
            payload = as_rows(tokens, kind, knowledge, rng) if isinstance(form, Rows) else tokens
            frames.append(sent(Direction.UP, step, packed(payload, form)))
        steps = {(CONTROL, step): torch.arange(len(self)) for step in range(1, looks + 1)}
        return Transcript(lambda: frames), replace(self, steps=steps)

    def _ordered(
        self, kind: Traffic, like: Transcript, knowledge: Knowledge, *, rng: torch.Generator
    ) -> tuple[Transcript, AttributeTruth]:
        """Records of one word each, in the order of their labels or in none, of which some are known all over."""
        labels = self.labels.sort().values
        if kind is not Traffic.UNPROTECTED:
            labels = labels[torch.randperm(len(self), generator=rng)]
        known = self.known[torch.randperm(len(self), generator=rng)]
        transcript = stored_words(len(self), like, knowledge, rng=rng)
        return transcript, replace(self, labels=labels, known=known, records={CONTROL: torch.arange(len(self))})

    def _surviving(
        self, labels: Tensor | None, form: Payload, knowledge: Knowledge, *, looks: int, rng: torch.Generator
    ) -> tuple[Transcript, AttributeTruth]:
        """Texts of random words, of which each class keeps others: what is left of them is all that tells it.

        Words stand as often as in the attacker's own text: of those that this lacks it can have learnt nothing.
        """
        if isinstance(form, Rows) or knowledge.table is None or len(form.segments) != 1:
            raise Inapplicable("Which tokens survive is read from the ids of single texts.")
        words = vocabulary_of(knowledge, form)
        if knowledge.public is not None:
            own = knowledge.public.tokens.values
            words = own[torch.isin(own, words)]
            if not len(words):
                raise Inapplicable("The attacker's own text has no word that may be guessed.")
        kept_by = torch.randint(self.classes, (len(knowledge.table),), generator=rng)
        etas = torch.full((len(knowledge.table), self.classes), _DROWNED, dtype=torch.float64)
        etas[torch.arange(len(etas)), kept_by] = _KEPT
        noise = Noise(TextToText(eta=1.0, cti=CtiSpec()), etas=etas / float(knowledge.table.norm(dim=1).mean()))
        lengths = torch.full((len(self),), _SURVIVING)
        values = words[torch.randint(len(words), (int(lengths.sum()),), generator=rng)]
        told = torch.randint(self.classes, (len(self),), generator=rng) if labels is None else labels
        seed = int(torch.randint(2**62, (), generator=rng))
        frames = []
        for step in range(1, looks + 1):
            drawn = simulate(
                Tokens((Ragged(values, lengths),)),
                replace(knowledge, noise=noise),
                rows=None,
                rng=np.random.Generator(np.random.PCG64([seed, step])),
                classes=told,
            )
            frames.append(sent(Direction.UP, step, packed(drawn, form)))
        steps = {(CONTROL, step): torch.arange(len(self)) for step in range(1, looks + 1)}
        return Transcript(lambda: frames), replace(self, steps=steps, noise=noise)

    def graded(self, like: Transcript, knowledge: Knowledge, *, rng: torch.Generator) -> Graded:
        """Texts that tell labels by a word, released as the run's are, beside the class that is nearest on average.

        Raises:
            Inapplicable: See `Truth.graded`; or the attack looks where no setting hides anything.
        """
        if self.signal is SignalSource.LENGTHS:
            raise Inapplicable("No setting hides how long texts are: unprotected traffic is of the run's own settings.")
        if self.signal is SignalSource.ORDER:
            raise Inapplicable("No noise is added to record numbers: unprotected traffic is of the run's own settings.")
        if self.signal is SignalSource.SURVIVAL:
            raise Inapplicable(
                "No simpler attack reads what survives, and the control's noise is already one that hides."
            )
        form = form_of(like)
        tokens = telling_like(form, self.labels, len(self), self.classes, self.signal, knowledge, rng)
        etas = None if knowledge.noise is None else knowledge.noise.etas
        by_class = self.labels if etas is not None and etas.shape[1] == self.classes else None
        transcript, payload = released_again(tokens, like, knowledge, rng=rng, classes=by_class)
        nearest = nearest_class(payload, self.labels, self.known, self.classes, knowledge)
        truth = replace(self, steps={(CONTROL, 1): torch.arange(len(self))})
        return Graded(transcript, truth, ((f"job/{CONTROL}", 1, nearest),))

    def ceiling(self, knowledge: Knowledge) -> float:
        """1: any label may be guessed."""
        return 1.0

    def _read(self, guesses: Iterable[Guess]) -> _Votes:
        votes = torch.zeros(len(self), self.classes, dtype=torch.float64)
        looks = torch.zeros(len(self), dtype=torch.int64)
        graded = True
        for texts, guess in by_text(guesses, self.records, self.steps, form=Tensor):
            graded &= guess.is_floating_point()
            values = guess if guess.is_floating_point() else torch.nn.functional.one_hot(guess, self.classes)
            votes.index_add_(0, texts, values.double())
            looks += torch.bincount(texts, minlength=len(self))
        return _Votes(votes, looks, graded)

    def _further(self, truth: Tensor, read: _Votes, attacked: Tensor, groups: Tensor) -> tuple[SecondaryMetric, ...]:
        share = float(torch.bincount(truth).max()) / len(truth)
        majority = SecondaryMetric(
            name="majority",
            title="share of the most frequent label: what needs no look at all",
            value=share,
            n=len(truth),
            higher_is_leak=False,
        )
        if self.classes != 2 or not read.graded or len(truth.unique()) < 2:
            return (majority,)
        means = read.votes[attacked] / read.looks[attacked, None]
        scores, positive = means[:, 1] - means[:, 0], truth == 1
        # of one kind's groups at least: where all stand on their side, the rarer kind says how sure that is
        fewest = min(len(groups[positive].unique()), len(groups[~positive].unique()))
        area = SecondaryMetric(
            name="auc",
            title="area under the ROC curve",
            value=float(area_under_curve(scores, positive)),
            interval=bootstrap_of(lambda weights: area_under_curve(scores, positive, weights), groups, trials=fewest),
            n=len(truth),
        )
        return area, majority


class _Votes(NamedTuple):
    """`votes` `[n, classes]`: what all looks make of each text, in sum; `looks` `[n]`; whether votes are graded."""

    votes: Tensor
    looks: Tensor
    graded: bool


def _shards(transcript: Transcript, name: str) -> dict[int, int]:
    """How many records each shard of a set holds."""
    found = {}
    for frame in transcript.only(routes.SHARD_PUT):
        if frame.where["record_set"] == name and frame.direction is Direction.UP:
            found[int(frame.where["shard"])] = len(frame.tensors()["lengths"])
    return found
