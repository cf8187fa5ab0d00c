"""What looks cost.

A look is a draw of noise. It is charged its eta once, whatever the number of frames and forms in which it is sent, to
each account that it shows: a text up to a token, as it reads; a text by its ids; a label. What accounts add up to, and
whether a budget allows more: `cutlayer.privacy.budget`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import torch
from torch import Tensor

from cutlayer.core import Ragged
from cutlayer.privacy.context import NAME_BYTES

_DRAW_BYTES: Final = 8
"""Of a draw's name, as the ledger keeps it beside an account: within one account no two will be alike."""
_RECORD: Final = 2 * NAME_BYTES + 8


def record(account: bytes, draw: bytes, eta: float) -> bytes:
    """One account, and a draw that is charged to it."""
    return account + draw + struct.pack("<d", eta)


@dataclass(frozen=True)
class Charges:
    """Accounts of `n` texts or labels, and the draws that are charged to them.

    Attributes:
        records: Of each text its `record`s, `[_RECORD]` uint8 each.
    """

    records: Ragged

    @classmethod
    def of(cls, texts: Iterable[bytes | bytearray]) -> Charges:
        """Of each text: its `record`s, one behind the other."""
        packed, lengths = bytearray(), []
        for records in texts:
            packed += records
            lengths.append(len(records) // _RECORD)
        raw = torch.frombuffer(packed, dtype=torch.uint8) if packed else torch.zeros(0, dtype=torch.uint8)
        return cls(Ragged(raw.reshape(-1, _RECORD), torch.tensor(lengths, dtype=torch.int64)))

    def __len__(self) -> int:
        return len(self.records)

    def select(self, indices: Tensor | Sequence[int]) -> Charges:
        """Those of the texts at `indices`, `[chosen]` int64, in that order."""
        return Charges(self.records.select(indices))

    def redrawn(self, draws: Sequence[bytes]) -> Charges:
        """The same accounts under other draws, one for each text."""
        values = self.records.values.clone()
        names = torch.from_numpy(np.frombuffer(b"".join(draws), dtype=np.uint8).reshape(-1, NAME_BYTES).copy())
        values[:, NAME_BYTES : 2 * NAME_BYTES] = names.repeat_interleave(self.records.lengths, dim=0)
        return replace(self, records=self.records.with_values(values))

    def rows(self, *, first: int = 0) -> Iterator[tuple[bytes, bytes, float, int]]:
        """Account, shortened draw, eta and the text's number, counted from `first`."""
        raw = self.records.values.numpy().tobytes()
        owners = torch.arange(first, first + len(self)).repeat_interleave(self.records.lengths).tolist()
        for start, owner in zip(range(0, len(raw), _RECORD), owners, strict=True):
            account, draw, (eta,) = (
                raw[start : start + NAME_BYTES],
                raw[start + NAME_BYTES : start + NAME_BYTES + _DRAW_BYTES],
                struct.unpack("<d", raw[start + 2 * NAME_BYTES : start + _RECORD]),
            )
            yield account, draw, eta, owner
