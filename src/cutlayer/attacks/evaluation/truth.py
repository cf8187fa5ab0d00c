"""What the attacked data really was: held by whoever measures, never by an attack.

A truth scores guesses. It also makes the traffic that an attack is checked with: about the same
texts and in the same form, but unprotected, pure noise, or shuffled.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Protocol, Self

import numpy as np
import torch
from torch import Tensor

from cutlayer.attacks.attack import Clue, Guess
from cutlayer.attacks.evaluation.scoring import (
    Further,
    Score,
    chance_of_groups,
    chance_of_match,
    matched_groups,
    resampled,
)
from cutlayer.attacks.evaluation.simplest import most_said, read_words
from cutlayer.attacks.evaluation.telling import telling_like, vocabulary
from cutlayer.attacks.knowledge import Inapplicable, Knowledge
from cutlayer.attacks.simulate import boundary, simulate
from cutlayer.attacks.view import SeenFrame, Transcript
from cutlayer.core import DataError, Payload, Ragged, Rows, Tokens
from cutlayer.privacy import keep_probability
from cutlayer.privacy.neighbours import NeighbourSearch
from cutlayer.wire import WireType, pack, routes
from cutlayer.wire.recording import Direction

CONTROL_ITEMS = 4096
"""Tokens, or labels, that a control looks at: enough to tell 1 % more than chance, little enough for a second."""

_REPORTED, _FALSE = 2048, 0.35
"""Of a control with drawn labels: how many records it has, and which share of reports is another label."""
_LEARNT, _SPREAD = 2.0, 0.1
"""Of a control's model: by how much a text's logit of its own label is larger, and how much logits vary beside that."""

REPORTS_ALONE = "reports_alone"
"""Name of the number beside a score of drawn labels: what reports alone tell."""

UNREAD = -1
"""In the place of a token about which nothing was guessed."""

ELSEWHERE = -1
"""In the place of the record of a text that a record set does not hold."""
CONTROL = "control"
"""The job that control traffic is said to be of."""
_OTHER_RUN = "Give the transcript of the same run."


class Traffic(StrEnum):
    """What a control's traffic holds."""

    UNPROTECTED = "unprotected"
    """The truth itself: an attack that works recovers it."""
    NOISE = "noise"
    """Nothing: an attack that recovers more than chance knows the truth from elsewhere."""
    SHUFFLED = "shuffled"
    """The truth's values, each at another's place: so must a score that counts right."""


@dataclass(frozen=True)
class Graded:
    """Traffic as the run's own settings make it, and what the simplest attack makes of that.

    Attributes:
        transcript: The traffic.
        truth: What to score it with.
        simplest: Guesses of the simplest attack with the same clue.
    """

    transcript: Transcript
    truth: Truth
    simplest: tuple[Guess, ...]


class Truth(Protocol):
    """What a measurement needs of the truth."""

    def score(self, guesses: Iterable[Guess]) -> Score:
        """Compares guesses with the truth."""
        ...

    def sample(self) -> Self:
        """About `CONTROL_ITEMS` items of it."""
        ...

    def traffic(
        self, kind: Traffic, like: Transcript, knowledge: Knowledge, *, looks: int, rng: torch.Generator
    ) -> tuple[Transcript, Self]:
        """A control's transcript, and the truth to score it with."""
        ...

    def graded(self, like: Transcript, knowledge: Knowledge, *, rng: torch.Generator) -> Graded:
        """The same released with noise of the control's own, as the run releases it, one look at each text.

        It is about the texts under attack, not about the attacker's: an attack that learnt from these may know them by
        heart.

        Raises:
            Inapplicable: There is nothing between what unprotected traffic shows and what the run's shows, or it is not
                known how the run releases.
        """
        ...

    def ceiling(self, knowledge: Knowledge) -> float:
        """The share of items that an attack may guess at all."""
        ...

    def granted(self, transcript: Transcript, knowledge: Knowledge) -> Knowledge:
        """Knowledge with what an attacker is told of this truth itself: labels of some records."""
        ...


@dataclass(frozen=True)
class Reading:
    """What an attack made of texts, beside what they were; items are tokens, segment by segment.

    Attributes:
        tokens: The texts.
        read: What was read in the place of each token; `UNREAD` where nothing was.
        right: `[items]` bool, whether any look read the token.
        seen: `[items]` bool, whether the token counts: it was looked at, and something can be guessed of it.
        looks: `[items]` int64, how often.
        chance: The share of tokens that would be read by chance.
        texts: `[n]` int64, which of a run's texts these are.
        further: Other numbers of the same guesses.
        originals: As of a `TokenTruth`.
    """

    tokens: Tokens
    read: Tokens
    right: Tensor
    seen: Tensor
    looks: Tensor
    chance: float
    texts: Tensor
    further: tuple[Further, ...] = ()
    originals: Tensor | None = None

    @property
    def owners(self) -> Tensor:
        """`[items]` int64: each token's text."""
        return self.tokens.owners

    @property
    def score(self) -> Score:
        """The share of tokens that was read."""
        right, seen = self.per_text(self.right), self.per_text(self.seen)
        if self.originals is not None:
            right, seen = (torch.zeros_like(each).index_add(0, self.originals, each) for each in (right, seen))
        return Score(right, seen, self.chance, int(self.looks.max()), self.further, reading=self)

    def per_text(self, items: Tensor) -> Tensor:
        """`[texts]` int64: how many of a text's tokens are marked in `items` `[items]` bool."""
        return torch.zeros(len(self.tokens), dtype=torch.int64).index_add(0, self.owners, items.long())


@dataclass(frozen=True)
class TokenTruth:
    """Which tokens the texts had, and where in the transcript each text was released.

    A token counts as recovered if any look at its text recovers it: "the union of the results of
    performing E attacks" (SAP, Appendix A). Only texts that the transcript shows are counted.

    Guesses may be rows `[width]` in the place of ids: each counts as the nearest row's token, and how far rows are from
    the true ones is told beside.

    Attributes:
        tokens: Content tokens of `n` texts.
        records: By record set, `[n]` int64: the number of the record that holds each text, counted
            through the set's shards, `ELSEWHERE` if none does. Texts may share a record.
        steps: By job and step, for steps with a release of their own, `[rows]` int64: each row's text, `ELSEWHERE`
            where it is none of these.
        skipped: First tokens of each text that are not counted.
        texts: `[n]` int64, which of a run's texts these are; `None` for all of them.
        search: The table that guessed rows are rows of; not needed for guesses that are ids.
        originals: `[n]` int64 below n: texts of one number are one text that left several times, and are no independent
            trials; `None` where each left once.
    """

    tokens: Tokens
    records: Mapping[str, Tensor] = field(default_factory=dict)
    steps: Mapping[tuple[str, int], Tensor] = field(default_factory=dict)
    skipped: int = 0
    texts: Tensor | None = None
    search: NeighbourSearch | None = None
    originals: Tensor | None = None

    @classmethod
    def joined(cls, runs: Sequence[TokenTruth], originals: Tensor) -> TokenTruth:
        """The texts of several runs, those of one behind those of another.

        Args:
            runs: Of each what was asked of its texts, single ones or pairs in all runs.
            originals: Of all of their texts.
        """
        counts = [len(run.tokens) for run in runs]
        starts = [sum(counts[:number]) for number in range(len(runs))]
        records: dict[str, Tensor] = {}
        steps: dict[tuple[str, int], Tensor] = {}
        for run, start in zip(runs, starts, strict=True):
            for name, numbers in run.records.items():
                records[name] = torch.full((sum(counts),), ELSEWHERE)
                records[name][start : start + len(numbers)] = numbers
            steps |= {
                key: torch.where(texts == ELSEWHERE, ELSEWHERE, texts + start) for key, texts in run.steps.items()
            }
        tokens = _joined([run.tokens for run in runs])
        return cls(tokens, records=records, steps=steps, search=runs[0].search, originals=originals)

    def score(self, guesses: Iterable[Guess]) -> Score:
        """Compares guesses with the truth.

        Raises:
            DataError: Guesses and texts differ in shape: transcript and truth do not belong together.
        """
        return self.read(guesses).score

    def read(self, guesses: Iterable[Guess]) -> Reading:
        """What guesses make of the texts, token by token.

        Raises:
            DataError: Guesses and texts differ in shape: transcript and truth do not belong together. Or rows were
                guessed, and there is no table to compare them with.
        """
        truth, places = self.tokens.values, _places(self.tokens)
        within = _within(self.tokens)
        counted = within >= self.skipped
        kinds = _kinds(within, self.tokens)
        right = torch.zeros(len(truth), dtype=torch.bool)
        looks = torch.zeros(len(truth), dtype=torch.int64)
        read = torch.full_like(truth, UNREAD)
        guessed: list[Tensor] = []
        guessed_at: list[Tensor] = []
        distances: list[tuple[Tensor, Tensor, Tensor]] = []
        for looked_at, guess in self._aligned(places, guesses):
            items, values = looked_at.values, guess.values
            if values.is_floating_point():
                search = self._searched()
                distances.append((items, *_differences(values, search.table[truth[items]])))
                values = search.nearest(values.double())
            hit = truth[items] == values
            # a look that reads a token counts, whatever others make of it; of those that do not, the first is shown
            shown = hit | (looks[items] == 0)
            read[items[shown]] = values[shown]
            right[items[hit]] = True
            looks[items] += 1
            guessed.append(values[counted[items]])
            guessed_at.append(kinds[items][counted[items]])
        if not guessed:
            raise DataError("The transcript shows none of the texts that the truth names.", remedy=_OTHER_RUN)
        seen = (looks > 0) & counted
        right &= seen
        chance = chance_of_match(
            truth[seen],
            torch.cat(guessed),
            looks=looks[seen],
            places=kinds[seen],
            guessed_at=torch.cat(guessed_at),
        )
        everything = torch.arange(len(self.tokens))
        return Reading(
            self.tokens,
            self.tokens.with_values(read),
            right=right,
            seen=seen,
            looks=looks,
            chance=chance,
            texts=everything if self.texts is None else self.texts,
            further=self._far(distances, seen) if distances else (),
            originals=self.originals,
        )

    def _searched(self) -> NeighbourSearch:
        if self.search is None:
            raise DataError("Rows were guessed, and the truth has no table to compare them with.", remedy="Give one.")
        return self.search

    def _far(self, distances: list[tuple[Tensor, Tensor, Tensor]], seen: Tensor) -> tuple[Further, ...]:
        """How far guessed rows are from the true ones, over all looks."""
        items, errors, likenesses = (torch.cat(column) for column in zip(*distances, strict=True))
        counted = seen[items]
        owner = self.tokens.owners[items[counted]]
        none = torch.zeros(len(self.tokens), dtype=torch.float64)
        trials = none.index_add(0, owner, torch.ones(len(owner), dtype=torch.float64))
        told = []
        for name, title, values, leaks in (
            ("mse", "mean squared distance of guessed rows from the true ones", errors, False),
            ("cosine", "cosine between guessed and true rows", likenesses, True),
        ):
            sums = none.index_add(0, owner, values[counted])
            told.append(
                Further(
                    name=name,
                    title=title,
                    value=float(sums.sum() / trials.sum()),
                    interval=resampled(sums, trials),
                    n=len(owner),
                    unit=name,
                    higher_is_leak=leaks,
                )
            )
        rows = self._searched().table[self.tokens.values[items[counted]]]
        spread = Further(
            name="mse_blind",
            title="mean squared distance of the mean row: what needs no look at all",
            value=float((rows - rows.mean(0)).square().sum(1).mean()),
            n=len(owner),
            unit="mse",
            higher_is_leak=False,
        )
        return (*told, spread)

    def _aligned(self, places: Tokens, guesses: Iterable[Guess]) -> Iterable[tuple[Tokens, Tokens]]:
        """Guesses beside the places in the truth that they are about."""
        shards: dict[str, dict[int, Tokens]] = {}
        for source, number, guess in guesses:
            kind, _, name = source.partition("/")
            if kind == "record-set" and name in self.records and isinstance(guess, Tokens):
                shards.setdefault(name, {})[number] = guess
            elif kind == "job" and (name, number) in self.steps and isinstance(guess, Tokens):
                texts = self.steps[name, number]
                told = (texts != ELSEWHERE).nonzero()[:, 0]
                yield _fitting(places.select(texts[told]), guess.select(told))
        for name, found in shards.items():
            records = _joined([found[number] for number in sorted(found)])
            if sorted(found) != list(range(len(found))) or int(self.records[name].max()) >= len(records):
                raise DataError(f"Shards of record set {name} are missing from the transcript.", remedy=_OTHER_RUN)
            told = (self.records[name] != ELSEWHERE).nonzero()[:, 0]
            yield _fitting(places.select(told), records.select(self.records[name][told]))

    def only(self, chosen: Tensor) -> Self:
        """The same about some of the texts: of the others nothing is asked.

        Args:
            chosen: `[n]` bool.
        """
        kept = chosen.nonzero()[:, 0]
        place = torch.full((len(chosen) + 1,), ELSEWHERE)
        place[kept] = torch.arange(len(kept))
        return replace(
            self,
            tokens=self.tokens.select(kept),
            records={name: numbers[kept] for name, numbers in self.records.items()},
            steps={key: place[texts] for key, texts in self.steps.items()},
            texts=kept if self.texts is None else self.texts[kept],
            originals=None if self.originals is None else self.originals[kept].unique(return_inverse=True)[1],
        )

    def beginning(self, transcript: Transcript, tokens: int) -> tuple[Transcript, Self]:
        """The first texts of a transcript, of about so many tokens, and the part of it that shows them.

        Args:
            transcript: What this is the truth of.
            tokens: How many; one text at least.
        """
        lengths = torch.stack([side.lengths for side in self.tokens.segments]).sum(0)
        if self.originals is not None:
            # what else of them left is in the rest of the transcript
            return transcript, self.only(lengths.cumsum(0) - lengths < tokens)
        if self.records:
            ((name, numbers),) = self.records.items()
            stored = torch.zeros(int(numbers.max()) + 1, dtype=torch.int64).scatter(0, numbers, lengths)
            count = max(1, int((stored.cumsum(0) - stored < tokens).sum()))
            return transcript.first_records(name, count), self.only(numbers < count)
        steps: dict[tuple[str, int], Tensor] = {}
        chosen = torch.zeros(len(self.tokens), dtype=torch.bool)
        taken = 0
        for key in sorted(self.steps, key=lambda each: each[1]):
            if taken >= tokens:
                break
            steps[key] = self.steps[key]
            asked = steps[key][steps[key] != ELSEWHERE]
            chosen[asked] = True
            taken += int(lengths[asked].sum())
        if not steps:
            return transcript, self
        return transcript.first_steps(max(number for _, number in steps)), replace(self, steps=steps).only(chosen)

    def shortened(self, positions: int) -> Self:
        """About the first tokens of each text alone, so many at most; of pairs about all, as `Transcript.shortened`."""
        if len(self.tokens.segments) > 1:
            return self
        (segment,) = self.tokens.segments
        return replace(self, tokens=Tokens((segment.first(segment.lengths.clamp(max=positions)),)))

    def limited(self, tokens: int) -> Self:
        """The first texts of a sample, of so many tokens at most, one text at least; it knows no place of theirs."""
        ends = torch.stack([side.lengths for side in self.tokens.segments]).sum(0).cumsum(0)
        kept = max(1, int((ends <= tokens).sum()))
        return replace(self, tokens=self.tokens.select(torch.arange(kept)), records={}, steps={})

    def sample(self) -> TokenTruth:
        """Texts spread evenly over all, with about `CONTROL_ITEMS` tokens."""
        stride = -(-self.tokens.total // CONTROL_ITEMS)
        some = self.tokens.select(torch.arange(0, len(self.tokens), max(stride, 1)))
        return TokenTruth(some, skipped=self.skipped, search=self.search)

    def repeated(self, times: int) -> TokenTruth:
        """About as many copies of each text of a sample, the first ones of all texts first."""
        every = torch.arange(len(self.tokens)).repeat(times)
        return TokenTruth(self.tokens.select(every), skipped=self.skipped, search=self.search, originals=every)

    def traffic(
        self, kind: Traffic, like: Transcript, knowledge: Knowledge, *, looks: int, rng: torch.Generator
    ) -> tuple[Transcript, TokenTruth]:
        """These texts released `looks` times, as ids or rows like those in `like`."""
        form = form_of(like)
        frames = []
        for step in range(1, looks + 1):
            tokens = _altered(self.tokens, kind, knowledge, rng)
            payload = as_rows(tokens, kind, knowledge, rng) if isinstance(form, Rows) else tokens
            frames.append(sent(Direction.UP, step, packed(payload, form)))
        steps = {(CONTROL, step): torch.arange(len(self.tokens)) for step in range(1, looks + 1)}
        truth = TokenTruth(self.tokens, steps=steps, skipped=self.skipped, search=self.search)
        return Transcript(lambda: frames), truth

    def graded(self, like: Transcript, knowledge: Knowledge, *, rng: torch.Generator) -> Graded:
        """These texts released once, beside what the nearest row, or a linear map behind blocks, reads of them.

        Of copies of a text that is what most of them say in each place.
        """
        transcript, payload = released_again(self.tokens, like, knowledge, rng=rng)
        truth = TokenTruth(
            self.tokens,
            steps={(CONTROL, 1): torch.arange(len(self.tokens))},
            skipped=self.skipped,
            search=self.search,
            originals=self.originals,
        )
        read = read_words(payload, knowledge, frequent=int(self.tokens.values.mode().values))
        if self.originals is not None:
            read = most_said(read, self.originals)
        return Graded(transcript, truth, ((f"job/{CONTROL}", 1, read),))

    def ceiling(self, knowledge: Knowledge) -> float:
        """The share of tokens that are candidates."""
        if knowledge.candidates is None:
            return 1.0
        return float(knowledge.candidates[self.tokens.values].double().mean())

    def granted(self, transcript: Transcript, knowledge: Knowledge) -> Knowledge:
        """The same knowledge: of its tokens nothing is told."""
        return knowledge


@dataclass(frozen=True)
class LabelTruth:
    """Which labels the texts had, and which texts each step was about.

    Attributes:
        labels: `[n]` int64.
        num_labels: How many labels there are.
        steps: By job and step, `[rows]` int64: each row's text.
        named: Whether guesses are labels, or numbers of groups, which are matched with labels at their best.
        epsilon: Of the randomised response that losses were computed from; `None` if from labels as they are.
        clue: What controls plant labels in.
    """

    labels: Tensor
    num_labels: int
    steps: Mapping[tuple[str, int], Tensor] = field(default_factory=dict)
    named: bool = True
    epsilon: float | None = None
    clue: Clue = Clue.GRADIENTS

    def score(self, guesses: Iterable[Guess]) -> Score:
        """Compares guesses with the truth; each row of each step is one trial, clustered by text.

        Raises:
            DataError: Guesses and steps differ in length: transcript and truth do not belong together.
        """
        found = list(by_text(guesses, {}, self.steps))
        if not found:
            raise DataError("The transcript shows none of the steps that the truth names.", remedy=_OTHER_RUN)
        rows, values = (torch.cat(column) for column in zip(*found, strict=True))
        if self.named:
            chance = chance_of_match(self.labels[rows], values, looks=torch.ones_like(rows))
        else:
            chance = chance_of_groups(values, self.labels, rows)
            values = matched_groups(values, self.labels[rows])[values]
        right = self.labels[rows] == values
        looks = torch.bincount(rows, minlength=len(self.labels))
        hits = torch.zeros_like(looks).index_add(0, rows, right.long())
        return Score(hits, looks, chance, int(looks.max()), self._further(len(rows)))

    def _further(self, looks: int) -> tuple[Further, ...]:
        if self.epsilon is None:
            return ()
        cap = Further(
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
        if self.clue is Clue.GRADIENTS:
            told = (
                self.labels[torch.randperm(len(self.labels), generator=rng)]
                if kind is Traffic.SHUFFLED
                else self.labels
            )
            plain = replace(self, epsilon=None)
            frames = plain._step(kind, like, told, told, rng, records=self._numbers(told))
            return Transcript(lambda: frames), plain._seen()
        truth = self._further_clue(rng)
        truth = replace(truth, epsilon=math.log((1 / _FALSE - 1) * (self.num_labels - 1)))
        told = truth.labels
        if kind is Traffic.SHUFFLED:
            # told in its order all the same: what is read is right of others
            truth = replace(truth, labels=told[torch.randperm(len(told), generator=rng)])
        frames = truth._step(kind, like, told, truth._reports(told, rng), rng, records=truth._numbers(told))
        if self.clue is Clue.REPORTS:
            form = form_of(like)
            labels = None if kind is Traffic.NOISE else told
            tokens = telling_like(form, labels, len(told), self.num_labels, Clue.WORDS, knowledge, rng)
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
        truth = self if self.clue is Clue.GRADIENTS else self._further_clue(rng)
        reports = truth._reports(truth.labels, rng)
        frames = truth._step(Traffic.UNPROTECTED, like, reports, reports, rng, records=truth._numbers(truth.labels))
        if self.clue is Clue.REPORTS:
            form = form_of(like)
            tokens = telling_like(form, truth.labels, len(reports), self.num_labels, Clue.WORDS, knowledge, rng)
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

    def _further_clue(self, rng: torch.Generator) -> LabelTruth:
        """As many labels as a control has, in the shares that they have here."""
        labels = self.labels.repeat(-(-_REPORTED // len(self.labels)))
        return replace(self, labels=labels[torch.randperm(len(labels), generator=rng)[:_REPORTED]])

    def _numbers(self, told: Tensor) -> Tensor:
        """The number `[n]` of each text's record: sorted by label, where that is to tell labels."""
        return told.argsort(stable=True).argsort() if self.clue is Clue.NEIGHBOURS else torch.arange(len(told))

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
        """All of them."""
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


def form_of(like: Transcript) -> Payload:
    """What was released first."""
    first = next(like.releases(), None)
    if first is None:
        raise Inapplicable("The transcript holds no released text.")
    return first.payload


# ---------------------------------------------------------------- where texts were released


def by_text(
    guesses: Iterable[Guess], records: Mapping[str, Tensor], steps: Mapping[tuple[str, int], Tensor]
) -> Iterator[tuple[Tensor, Tensor]]:
    """Guesses with a row a text, beside the texts that they are about.

    Args:
        guesses: Tensors of as many rows as texts were released.
        records: By record set, `[n]` int64: the record that holds each text, `ELSEWHERE` if none does.
        steps: By job and step, `[rows]` int64: each row's text.

    Yields:
        Texts `[m]` int64 and guesses `[m, ...]`.

    Raises:
        DataError: Guesses and releases differ in length: transcript and truth do not belong together.
    """
    shards: dict[str, dict[int, Tensor]] = {}
    for source, number, guess in guesses:
        kind, _, name = source.partition("/")
        if not isinstance(guess, Tensor):
            continue
        if kind == "record-set" and name in records:
            shards.setdefault(name, {})[number] = guess
        elif kind == "job" and (name, number) in steps:
            if len(guess) != len(steps[name, number]):
                raise DataError(f"Step {number} has another number of texts in the transcript.", remedy=_OTHER_RUN)
            yield steps[name, number], guess
    for name, found in shards.items():
        held = torch.cat([found[number] for number in sorted(found)])
        if sorted(found) != list(range(len(found))) or int(records[name].max()) >= len(held):
            raise DataError(f"Shards of record set {name} are missing from the transcript.", remedy=_OTHER_RUN)
        texts = (records[name] != ELSEWHERE).nonzero()[:, 0]
        yield texts, held[records[name][texts]]


# ---------------------------------------------------------------- tokens, flat


def _differences(guessed: Tensor, true: Tensor) -> tuple[Tensor, Tensor]:
    """Squared distance and cosine `[n]` of rows `[n, width]`, float64."""
    errors = (guessed.float() - true).square().sum(1).double()
    return errors, torch.nn.functional.cosine_similarity(guessed.float(), true.float()).double()


def _places(tokens: Tokens) -> Tokens:
    """In each token's place the number of that place."""
    return tokens.with_values(torch.arange(tokens.total))


def _within(tokens: Tokens) -> Tensor:
    """For each token its place in its segment, counted from 0."""
    starts = [segment.offsets[:-1].repeat_interleave(segment.lengths) for segment in tokens.segments]
    pairs = zip(tokens.segments, starts, strict=True)
    return torch.cat([torch.arange(len(segment.values)) - start for segment, start in pairs])


def _kinds(within: Tensor, tokens: Tokens) -> Tensor:
    """For each token whether it is its segment's first, its last, both or neither; in which segment, too."""
    kinds = []
    start = 0
    for number, segment in enumerate(tokens.segments):
        place = within[start : start + len(segment.values)]
        last = segment.lengths.repeat_interleave(segment.lengths) - 1
        kinds.append(4 * number + 2 * (place == 0).long() + (place == last).long())
        start += len(segment.values)
    return torch.cat(kinds)


def _joined(parts: list[Tokens]) -> Tokens:
    columns = zip(*(part.segments for part in parts), strict=True)
    return Tokens(tuple(type(column[0]).concatenate(column) for column in columns))


def _fitting(places: Tokens, guess: Tokens) -> tuple[Tokens, Tokens]:
    pairs = zip(places.segments, guess.segments, strict=False)
    if len(places.segments) != len(guess.segments) or not all(torch.equal(a.lengths, b.lengths) for a, b in pairs):
        raise DataError("Texts in the transcript are not as long as those they are compared with.", remedy=_OTHER_RUN)
    return places, guess


# ---------------------------------------------------------------- control traffic


def sent(direction: Direction, step: int, tensors: Mapping[str, Tensor]) -> SeenFrame:
    """A step's frame of control traffic."""
    return SeenFrame(direction, routes.STEP, {"job": CONTROL, "step": step}, lambda: tensors)


def released_again(
    tokens: Tokens, like: Transcript, knowledge: Knowledge, *, rng: torch.Generator, classes: Tensor | None = None
) -> tuple[Transcript, Payload]:
    """Texts released once more as a run released its own, with noise of the control's own.

    Attacks on one run share such releases, with what else is kept with the attacker's text.

    Args:
        tokens: The texts.
        like: What is under attack; the form of what it released is taken.
        knowledge: All that any attacker is granted.
        rng: Draws the noise, which hides nothing.
        classes: As for `simulate`.

    Returns:
        A step's release, and what it holds.

    Raises:
        Inapplicable: Nothing was released, nothing is privatized, or it is not known how.
    """
    form = form_of(like)
    if knowledge.noise is None:
        raise Inapplicable("It is not known how texts are privatized, so none can be released in the same way.")
    if knowledge.noise.privacy.mechanism == "none":
        raise Inapplicable("Nothing is privatized: unprotected traffic is of the run's own settings.")
    seed = int(torch.randint(2**62, (), generator=rng))
    dtype = form.packed.values.dtype if isinstance(form, Rows) else None
    drawn = np.random.Generator(np.random.PCG64(seed))

    def release() -> Payload:
        return simulate(tokens, knowledge, rows=dtype, rng=drawn, classes=classes)

    if knowledge.public is None:
        payload = release()
    else:
        key = ("released again", knowledge.key, dtype, seed, _digest(tokens), classes is None)
        payload = knowledge.public.fitted(key, release)
    return Transcript(lambda: [sent(Direction.UP, 1, packed(payload, form))]), payload


def _digest(tokens: Tokens) -> bytes:
    """Tells texts from others, in memory and nowhere else."""
    state = hashlib.blake2b(digest_size=16)
    for side in tokens.segments:
        state.update(side.lengths.numpy().tobytes() + side.values.numpy().tobytes())
    return state.digest()


def stored(tensors: Mapping[str, Tensor]) -> SeenFrame:
    """A record set's only shard, of control traffic."""
    where: Mapping[str, str | int] = {"record_set": CONTROL, "shard": 0}
    return SeenFrame(Direction.UP, routes.SHARD_PUT, where, lambda: tensors)


def stored_words(count: int, like: Transcript, knowledge: Knowledge, *, rng: torch.Generator) -> Transcript:
    """Records of one word each, the same for all, in the form of those in another transcript."""
    form = form_of(like)
    word = 0 if knowledge.candidates is None else int(knowledge.candidates.nonzero()[0])
    lengths = torch.ones(count, dtype=torch.int64)
    sides: tuple[Ragged, ...] = (Ragged(torch.full((count,), word), lengths),)
    if (form.segment_lengths.shape[1] if isinstance(form, Rows) else len(form.segments)) == 2:
        sides = (*sides, Ragged(sides[0].values[:0], torch.zeros_like(lengths)))
    tokens = Tokens(sides)
    payload = as_rows(tokens, Traffic.UNPROTECTED, knowledge, rng) if isinstance(form, Rows) else tokens
    frame = stored(packed(payload, form))
    return Transcript(lambda: [frame])


def packed(payload: Payload, like: Payload) -> Mapping[str, Tensor]:
    """A release's tensors, rows in the element type of another release's."""
    bf16 = isinstance(like, Rows) and like.packed.values.dtype is torch.bfloat16
    return pack(payload, vocab_size=2**32, wire_type=WireType.BF16 if bf16 else WireType.FP32)


def _altered(tokens: Tokens, kind: Traffic, knowledge: Knowledge, rng: torch.Generator) -> Tokens:
    values = tokens.values
    if kind is Traffic.SHUFFLED:
        values = values[torch.randperm(len(values), generator=rng)]
    elif kind is Traffic.NOISE:
        allowed = vocabulary(knowledge, largest=int(values.max()))
        values = allowed[torch.randint(len(allowed), values.shape, generator=rng)]
    return tokens.with_values(values)


def as_rows(tokens: Tokens, kind: Traffic, knowledge: Knowledge, rng: torch.Generator) -> Rows:
    """The boundary rows of tokens as the handed-out bottom makes them; for noise, rows of nothing but noise."""
    rows = boundary(tokens, knowledge)
    if kind is not Traffic.NOISE:
        return rows
    values = rows.packed.values
    return Rows(rows.packed.with_values(torch.randn(values.shape, generator=rng) * values.std()), rows.segment_lengths)
