"""Where texts name people, places and other entities, and how well an attack finds that out.

Counted as the field does: an entity is found if its kind, its first and its last word are (seqeval, after the CoNLL
evaluation).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from cutlayer.attacks.attack import Guess
from cutlayer.attacks.evaluation.places import OTHER_RUN
from cutlayer.attacks.evaluation.scoring import Score, SecondaryMetric
from cutlayer.attacks.evaluation.simplest import read_words
from cutlayer.attacks.evaluation.statistics import bootstrap, clustered
from cutlayer.attacks.evaluation.tokens import TokenTruth
from cutlayer.attacks.evaluation.traffic import CONTROL, CONTROL_ITEMS, Traffic, released_again
from cutlayer.attacks.evaluation.truth import Graded
from cutlayer.attacks.knowledge import UNMARKED, Inapplicable, Knowledge
from cutlayer.attacks.view import Transcript
from cutlayer.core import DataError, Ragged, Tokens
from cutlayer.core.extras import require

_TURNS = 16
"""Ways to lay guesses beside other words, over which chance is averaged."""
_SEED = 2026


@dataclass(frozen=True)
class EntityTruth(TokenTruth):
    """Which entities the texts name.

    The share of a score is F1, entity by entity over all texts: 2 found / (guessed + true). Each look at a text counts.

    Attributes:
        tags: In each token's place the number of its tag; `UNMARKED` where it has none of its own, as a word's pieces
            behind its first. Guesses have the same shape, and do not count there.
        names: What the numbers mean, in the BIO scheme.
    """

    tags: Tokens = field(default_factory=lambda: Tokens((Ragged.from_lists([]),)))
    names: tuple[str, ...] = ()

    def score(self, guesses: Iterable[Guess]) -> Score:
        """Compares guessed tags with the true ones.

        Raises:
            DataError: Guesses and texts differ in shape, or there is no entity to be found.
        """
        (marked,) = self.tags.segments
        places = Tokens((marked.with_values(torch.arange(len(marked.values))),))
        texts = torch.arange(len(self.tokens)).repeat_interleave(marked.lengths)
        true, guessed, rows = [], [], []
        owners: list[Tensor] = []
        for looked_at, guess in self._aligned(places, guesses):
            (at,), (tags,) = looked_at.segments, guess.segments
            counted = marked.values[at.values] != UNMARKED
            true.append(marked.values[at.values][counted])
            guessed.append(tags.values[counted])
            row = torch.arange(len(at)).repeat_interleave(at.lengths) + sum(len(each) for each in owners)
            rows.append(row[counted])
            owners.append(_owner_of_row(at, texts))
        if not true:
            raise DataError("The transcript shows none of the texts that the truth names.", remedy=OTHER_RUN)
        told, made, row, owner = (torch.cat(column) for column in (true, guessed, rows, owners))
        found = EntityCounts.of(self.names, told, made, row, rows=len(owner)).by(owner, texts=len(self.tokens))
        if not int(found.true.sum()):
            raise DataError("The texts name no entity, so there is nothing to find.")
        return Score(
            hits=2 * found.right,
            trials=found.guessed + found.true,
            chance=_chance(self.names, told, made),
            looks=int(torch.bincount(owner).max()),
            further=(
                *_shares("precision", "share of guessed entities that are right", found.right, found.guessed),
                *_shares("recall", "share of entities that were found", found.right, found.true),
            ),
        )

    def sample(self) -> EntityTruth:
        """Texts spread evenly over all, with about `CONTROL_ITEMS` tokens."""
        chosen = torch.arange(0, len(self.tokens), max(1, -(-self.tokens.total // CONTROL_ITEMS)))
        return EntityTruth(self.tokens.select(chosen), tags=self.tags.select(chosen), names=self.names)

    def traffic(
        self, kind: Traffic, like: Transcript, knowledge: Knowledge, *, looks: int, rng: torch.Generator
    ) -> tuple[Transcript, EntityTruth]:
        """These texts, in clear or with other tokens in their places; see `TokenTruth.traffic`."""
        transcript, truth = super().traffic(kind, like, knowledge, looks=looks, rng=rng)
        return transcript, EntityTruth(self.tokens, steps=truth.steps, tags=self.tags, names=self.names)

    def graded(self, like: Transcript, knowledge: Knowledge, *, rng: torch.Generator) -> Graded:
        """These texts released once, beside the tag that each token most often has in the attacker's own text."""
        if knowledge.annotated is None:
            raise Inapplicable("The attacker has no text in which entities are marked.")
        transcript, payload = released_again(self.tokens, like, knowledge, rng=rng)
        read = read_words(payload, knowledge, frequent=int(self.tokens.values.mode().values))
        own, tags = knowledge.annotated.tokens.values, knowledge.annotated.tags.values
        told = tags != UNMARKED
        count = 1 + int(torch.cat([own, read.values]).max())
        seen = torch.bincount(own[told] * len(self.names) + tags[told], minlength=count * len(self.names))
        tagged = read.with_values(seen.view(count, -1).argmax(1)[read.values])
        steps = {(CONTROL, 1): torch.arange(len(self.tokens))}
        truth = EntityTruth(self.tokens, steps=steps, tags=self.tags, names=self.names)
        return Graded(transcript, truth, ((f"job/{CONTROL}", 1, tagged),))

    def ceiling(self, knowledge: Knowledge) -> float:
        """1: any tag may be guessed."""
        return 1.0


def _owner_of_row(places: Ragged, texts: Tensor) -> Tensor:
    """The text that each row of a look shows; of one without tokens nothing counts, so any will do."""
    owner = torch.zeros(len(places), dtype=torch.int64)
    shown = places.lengths > 0
    owner[shown] = texts[places.values[places.offsets[:-1][shown]]]
    return owner


@dataclass(frozen=True)
class EntityCounts:
    """Numbers of entities in each row or text.

    Attributes:
        right: `[rows]` int64, those that were found.
        guessed: `[rows]` int64, those that were guessed.
        true: `[rows]` int64, those that there are.
    """

    right: Tensor
    guessed: Tensor
    true: Tensor

    @classmethod
    def of(cls, names: Sequence[str], true: Tensor, guessed: Tensor, row: Tensor, *, rows: int) -> EntityCounts:
        """Counts entities of tags that lie row by row.

        Args:
            names: What tags mean.
            true: `[words]` int64, true tags.
            guessed: `[words]` int64, guessed ones.
            row: `[words]` int64, the row of each word.
            rows: How many there are.
        """
        # an entity ends with its text: a mark before each further one keeps them apart
        breaks = (row[1:] != row[:-1]).nonzero()[:, 0] + 1
        there, claimed = (set(_spans(names, tags, breaks)) for tags in (true, guessed))
        row_at = torch.zeros(len(true) + len(breaks), dtype=torch.int64)
        row_at[_positions(len(true), breaks)] = row
        counts = []
        for some in (there & claimed, claimed, there):
            firsts = torch.tensor([first for _, first, _ in some], dtype=torch.int64)
            counts.append(torch.bincount(row_at[firsts], minlength=rows))
        return cls(*counts)

    @property
    def f1(self) -> float:
        """2 found / (guessed + true), over all rows; 0 where there is neither."""
        return 2 * float(self.right.sum()) / max(1.0, float((self.guessed + self.true).sum()))

    def by(self, owner: Tensor, *, texts: int) -> EntityCounts:
        """The sums over each text's rows, where `owner` `[rows]` int64 is the text of each row."""
        empty = torch.zeros(texts, dtype=torch.int64)
        return EntityCounts(*(empty.index_add(0, owner, part) for part in (self.right, self.guessed, self.true)))


def _positions(count: int, breaks: Tensor) -> Tensor:
    """Where words stand once a mark is put before each break."""
    return torch.arange(count) + torch.bucketize(torch.arange(count), breaks, right=True)


def _spans(names: Sequence[str], tags: Tensor, breaks: Tensor) -> Iterable[tuple[str, int, int]]:
    require("audit")
    from seqeval.metrics.sequence_labeling import get_entities

    spaced = ["O"] * (len(tags) + len(breaks))
    for place, tag in zip(_positions(len(tags), breaks).tolist(), tags.tolist(), strict=True):
        spaced[place] = names[tag] if 0 <= tag < len(names) else "O"
    spans: Iterable[tuple[str, int, int]] = get_entities(spaced)
    return spans


def _chance(names: Sequence[str], true: Tensor, guessed: Tensor) -> float:
    """F1 of the same guesses beside other words: all of them moved on by a random number of words."""
    rng = torch.Generator().manual_seed(_SEED)
    unbroken = torch.empty(0, dtype=torch.int64)
    there, found = set(_spans(names, true, unbroken)), []
    for turn in torch.randint(len(true), (_TURNS,), generator=rng).tolist():
        claimed = set(_spans(names, guessed.roll(turn), unbroken))
        found.append(2 * len(there & claimed) / max(1, len(there) + len(claimed)))
    return sum(found) / len(found)


def _shares(name: str, title: str, hits: Tensor, trials: Tensor) -> tuple[SecondaryMetric, ...]:
    if not int(trials.sum()):
        return ()
    found = clustered(hits, trials)
    interval = bootstrap(hits, trials)
    return (SecondaryMetric(name=name, title=title, value=found.value, interval=interval, n=found.n),)
