"""Through a tail's blocks: the states where they end, and the gradient there.

Blocks couple the positions of a text: with z the hidden state before the norm, g = J_blocksᵀ u and u = dL/dz. The
vendor's own blocks give J_blocks, close to the identity where connections are residual, so u is a linear least-squares
problem, text by text.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from cutlayer.attacks.language.tail import check_without_blocks, predicting
from cutlayer.core import DataError
from cutlayer.core.deadline import check_time
from cutlayer.models.cutting import Tail, Top, behead, block_list, trim
from cutlayer.models.inputs import Inputs
from cutlayer.models.seq2seq import Seq2SeqTail
from cutlayer.models.twin import twin

_PAIRS = 2**21
"""Pairs of positions, over the texts whose blocks are differentiated together."""


@dataclass(frozen=True)
class Solver:
    """How min ‖J_blocksᵀ u - g‖ is solved.

    By CGLS, conjugate gradients on the normal equations: it needs nothing but products with J and Jᵀ,
    keeps a handful of vectors, bears a singular J (norms behind blocks make one), and its early iterates
    are regularised ones, which suits a tail that is not quite the customer's. Measured on tails of two blocks: GMRES,
    which needs Jᵀ alone, is twice as fast on a trained model and stalls on ill-conditioned ones; Adam, as
    gradients are matched elsewhere, leaves 25 to 160 times the residual after 60 to 200 steps.

    Attributes:
        iterations: At most so many. With 0 the blocks' Jacobian is ignored and g taken for dL/dz, which residual
            connections make less wrong than it sounds.
        tolerance: Relative residual at which a text is solved.
        dtype: Element type of the blocks and of u.

    Ref: Björck, "Numerical Methods for Least Squares Problems", 1996, §7.4 (CGLS).
    """

    iterations: int = 100
    tolerance: float = 1e-4
    dtype: torch.dtype = torch.float32


@dataclass(frozen=True)
class FinalStates:
    """What is known where the tail's blocks end.

    Attributes:
        hidden: z, `[batch, seq, width]`, computed with the vendor's own blocks.
        gradient: u = dL/dz, `[batch, seq, width]`, solved for; 0 where no token is predicted.
        residual: `[batch]`, ‖J_blocksᵀ u - g‖ / ‖g‖ of each text.
        iterations: How many were taken.
    """

    hidden: Tensor
    gradient: Tensor
    residual: Tensor
    iterations: int


def final_hidden(
    tail: Tail | Seq2SeqTail, hidden: Tensor, inputs: Inputs, *, dtype: torch.dtype = torch.float32
) -> Tensor:
    """z, what the tail's blocks make of the upper boundary.

    Args:
        tail: The vendor's own.
        hidden: h, the upper boundary, `[batch, seq, width]`.
        inputs: Mask and positions.
        dtype: Element type in which blocks are computed.

    Returns:
        `[batch, seq, width]` on the tail's device.

    Raises:
        Inapplicable: The tail of an encoder-decoder has blocks.
        DataError: The mask is of another batch.
    """
    _check_shapes(hidden, hidden, inputs)
    device = tail.model.device
    blocks = _blocks(tail, dtype)
    if blocks is None:
        return hidden.to(device)
    with torch.no_grad():
        states = [blocks(_part(inputs, texts, device), hidden[texts].to(device, dtype)) for texts in _texts(hidden)]
    return torch.cat(states)


def solve_blocks(
    tail: Tail | Seq2SeqTail, hidden: Tensor, gradient: Tensor, inputs: Inputs, *, solver: Solver | None = None
) -> FinalStates:
    """Solves min ‖J_blocksᵀ u - g‖ for u = dL/dz, text by text.

    Jᵀ u is a backward pass; J v is a backward pass through it, since v · Jᵀ u is linear in u.

    Args:
        tail: The vendor's own.
        hidden: h, `[batch, seq, width]`.
        gradient: g = dL/dh, `[batch, seq, width]`.
        inputs: Mask and positions.
        solver: How.

    Raises:
        Inapplicable: The tail of an encoder-decoder has blocks.
        DataError: Shapes that do not belong together.
    """
    _check_shapes(hidden, gradient, inputs)
    solver = solver or Solver()
    device = tail.model.device
    where = predicting(inputs).to(device)[..., None]
    blocks = _blocks(tail, solver.dtype)
    if blocks is None:
        exact = torch.zeros(len(hidden), device=device)
        return FinalStates(hidden.to(device), torch.where(where, gradient.to(device), 0), exact, 0)
    solved = []
    for texts in _texts(hidden):
        sent = gradient[texts].to(device, solver.dtype)
        with torch.enable_grad():
            map_ = _BlockMap(blocks, hidden[texts].to(device, solver.dtype), _part(inputs, texts, device), where[texts])
            solved.append(_solve(map_, sent, solver))
    return FinalStates(
        hidden=torch.cat([part.hidden for part in solved]),
        gradient=torch.cat([part.gradient for part in solved]),
        residual=torch.cat([part.residual for part in solved]),
        iterations=max((part.iterations for part in solved), default=0),
    )


class _BlockMap:
    """Products with the Jacobian of a tail's blocks, for texts that fit in memory together.

    Only rows of u that have a target are unknown: nothing else enters the loss.
    """

    def __init__(self, blocks: Top, hidden: Tensor, inputs: Inputs, where: Tensor) -> None:
        self._entry = hidden.detach().requires_grad_()
        self._state: Tensor = blocks(inputs, self._entry)
        self._where = where
        self._dual = torch.zeros_like(self._state, requires_grad=True)
        (self._pulled,) = torch.autograd.grad(self._state, self._entry, self._dual, create_graph=True)

    @property
    def state(self) -> Tensor:
        """z, `[batch, seq, width]`."""
        return self._state.detach()

    def known(self, u: Tensor) -> Tensor:
        """The same u, with 0 where no token is predicted."""
        return torch.where(self._where, u, 0)

    def pull(self, u: Tensor) -> Tensor:
        """Jᵀ u."""
        (product,) = torch.autograd.grad(self._state, self._entry, u, retain_graph=True)
        return product

    def push(self, v: Tensor) -> Tensor:
        """J v."""
        (product,) = torch.autograd.grad(self._pulled, self._dual, v, retain_graph=True)
        return self.known(product)


def _solve(blocks: _BlockMap, gradient: Tensor, solver: Solver) -> FinalStates:
    size = _norm(gradient)
    # of unit length, since squares of a gradient that is a mean over many tokens vanish in float32
    target = torch.where(size > 0, gradient / size, 0)
    if not solver.iterations:
        guess = blocks.known(target)
        return FinalStates(blocks.state, guess * size, _norm(blocks.pull(guess) - target)[:, 0, 0], 0)
    solution, rest = torch.zeros_like(target), target
    direction = steepest = blocks.push(rest)
    slope = _norm(steepest).square()
    taken = 0
    while taken < solver.iterations and bool((_norm(rest) > solver.tolerance).any()):
        step = blocks.pull(direction)
        length = slope / _norm(step).square()
        # a solved text stays where it is while others go on: its directions become 0 / 0
        length = torch.where((_norm(rest) > solver.tolerance) & length.isfinite(), length, 0)
        solution = solution + length * direction
        rest = rest - length * step
        steepest = blocks.push(rest)
        before, slope = slope, _norm(steepest).square()
        direction = steepest + torch.where(before > 0, slope / before, 0) * direction
        taken += 1
    return FinalStates(blocks.state, solution * size, _norm(rest)[:, 0, 0], taken)


def _blocks(tail: Tail | Seq2SeqTail, dtype: torch.dtype) -> Top | None:
    """A frozen copy of a tail's blocks, without norm and head; None if there are none.

    A copy, as a twin shares its parameters, and neither their type nor their gradients are to change.
    Its attention is the plain one, as fused kernels cannot be differentiated twice.
    """
    if isinstance(tail, Seq2SeqTail):
        check_without_blocks(tail)
        return None
    depth = len(block_list(tail.model, tail.stack))
    if not depth:
        return None
    module = twin(tail.model)
    trim(module, tail.stack, 0, depth, table=False, before=False, after=False)
    behead(module)
    module = copy.deepcopy(module)
    nn.Module.to(module, dtype)
    module.set_attn_implementation("eager")
    module.requires_grad_(False)
    module.train(False)
    return Top(module, head=False)


def _norm(texts: Tensor) -> Tensor:
    """Of each text, `[batch, seq, width]` to `[batch, 1, 1]`."""
    norms: Tensor = torch.linalg.vector_norm(texts, dim=(1, 2), keepdim=True)
    return norms


def _texts(hidden: Tensor) -> Iterator[slice]:
    """Texts whose attention matrices fit in memory together."""
    step = max(1, _PAIRS // max(hidden.shape[1], 1) ** 2)
    for start in range(0, len(hidden), step):
        check_time()
        yield slice(start, start + step)


def _part(inputs: Inputs, texts: slice, device: torch.device) -> Inputs:
    return Inputs(inputs.attention_mask[texts].to(device), inputs.position_ids[texts].to(device))


def _check_shapes(hidden: Tensor, gradient: Tensor, inputs: Inputs) -> None:
    mask = inputs.attention_mask
    if hidden.dim() != 3 or gradient.shape != hidden.shape or mask.shape != hidden.shape[:2]:
        raise DataError(
            f"A boundary {list(hidden.shape)}, a gradient {list(gradient.shape)} and a mask {list(mask.shape)} are not "
            "of one batch.",
            remedy="Give all three as [batch, seq], the first two with the boundary's width.",
        )
