"""Vectors of words: the mean of the rows of a word's pieces."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import torch
from torch import Tensor

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_BEFORE: Final = "a "
"""Stands before each word, whose pieces may be others at the beginning of a text than within one."""
_CHUNK: Final = 10_000


def word_vectors(words: Sequence[str], table: Tensor, tokenizer: PreTrainedTokenizerBase) -> Tensor:
    """The mean of the rows of each word's pieces, as they are within a text.

    Args:
        words: Any words.
        table: `[vocabulary, width]`, the token-embedding table.
        tokenizer: The fast tokenizer that belongs to it.

    Returns:
        `[n, width]` float32; zeros for a word of which the tokenizer makes nothing.

    Ref: RAPT §III-A2.
    """
    vectors = torch.zeros(len(words), table.shape[1])
    for start in range(0, len(words), _CHUNK):
        encoded = tokenizer(
            [_BEFORE + word for word in words[start : start + _CHUNK]],
            add_special_tokens=False,
            split_special_tokens=True,
            return_offsets_mapping=True,
            return_attention_mask=False,
            verbose=False,
        )
        owner, ids = [], []
        for number, (own, spans) in enumerate(zip(encoded["input_ids"], encoded["offset_mapping"], strict=True)):
            # a piece of the word ends behind what stands before it; its blank may be a piece's first character
            pieces = [piece for piece, (_, end) in zip(own, spans, strict=True) if end > len(_BEFORE)]
            ids += pieces
            owner += [start + number] * len(pieces)
        of = torch.tensor(owner, dtype=torch.int64)
        vectors.index_add_(0, of, table[torch.tensor(ids, dtype=torch.int64)].float())
        counts = torch.bincount(of - start, minlength=min(_CHUNK, len(words) - start)).clamp(min=1)
        vectors[start : start + _CHUNK] /= counts[:, None]
    return vectors
