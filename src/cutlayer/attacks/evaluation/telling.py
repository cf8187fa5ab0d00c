"""Made-up texts of controls, which tell their labels where an attack looks."""

from __future__ import annotations

import torch
from torch import Tensor

from cutlayer.attacks.attack import SignalSource
from cutlayer.attacks.knowledge import Inapplicable, Knowledge
from cutlayer.core import Payload, Ragged, Rows, Tokens

_SHORTEST, _LONGEST = 4, 8
_MARKS = 2
"""How often a control text holds the token that tells its label."""


def telling_texts(
    labels: Tensor | None, count: int, classes: int, signal: SignalSource, words: Tensor, rng: torch.Generator
) -> Tokens:
    """Texts of random words that tell their labels.

    Args:
        labels: `[count]` int64; `None` for texts that tell nothing.
        count: How many texts.
        classes: How many labels there are.
        signal: Whether a word or the length tells.
        words: `[words]` int64, ids to choose from.
        rng: Draws words, lengths and places.

    Raises:
        Inapplicable: There are too few words to mark so many labels.
    """
    if signal is SignalSource.LENGTHS:
        lengths = 2 + torch.randint(2, (count,), generator=rng)
        lengths += 2 * (torch.randint(classes, (count,), generator=rng) if labels is None else labels)
    else:
        lengths = torch.randint(_SHORTEST, _LONGEST + 1, (count,), generator=rng)
    order = torch.randperm(len(words), generator=rng)
    marks, others = words[order[:classes]], words[order[classes:]]
    if not len(others):
        raise Inapplicable(
            f"A vocabulary of {len(words)} tokens has none left beside those that mark {classes} labels."
        )
    values = others[torch.randint(len(others), (int(lengths.sum()),), generator=rng)]
    if signal is SignalSource.WORDS and labels is not None:
        starts = lengths.cumsum(0) - lengths
        for _ in range(_MARKS):
            places = starts + (torch.rand(count, generator=rng) * lengths).long()
            values[places] = marks[labels]
    return Tokens((Ragged(values, lengths),))


def vocabulary_of(knowledge: Knowledge, form: Payload) -> Tensor:
    """Ids `[words]` int64 that control texts in the form of a release are made of."""
    largest = 0 if isinstance(form, Rows) else int(torch.cat([side.values for side in form.segments]).max())
    return vocabulary(knowledge, largest=largest)


def telling_like(
    form: Payload,
    labels: Tensor | None,
    count: int,
    classes: int,
    signal: SignalSource,
    knowledge: Knowledge,
    rng: torch.Generator,
) -> Tokens:
    """The same, single or in pairs as a release: a pair's second text is one word.

    Args:
        form: The release; see `telling_texts` for the others.
        labels: `[count]` int64, what they tell; `None` for nothing.
        count: How many texts.
        classes: How many labels there are.
        signal: What tells.
        knowledge: Words to choose from.
        rng: Draws words, lengths and places.
    """
    tokens = telling_texts(labels, count, classes, signal, vocabulary_of(knowledge, form), rng)
    if form.segment_count == 2:
        tokens = Tokens((*tokens.segments, tokens.segments[0].first(torch.ones(count, dtype=torch.int64))))
    return tokens


def vocabulary(knowledge: Knowledge, *, largest: int) -> Tensor:
    """Ids `[words]` int64 for control texts: the candidates, or all of the table, or all up to the largest known."""
    if knowledge.candidates is not None:
        return knowledge.candidates.nonzero()[:, 0]
    return torch.arange(len(knowledge.table) if knowledge.table is not None else 1 + largest)
