"""Tuning a part's own weights."""

from __future__ import annotations

import copy
from typing import TypeVar

from cutlayer.models.cutting import Part

P = TypeVar("P", bound=Part)


def tune_whole(part: P, *, shared: bool = True) -> P:
    """A copy of `part` with weights of its own, ready to train.

    The base is common to all jobs and stays as it is, so the copy takes as much memory again. Weights
    that are tied within the part stay tied.

    Args:
        part: What to tune.
        shared: Whether what all blocks of a stack use is trained too. Where the other party holds a copy of it, both
            must take the same updates (`JointGradients`).
    """
    part = copy.deepcopy(part)
    part.requires_grad_(True)
    for parameter in part.shared_parameters().values():
        parameter.requires_grad_(shared)
    return part
