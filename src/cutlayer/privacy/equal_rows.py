"""Rows of a table that are equal, found without comparing all pairs."""

from __future__ import annotations

import hashlib
from typing import Final

import torch
from torch import Tensor

_ROWS: Final = 4096
"""Rows that are looked at together."""


def first_of_equals(table: Tensor, ids: Tensor) -> Tensor:
    """`ids` `[n]` int64 without those whose row of `table` `[vocabulary, width]` equals that of a lower id."""
    if not len(ids):
        return ids
    # rows hashed with integers, whose sums are exact in any order: equal rows have equal hashes wherever they stand
    factors = torch.frombuffer(bytearray(hashlib.shake_128(b"rows").digest(8 * table.shape[1])), dtype=torch.int64)
    hashes = []
    for some in torch.split(ids, _ROWS):
        bits = (table[some].double() + 0.0).view(torch.int64)  # + 0.0 makes -0.0 and 0.0 the same bits
        hashes.append(((bits ^ (bits >> 32)) * factors).sum(1))
    _, group = torch.unique(torch.cat(hashes), return_inverse=True)
    first = torch.full((int(group.max()) + 1,), len(ids)).scatter_reduce(0, group, torch.arange(len(ids)), "amin")[
        group
    ]
    repeated = (first != torch.arange(len(ids))).nonzero().flatten()
    keep = torch.ones(len(ids), dtype=torch.bool)
    for some in torch.split(repeated, _ROWS):
        keep[some] = (table[ids[some]] != table[ids[first[some]]]).any(1)
    return ids[keep]
