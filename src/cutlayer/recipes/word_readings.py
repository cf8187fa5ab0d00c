"""What attacks read of posts whose words were drawn: RAPT's Figure 3, by arm."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from pydantic import BaseModel

from cutlayer.attacks import Knowledge, NotApplicable, PublicText, TokenTruth, Transcript, Truth, examine
from cutlayer.core import Cut, Tokens
from cutlayer.customer import FinetuneSpec
from cutlayer.customer.defaults import settle
from cutlayer.customer.derived import run_privatizing
from cutlayer.customer.recorded_words import WordNumbers, word_stream
from cutlayer.customer.releases import Released, Road, identifier
from cutlayer.data import UNCUT, Dataset
from cutlayer.recipes.attribute_readings import (
    ATTACKED,
    INVERTED,
    AttackCell,
    Corpus,
    Inferred,
    attribute_target,
    corpus_of,
)
from cutlayer.recipes.lab import Lab
from cutlayer.recipes.long_table import Measure
from cutlayer.recipes.replacement import Source
from cutlayer.recipes.word_training import Arm, read_of_all, share_in_clear
from cutlayer.reports.cells import digest


@dataclass(frozen=True)
class WordsReleased:
    """Posts as they crossed, and those among them word by word whose words are read.

    Attributes:
        eta: At which words were drawn.
        released: All posts, as ids of released words.
        seen: The inverted ones, word by word.
        truth: Their words.
        knowledge: Of words in the place of tokens.
    """

    eta: float
    released: Released
    seen: Transcript
    truth: TokenTruth
    knowledge: Knowledge


class WordsInferred(Inferred):
    """What came of an attack on posts whose words were drawn.

    Attributes:
        eta: At which.
        clear: Share of the inverted posts' words that leave as they are by the mechanism's rule.
    """

    eta: float
    clear: float


class WordInferenceCell(AttackCell):
    """One attack on what was released of words in one arm.

    Attributes:
        arm: Which words are drawn, among which, and public words before each post.
        share: Of all words of the inverted posts, which the eta shall replace.
        space: Gives words their vectors.
    """

    arm: Arm
    share: float
    space: Source

    @property
    def name(self) -> str:
        arm = self.arm.title.replace(" ", "-").lower()
        return f"{self.about}-{arm}-{100 * self.share:g}-s{self.seed}"

    @classmethod
    def result_type(cls) -> type[BaseModel]:
        return WordsInferred

    def run(self, lab: Lab) -> WordsInferred:
        """Attacks the release of this arm, which cells of one process share."""
        corpus = corpus_of(self, lab)
        words: WordsReleased = lab.once(("words released", self.alike()), lambda: self._made(corpus, lab))
        begun = time.monotonic()
        transcript, truth, knowledge = self._target(corpus, words, lab)
        # made-up texts of attributes know no noise; those of words are of the same mechanism
        checked = (self.posts.model_dump_json(), self.attack, self.column or (self.arm, words.eta))
        outcome = examine(
            self.attack, transcript, knowledge=knowledge, truth=truth, run=self.strength(corpus.content),
            controls=lab.shared.get(checked),
        ).outcome  # fmt: skip
        if not isinstance(outcome, NotApplicable):
            lab.shared[checked] = outcome.controls
        return WordsInferred(
            outcome=outcome, replaced=words.released.replaced[ATTACKED if self.column else INVERTED],
            seconds=time.monotonic() - begun, eta=words.eta, clear=share_in_clear(words.truth),
        )  # fmt: skip

    def measures(self, result: Any) -> Iterator[Measure]:
        yield from super().measures(result)
        yield Measure("eta", result.eta, attack=self.attack)
        yield Measure("in clear", result.clear, attack=self.attack)
        if not self.column:
            yield from read_of_all(result.outcome, clear=result.clear)

    def _target(self, corpus: Corpus, words: WordsReleased, lab: Lab) -> tuple[Transcript, Truth, Knowledge]:
        if not self.column:
            return words.seen, words.truth, words.knowledge
        known = replace(words.released.knowledge, public=corpus.public).with_model(corpus.model.whole)
        return *attribute_target(self, corpus, words.released), known

    def _made(self, corpus: Corpus, lab: Lab) -> WordsReleased:
        archive, home = lab.archive(Cut(bottom=None)), lab.home(str(self.seed))
        replacement = self.arm.replacement(self.space)

        def calibrated() -> float:
            asked = replacement.reading(lab).read(corpus.first.texts, max_content=corpus.content)
            return replacement.eta(lab, asked, self.share)

        eta = lab.once(("eta of posts", replacement, self.share, self.scale), calibrated)
        spec = settle(
            FinetuneSpec(
                privacy=replacement.privacy(eta, lab), cut=Cut(bottom=None), reconstruction=self.arm.reconstruction,
                seed=self.seed,
            )
        )  # fmt: skip
        road = Road(archive, home, spec, run_privatizing(archive, home, spec))
        read = {name: self._read(road, posts, corpus) for name, posts in corpus.posts().items()}
        folder = lab.workspace / f"words-{digest(self.alike())}"
        released = road.release(read, folder=folder, progress=lab.progress)
        numbers = WordNumbers(road.privatizing)
        seen, truth = word_stream(
            numbers, read[INVERTED], released.records[INVERTED], record_set=identifier(INVERTED), archive=archive,
            seen=released.only([INVERTED]),
        )  # fmt: skip
        public = PublicText(numbers.read(corpus.public_texts, max_content=UNCUT), source=corpus.public.source)
        knowledge = replace(
            numbers.knowledge(released.knowledge), public=public, model=corpus.model.whole,
            rows=numbers.rows(corpus.model.whole, corpus.model.tokenizer),
        )  # fmt: skip
        return WordsReleased(eta, released, seen, replace(truth, search=knowledge.search), knowledge)

    @staticmethod
    def _read(road: Road, posts: Dataset, corpus: Corpus) -> Tokens:
        return road.privatizing.reading.read(posts, max_content=corpus.content)
