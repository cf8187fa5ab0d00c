"""Copies of a model that share its weights."""

from __future__ import annotations

import copy
from itertools import chain
from typing import Any, TypeVar

from torch import nn
from transformers import PreTrainedModel

from cutlayer.models.anatomy import family_of

M = TypeVar("M", bound=nn.Module)


def twin(model: M) -> M:
    """A copy of `model` that shares every parameter and buffer with it.

    Modules and configurations are copied, so replacing, re-numbering or wrapping them, or switching
    between training and evaluation, leaves the original as it is. One frozen base can so serve many
    jobs at once. Costs a few milliseconds and no weights.
    """
    return _copied(model, {id(tensor): tensor for tensor in chain(model.parameters(), model.buffers())})


def _copied(module: M, memo: dict[int, Any]) -> M:
    """What `copy.deepcopy` makes of a module, without its general way through a dozen empty tables of each."""
    clone: M = type(module).__new__(type(module))
    memo[id(module)] = clone
    for child in module.children():
        if id(child) not in memo:
            _copied(child, memo)
    for name, value in module.__getstate__().items():  # type: ignore[no-untyped-call]  # torch has no types there
        if name == "_modules":
            copied: Any = {at: child if child is None else memo[id(child)] for at, child in value.items()}
        elif name in ("_parameters", "_buffers"):
            copied = value.copy()
        elif isinstance(value, dict) and not value:
            copied = type(value)()
        else:
            copied = copy.deepcopy(value, memo)
        vars(clone)[name] = copied
    return clone


def own_bytes(model: nn.Module, other: nn.Module) -> int:
    """Bytes of the parameters and buffers of `model` that it does not share with `other`."""
    shared = {id(tensor) for tensor in chain(other.parameters(), other.buffers())}
    return sum(tensor.nbytes for tensor in chain(model.parameters(), model.buffers()) if id(tensor) not in shared)


def share_base(model: PreTrainedModel, other: PreTrainedModel) -> None:
    """Has `model` use the base weights of `other`, in place: two heads over one checkpoint, loaded twice.

    Args:
        model: Whose own copy of the base is let go.
        other: A model of the same base weights, with another head.
    """
    for stack in family_of(model.config).stacks:
        theirs = other.get_submodule(stack.path)
        for name, parameter in theirs.named_parameters(remove_duplicate=False):
            owner, _, leaf = f"{stack.path}.{name}".rpartition(".")
            mine = model.get_submodule(owner)
            if getattr(mine, leaf, None) is not None:
                setattr(mine, leaf, parameter)
    model.tie_weights()
