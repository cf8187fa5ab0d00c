"""Tuning a part's own weights, all that are its alone."""

from __future__ import annotations

import copy
from typing import TypeVar

from cutlayer.models.cutting import Part

P = TypeVar("P", bound=Part)


def tune_whole(part: P) -> P:
    """A copy of `part` with weights of its own, ready to train.

    The base is shared by all jobs and stays as it is, so the copy takes as much memory again. Weights
    that are tied within the part stay tied. What blocks of both parties share stays as it is.
    """
    part = copy.deepcopy(part)
    part.requires_grad_(True)
    for parameter in part.shared_parameters():
        parameter.requires_grad_(False)
    return part
