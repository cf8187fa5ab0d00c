"""Texts beside what left of them and what an attacker made of that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from cutlayer.attacks import Reading
from cutlayer.attacks.content import content_tokens
from cutlayer.attacks.evaluation.scoring import UNREAD
from cutlayer.core import Tokens
from cutlayer.customer.evidence import Evidence
from cutlayer.customer.recorded_words import WordNumbers
from cutlayer.reports.schema import Example, Piece, Strongest

_LONGEST = 120
"""Tokens of an example at most: the rest of a long text is not shown."""
_UNKNOWN = " ▒"


def examples(
    evidence: Evidence, readings: Mapping[str, Reading], best: Sequence[Strongest], *, count: int, seed: int
) -> tuple[Example, ...]:
    """Some texts, half of them drawn at random, half those of which the strongest attack read most.

    Args:
        evidence: The run.
        readings: What attacks read, by name.
        best: The strongest attack on each question.
        count: How many.
        seed: Which are drawn.
    """
    name = next((each.attack for each in best if each.attack in readings), None)
    if name is None or not count:
        return ()
    reading = readings[name]
    seen = reading.per_text(reading.seen)
    shown = (seen > 0).nonzero()[:, 0]
    if not len(shown):
        return ()
    shares = reading.per_text(reading.right)[shown] / seen[shown]
    drawn = shown[torch.randperm(len(shown), generator=torch.Generator().manual_seed(seed))].tolist()
    # of equals the longer text tells more
    most = shown[(shares + 1e-6 * seen[shown]).argsort(descending=True)].tolist()
    chosen: dict[int, str] = {}
    for rows, why in ((drawn, "drawn at random"), (most, "among those of which most was read")):
        for row in [row for row in rows if row not in chosen][: -(-count // 2)]:
            chosen[row] = why
    released = _released(evidence)
    tokenizer = evidence.tokenizer
    found = []
    for row, why in list(chosen.items())[:count]:
        true, read = (_row(tokens, row) for tokens in (reading.tokens, reading.read))
        left = None if released is None else _row(released.read, int((released.texts == reading.texts[row]).nonzero()))
        found.append(
            Example(
                original=_pieces(tokenizer, true, true),
                released=None if left is None else _pieces(tokenizer, left, true),
                guess=_pieces(tokenizer, read, true),
                attack=name,
                why=why,
            )
        )
    return tuple(found)


def _released(evidence: Evidence) -> Reading | None:
    """The ids that left for each text, where ids did; of several looks the first."""
    seen = evidence if evidence.words is None else evidence.words
    payloads = [release for release in seen.transcript.releases() if isinstance(release.payload, Tokens)]
    if not payloads:
        return None
    guesses = [(each.source, each.number, content_tokens(each.payload, seen.knowledge)) for each in payloads]
    return evidence.tokens.read(guesses)


def _row(tokens: Tokens, row: int) -> Tensor:
    return torch.cat([side[row] for side in tokens.segments])[:_LONGEST]


def _pieces(tokenizer: PreTrainedTokenizerBase | WordNumbers, ids: Tensor, true: Tensor) -> tuple[Piece, ...]:
    """Tokens as they read one behind the other: what each adds to the text."""
    pieces = []
    before = ""
    known: list[int] = []
    for token, right in zip(ids.tolist(), true.tolist(), strict=True):
        if token == UNREAD:
            pieces.append(Piece(text=_UNKNOWN))
            continue
        known.append(token)
        text = str(tokenizer.decode(known, clean_up_tokenization_spaces=False))
        pieces.append(Piece(text=text[len(before) :] if text.startswith(before) else text, hit=token == right))
        before = text
    return tuple(pieces)
