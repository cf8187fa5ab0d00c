"""Plain words: public words before training texts, which the vendor learns to reconstruct (RAPT §III-B2)."""

from __future__ import annotations

import torch

from cutlayer.customer.reading import Reading, WordReading
from cutlayer.customer.settings import RunSpec
from cutlayer.data import load_word_counts
from cutlayer.models import seeded
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
