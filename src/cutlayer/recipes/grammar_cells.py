"""What word-wise privatization keeps of texts: parts of speech, and what a sentence encoder sees.

Nothing is sent: what would leave is drawn, and compared with what stood there.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import torch
from torch import Tensor

from cutlayer.attacks import bootstrap, clustered
from cutlayer.attacks.evaluation.statistics import resampled
from cutlayer.core import Spec, Tokens
from cutlayer.customer.reading import WordReading
from cutlayer.data import Dataset, TaggedTexts
from cutlayer.privacy.drawn_words import DrawnWords
from cutlayer.privacy.privatizers.words import WordsPrivatizer
from cutlayer.recipes.lab import Cell, Lab
from cutlayer.recipes.long_table import Level, Measure
from cutlayer.recipes.measures.sentence_similarity import similarities
from cutlayer.recipes.replacement import ALL, CATEGORY, Candidates, Replacement, Source
from cutlayer.recipes.tasks import TextFile

METRICS: Final = ("replaced, measured", "tags stay", "similarity")
_DRAWS = 12
_NEAR = 1e-3
"""How far the share of a draw may lie from the one that is asked for, or a word: what stays falls as more is replaced,
and is compared at equal shares."""
_STEEPNESS = 0.6
"""By how much less is replaced at e times the eta: 0.4 to 0.9 of all words, so that each draw comes nearer."""


class Kept(Spec):
    """What a draw kept of texts; a number for each text.

    Attributes:
        eta: The privacy parameter.
        words: How many words it has.
        replaced: How many became others.
        tags: How many have the part of speech that they had, where the released text is tagged again.
        similarity: Cosine between its embeddings as it was and as it left.
        examples: What the public sentences became.
    """

    eta: float
    words: tuple[int, ...]
    replaced: tuple[int, ...]
    tags: tuple[int, ...]
    similarity: tuple[float, ...]
    examples: tuple[str, ...]

    def sums(self, metric: str) -> tuple[Tensor, Tensor]:
        """`[texts]` each: what a metric adds up over a text, and how many there are."""
        words = torch.tensor(self.words)
        if metric == "similarity":
            return torch.tensor(self.similarity, dtype=torch.float64), (words > 0).long()
        return torch.tensor({"tags stay": self.tags, "replaced, measured": self.replaced}[metric]), words


class GrammarCell(Cell):
    """Texts whose words were replaced so that about a share of all became others.

    Attributes:
        words: Which are replaced, as of `privacy.Words`; and so `candidates`.
        share: Of all words that the eta shall replace.
        most_words: Of a text; longer ones lose their end.
        space: Gives words their vectors.
        encoder: Gives texts theirs.
        examples: Public sentences that are replaced as well.
    """

    texts: TextFile
    words: tuple[str, ...]
    candidates: Candidates
    share: float
    most_words: int
    space: Source
    encoder: Source
    examples: tuple[str, ...]

    @property
    def name(self) -> str:
        chosen = "-".join(self.words)
        return f"{self.texts.name}-{chosen}-among-{self.candidates}-{100 * self.share:g}-s{self.seed}"

    @property
    def replacement(self) -> Replacement:
        """Which words become which."""
        return Replacement(words=self.words, candidates=self.candidates, space=self.space)

    def run(self, lab: Lab) -> Kept:
        replacement = self.replacement
        reading = replacement.reading(lab)
        tokens = lab.once((replacement, self.texts, self.most_words), lambda: self._read(reading, lab))
        eta = replacement.eta(lab, tokens, self.share)
        privatizer, drawn = min(self._draws(lab, tokens, eta), key=lambda each: self._missed(each[1]))
        stays = tags_that_stay(_tags(reading, tokens), drawn, reading.tagger.tag(drawn.texts))
        before = [reading.text(names) for names in tokens.segments[0].split()]
        alike = similarities(before, drawn.texts, lab.model(self.encoder.name, head=None))
        examples = privatizer.drawn(reading.read(_dataset(self.examples), max_content=self.most_words)).texts
        return Kept(
            eta=privatizer.spec.eta, words=tuple(drawn.lengths.tolist()), replaced=_by_text(drawn, drawn.changed),
            tags=_by_text(drawn, stays), similarity=tuple(alike.tolist()), examples=tuple(examples),
        )  # fmt: skip

    def measures(self, result: Kept) -> Iterator[Measure]:
        yield Measure("eta", result.eta)
        for metric in METRICS:
            sums, trials = result.sums(metric)
            share = clustered(sums, trials)
            low, high = bootstrap(sums, trials)
            yield Measure(metric, share.value, share.standard_error, share.n, low, high, independent=share.independent)

    def _draws(self, lab: Lab, tokens: Tokens, eta: float) -> Iterator[tuple[WordsPrivatizer, DrawnWords]]:
        """Draws at etas near this one, until the share is met."""
        for _ in range(_DRAWS):
            privatizer = self.replacement.privatizer(lab, eta, seed=self.seed)
            drawn = privatizer.drawn(tokens)
            yield privatizer, drawn
            if self._missed(drawn) <= max(_NEAR, 1 / tokens.total):
                return
            eta = float(f"{eta * math.exp((_replaced(drawn) - self.share) / _STEEPNESS):.4g}")

    def _missed(self, drawn: DrawnWords) -> float:
        return abs(_replaced(drawn) - self.share)

    def _read(self, reading: WordReading, lab: Lab) -> Tokens:
        return reading.read(self.texts.read(lab.options.data), max_content=self.most_words)


def category_minus_all(found: Mapping[GrammarCell, Kept]) -> Iterator[Measure]:
    """By how much more stays where words become words of their category, of the same texts, resampled by text.

    Args:
        found: Cells that differ in their candidates and seeds alone, with their results.
    """
    arms = {name: [kept for cell, kept in found.items() if cell.candidates == name] for name in (CATEGORY, ALL)}
    if not all(arms.values()) or len(arms[CATEGORY]) != len(arms[ALL]):
        return
    cell = next(iter(found))
    place: dict[str, Level] = {"words": ",".join(cell.words), "replaced": cell.share, "corpus": cell.texts.name}
    for metric in METRICS:
        (kept, counts), (other, _) = (_over_seeds(arms[name], metric) for name in (CATEGORY, ALL))
        low, high = resampled(kept - other, counts)
        value, n = float((kept - other).sum() / counts.sum()), float(counts.sum()) / len(arms[CATEGORY])
        yield Measure(f"{metric}, category - all", value, n=n, lower=low, upper=high, axes=place)


def _over_seeds(runs: Sequence[Kept], metric: str) -> tuple[Tensor, Tensor]:
    """`[texts]` each, as of `Kept.sums`: added up over runs, whose texts are the same."""
    sums, trials = zip(*(kept.sums(metric) for kept in runs), strict=True)
    return torch.stack(sums).sum(0), torch.stack(trials).sum(0)


def tags_that_stay(tags: Sequence[str], drawn: DrawnWords, again: TaggedTexts) -> Tensor:
    """Which words have their part of speech still: of the word that begins at their place.

    Args:
        tags: Of each word before the draw, `total` of them.
        drawn: What became of the words.
        again: The texts that they make, tagged again; its words may be others, and more or fewer.

    Returns:
        `[total]` bool.
    """
    owner = torch.arange(len(again)).repeat_interleave(again.lengths)
    found = dict(zip(zip(owner.tolist(), again.starts.tolist(), strict=True), again.tags, strict=True))
    places = zip(drawn.of_text.tolist(), drawn.spans[:, 0].tolist(), strict=True)
    return torch.tensor([found.get(place) == tag for place, tag in zip(places, tags, strict=True)], dtype=torch.bool)


def _replaced(drawn: DrawnWords) -> float:
    return float(drawn.changed.double().mean())


def _tags(reading: WordReading, tokens: Tokens) -> list[str]:
    lexicon = reading.dictionary.lexicon
    return [lexicon.word(name).tag for name in tokens.values.tolist()]


def _by_text(drawn: DrawnWords, which: Tensor) -> tuple[int, ...]:
    return tuple(torch.zeros_like(drawn.lengths).index_add(0, drawn.of_text, which.long()).tolist())


def _dataset(texts: Sequence[str]) -> Dataset:
    return Dataset(tuple((text,) for text in texts))
