"""Plain words: public words before training texts, which the vendor learns to reconstruct (RAPT §III-B2)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from cutlayer.core import ConfigError, Tokens
from cutlayer.customer.closing import Closing, row_length
from cutlayer.customer.reading import Reading, WordReading, own_tokens, pair_lengths
from cutlayer.customer.settings import Objective, RunSpec
from cutlayer.data import load_word_counts
from cutlayer.data.tokenise import shortened
from cutlayer.models import Archive, seeded
from cutlayer.privacy import PlainWords, PrivacySpec, Word, Words
from cutlayer.privacy.words import folded

_LEAST_OUTPUTS = 2
"""Of a head that tells words apart."""


def plain_words(spec: RunSpec, privacy: PrivacySpec, reading: Reading) -> PlainWords:
    """The plain words of a run, drawn from a seed which the vendor may know.

    Each is drawn uniformly from the public words of the categories that are replaced, whatever these become.

    Args:
        spec: The run's settings.
        privacy: How words are drawn.
        reading: How words are read; its lexicon is told the plain ones.
    """
    settings = spec.reconstruction
    if not isinstance(privacy, Words) or not isinstance(reading, WordReading):
        raise TypeError("plain words without words are refused before")
    counts, of_tag = load_word_counts(privacy.vocabulary), reading.dictionary.vocabulary.grouping.of_tag
    tags: dict[str, str] = {}
    for word, tag in zip(counts.words, counts.tags, strict=True):
        if tag in of_tag:
            tags.setdefault(folded(word), tag)
    words = sorted(tags)
    shape = settings.plain_sequences, settings.plain_tokens
    seed, outputs = settings.plain_seed, settings.reconstruction_vocabulary
    numbers = torch.randint(len(words), shape, generator=seeded(spec.seed if seed is None else seed, "plain words"))
    chosen = (words[number] for number in numbers.flatten().tolist())
    names = reading.dictionary.lexicon.names(Word(" ", word, tags[word]) for word in chosen)
    # they are the head's first outputs: which words others are makes no difference
    distinct, told = numbers.unique(return_inverse=True)
    outputs = outputs or max(len(distinct), _LEAST_OUTPUTS)
    return PlainWords(torch.tensor(names).reshape(shape), tuple(map(tuple, told.tolist())), outputs)


def cut_behind(spec: RunSpec, archive: Archive) -> Callable[[Tokens, Tensor], Tokens]:
    """What cuts a run's texts, as they leave without noise, where the model has no positions for them behind others.

    Args:
        spec: The run's settings.
        archive: What the vendor handed out.
    """
    template, longest = archive.template.behind(spec.tuning.positions), spec.training.max_length

    def pairs(texts: Tokens, before: Tensor) -> Tokens:
        most, written = pair_lengths(archive, spec)
        own = own_tokens(most, template, before + written, segments=2)
        source, target = texts.segments
        return Tokens((source.first(source.lengths.minimum(own)), target))

    def closed(texts: Tokens, before: Tensor) -> Tokens:
        (joined,) = texts.segments
        own = joined.lengths.minimum(own_tokens(row_length(template, longest), template, before))
        for number in (own < joined.lengths).nonzero()[:, 0].tolist():
            mark = int((joined[number] == Closing.of(archive.tokenizer).end).nonzero()[0])
            if own[number] <= mark + 1 < len(joined[number]):
                raise ConfigError(
                    "Plain words leave no room for a target text behind its source text.",
                    remedy="Use fewer plain tokens, or a model with more positions.",
                )
        return Tokens((joined.first(own),))

    def content(texts: Tokens, before: Tensor) -> Tokens:
        most = template.max_content(texts.segment_count, longest)
        return shortened(texts, own_tokens(most, template, before, segments=texts.segment_count))

    return pairs if spec.sends_pairs else closed if spec.objective is Objective.LM else content
