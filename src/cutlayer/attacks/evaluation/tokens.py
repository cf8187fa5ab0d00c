"""Which tokens texts had, and how well guesses match them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

import torch
from torch import Tensor

from cutlayer.attacks.attack import Guess
from cutlayer.attacks.evaluation.places import ELSEWHERE, OTHER_RUN, by_text
from cutlayer.attacks.evaluation.scoring import UNREAD, Reading, Score, SecondaryMetric
from cutlayer.attacks.evaluation.simplest import most_said, read_words
from cutlayer.attacks.evaluation.statistics import chance_of_match, resampled
from cutlayer.attacks.evaluation.traffic import (
    CONTROL,
    CONTROL_ITEMS,
    Traffic,
    altered,
    as_rows,
    behind_plain_words,
    form_of,
    packed,
    released_again,
    sent,
)
from cutlayer.attacks.evaluation.truth import Graded
from cutlayer.attacks.knowledge import Inapplicable, Knowledge
from cutlayer.attacks.view import Transcript
from cutlayer.core import DataError, Rows, Tokens
from cutlayer.privacy.neighbours import NeighbourSearch
from cutlayer.wire.recording import Direction


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
        uncounted: `[vocab]` bool, tokens that are not counted: words that leave as they are, which nobody need guess.
        originals: `[n]` int64 below n: texts of one number are one text that left several times, and are no independent
            trials; `None` where each left once.
    """

    tokens: Tokens
    records: Mapping[str, Tensor] = field(default_factory=dict)
    steps: Mapping[tuple[str, int], Tensor] = field(default_factory=dict)
    skipped: int = 0
    texts: Tensor | None = None
    search: NeighbourSearch | None = None
    uncounted: Tensor | None = None
    originals: Tensor | None = None

    @classmethod
    def joined(cls, runs: Sequence[TokenTruth], originals: Tensor) -> TokenTruth:
        """The texts of several runs, those of one behind those of another.

        Args:
            runs: Of each what was asked of its texts, single ones or pairs in all runs.
            originals: `[texts]` int64, of all of their texts together.
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
        tokens = Tokens.concatenate([run.tokens for run in runs])
        return cls(
            tokens,
            records=records,
            steps=steps,
            search=runs[0].search,
            uncounted=_any_of([run.uncounted for run in runs if run.uncounted is not None]),
            originals=originals,
        )

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
        counted = self._counted(within)
        if self.uncounted is not None:
            counted &= ~self.uncounted[truth]
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
            raise DataError("The transcript shows none of the texts that the truth names.", remedy=OTHER_RUN)
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

    def _counted(self, within: Tensor) -> Tensor:
        """`[total]` bool: which tokens are counted, by their places `[total]` int64 in their texts."""
        return within >= self.skipped

    def _searched(self) -> NeighbourSearch:
        if self.search is None:
            raise DataError("Rows were guessed, and the truth has no table to compare them with.", remedy="Give one.")
        return self.search

    def _far(self, distances: list[tuple[Tensor, Tensor, Tensor]], seen: Tensor) -> tuple[SecondaryMetric, ...]:
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
                SecondaryMetric(
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
        spread = SecondaryMetric(
            name="mse_blind",
            title="mean squared distance of the mean row: what needs no look at all",
            value=float((rows - rows.mean(0)).square().sum(1).mean()),
            n=len(owner),
            unit="mse",
            higher_is_leak=False,
        )
        return (*told, spread)

    def _aligned(self, places: Tokens, guesses: Iterable[Guess]) -> Iterator[tuple[Tokens, Tokens]]:
        """Guesses beside the places in the truth that they are about."""
        for texts, guess in by_text(guesses, self.records, self.steps, form=Tokens):
            yield _fitting(places.select(texts), guess)

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
        return TokenTruth(some, skipped=self.skipped, search=self.search, uncounted=self.uncounted)

    def repeated(self, times: int) -> TokenTruth:
        """About as many copies of each text of a sample, the first ones of all texts first."""
        every = torch.arange(len(self.tokens)).repeat(times)
        return TokenTruth(
            self.tokens.select(every),
            skipped=self.skipped,
            search=self.search,
            uncounted=self.uncounted,
            originals=every,
        )

    def traffic(
        self, kind: Traffic, like: Transcript, knowledge: Knowledge, *, looks: int, rng: torch.Generator
    ) -> tuple[Transcript, TokenTruth]:
        """These texts released `looks` times, as ids or rows like those in `like`."""
        form = form_of(like)
        frames = []
        for step in range(1, looks + 1):
            tokens = altered(behind_plain_words(self.tokens, knowledge, rng=rng), kind, knowledge, rng)
            payload = as_rows(tokens, kind, knowledge, rng) if isinstance(form, Rows) else tokens
            frames.append(sent(Direction.UP, step, packed(payload, form)))
        steps = {(CONTROL, step): torch.arange(len(self.tokens)) for step in range(1, looks + 1)}
        truth = TokenTruth(self.tokens, steps=steps, skipped=self.skipped, search=self.search, uncounted=self.uncounted)
        return Transcript(lambda: frames), truth

    def graded(self, like: Transcript, knowledge: Knowledge, *, rng: torch.Generator) -> Graded:
        """These texts released once, beside what the nearest row, or a linear map behind blocks, reads of them.

        Of copies of a text that is what most of them say in each place.
        """
        tokens = behind_plain_words(self.tokens, knowledge, rng=rng)
        transcript, payload = released_again(tokens, like, knowledge, rng=rng)
        truth = TokenTruth(
            self.tokens,
            steps={(CONTROL, 1): torch.arange(len(self.tokens))},
            skipped=self.skipped,
            search=self.search,
            uncounted=self.uncounted,
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
        truth = self.tokens.values
        asked = truth if self.uncounted is None else truth[~self.uncounted[truth]]
        return float(knowledge.candidates[asked].double().mean())

    def granted(self, transcript: Transcript, knowledge: Knowledge) -> Knowledge:
        """The same knowledge: of its tokens nothing is told.

        Raises:
            Inapplicable: None of them is counted.
        """
        if self.uncounted is not None and bool(self.uncounted[self.tokens.values].all()):
            raise Inapplicable("No word of these texts was drawn: all of them left as they are.")
        return knowledge


def _differences(guessed: Tensor, true: Tensor) -> tuple[Tensor, Tensor]:
    """Squared distance and cosine `[n]` of rows `[n, width]`, float64."""
    errors = (guessed.float() - true).square().sum(1).double()
    return errors, torch.nn.functional.cosine_similarity(guessed.float(), true.float()).double()


def _any_of(masks: Sequence[Tensor]) -> Tensor | None:
    """Which numbers any of these `[vocab]` bool names, of which some may know fewer; `None` of none."""
    if not masks:
        return None
    found = torch.zeros(max(map(len, masks)), dtype=torch.bool)
    for mask in masks:
        found[: len(mask)] |= mask
    return found


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


def _fitting(places: Tokens, guess: Tokens) -> tuple[Tokens, Tokens]:
    pairs = zip(places.segments, guess.segments, strict=False)
    if len(places.segments) != len(guess.segments) or not all(torch.equal(a.lengths, b.lengths) for a, b in pairs):
        raise DataError("Texts in the transcript are not as long as those they are compared with.", remedy=OTHER_RUN)
    return places, guess
