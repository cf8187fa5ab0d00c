"""Tokens text by text: the order in which texts are hashed and noised."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from cutlayer.core import DataError, Ragged, Tokens


@dataclass(frozen=True)
class TextMajor:
    """Each text's items in one run: those of its first segment, then those of its second.

    Attributes:
        values: `[total, ...]`, the items in that order.
        lengths: `[texts, segments]` int64.
        order: `[total]` int64: where item `i` stands when whole segments follow one another.
    """

    values: Tensor
    lengths: Tensor
    order: Tensor

    @classmethod
    def of(cls, tokens: Tokens) -> Self:
        """Reorders tokens."""
        if len(tokens.segments) == 1:
            (segment,) = tokens.segments
            return cls(segment.values, segment.lengths[:, None], torch.arange(len(segment.values)))
        lengths = torch.stack([segment.lengths for segment in tokens.segments], dim=1)
        values = torch.cat([segment.values for segment in tokens.segments])
        starts = torch.stack([segment.offsets[:-1] for segment in tokens.segments], dim=1)
        starts[:, 1] += len(tokens.segments[0].values)
        run = lengths.flatten()
        shift = starts.flatten() - (run.cumsum(0) - run)
        order = torch.arange(len(values)) + shift.repeat_interleave(run)
        return cls(values[order], lengths, order)

    @property
    def per_text(self) -> Tensor:
        """`[texts]` int64: how many items each text has."""
        return self.lengths.sum(1)

    def sums(self, counts: Tensor) -> Tensor:
        """`[texts]`: sums of counts `[total]` over each text's items."""
        owner = torch.arange(len(self.lengths)).repeat_interleave(self.per_text)
        return torch.zeros(len(self.lengths), dtype=counts.dtype).index_add(0, owner, counts)

    def align(self, per_segment: tuple[Tensor, ...]) -> Tensor:
        """`[total]`: values that are aligned with the segments, in this order."""
        return torch.cat(per_segment)[self.order]

    def tokens(self, values: Tensor) -> Tokens:
        """The same texts over other items `[total, ...]`, as segments again."""
        by_segment = torch.empty_like(values)
        by_segment[self.order] = values
        counts = self.lengths.sum(0).tolist()
        return Tokens(
            tuple(
                Ragged(part, self.lengths[:, side].contiguous())
                for side, part in enumerate(torch.split(by_segment, counts))
            )
        )


def check_ids(ids: Tensor, vocab_size: int) -> None:
    """Refuses ids `[n]` that the table does not have.

    Raises:
        DataError: An id below 0 or beyond the table.
    """
    if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < vocab_size:
        outside = ids[(ids < 0) | (ids >= vocab_size)]
        raise DataError(
            f"Token id {int(outside[0])} is outside the table's 0..{vocab_size - 1}.",
            remedy="Tokenise with the tokenizer that belongs to the model.",
        )
