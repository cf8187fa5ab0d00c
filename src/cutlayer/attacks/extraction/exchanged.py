"""Texts as they went through the vendor's blocks: rows in, rows out, and what the customer's tail says behind them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from cutlayer.core import Ragged, Rows
from cutlayer.models import Tail, Template

NO_TOKEN = -1
"""In the place of the token that follows a text's last row."""
_BATCH = 256
"""Rows that go through the tail at a time, about."""


@dataclass(frozen=True)
class Exchanged:
    """Texts as they went through the vendor's blocks.

    Attributes:
        sent: Rows in.
        returned: Rows out, of the same texts.
        tokens: `[rows]` int64, the true token at each row, special tokens included.
        tail: The customer's own, as training left it, in evaluation mode.
        template: Where special tokens stand.
    """

    sent: Rows
    returned: Rows
    tokens: Ragged
    tail: Tail
    template: Template

    def __len__(self) -> int:
        return len(self.sent)

    def select(self, indices: Tensor | Sequence[int]) -> Exchanged:
        """The texts at `indices` `[m]`, in that order."""
        return replace(
            self,
            sent=self.sent.select(indices),
            returned=self.returned.select(indices),
            tokens=self.tokens.select(indices),
        )

    @property
    def followers(self) -> Tensor:
        """`[rows]` int64: the token that follows each row in its text; -1 behind the last."""
        after = torch.cat([self.tokens.values[1:], torch.tensor([NO_TOKEN])])
        after[self.tokens.offsets[1:] - 1] = NO_TOKEN
        return after

    def with_returned(self, values: Tensor) -> Exchanged:
        """The same with other rows out, `[rows, width]`."""
        return replace(self, returned=replace(self.returned, packed=self.returned.packed.with_values(values)))

    def logits(self, rows: Tensor) -> Tensor:
        """The tail's logits `[rows, vocabulary]` for rows `[rows, width]` in the place of rows out."""
        like = self.sent
        hidden, inputs = self.template.from_rows(replace(like, packed=like.packed.with_values(rows)))
        model = self.tail.model
        logits: Tensor = self.tail(hidden.to(model.device, model.dtype), inputs.to(model.device))
        return logits[inputs.attention_mask.bool().to(model.device)].float().cpu()

    @torch.no_grad()
    def said(self, rows: Tensor) -> Tensor:
        """`[rows]` int64: the tail's most probable token behind each of these rows `[rows, width]`."""
        size = max(1, _BATCH * len(self) // max(1, self.sent.total))
        parts = [self.with_returned(rows).select(some) for some in torch.arange(len(self)).split(size)]
        return torch.cat([part.logits(part.returned.packed.values).argmax(1) for part in parts])

    def per_text(self, items: Tensor) -> Tensor:
        """Sums over each text's rows of items `[rows]`: `[texts]`, of their type."""
        owners = torch.arange(len(self)).repeat_interleave(self.sent.packed.lengths)
        return items.new_zeros(len(self)).index_add_(0, owners, items)
