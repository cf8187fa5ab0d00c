"""What tests of noise need beside `cutlayer.reports.conformance`: streams, and checks of what is released."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from cutlayer.privacy import generator
from cutlayer.reports.conformance import ALPHA

Array = NDArray[np.float64]

__all__ = ["ALPHA", "Array", "off_lattice", "shared_rows", "stream", "tokens_named_by_their_floats"]


def stream(number: int) -> np.random.Generator:
    """A generator for tests: fixed, and another for each number."""
    return generator(number.to_bytes(16, "little"))


def tokens_named_by_their_floats(outputs: Array, table: Array, truth: NDArray[np.int64]) -> int:
    """How many fp32 outputs only their true token could have produced, if fp32 sums were released.

    The support attack: keeps the tokens with fl(row + fl(output - row)) == output in all coordinates.
    """
    rows, named = table.astype(np.float32), 0
    for output, token in zip(outputs.astype(np.float32), truth, strict=True):
        possible = np.flatnonzero((rows + (output - rows) == output).all(1))
        named += possible.tolist() == [token]
    return named


def off_lattice(outputs: Array, spacing: float) -> int:
    """How many numbers are no multiples of `spacing`."""
    scaled = outputs / spacing
    return int((scaled != np.rint(scaled)).sum())


def shared_rows(parts: list[Array]) -> int:
    """How many rows of noise occur in more than one part (process, thread, text), or twice in one."""
    rows = np.concatenate(parts)
    return len(rows) - len(np.unique(rows, axis=0))
