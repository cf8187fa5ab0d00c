"""Public texts beside what they would leave as: what a vendor learns from before any customer's text leaves."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from cutlayer.core import ConfigError, Cut, DataError, Fault, Ragged, Tokens
from cutlayer.customer.defaults import settle
from cutlayer.customer.derived import Privatizing, run_privatizing
from cutlayer.customer.handout import local_archive
from cutlayer.customer.home import Home
from cutlayer.customer.preview import Draw
from cutlayer.customer.progress import Progress, Silent
from cutlayer.customer.reading import WordReading
from cutlayer.customer.settings import FinetuneSpec, Training
from cutlayer.data import Dataset, TextFile
from cutlayer.models.denoising import Pairs, Pieces
from cutlayer.privacy import Dictionary
from cutlayer.privacy.drawn_words import DrawnWords
from cutlayer.privacy.privatizers.words import WordsPrivatizer

_TEXTS = 2000
"""Texts that are drawn together."""


@dataclass(frozen=True)
class PublicDraws:
    """Public texts, to be drawn as a customer of the same settings would have them leave.

    Nothing is sent, and nobody is charged.

    Attributes:
        texts: Public ones; those without a word are left out.
        draw: The settings.
        progress: Where to show progress.

    Raises:
        ConfigError: The mechanism draws no words.
    """

    texts: Sequence[str] = field(repr=False)
    draw: Draw
    progress: Progress = field(default_factory=Silent, compare=False)

    def __post_init__(self) -> None:
        mechanism = self.draw.privacy.mechanism
        if mechanism != "words":
            raise ConfigError([Fault("mechanism", mechanism, "must be words: no other mechanism's text is denoised")])

    @classmethod
    def of_file(cls, source: str, column: str, draw: Draw, progress: Progress) -> Self:
        """The texts of a file.

        Args:
            source: As for `read_dataset`, whose errors it raises.
            column: That of the texts.
            draw: The settings.
            progress: Where to show progress.
        """
        return cls([text for (text,) in TextFile(source, column)], draw, progress)

    @property
    def about(self) -> dict[str, Any]:
        """JSON that tells these draws from those of other texts or settings."""
        texts = hashlib.sha256(json.dumps(self.texts).encode()).hexdigest()
        return {
            "privacy": self.draw.privacy.model_dump(mode="json"),
            "max_length": self.draw.max_length,
            "texts": len(self.texts),
            "texts_sha256": texts,
        }

    def pairs(self, folder: Path) -> Pairs:
        """The texts as they were and as they would leave.

        Args:
            folder: Holds the secret that the draws follow from, which is no customer's; made where there is none.

        Raises:
            DataError: No text has a word.
        """
        cut, home = Cut(bottom=None), Home(folder)
        training = Training(max_length=self.draw.max_length)
        seed = self.draw.unsafe_noise_seed
        given = FinetuneSpec(privacy=self.draw.privacy, cut=cut, training=training, unsafe_noise_seed=seed)
        archive = local_archive(home, self.draw.model, cut)
        privatizing = run_privatizing(archive, home, settle(given))
        most, parts = archive.template.max_content(1, self.draw.max_length), []
        for start in range(0, len(self.texts), _TEXTS):
            some = self.texts[start : start + _TEXTS]
            if (part := _drawn(privatizing, some, most)) is not None:
                parts.append(part)
            self.progress.update("draw public text", start + len(some), len(self.texts))
        if not parts:
            raise DataError("No public text has a word.", remedy="Give a file with text in that column.")
        return Pairs.concatenate(parts)


def _drawn(privatizing: Privatizing, texts: Sequence[str], most: int) -> Pairs | None:
    """Some texts; `None` where none has a word."""
    reading, privatizer = privatizing.reading, privatizing.privatizer
    if not isinstance(reading, WordReading) or not isinstance(privatizer, WordsPrivatizer):
        raise TypeError("words are drawn")
    tokens = reading.read(Dataset(tuple((text,) for text in texts)), max_content=most)
    tokens = tokens.select((tokens.segments[0].lengths > 0).nonzero()[:, 0])
    if not len(tokens):
        return None
    drawn = privatizer.drawn(tokens)
    clear = replace(drawn, pieces=_as_they_were(reading, tokens))
    return Pairs(_pieces(clear, reading.dictionary), _pieces(drawn, reading.dictionary))


def _as_they_were(reading: WordReading, tokens: Tokens) -> np.ndarray[tuple[int, ...], np.dtype[np.object_]]:
    """`[total, 2]`: before each word, and the word."""
    words = map(reading.dictionary.lexicon.word, tokens.values.tolist())
    return np.array([(word.before, word.form) for word in words], dtype=object).reshape(-1, 2)


def _pieces(words: DrawnWords, dictionary: Dictionary) -> Pieces:
    """Token ids of the texts that words make, and the word that each is of."""
    texts = words.texts
    (ids,) = dictionary.pieces((texts,))
    return Pieces(ids, _word_of(words, texts, dictionary.piece_ends(texts).first(ids.lengths)))


def _word_of(words: DrawnWords, texts: list[str], ends: Ragged) -> Tensor:
    """`[pieces]` int64: in which of its text's words each piece ends."""
    room = 1 + max(map(len, texts))  # texts side by side, so that one search serves all
    owner = torch.arange(len(texts)).repeat_interleave(ends.lengths)
    last = words.spans[:, 1] + room * words.of_text
    found = torch.searchsorted(last, ends.values - 1 + room * owner, right=True)
    return found - (words.lengths.cumsum(0) - words.lengths)[owner]
