"""Stored records as a job reads them: through memory maps, so that sets may be larger than RAM.

A mapped file that shrinks would kill the process (SIGBUS); see `store` for why none does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import safe_open
from torch import Tensor

from cutlayer.core import Payload
from cutlayer.vendor.catalogue import ModelCard
from cutlayer.vendor.problems import unacceptable
from cutlayer.wire import Form, unpack
from cutlayer.wire.messages import JobSpec

_BLOCK = 2**8
"""Records from one start that is kept in memory to the next."""
_PASS = 2**14
"""Records looked at in one go, a multiple of `_BLOCK`: sums of their lengths take eight bytes each."""


@dataclass(frozen=True)
class MappedShard:
    """A shard through a memory map.

    A short text takes a few bytes of a shard, so eight bytes of memory for each record would be more
    than the file itself: only where each block of records begins is kept.

    Attributes:
        values: `[items]` ids or `[items, width]` rows; a view of the file.
        lengths: `[records, segments]` uint8 or uint16; a view of the file.
        starts: `[blocks]` int64: where the items of each block's first record stand.
        preceding: `[records, words]` uint8, of how many of its first items each public word before it is, and
            `[records]` uint8, which words they are; views of the file. `None` where there are no such words.
    """

    values: Tensor
    lengths: NDArray[np.unsignedinteger]
    starts: NDArray[np.int64]
    preceding: tuple[NDArray[np.uint8], NDArray[np.uint8]] | None = None

    @classmethod
    def open(cls, path: Path) -> MappedShard:
        """Maps a shard; safetensors compares the header with the file's length first."""
        with safe_open(path, framework="pt") as file:
            role = "ids" if "ids" in file.keys() else "rows"  # noqa: SIM118 - not a mapping
            values = file.get_tensor(role)
            lengths = file.get_tensor("lengths").numpy()
            preceding = None
            if "preceding" in file.keys():  # noqa: SIM118 - not a mapping
                preceding = file.get_tensor("preceding").numpy(), file.get_tensor("sequences").numpy()
        return cls(values, lengths, _block_starts(lengths), preceding)

    def __len__(self) -> int:
        return len(self.lengths)

    def span(self, record: int) -> slice:
        """Where a record's items stand in `values`."""
        block = record // _BLOCK
        start = int(self.starts[block]) + int(self.lengths[block * _BLOCK : record].sum())
        return slice(start, start + int(self.lengths[record].sum()))


def _block_starts(lengths: NDArray[np.unsignedinteger]) -> NDArray[np.int64]:
    sums = np.zeros(-(-len(lengths) // _BLOCK), np.int64)
    for first in range(0, len(lengths), _PASS):
        totals = lengths[first : first + _PASS].sum(1, dtype=np.int64)
        blocks = np.add.reduceat(totals, np.arange(0, len(totals), _BLOCK))
        sums[first // _BLOCK :][: len(blocks)] = blocks
    starts: NDArray[np.int64] = sums.cumsum() - sums
    return starts


class Records:
    """Records of several shards, numbered through.

    Args:
        shards: The shards, in order.
        card: The model they are for.
        spec: The job they are read for.
    """

    def __init__(self, shards: Sequence[MappedShard], card: ModelCard, spec: JobSpec) -> None:
        self._shards = list(shards)
        self._ends = np.cumsum([len(shard) for shard in self._shards])
        self._form = spec.form.value
        self._specials = card.template.special_count(spec.segments) if spec.form is Form.IDS else 0

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    @property
    def lengths(self) -> NDArray[np.int64]:
        """`[records]`: positions of each, special tokens included."""
        return np.concatenate([shard.lengths.sum(1, dtype=np.int64) for shard in self._shards]) + self._specials

    def longest(self, numbers: NDArray[np.int64]) -> int:
        """Positions of the longest of these records, special tokens included.

        Args:
            numbers: `[texts]`, none negative.

        Raises:
            Refusal: There is no record of such a number.
        """
        if len(numbers) == 0 or int(numbers.max()) >= len(self):
            raise unacceptable(
                "record-out-of-range",
                f"records names {int(numbers.max()) if len(numbers) else 'no record'}; "
                f"the job has records 0 to {len(self) - 1}.",
                remedy="Name records of the job's own sets.",
            )
        return self._specials + max(int(shard.lengths[local].sum()) for shard, local in self._locate(numbers))

    def gather(self, numbers: NDArray[np.int64]) -> Payload:
        """The records as one release of `n` texts.

        Args:
            numbers: `[n]`: which, in that order; each is one that `longest` took.

        Returns:
            `PrecededTokens` where public words stand before all of them.
        """
        pieces, lengths, preceding, sequences = [], [], [], []
        for shard, local in self._locate(numbers):
            pieces.append(shard.values[shard.span(local)])
            lengths.append(shard.lengths[local])
            if shard.preceding is not None:
                preceding.append(shard.preceding[0][local])
                sequences.append(shard.preceding[1][local])
        tensors = {self._form: torch.cat(pieces), "lengths": torch.from_numpy(np.stack(lengths, dtype=np.int64))}
        if len(preceding) == len(numbers):  # a job's sets for evaluation have none
            tensors["preceding"] = torch.from_numpy(np.stack(preceding))
            tensors["sequences"] = torch.from_numpy(np.stack(sequences))
        return unpack(tensors)

    def _locate(self, numbers: NDArray[np.int64]) -> list[tuple[MappedShard, int]]:
        places = np.searchsorted(self._ends, numbers, side="right")
        return [
            (self._shards[place], int(number - (self._ends[place - 1] if place else 0)))
            for place, number in zip(places.tolist(), numbers.tolist(), strict=True)
        ]
