"""What attributes and entities are inferred of texts whose words were replaced before they left.

What leaves is text, so the road has nothing left to hide: it releases it as it is, and attackers who know of no noise
(RAPT §IV-A: a perceptron over attributes, a tagger of clear text) read it.
"""

from __future__ import annotations

import bisect
import time
from dataclasses import replace
from itertools import accumulate
from typing import Any

import torch

from cutlayer.attacks import NotApplicable, examine
from cutlayer.customer.releases import Released, release
from cutlayer.data import UNCUT, Dataset
from cutlayer.privacy import NoPrivacy
from cutlayer.privacy.drawn_words import DrawnWords
from cutlayer.recipes.attribute_readings import ATTACKED, ENTITIES, NAMED, Corpus, InferenceCell, Inferred, target_of
from cutlayer.recipes.lab import Cell, Lab
from cutlayer.recipes.replacement import Replacement
from cutlayer.reports.cells import digest


class ReplacedCell(InferenceCell):
    """One attack on texts whose words were replaced at an eta.

    Attributes:
        replacement: Which words become which.
    """

    replacement: Replacement

    @property
    def name(self) -> str:
        return f"{'-'.join(self.replacement.words)}-{super().name}"

    @property
    def unprotected(self) -> InferenceCell:
        """The same attack on the texts as they are, which it is checked on."""
        own = set(InferenceCell.model_fields)
        return InferenceCell(**{**self.model_dump(include=own), "eta": float("inf"), "seed": 0})

    @property
    def needs(self) -> tuple[Cell, ...]:
        return (self.unprotected,)

    def run(self, lab: Lab) -> Inferred:
        """Attacks the texts, which cells of one process share."""
        checked: Inferred = lab.result(self.unprotected)
        if isinstance(checked.outcome, NotApplicable):
            return checked
        key = self.alike()
        corpus = lab.once(("replaced", key), lambda: ReplacedCorpus(self, lab))

        def made() -> Released:
            folder = lab.workspace / f"replaced-{digest(key)}"
            home, progress = lab.home(str(self.seed)), lab.progress
            return release(
                corpus.sets(), NoPrivacy(), model=lab.options.model, home=home, folder=folder, progress=progress
            )

        released: Released = lab.once(("released", key), made)
        begun = time.monotonic()
        transcript, truth = target_of(self, corpus, released)
        known: dict[str, Any] = {"model": corpus.model.whole, "public": corpus.public, "annotated": corpus.annotated}
        outcome = examine(
            self.attack, transcript, knowledge=replace(released.knowledge, **known), truth=truth,
            run=self.strength(corpus.content), controls=checked.outcome.controls,
        ).outcome  # fmt: skip
        replaced = corpus.replaced[NAMED if self.attack in ENTITIES else ATTACKED]
        return Inferred(outcome=outcome, replaced=replaced, seconds=time.monotonic() - begun)


class ReplacedCorpus(Corpus):
    """The same texts, those that leave with other words; what the attacker has of its own is as it was.

    Attributes:
        replaced: By what is attacked (`ATTACKED`, `NAMED`), the share of its words that became others.
    """

    def __init__(self, cell: ReplacedCell, lab: Lab) -> None:
        self._replacement = cell.replacement
        self._privatizer = cell.replacement.privatizer(lab, cell.eta, seed=cell.seed)
        self._most = cell.scale.tokens
        self.replaced: dict[str, float] = {}
        super().__init__(cell, lab)

    def _left(self, part: str, texts: Dataset) -> Dataset:
        if part == self._spec.public:
            return texts
        drawn = self._drawn(texts, most=self._most)  # each word becomes a token at least
        if part == self._spec.attacked:
            self.replaced[ATTACKED] = _share(drawn)
        return Dataset(tuple((text,) for text in drawn.texts))

    def _words_left(self, part: str, texts: list[list[str]]) -> list[list[str]]:
        if part == self._entities.annotated:
            return texts
        joined = Dataset(tuple((" ".join(words),) for words in texts))
        drawn = self._drawn(joined, most=UNCUT)
        self.replaced[NAMED] = _share(drawn)
        tagged = self._replacement.reading(self._lab).tagger.tag([text for (text,) in joined.texts])
        rows = zip(
            texts, tagged.starts.split(tagged.lengths.tolist()),
            torch.arange(len(tagged.words)).split(tagged.lengths.tolist()), strict=True,
        )  # fmt: skip
        pieces = drawn.pieces.tolist()
        return [
            _regrouped(words, starts.tolist(), [pieces[place] for place in places]) for words, starts, places in rows
        ]

    def _drawn(self, texts: Dataset, *, most: int) -> DrawnWords:
        return self._privatizer.drawn(self._replacement.reading(self._lab).read(texts, max_content=most))


def _share(drawn: DrawnWords) -> float:
    return float(drawn.changed.double().mean())


def _regrouped(words: list[str], starts: list[int], pieces: list[list[str]]) -> list[str]:
    """What marked words became: each holds the tagger's words that begin in it, as `don't` holds two.

    Args:
        words: Of a text, with one blank between them.
        starts: At which character each of the tagger's words begins.
        pieces: What these became, with the blanks before them.
    """
    begins = [0, *accumulate(len(word) + 1 for word in words)][:-1]
    became = [""] * len(words)
    for start, (before, form) in zip(starts, pieces, strict=True):
        place = bisect.bisect_right(begins, start) - 1
        became[place] += before + form if became[place] else form
    # a word in which none begins is part of the one before it, whose draw it shares
    return [new or "-" for new in became]
