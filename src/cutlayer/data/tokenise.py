"""Texts to token ids, special tokens left out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from cutlayer.core import ConfigError, Fault, Ragged, Tokens
from cutlayer.data.dataset import Dataset

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

UNCUT = 2**31
"""As `max_content`: texts keep all of their tokens."""
_TEXTS, _CHARACTERS = 10_000, 2**20
"""Texts per call, and their characters, beyond one text: a tokenizer's answer is some hundred times as large."""


def tokenise(dataset: Dataset, tokenizer: PreTrainedTokenizerBase, *, max_content: int) -> Tokens:
    """Turns texts into the ids of their content tokens.

    Special tokens are not added: the part of the model that needs them does that. Nor are they read
    from text: who writes `[SEP]` in a message gets the tokens of a bracket, a word and a bracket,
    never the model's own separator. A text without tokens has length 0.

    Args:
        dataset: Texts or pairs.
        tokenizer: A fast Hugging Face tokenizer.
        max_content: Most content tokens a row may have. Longer texts lose their end; of a pair, the
            longer text does first (Hugging Face's `longest_first`).

    Returns:
        Ids, one segment a text of the row.
    """
    if max_content < 1:
        raise ConfigError([Fault("max_content", max_content, "must be at least 1")])
    sides = (_ids([row[side] for row in dataset.texts], tokenizer) for side in range(dataset.segments))
    return shortened(Tokens(tuple(sides)), max_content)


def shortened(tokens: Tokens, most: int | Tensor, *, preceding: Tensor | None = None) -> Tokens:
    """Rows without the end of those that have more tokens than they may; see `kept_lengths`.

    Args:
        tokens: `n` rows.
        most: Tokens of a row; `[n]` int64 where rows may have more or fewer.
        preceding: `[n]` int64, how many tokens of each first text stay, and count for nothing.
    """
    lengths = torch.stack([segment.lengths for segment in tokens.segments], dim=1)
    beside = torch.zeros_like(lengths)
    if preceding is not None:
        beside[:, 0] = preceding
    kept = kept_lengths(lengths - beside, most) + beside
    return Tokens(tuple(segment.first(kept[:, side]) for side, segment in enumerate(tokens.segments)))


def _ids(texts: list[str], tokenizer: PreTrainedTokenizerBase) -> Ragged:
    parts = [Ragged.from_lists([])]
    for some in _parts(texts):
        encoded = tokenizer(
            some,
            add_special_tokens=False,
            split_special_tokens=True,
            truncation=False,
            padding=False,
            return_attention_mask=False,
            return_token_type_ids=False,
            verbose=False,
        )
        parts.append(Ragged.from_lists(encoded["input_ids"]))
    return Ragged.concatenate(parts)


def _parts(texts: list[str]) -> Iterator[list[str]]:
    """Consecutive texts."""
    first = characters = 0
    for at, text in enumerate(texts):
        characters += len(text)
        if at > first and (at - first == _TEXTS or characters > _CHARACTERS):
            yield texts[first:at]
            first, characters = at, len(text)
    if texts:
        yield texts[first:]


def kept_lengths(lengths: Tensor, most: int | Tensor) -> Tensor:
    """Lengths `[n, segments]` of texts, or pairs, that are cut to so many items a row, `[n]` where rows differ."""
    room = torch.as_tensor(most).expand(len(lengths))
    return lengths.minimum(room[:, None]) if lengths.shape[1] == 1 else _longest_first(lengths, room)


def _longest_first(lengths: Tensor, most: Tensor) -> Tensor:
    """Lengths `[n, 2]` after dropping tokens from the longer text until both fit."""
    first, second = lengths.unbind(1)
    # once both texts are equally long they are cut in turn, so neither falls below half
    shorter = torch.minimum(first, second).minimum(most // 2)
    cut_first = torch.where(first > second, most - shorter, shorter)
    cut = torch.stack([cut_first, most - cut_first], dim=1)
    return torch.where((first + second <= most)[:, None], lengths, cut)
