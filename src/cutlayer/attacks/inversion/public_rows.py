"""Boundary rows of public text, which the vendor makes itself: it owns the bottom that it handed out."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from cutlayer.core import DataError
from cutlayer.models import Bottom, Inputs, isolated_dropout, set_dropout, twin

_HELD_OUT_ROWS = 16_384
"""Public rows kept to choose by: their share of right guesses is then known to 0.4 points."""


def windows(hidden: Tensor, mask: Tensor, context: int) -> Tensor:
    """Each row and those before it, zero where there is none.

    Args:
        hidden: A boundary, `[batch, seq, width]`; values at padding count as zero.
        mask: `[batch, seq]` bool, real positions.
        context: How many rows before a position.

    Returns:
        `[batch, seq, (context + 1) * width]`.
    """
    hidden = hidden.masked_fill(~mask[:, :, None], 0)
    return torch.cat([F.pad(hidden, (0, 0, back, 0))[:, : hidden.shape[1]] for back in range(context + 1)], 2)


def single_precision(bottom: Bottom) -> Bottom:
    """A copy in single precision whose modes can be switched; it shares the weights where they are that already."""
    single = all(tensor.dtype is torch.float32 for tensor in bottom.parameters() if tensor.is_floating_point())
    return twin(bottom) if single else copy.deepcopy(bottom).float()


class PublicRows(NamedTuple):
    """Some boundary rows of public text.

    Attributes:
        features: `[n, f]`.
        ids: `[n]` int64, their tokens.
        texts: `[n]` int64, the numbers of their texts.
    """

    features: Tensor
    ids: Tensor
    texts: Tensor


class PublicBoundary:
    """Boundary rows of public text, batch by batch, computed anew each time that it is iterated.

    Args:
        bottom: That makes them; not changed.
        public: Batches with ids.
        context: Rows before a position that are read with its own.
        dropout_copies: How often each text is also seen with the bottom's dropout on.
        seed: Of dropout.
    """

    def __init__(
        self, bottom: Bottom, public: Iterable[Inputs], *, context: int, dropout_copies: int, seed: int
    ) -> None:
        self._bottom = single_precision(bottom)
        if dropout_copies:
            set_dropout(self._bottom, True)
        self._public = public
        self._context = context
        self._copies = dropout_copies
        self._seed = seed
        self._forwards = 0
        self.seen = range(0)
        """The numbers of the texts of the latest pass so far."""

    def __iter__(self) -> Iterator[PublicRows]:
        table = self._bottom.table.detach()
        self.seen = range(0)
        for batch in self._public:
            inputs, ids, mask = self._checked(batch, len(table))
            texts = len(self.seen) + torch.arange(len(ids), device=table.device)
            self.seen = range(len(self.seen) + len(ids))
            if not bool(mask.any()):
                continue
            known = replace(inputs, input_ids=None, inputs_embeds=table[ids])
            for number in range(1 + self._copies):
                with self._dropout(number > 0):
                    hidden = self._bottom(known).float()
                features = windows(hidden, mask, self._context)[mask]
                yield PublicRows(features, ids[mask], texts[:, None].expand_as(ids)[mask])

    def _checked(self, batch: Inputs, vocabulary: int) -> tuple[Inputs, Tensor, Tensor]:
        ids, mask = batch.input_ids, batch.attention_mask.bool()
        if ids is None or ids.dtype != torch.int64 or ids.dim() != 2 or mask.shape != ids.shape:
            raise DataError("A batch of public text needs ids [batch, seq] of int64 and a mask of the same shape.")
        real = ids[mask.to(ids.device)]
        if len(real) and not 0 <= int(real.min()) <= int(real.max()) < vocabulary:
            raise DataError(
                f"The public text has ids outside of the table's {vocabulary} rows.",
                remedy="Tokenise it with the tokenizer of this model.",
            )
        inputs = batch.to(self._bottom.table.device)
        mask = inputs.attention_mask.bool()
        return inputs, ids.to(mask.device).masked_fill(~mask, 0), mask

    def _dropout(self, on: bool) -> AbstractContextManager[None]:
        """A batch's dropout, a function of the seed and of how many batches went before."""
        self._forwards += 1
        self._bottom.train(on)
        return isolated_dropout(self._seed, self._forwards, self._bottom.table.device) if on else nullcontext()


class HeldOut:
    """Public rows to choose by: every so manieth text, until there are enough rows."""

    def __init__(self) -> None:
        self.texts: set[int] = set()
        self._rows: list[PublicRows] = []
        self._count = 0

    def take(self, rows: PublicRows, every: int) -> Tensor:
        """Keeps its share of some rows and says which, `[n]` bool. Copies of a text come one after the other."""
        if self._count < _HELD_OUT_ROWS:
            self.texts.update(text for text in rows.texts.unique().tolist() if text % every == every - 1)
        kept = self.among(rows.texts)
        if bool(kept.any()):
            self._rows.append(PublicRows(rows.features[kept], rows.ids[kept], rows.texts[kept]))
            self._count += int(kept.sum())
        return kept

    def among(self, texts: Tensor) -> Tensor:
        """Which rows are of texts that were kept, `[n]` bool, for the texts `[n]` int64 that they are of."""
        return among(texts, self.texts)

    def joined(self) -> PublicRows:
        """All that were kept, of all batches."""
        return PublicRows(*map(torch.cat, zip(*self._rows, strict=True)))


def among(texts: Tensor, chosen: set[int]) -> Tensor:
    """Which rows are of chosen texts, `[n]` bool, for the texts `[n]` int64 that they are of."""
    return torch.isin(texts, torch.tensor(sorted(chosen), dtype=torch.int64, device=texts.device))
