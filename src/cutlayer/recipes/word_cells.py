"""What of RAPT needs no training: plain words, etas for shares, and how far a category's words lie from each other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

import torch
from pydantic import BaseModel
from torch import Tensor

from cutlayer.attacks import bootstrap, clustered
from cutlayer.core import ConfigError, Cut, Proportion, Spec, Tokens
from cutlayer.customer import FinetuneSpec
from cutlayer.customer.defaults import settle
from cutlayer.customer.plain import plain_words
from cutlayer.customer.reconstruction import Reconstruction
from cutlayer.privacy import Dictionary
from cutlayer.privacy.spec import CATEGORIES
from cutlayer.recipes.lab import Cell, Lab, Rows
from cutlayer.recipes.long_table import Level, Measure
from cutlayer.recipes.replacement import Replacement
from cutlayer.recipes.tasks import TextFile
from cutlayer.reports import Calibrated

CATEGORY_OF: Final[Mapping[str, str]] = {tag: name for name, tags in CATEGORIES.items() for tag in tags}
"""The category of words with a tag of Universal Dependencies."""
_PAIRS = 2**24
"""Distances that are held at a time."""


class Listed(Spec):
    """Plain words, and the category by which each was drawn."""

    words: tuple[str, ...]
    categories: tuple[str, ...]


class PlainWordsCell(Cell):
    """One sequence of plain words, as a run with these settings has it."""

    replacement: Replacement
    reconstruction: Reconstruction

    @classmethod
    def result_type(cls) -> type[BaseModel]:
        return Listed

    def run(self, lab: Lab) -> Listed:
        reading = self.replacement.reading(lab)
        privacy = self.replacement.privacy(1.0, lab)
        spec = FinetuneSpec(privacy=privacy, cut=Cut(bottom=None), reconstruction=self.reconstruction)
        plain = plain_words(settle(spec), privacy, reading)
        words = [reading.dictionary.lexicon.word(name) for name in plain.names[0].tolist()]
        return Listed(
            words=tuple(word.form for word in words), categories=tuple(CATEGORY_OF[word.tag] for word in words)
        )

    def measures(self, result: Listed) -> Iterator[Measure]:
        for category in dict.fromkeys(result.categories):
            yield Measure("plain words", result.categories.count(category), axes={"category": category})


class EtasCell(Cell):
    """Which etas replace which shares of some texts' words.

    Attributes:
        replacement: Which words become which.
        of_chosen: Whether shares are of the words that are drawn alone, else of all.
        shares: Asked for; one that no eta gives has none, and the reason as a note.
        most_words: Of a text; longer ones lose their end.
    """

    texts: TextFile
    replacement: Replacement
    of_chosen: bool = False
    shares: tuple[float, ...]
    most_words: int

    def run(self, lab: Lab) -> Rows[Measure]:
        tokens = read_words(self.replacement, self.texts, self.most_words, lab)
        calibration = self.replacement.calibration(lab, tokens, of_chosen=self.of_chosen)
        return Rows[Measure](rows=tuple(each for share in self.shares for each in self._found(calibration, share)))

    @staticmethod
    def _found(calibration: Callable[[float], Calibrated], share: float) -> Iterator[Measure]:
        axes: dict[str, Level] = {"replaced": share}
        try:
            found = calibration(share)
        except ConfigError as error:
            why = error.message.partition(": ")[2].rstrip(".") or error.message
            yield Measure("eta", None, note=why, axes=axes)
            return
        replaced = Proportion.of(round(found.replaced * found.n), found.n)
        yield Measure("eta", found.eta, n=found.n, axes=axes)
        yield Measure("replaced, measured", replaced.value, replaced.standard_error, found.n, axes=axes)


class Spread(Spec):
    """How far words of a category lie from each other, and how many of those that were drawn became others.

    Attributes:
        vocabulary: Words that may come out.
        mean: Of the distances of all pairs of them.
        variance: Of the same.
        drawn: Words of each text that were drawn.
        replaced: Those of them that became others.
        unknown: Those of them that the vocabulary does not have, which become others whatever the noise.
    """

    vocabulary: int
    mean: float
    variance: float
    drawn: tuple[int, ...]
    replaced: tuple[int, ...]
    unknown: tuple[int, ...]

    def share(self, metric: str, *, known: bool) -> Measure:
        """The share that became others, of all that were drawn or of those that the vocabulary has."""
        less = torch.tensor(self.unknown) if known else 0
        replaced, drawn = torch.tensor(self.replaced) - less, torch.tensor(self.drawn) - less
        if not int(drawn.sum()):
            return Measure(metric, None, note="no such word was drawn")
        found = clustered(replaced, drawn)
        low, high = bootstrap(replaced, drawn)
        return Measure(
            metric, found.value, found.standard_error, found.n, low, high, independent=found.independent,
            axes={"distance": round(self.mean, 3)},
        )  # fmt: skip


class CategoryCell(Cell):
    """Words of one category that were drawn at an eta, and the distances between all that may come out.

    Ref: RAPT §VI-A, whose σ is the variance.

    Attributes:
        replacement: Of words of the category.
        most_words: Of a text; longer ones lose their end.
    """

    texts: TextFile
    replacement: Replacement
    eta: float
    most_words: int

    @property
    def name(self) -> str:
        return f"{self.texts.name}-{'-'.join(self.replacement.words)}-eta{self.eta:g}-s{self.seed}"

    def run(self, lab: Lab) -> Spread:
        reading = self.replacement.reading(lab)
        tokens = read_words(self.replacement, self.texts, self.most_words, lab)
        drawn = self.replacement.privatizer(lab, self.eta, seed=self.seed).drawn(tokens)
        vocabulary = reading.dictionary.vocabulary
        words = sorted(set(vocabulary.words.tolist()))  # of several categories a word is one of all
        mean, variance = spread(vocabulary.vectors(words))
        chosen, of = drawn.places >= 0, drawn.of_text
        unknown = chosen & ~self._known(reading.dictionary, tokens)
        counts = [torch.bincount(of[which], minlength=len(drawn.lengths)).tolist()
                  for which in (chosen, chosen & drawn.changed, unknown)]  # fmt: skip
        of_text, replaced, strangers = map(tuple, counts)
        return Spread(
            vocabulary=len(words), mean=mean, variance=variance, drawn=of_text, replaced=replaced, unknown=strangers
        )

    def _known(self, dictionary: Dictionary, tokens: Tokens) -> Tensor:
        """`[total]` bool: which words may come out as what they are."""
        vocabulary = dictionary.vocabulary
        members = set(zip(vocabulary.words.tolist(), vocabulary.groups.tolist(), strict=True))
        names, place = tokens.values.unique(return_inverse=True)
        return torch.tensor([dictionary.member(name) in members for name in names.tolist()])[place]

    def measures(self, result: Spread) -> Iterator[Measure]:
        yield Measure("vocabulary", result.vocabulary)
        yield Measure("mean distance", result.mean, n=result.vocabulary)
        yield Measure("variance of distances", result.variance, n=result.vocabulary)
        yield result.share("EP", known=False)
        yield result.share("EP, known words", known=True)


def read_words(replacement: Replacement, texts: TextFile, most_words: int, lab: Lab) -> Tokens:
    """A file's texts as names of words, read once for all cells of a process."""

    def read() -> Tokens:
        return replacement.reading(lab).read(texts.read(lab.options.data), max_content=most_words)

    return lab.once((replacement, texts, most_words), read)


def spread(vectors: Tensor) -> tuple[float, float]:
    """Mean and variance of the Euclidean distances of all pairs of rows.

    Args:
        vectors: `[n, width]`, two at least.
    """
    rows, n = vectors.double(), len(vectors)
    block = max(1, _PAIRS // n)
    total, squares = 0.0, 0.0
    for start in range(0, n, block):
        own = rows[start : start + block]
        distances = torch.cdist(own, rows[start:]).triu(1)  # each pair once
        total += float(distances.sum())
        squares += float(distances.square().sum())
    pairs = n * (n - 1) / 2
    return total / pairs, squares / pairs - (total / pairs) ** 2
