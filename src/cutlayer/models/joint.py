"""An update that two parties take together: clipped by one norm, with one gradient for what both hold copies of.

Each tells the other one number, the squared norm of the gradients that are its alone, and the gradients of its copies
of what blocks share across a cut. From both, each computes the same factor and the same sums, so what the parties hold
stays what one model would hold.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from cutlayer.core import Cut, ModelError
from cutlayer.models.anatomy import Family


def joint_stacks(family: Family, cut: Cut) -> tuple[str, ...]:
    """Stacks, by path, whose blocks share weights of which both parties hold copies; T5's position biases."""
    mine = (cut.bottom or 0, cut.target + (cut.tail or 0)) if len(family.stacks) > 1 else (0,)
    return tuple(
        stack.path for stack, blocks in zip(family.stacks, mine, strict=True) if stack.shared is not None and blocks > 0
    )


class JointGradients:
    """One party's gradients at such an update.

    Args:
        trained: What the party trains, copies among it.
        copies: What both hold copies of, by stack.
    """

    def __init__(self, trained: Iterable[nn.Parameter], copies: Mapping[str, nn.Parameter]) -> None:
        self._trained = tuple(trained)
        self._copies = tuple(copies[name] for name in sorted(copies))
        ours = {id(value) for value in self._copies}
        self._alone = tuple(value for value in self._trained if id(value) not in ours)

    @property
    def numbers(self) -> int:
        """How many gradients `copied` has."""
        return sum(value.numel() for value in self._copies)

    def norm(self) -> Tensor:
        """`[1]` fp32: squared norm of the gradients that are this party's alone, summed in fp64."""
        return squared_norm(self._alone)

    def copied(self) -> Tensor:
        """`[numbers]` fp32: gradients of this party's copies, one after the other; empty if it has none."""
        found = [
            torch.zeros(value.numel()) if value.grad is None else value.grad.float().cpu().flatten()
            for value in self._copies
        ]
        return torch.cat(found) if found else torch.zeros(0)

    def join(self, *, norm: Tensor | None, copied: Tensor | None, limit: float | None) -> None:
        """Makes these gradients those of one model: copies get the sum of both parties', and all are clipped.

        Args:
            norm: `[1]`, what the other party's `norm` returned; for clipping alone.
            copied: `[numbers]`, what its `copied` returned; `None` where there are no copies.
            limit: Largest norm of all gradients; `None` does not clip.

        Raises:
            ModelError: The other party holds copies of something else, or does not clip alike.
        """
        if (norm is None) != (limit is None):
            raise ModelError(
                f"Gradients are clipped at {limit}, and the other party told {'no' if norm is None else 'a'} norm.",
                remedy="Both must train the same job.",
            )
        mine = self.norm()
        other = torch.zeros(0) if copied is None else copied
        own = self.copied()
        if other.shape != own.shape:
            raise ModelError(
                f"The other party told {len(other)} gradients of shared weights; there are {len(own)} here.",
                remedy="Both must train the same cut of the same model.",
            )
        start = 0
        summed = own + other
        for value in self._copies:
            value.grad = summed[start : start + value.numel()].view_as(value).to(value)
            start += value.numel()
        if limit is not None and norm is not None:
            scale_gradients(self._trained, mine, norm, squared_norm(self._copies), limit=limit)


def squared_norm(parameters: Iterable[nn.Parameter]) -> Tensor:
    """`[1]` fp32: squared norm of all gradients together, summed in fp64."""
    found = [value.grad.double().square().sum().cpu() for value in parameters if value.grad is not None]
    return (torch.stack(found).sum() if found else torch.zeros((), dtype=torch.float64)).float().reshape(1)


def scale_gradients(
    parameters: Iterable[nn.Parameter], mine: Tensor, theirs: Tensor, both: Tensor, *, limit: float
) -> None:
    """Clips the norm of two parties' gradients together; each scales its own.

    Both compute the same factor from the same numbers, and it is that of
    `torch.nn.utils.clip_grad_norm_` on the whole model.

    Args:
        parameters: One party's.
        mine: `[1]` fp32, squared norm of the gradients that are that party's alone.
        theirs: `[1]` fp32, the same of the other party.
        both: `[1]` fp32, the same of what both hold copies of, which count once.
        limit: Largest norm of all of them.
    """
    norm = float((mine.double() + theirs.double() + both.double()).sqrt())
    factor = min(1.0, limit / (norm + 1e-6))
    if factor < 1:
        for parameter in parameters:
            if parameter.grad is not None:
                parameter.grad.mul_(factor)
