"""Vectors of words: the mean of the rows of a word's pieces."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import torch
from torch import Tensor

from cutlayer.core import ConfigError, Fault

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_BEFORE: Final = "a "
"""Stands before each word, whose pieces may be others at the beginning of a text than within one."""
_CHUNK: Final = 10_000


def principal_components(table: Tensor, count: int) -> Tensor:
    """Rows of a table in the space of its first principal components, where they differ most.

    Noise for a word has as many dimensions as the space. In a table's hundreds most of its length is spent on
    directions in which words hardly differ.

    Args:
        table: `[vocabulary, width]`, public.
        count: Of components.

    Returns:
        `[vocabulary, count]` float32; distances are those of the table's rows after projection.

    Raises:
        ConfigError: The table has fewer components.
    """
    if not 1 <= count <= table.shape[1]:
        raise ConfigError([Fault("space", count, f"must have 1 to {table.shape[1]} components")])
    centred = table.double() - table.double().mean(0)
    _, directions = torch.linalg.eigh(centred.T @ centred)
    leading = directions.flip(1)[:, :count]
    # of a direction and its opposite one is taken, whatever the library returns
    signs = leading.gather(0, leading.abs().argmax(0, keepdim=True)).sign()
    projected: Tensor = (centred @ (leading * signs)).float()
    return projected


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
