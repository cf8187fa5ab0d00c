"""A run's traffic word by word, where words were drawn: what attacks on words read, and what they are compared with.

What crosses are token ids of the text that drawn words make. An attacker puts them together to words again; it is
spared that work, and is given which ids make which word. So its guesses are about words, as noise was.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from cutlayer.attacks import Knowledge, SeenFrame, TokenTruth, Transcript, WordRows
from cutlayer.core import ConfigError, Cut, DataError, PrecededTokens, Ragged, Rows, Tokens
from cutlayer.customer.derived import Privatizing
from cutlayer.customer.reading import WordReading
from cutlayer.customer.upload import BLOCK_TOKENS, blocks
from cutlayer.data import Dataset
from cutlayer.models import Archive, embedding_table, word_vectors
from cutlayer.privacy.layout import TextMajor
from cutlayer.privacy.privatizers.words import WordsPrivatizer
from cutlayer.privacy.replacement import CLEAR
from cutlayer.wire import WireType, pack, routes
from cutlayer.wire.recording import Direction

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


class WordNumbers:
    """Numbers for words: those of the vocabulary, and others as they are met.

    A word is one of its group, and another one in another group. Of words that leave as they are the group is
    `CLEAR`, and each stands for itself.

    Args:
        privatizing: How a run's texts were read and privatized; those that were trained on are asked about, and plain
            words before them are none of theirs.
        beside: Of another run, whose numbers are kept: then what both released can be read together.

    Raises:
        ConfigError: The other run's words were drawn among others, or in other groups.
    """

    def __init__(self, privatizing: Privatizing, *, beside: WordNumbers | None = None) -> None:
        reading, privatizer = privatizing.reading, privatizing.training
        if not isinstance(reading, WordReading) or not isinstance(privatizer, WordsPrivatizer):
            raise TypeError("no words were drawn")
        self._reading = reading
        self.privatizer = privatizer
        self._dictionary = reading.dictionary
        vocabulary = self._dictionary.vocabulary
        if beside is not None and beside._dictionary.vocabulary.fingerprint != vocabulary.fingerprint:
            raise ConfigError(
                "Two runs drew words by other categories, candidates, vectors, taggers or vocabularies: words of the "
                "one are none of the other.",
                remedy="Audit them one by one.",
            )
        self._numbers: dict[tuple[str, int], int] = dict(vocabulary.numbers) if beside is None else beside._numbers
        self.size = len(vocabulary.words)
        plain = privatizing.plain
        self._plain = None if plain is None else self.of(plain.names.flatten()).reshape(plain.names.shape)

    def of(self, names: Tensor) -> Tensor:
        """Numbers of words, by their names `[n]` int64."""
        distinct, place = names.unique(return_inverse=True)
        members = [self._dictionary.member(name) for name in distinct.tolist()]
        numbers = [self._numbers.setdefault(member, len(self._numbers)) for member in members]
        return torch.tensor(numbers, dtype=torch.int64)[place]

    def rows(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> WordRows:
        """What a model reads in the places of all words that have numbers."""
        table = embedding_table(model).detach()
        return WordRows(word_vectors([word for word, _ in self._numbers], table, tokenizer), table)

    def decode(self, numbers: Sequence[int] | Tensor, **_: object) -> str:
        """The words of numbers `[n]` with blanks between them, as a tokenizer's `decode`."""
        words = [word for word, _ in self._numbers]
        return " ".join(words[number] for number in map(int, numbers))

    def __call__(self, text: str, **_: object) -> dict[str, list[tuple[int, int]]]:
        """Where the words of a text stand, as a tokenizer tells it (`offset_mapping`)."""
        return {"offset_mapping": self._reading.spans(text)}

    @property
    def all_special_ids(self) -> tuple[int, ...]:
        """Numbers of no word: none, as of tokenizers that have no special tokens."""
        return ()

    def clear(self, numbers: Tensor) -> Tensor:
        """`[n]` bool: which of these words leave as they are."""
        groups = torch.tensor([group for _, group in self._numbers])
        return groups[numbers] == CLEAR

    def read(self, texts: Dataset, *, max_content: int) -> Tokens:
        """Words of texts by number: of text that the attacker has."""
        tokens = self._reading.read(texts, max_content=max_content)
        return tokens.with_values(self.of(tokens.values))

    def knowledge(self, knowledge: Knowledge) -> Knowledge:
        """The same knowledge of words in the place of tokens; ask for it once all words have numbers."""
        words, groups = zip(*self._numbers, strict=True)
        candidates = torch.zeros(len(words), dtype=torch.bool)
        candidates[: self.size] = True
        return replace(
            knowledge,
            cut=Cut(bottom=None),
            table=self._dictionary.vocabulary.vectors(list(words)),
            candidates=candidates,
            groups=torch.tensor(groups),
            bottom=None,
            plain=self._plain,
        )

    def true(self, tokens: Tokens, archive: Archive) -> tuple[Tokens, Tokens, Ragged]:
        """Words as they were and as they left, by number, of texts as far as they left.

        Args:
            tokens: `n` texts as names of words.
            archive: What tokenised them.

        Returns:
            Words as they were, as they left, and what the plain words before each text became.
        """
        drawn = self.privatizer.drawn(tokens)
        segments = len(tokens.segments)
        texts = [[drawn.texts[side::segments]] for side in range(segments)]
        sides = self._reading.sides(self.privatizer.shape(tokens), segments)
        reach = torch.stack([_reach(text, kept, archive) for (text,), kept in zip(texts, sides, strict=True)], 1)
        whole = drawn.within(reach.flatten()).reshape(-1, segments)
        numbers = self.of(TextMajor.of(tokens).values)
        places = drawn.places[drawn.own]
        left = torch.where(places == CLEAR, numbers, places)
        before = ~drawn.own & (drawn.spans[:, 1] <= reach.flatten()[drawn.of_text])
        counts = torch.bincount(drawn.of_text[before] // segments, minlength=len(tokens))
        was, became = (self._sides(values, drawn.own_lengths, whole) for values in (numbers, left))
        return was, became, Ragged(drawn.places[before], counts)

    @staticmethod
    def _sides(values: Tensor, lengths: Tensor, kept: Tensor) -> Tokens:
        texts = Ragged(values, lengths).first(kept.flatten())
        segments = kept.shape[1]
        return Tokens(tuple(texts.select(torch.arange(side, len(texts), segments)) for side in range(segments)))


def _reach(texts: list[str], kept: Ragged, archive: Archive) -> Tensor:
    """`[n]` int64: up to which character each text was tokenised, where its end was cut off."""
    reach = torch.tensor([len(text) for text in texts])
    full = archive.tokenizer(texts, add_special_tokens=False, split_special_tokens=True, return_offsets_mapping=True)
    for number, (spans, count) in enumerate(zip(full["offset_mapping"], kept.lengths.tolist(), strict=True)):
        if count < len(spans):
            reach[number] = spans[count][0]
    return reach


def word_stream(
    numbers: WordNumbers,
    tokens: Tokens,
    records: Tensor,
    *,
    record_set: str,
    archive: Archive,
    seen: Transcript,
    source: str | None = None,
) -> tuple[Transcript, TokenTruth]:
    """What a run released, word by word, and what its words were.

    Args:
        numbers: Of words.
        tokens: Its texts as names of words.
        records: `[n]` int64, the record that holds each text.
        record_set: The record set's name.
        archive: What the vendor handed out.
        seen: What crossed: what is read here must be what it holds.
        source: Of the releases that hold the records, where that is no record set of this name.

    Raises:
        DataError: The transcript holds other texts.
    """
    first = torch.full((int(records.max()) + 1,), len(records))
    first = first.scatter_reduce(0, records, torch.arange(len(records)), "amin")
    sequences = _check(numbers, tokens.select(first), seen, source or f"record-set/{record_set}")
    sides = [numbers.true(tokens.select(some), archive) for some in blocks(tokens, BLOCK_TOKENS)]
    true = Tokens.concatenate([was for was, _, _ in sides])
    left = Tokens.concatenate([became for _, became, _ in sides]).select(first)
    if sequences is not None:
        plain = Ragged.concatenate([before for _, _, before in sides]).select(first)
        left = PrecededTokens.of(plain, left, sequences=sequences)

    def frames() -> Iterator[SeenFrame]:
        for shard, some in enumerate(blocks(left, BLOCK_TOKENS)):
            tensors = pack(left.select(some), vocab_size=2**32, wire_type=WireType.FP32)
            where: dict[str, str | int] = {"record_set": record_set, "shard": shard}
            yield SeenFrame(Direction.UP, routes.SHARD_PUT, where, partial(dict, tensors))

    uncounted = torch.zeros(1 + int(true.values.max()), dtype=torch.bool)
    uncounted[true.values] = numbers.clear(true.values)
    return Transcript(frames), TokenTruth(true, records={record_set: records}, uncounted=uncounted)


def _check(numbers: WordNumbers, tokens: Tokens, seen: Transcript, source: str) -> Tensor | None:
    """Refuses a transcript whose released ids are not those that these words make.

    Returns:
        `[n]` int64: which plain words stand before each text; `None` where there are none.
    """
    start = 0
    sequences = []
    for release in seen.releases():
        if release.source != source or isinstance(release.payload, Rows):
            continue  # rows are computed from such ids
        stop = start + len(release.payload)
        if stop > len(tokens):
            raise DataError(_OTHER)
        made = numbers.privatizer.shape(tokens.select(torch.arange(start, stop)))
        whole = release.payload if release.preceded is None else release.preceded
        sequences += [] if release.preceded is None else [release.preceded.sequences]
        for own, crossed in zip(made.segments, whole.segments, strict=True):
            if not (torch.equal(own.lengths, crossed.lengths) and torch.equal(own.values, crossed.values.long())):
                raise DataError(_OTHER)
        start = stop
    if 0 < start < len(tokens):
        raise DataError(_OTHER)
    return torch.cat(sequences) if sequences else None


_OTHER = "The transcript holds other texts than those that were given."
