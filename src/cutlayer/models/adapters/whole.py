"""Tuning a part's own weights."""

from __future__ import annotations

import copy
from typing import TypeVar

from torch import Tensor

from cutlayer.core import ModelError
from cutlayer.core.tuning import FullSpec
from cutlayer.models.adapters.methods import METHODS, Method, count, draw_heads, fresh_head
from cutlayer.models.cutting import Part
from cutlayer.models.heads import Head, head_modules
from cutlayer.models.quantization import is_quantized

P = TypeVar("P", bound=Part)


class Full(Method[FullSpec]):
    """All weights of a part, in a copy."""

    def attach(self, part: P, spec: FullSpec, *, num_labels: int | None, shared: bool, seed: int) -> P:
        """A copy; see `tune_whole`."""
        part = tune_whole(part, shared=shared)
        heads = fresh_head(part, num_labels)
        draw_heads(part, heads, seed=seed)
        return part

    def parameters(self, part: Part, spec: FullSpec, *, shared: bool) -> int:
        """All that are not shared by blocks, or all, but those of a fresh head."""
        heads = head_modules(part.model) if part.has_head and Head.of(part.model) is Head.CLASSIFICATION else ()
        replaced = sum(count(part.model.get_submodule(path)) for path in heads)
        return count(part) - replaced - sum(tensor.numel() for tensor in _kept(part, shared=shared))

    def untrained_bytes(self, part: Part, *, shared: bool) -> int:
        """Of its buffers, and of what blocks share where that is not trained."""
        return sum(tensor.nbytes for tensor in (*_kept(part, shared=shared), *part.buffers()))


METHODS.add("full")(Full())


def _kept(part: Part, *, shared: bool) -> list[Tensor]:
    """Weights that stay as they are."""
    return [] if shared else [*part.shared_parameters().values()]


def tune_whole(part: P, *, shared: bool = True) -> P:
    """A copy of `part` with weights of its own, ready to train.

    The base is common to all jobs and stays as it is, so the copy takes as much memory again. Weights
    that are tied within the part stay tied.

    Args:
        part: What to tune.
        shared: Whether what all blocks of a stack use is trained too. Where the other party holds a copy of it, both
            must take the same updates (`JointGradients`).

    Raises:
        ModelError: The part's weights are codes, which take no gradient.
    """
    if is_quantized(part.model):
        raise ModelError(
            "Weights in 4 bits cannot be tuned themselves.", remedy="Train an adapter, a prompt or a prefix."
        )
    part = copy.deepcopy(part)
    part.requires_grad_(True)
    for parameter in part.shared_parameters().values():
        parameter.requires_grad_(shared)
    return part
