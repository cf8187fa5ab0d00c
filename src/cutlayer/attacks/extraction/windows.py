"""What a student looks at for each row, and the units that it measures rows in."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from cutlayer.core import Rows

WINDOWS_AT_ONCE = 8_192
"""Rows whose windows are made at a time."""
_BACK = 2
"""Rows before its own that a window has."""


class Windows:
    """What a student looks at for each row: it, the rows before it, and the mean of the text so far.

    Args:
        sent: Rows in.
    """

    def __init__(self, sent: Rows) -> None:
        self._values = sent.packed.values.float()
        starts = sent.packed.offsets[:-1].repeat_interleave(sent.packed.lengths)
        self._within = torch.arange(sent.total) - starts
        summed = self._values.double().cumsum(0)
        before = torch.cat([summed.new_zeros(1, summed.shape[1]), summed])[starts]
        self._so_far = ((summed - before) / (1 + self._within[:, None])).float()

    def of(self, items: Tensor | slice) -> Tensor:
        """Windows `[items, features]` of rows `[items]`; the first `width` features are the row itself."""
        within = self._within[items]
        at = torch.arange(len(self._values))[items]
        parts = [self._values[at]]
        for back in range(1, _BACK + 1):
            earlier = self._values[(at - back).clamp(min=0)]
            parts.append(torch.where((within >= back)[:, None], earlier, 0))
        return torch.cat([*parts, self._so_far[at], (within == 0)[:, None].float()], 1)


def spread_of(rows: Tensor) -> Tensor:
    """The standard deviation `[width]` of each coordinate of rows `[n, width]`; 1 where it does not vary."""
    spread = rows.std(0, correction=0)
    return torch.where(spread > 1e-6 * spread.max().clamp(min=1e-30), spread, 1.0)


def slices(count: int) -> Iterator[slice]:
    """So many rows, in parts of `WINDOWS_AT_ONCE`."""
    return (slice(start, min(count, start + WINDOWS_AT_ONCE)) for start in range(0, count, WINDOWS_AT_ONCE))
