"""Which text each guess is about: texts were stored as records, shard by shard, or are rows of a step.

A transcript names a release by its source and a number; a truth knows which of its texts each row of it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TypeVar

import torch
from torch import Tensor

from cutlayer.attacks.attack import Guess
from cutlayer.core import DataError, Tokens

Guessed = TypeVar("Guessed", Tokens, Tensor)

ELSEWHERE = -1
"""In the place of the record of a text that a record set does not hold, and of a row that is no text of a truth."""
OTHER_RUN = "Give the transcript of the same run."
"""What to do where a transcript and a truth do not belong together."""


def source_of(job: str) -> str:
    """The source of a step's release, by what a truth calls its job: a job's name, or the source of queries itself."""
    return job if job.startswith("model/") else f"job/{job}"


def by_text(
    guesses: Iterable[Guess],
    records: Mapping[str, Tensor],
    steps: Mapping[tuple[str, int], Tensor],
    *,
    form: type[Guessed],
) -> Iterator[tuple[Tensor, Guessed]]:
    """Guesses beside the texts that they are about.

    Args:
        guesses: Those of another form, and about other releases, are left out.
        records: By record set, `[n]` int64: the record that holds each text, counted through the set's shards;
            `ELSEWHERE` if none does.
        steps: By job and step, or by source and number of a query (`source_of`), `[rows]` int64: each row's text,
            `ELSEWHERE` where it is none of these.
        form: `Tokens`, or `Tensor` for guesses `[rows, ...]` about whole texts.

    Yields:
        Texts `[m]` int64, and what was guessed of each of these `m`.

    Raises:
        DataError: Guesses and releases differ in length: transcript and truth do not belong together.
    """
    shards: dict[str, dict[int, Guessed]] = {}
    by_source = {(source_of(job), step): texts for (job, step), texts in steps.items()}
    for source, number, guess in guesses:
        kind, _, name = source.partition("/")
        if not isinstance(guess, form):
            continue
        if kind == "record-set" and name in records:
            shards.setdefault(name, {})[number] = guess
        elif (source, number) in by_source:
            texts = by_source[source, number]
            if len(guess) != len(texts):
                raise DataError(f"Release {number} has another number of texts in the transcript.", remedy=OTHER_RUN)
            told = (texts != ELSEWHERE).nonzero()[:, 0]
            yield texts[told], _selected(guess, told)
    for name, found in shards.items():
        held = _concatenated([found[number] for number in sorted(found)])
        if sorted(found) != list(range(len(found))) or int(records[name].max()) >= len(held):
            raise DataError(f"Shards of record set {name} are missing from the transcript.", remedy=OTHER_RUN)
        told = (records[name] != ELSEWHERE).nonzero()[:, 0]
        yield told, _selected(held, records[name][told])


def joined_by_text(
    guesses: Iterable[Guess],
    records: Mapping[str, Tensor],
    steps: Mapping[tuple[str, int], Tensor],
    *,
    named: str = "texts",
) -> tuple[Tensor, Tensor]:
    """All guesses about whole texts, of all looks.

    Args:
        guesses: As for `by_text`, as are the next two.
        records: By record set.
        steps: By job and step.
        named: What the truth names, for the error.

    Returns:
        Texts `[looks]` int64 and guesses `[looks, ...]`.

    Raises:
        DataError: Transcript and truth do not belong together.
    """
    found = list(by_text(guesses, records, steps, form=Tensor))
    if not found:
        raise DataError(f"The transcript shows none of the {named} that the truth names.", remedy=OTHER_RUN)
    texts, values = (torch.cat(column) for column in zip(*found, strict=True))
    return texts, values


def _selected(guess: Guessed, rows: Tensor) -> Guessed:
    if isinstance(guess, Tokens):
        return guess.select(rows)
    return guess[rows]


def _concatenated(parts: list[Guessed]) -> Guessed:
    if isinstance(parts[0], Tokens):
        return Tokens.concatenate(parts)
    return torch.cat(parts)
