"""How many threads compute, for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import torch

from cutlayer.models import threads_of_pass


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Sets the number of threads of matrix products meanwhile."""
    before = torch.get_num_threads()
    if count == before:
        yield
        return
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def threads_for(weights: int, positions: int) -> AbstractContextManager[None]:
    """One thread while a small pass of growing texts is computed.

    Args:
        weights: Of the part, as `weights_of` counts them.
        positions: New ones, of all texts.
    """
    return threads(threads_of_pass(weights, positions, most=torch.get_num_threads()))
