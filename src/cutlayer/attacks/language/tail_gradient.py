"""Next tokens read from the gradient that a customer's tail sends up.

In training the vendor knows h (it computed the upper boundary), is sent g = dL/dh, and owns the norm,
the head W and the blocks that the customer's tail began as. For a mean cross-entropy over N predicted
tokens and a tail of norm and head alone, logits = W norm(h) + b, each row of g is

    N g = Jᵀ (Wᵀ p - W_y),    p = softmax(W norm(h) + b),  J = d norm(h) / dh,  y = the next token,

so Jᵀ Wᵀ p - N g = Jᵀ W_y: the nearest of all Jᵀ W_k is the next token's, at every position of every text
of every step. Ref: this project's study of a tail's gradients, which read 512 of 512 tokens on random
hidden states, also with gradients in bf16 and a head that had drifted by 50 %.

Blocks in the tail couple the positions of a text: with z the hidden state before the norm,
g = J_blocksᵀ u and u = dL/dz. The vendor's own blocks give J_blocks, close to the identity where
connections are residual, so u is a linear least-squares problem; from z and u on it is the case above.
No guess of a label enters before the last step.

While it is trained, a customer's tail drifts from the vendor's. Sure of its texts, it sends small
gradients, but in about the old direction; see `Match`. Nor is drift a defence: texts come back every
epoch, and a vendor that trains its own tail along, on what it read at the first step, drifts with it.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Protocol

import torch
from torch import Tensor, nn

from cutlayer.attacks.knowledge import Inapplicable
from cutlayer.core import DataError
from cutlayer.models.anatomy import Kind
from cutlayer.models.cutting import Tail, Top, behead, block_list, trim
from cutlayer.models.heads import Head
from cutlayer.models.inputs import Inputs
from cutlayer.models.seq2seq import Seq2SeqTail
from cutlayer.models.twin import twin

NO_TARGET = -1
"""Stands where no token is predicted: at a text's last position and at padding."""

_SCORES = 2**22
"""Scores, or numbers of the head, in memory at a time, in float64: 32 MiB, and a few temporaries as large."""
_ROWS = 1024
"""Rows scored together: enough for fast products, few enough to leave long blocks of the vocabulary."""
_PAIRS = 2**21
"""Pairs of positions, over the texts whose blocks are differentiated together."""
_FLOAT32_ROUNDING = 2.0**-23


class Match(StrEnum):
    """How a row's gradient is compared with the vocabulary.

    With d_k = Jᵀ (W_k - Wᵀ p), an exact gradient has -N g = d_y.
    """

    DIRECTION = "direction"
    """The smallest angle between -g and d_k. Needs no N, and allows for a customer that is surer of its token
    than the vendor's tail, or less sure: if all else in p stays in proportion, -N g = d_y (1 - p'_y) / (1 - p_y),
    the same direction at another length."""
    DISTANCE = "distance"
    """The smallest distance between -N g and d_k, the rule of the study."""


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


def predicting(inputs: Inputs) -> Tensor:
    """`[batch, seq]` bool: the real positions that another real one follows. Their number is N."""
    real = inputs.attention_mask.bool()
    followed = torch.zeros_like(real)
    followed[:, :-1] = real[:, :-1] & real[:, 1:]
    return followed


def tail_logits(tail: Tail | Seq2SeqTail, hidden: Tensor, inputs: Inputs) -> Tensor:
    """A tail's logits `[batch, seq, vocab]` from the upper boundary.

    Args:
        tail: Of a decoder; or of an encoder-decoder, without blocks that would attend to the encoder's output.
        hidden: The upper boundary, `[batch, seq, width]`.
        inputs: Its mask and positions.

    Raises:
        Inapplicable: The tail of an encoder-decoder has blocks.
    """
    if isinstance(tail, Tail):
        logits: Tensor = tail(hidden, inputs)
        return logits
    _check_without_blocks(tail)
    return tail.decode(hidden, inputs, inputs, hidden)


def _check_without_blocks(tail: Seq2SeqTail) -> None:
    if len(block_list(tail.model, tail.family.stacks[-1])):
        raise Inapplicable(
            "An encoder-decoder's tail with blocks is not read: this attack does not follow their attention to the "
            "encoder's output, which the vendor knows."
        )


def read_next_tokens(
    tail: Tail | Seq2SeqTail,
    hidden: Tensor,
    gradient: Tensor,
    inputs: Inputs,
    *,
    predicted: int,
    scale: float = 1.0,
    match: Match = Match.DIRECTION,
    candidates: Tensor | None = None,
    iterations: int = 100,
    tolerance: float = 1e-4,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Guesses the token after each position of a training batch.

    Args:
        tail: The vendor's own, as it was before any training.
        hidden: h, the upper boundary that the vendor computed, `[batch, seq, width]`.
        gradient: dL/dh as it was sent, of any floating type, `[batch, seq, width]`.
        inputs: Mask and positions, padded on either side.
        predicted: N, the number of tokens that the loss is a mean over, which lengths tell: n - 1 for a text
            of n, summed over all batches that one step accumulates.
        scale: What the customer multiplied that mean by.
        match: How rows are compared; `predicted` and `scale` matter to `DISTANCE` only.
        candidates: `[vocab]` bool, the ids that may be guessed; None allows all.
        iterations: At most so many of the solver, for a tail with blocks. With 0 the blocks' Jacobian is
            ignored and g taken for dL/dz, which residual connections make less wrong than it sounds.
        tolerance: Relative residual at which a text is solved.
        dtype: Element type in which blocks are differentiated.

    Returns:
        `[batch, seq]` int64 ids, `NO_TARGET` where nothing is predicted.

    Raises:
        Inapplicable: The tail does not end in norm and head over a vocabulary.
        DataError: Shapes that do not belong together, or a loss over no token.
    """
    if predicted < 1 or not scale > 0:
        raise DataError(f"A mean over {predicted} tokens, times {scale}, is no loss: both must be positive.")
    unembedding = Unembedding.of(tail)
    found = solve_blocks(tail, hidden, gradient, inputs, iterations=iterations, tolerance=tolerance, dtype=dtype)
    where = predicting(inputs).to(unembedding.device)
    guesses = torch.full(where.shape, NO_TARGET, device=unembedding.device)
    guesses[where] = nearest_tokens(
        unembedding,
        found.hidden[where],
        found.gradient[where],
        predicted=predicted / scale,
        match=match,
        candidates=candidates,
    )
    return guesses


# ---------------------------------------------------------------- through the blocks


def final_hidden(
    tail: Tail | Seq2SeqTail, hidden: Tensor, inputs: Inputs, *, dtype: torch.dtype = torch.float32
) -> Tensor:
    """z, what the tail's blocks make of the upper boundary: `[batch, seq, width]` on the tail's device.

    Raises:
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
    tail: Tail | Seq2SeqTail,
    hidden: Tensor,
    gradient: Tensor,
    inputs: Inputs,
    *,
    iterations: int = 100,
    tolerance: float = 1e-4,
    dtype: torch.dtype = torch.float32,
) -> FinalStates:
    """Solves min ‖J_blocksᵀ u - g‖ for u = dL/dz, text by text.

    By CGLS, conjugate gradients on the normal equations: it needs nothing but products with J and Jᵀ,
    keeps a handful of vectors, bears a singular J (norms behind blocks make one), and its early iterates
    are regularised ones, which suits a tail that is not quite the customer's. Jᵀ u is a backward pass;
    J v is a backward pass through it, since v · Jᵀ u is linear in u. Measured on tails of two blocks: GMRES,
    which needs Jᵀ alone, is twice as fast on a trained model and stalls on ill-conditioned ones; Adam, as
    gradients are matched elsewhere, leaves 25 to 160 times the residual after 60 to 200 steps.

    Args:
        tail: The vendor's own.
        hidden: h, `[batch, seq, width]`.
        gradient: dL/dh, `[batch, seq, width]`.
        inputs: Mask and positions.
        iterations: At most so many; with 0 the gradient is returned as it is.
        tolerance: Relative residual at which a text is solved.
        dtype: Element type of the blocks and of u.

    Raises:
        DataError: Shapes that do not belong together.
    """
    _check_shapes(hidden, gradient, inputs)
    device = tail.model.device
    where = predicting(inputs).to(device)[..., None]
    blocks = _blocks(tail, dtype)
    if blocks is None:
        exact = torch.zeros(len(hidden), device=device)
        return FinalStates(hidden.to(device), torch.where(where, gradient.to(device), 0), exact, 0)
    solved = []
    for texts in _texts(hidden):
        sent = gradient[texts].to(device, dtype)
        with torch.enable_grad():
            map_ = _BlockMap(blocks, hidden[texts].to(device, dtype), _part(inputs, texts, device), where[texts])
            solved.append(_solve(map_, sent, iterations, tolerance))
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
        """U, and 0 where no token is predicted."""
        return torch.where(self._where, u, 0)

    def pull(self, u: Tensor) -> Tensor:
        """Jᵀ u."""
        (product,) = torch.autograd.grad(self._state, self._entry, u, retain_graph=True)
        return product

    def push(self, v: Tensor) -> Tensor:
        """J v."""
        (product,) = torch.autograd.grad(self._pulled, self._dual, v, retain_graph=True)
        return self.known(product)


def _solve(blocks: _BlockMap, gradient: Tensor, iterations: int, tolerance: float) -> FinalStates:
    size = _norm(gradient)
    # of unit length, since squares of a gradient that is a mean over many tokens vanish in float32
    target = torch.where(size > 0, gradient / size, 0)
    if not iterations:
        guess = blocks.known(target)
        return FinalStates(blocks.state, guess * size, _norm(blocks.pull(guess) - target)[:, 0, 0], 0)
    solution, rest = torch.zeros_like(target), target
    direction = steepest = blocks.push(rest)
    slope = _norm(steepest).square()
    taken = 0
    while taken < iterations and bool((_norm(rest) > tolerance).any()):
        step = blocks.pull(direction)
        length = slope / _norm(step).square()
        # a solved text stays where it is while others go on: its directions become 0 / 0
        length = torch.where((_norm(rest) > tolerance) & length.isfinite(), length, 0)
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
        _check_without_blocks(tail)
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


# ---------------------------------------------------------------- norm and head


class _Jacobian(Protocol):
    """J = d norm(z) / dz of some rows, in float64."""

    @property
    def features(self) -> Tensor:
        """norm(z), `[rows, width]`."""

    def push(self, vectors: Tensor) -> Tensor:
        """J v for a vector of each row, `[rows, width]`."""

    def gram(self, vectors: Tensor) -> Tensor:
        """J Jᵀ w for a vector of each row, `[rows, width]`."""

    def squares(self, table: Tensor) -> Tensor:
        """‖Jᵀ w‖² for each row's J and each w of a table `[n, width]`: `[rows, n]`."""


@dataclass(frozen=True)
class _ClosedJacobian:
    """LayerNorm's and RMSNorm's.

    With s = √(var z + ε), x = (z - mean z) / s, gain γ, shift β and width D, LayerNorm is γ x + β, and

        J = diag(γ) P / s,    P = I - 1 1ᵀ / D - x xᵀ / D,    P² = I - 1 1ᵀ / D - (2 - ‖x‖² / D) x xᵀ / D,

    as x and 1 are orthogonal. RMSNorm takes no mean off: s = √(mean z² + ε), x = z / s, and P is without
    1 1ᵀ. So

        ‖Jᵀ w‖² = (‖γ w‖² - (1ᵀ γ w)² / D - (2 - ‖x‖² / D) (xᵀ γ w)² / D) / s².

    Attributes:
        features: γ x + β, `[rows, width]`.
        unit: x, `[rows, width]`.
        size: s, `[rows, 1]`.
        gain: γ, `[width]`.
        centred: Whether the mean is taken off.
    """

    features: Tensor
    unit: Tensor
    size: Tensor
    gain: Tensor
    centred: bool

    def push(self, vectors: Tensor) -> Tensor:
        """J v = γ P v / s."""
        along = (self.unit * vectors).mean(1, keepdim=True)
        return self.gain * (self._level(vectors) - self.unit * along) / self.size

    def gram(self, vectors: Tensor) -> Tensor:
        """J Jᵀ w = γ P² γ w / s²."""
        scaled = self.gain * vectors
        along = (self.unit * scaled).mean(1, keepdim=True) * self._share()
        return self.gain * (self._level(scaled) - self.unit * along) / self.size.square()

    def squares(self, table: Tensor) -> Tensor:
        """‖Jᵀ w‖² = wᵀ γ P² γ w / s²."""
        own = table.square() @ self.gain.square()
        if self.centred:
            own = own - (table @ self.gain).square() / len(self.gain)
        along = ((self.gain * self.unit) @ table.T).square() * self._share() / len(self.gain)
        return (own - along) / self.size.square()

    def _level(self, vectors: Tensor) -> Tensor:
        return vectors - vectors.mean(1, keepdim=True) if self.centred else vectors

    def _share(self) -> Tensor:
        """2 - ‖x‖² / D, which is 1 but for ε."""
        return 2 - self.unit.square().mean(1, keepdim=True)


@dataclass(frozen=True)
class _DenseJacobian:
    """Any other norm's, differentiated automatically.

    Attributes:
        features: norm(z), `[rows, width]`.
        matrix: J, `[rows, width, width]`.
    """

    features: Tensor
    matrix: Tensor

    def push(self, vectors: Tensor) -> Tensor:
        """J v."""
        return torch.einsum("nij,nj->ni", self.matrix, vectors)

    def gram(self, vectors: Tensor) -> Tensor:
        """J Jᵀ w."""
        return self.push(torch.einsum("nij,ni->nj", self.matrix, vectors))

    def squares(self, table: Tensor) -> Tensor:
        """‖Jᵀ w‖², one row's at a time."""
        return torch.stack([(table @ matrix).square().sum(1) for matrix in self.matrix])


@dataclass(frozen=True)
class Unembedding:
    """What a tail does after its blocks: logits = W projection norm(z) + b.

    Attributes:
        norm: The final norm, frozen, in float32; None where the last block ends in one of its own.
        projection: `[embedding, width]`, a map from norm to head (OPT's `project_out`), or None.
        weight: W, `[vocab, embedding]`.
        bias: b, `[vocab]`, or None.
    """

    norm: nn.Module | None
    projection: Tensor | None
    weight: Tensor
    bias: Tensor | None

    @classmethod
    def of(cls, tail: Tail | Seq2SeqTail) -> Unembedding:
        """That of a tail, checked against the tail's own logits.

        Raises:
            Inapplicable: The tail has no head over a vocabulary, or computes something else after its blocks.
        """
        model, stack = tail.model, tail.family.stacks[-1]
        if tail.family.kind is Kind.ENCODER or Head.of(model) is not Head.LANGUAGE:
            raise Inapplicable(
                f"This {model.config.model_type} tail is not that of a language model: its gradients are not about "
                "next tokens alone."
            )
        head = model.get_output_embeddings()
        runner = model.get_submodule(stack.path)
        held = [module for path in stack.after if (module := getattr(runner, path)) is not None]
        maps = [module for module in held if isinstance(module, nn.Linear)]
        norms = [module for module in held if not isinstance(module, nn.Linear)]
        if not isinstance(head, nn.Linear) or max(len(maps), len(norms)) > 1 or any(m.bias is not None for m in maps):
            raise Inapplicable("The tail does not end in one norm and one linear head, so its gradient has no inverse.")
        bias: Tensor | None = head.bias
        found = cls(
            norm=copy.deepcopy(norms[0]).float().requires_grad_(False) if norms else None,
            projection=maps[0].weight.detach() if maps else None,
            weight=head.weight.detach(),
            bias=None if bias is None else bias.detach(),
        )
        scale = found._scale(tail)
        if abs(scale - 1) > 1e-3:
            found = replace(found, weight=found.weight * scale)
        if not found._agrees_with(tail):
            raise Inapplicable("After its blocks the tail computes more than head(norm(z)), so its logits are unknown.")
        return found

    @property
    def device(self) -> torch.device:
        """Where the head lies."""
        return self.weight.device

    @property
    def width(self) -> int:
        """Of the hidden states."""
        return (self.weight if self.projection is None else self.projection).shape[1]

    def rows(self, ids: Tensor | slice) -> Tensor:
        """Rows of W as seen from the norm, `[n, width]` float64."""
        rows = self.weight[ids].double()
        return rows if self.projection is None else rows @ self.projection.double()

    def logits(self, features: Tensor, part: slice, table: Tensor) -> Tensor:
        """Of norm(z) `[rows, width]`, for a part of the vocabulary and its rows: `[rows, n]`."""
        products = features @ table.T
        return products if self.bias is None else products + self.bias[part].double()

    def vocabulary(self, rows: int) -> Iterator[slice]:
        """Parts of the vocabulary whose rows, and whose scores for so many rows, fit in memory."""
        step = max(1, _SCORES // max(rows, self.width))
        for start in range(0, len(self.weight), step):
            yield slice(start, start + step)

    def most_likely(self, hidden: Tensor) -> Tensor:
        """The ids of the largest logits, `[rows]`, for z `[rows, width]`."""
        guesses = torch.empty(len(hidden), dtype=torch.int64, device=self.device)
        with torch.no_grad():
            for start in range(0, len(hidden), _ROWS):
                features = self._normed(hidden[start : start + _ROWS].to(self.device))
                best = _Best(features)
                for part in self.vocabulary(len(features)):
                    best.include(self.logits(features, part, self.rows(part)), part.start)
                guesses[start : start + _ROWS] = best.column
        return guesses

    def expected(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Wᵀ p, `[rows, width]`, and the likeliest ids, `[rows]`, in one pass over the vocabulary."""
        best = _Best(features)
        mass, total = features.new_zeros(len(features), 1), torch.zeros_like(features)
        for part in self.vocabulary(len(features)):
            table = self.rows(part)
            logits = self.logits(features, part, table)
            before = best.score.clone()
            best.include(logits, part.start)
            # sums so far are relative to the largest logit so far
            shrink = (before - best.score).exp()[:, None]
            weights = (logits - best.score[:, None]).exp_()
            mass = mass * shrink + weights.sum(1, keepdim=True)
            total = total * shrink + weights @ table
        return total / mass, best.column

    def jacobians(self, hidden: Tensor) -> Iterator[tuple[slice, _Jacobian]]:
        """The norm's Jacobian at z `[rows, width]`, some rows at a time."""
        for start in range(0, len(hidden), _ROWS):
            some = hidden[start : start + _ROWS].to(self.device)
            closed = self._closed(some)
            if closed is not None:
                yield slice(start, start + len(some)), closed
                continue
            step = max(1, _SCORES // self.width**2)
            for offset in range(0, len(some), step):
                few = some[offset : offset + step]
                yield slice(start + offset, start + offset + len(few)), self._dense(few)

    def _normed(self, hidden: Tensor) -> Tensor:
        return hidden.double() if self.norm is None else self.norm(hidden.float()).double()

    def _closed(self, hidden: Tensor) -> _ClosedJacobian | None:
        """The closed form, if that is what the norm computes: its class need not be known."""
        z = hidden.double()
        one = z.new_ones(self.width)
        if self.norm is None:
            # x = 0 and s = 1 make P the identity
            return _ClosedJacobian(z, torch.zeros_like(z), z.new_ones(len(z), 1), one, centred=False)
        centred = isinstance(self.norm, nn.LayerNorm)
        eps = getattr(self.norm, "eps", getattr(self.norm, "variance_epsilon", None))
        gain, shift = getattr(self.norm, "weight", None), getattr(self.norm, "bias", None)
        if not isinstance(eps, float):
            return None
        level = z - z.mean(1, keepdim=True) if centred else z
        size = (level.square().mean(1, keepdim=True) + eps).sqrt()
        unit = level / size
        gain = gain.double() if isinstance(gain, Tensor) else one
        features = unit * gain + (shift.double() if isinstance(shift, Tensor) else 0)
        if not _same(features, self._normed(hidden), 1e-4):
            return None
        return _ClosedJacobian(features, unit, size, gain, centred)

    def _dense(self, hidden: Tensor) -> _DenseJacobian:
        norm = copy.deepcopy(self.norm)
        if norm is None:
            raise TypeError("without a norm, the Jacobian is the identity")
        norm.double()
        return _DenseJacobian(norm(hidden.double()), torch.func.vmap(torch.func.jacrev(norm))(hidden.double()))

    def _agrees_with(self, tail: Tail | Seq2SeqTail) -> bool:
        """Whether these are the tail's own logits: a scaled or capped head would show."""
        ours, theirs = self._probed(tail)
        kind = tail.model.dtype
        return _same(ours, theirs, 4e3 * torch.finfo(kind).eps if kind is torch.float32 else 0.1)

    def _scale(self, tail: Tail | Seq2SeqTail) -> float:
        """What the tail multiplies its logits by: T5 does, where head and table are one."""
        ours, theirs = self._probed(tail)
        return float((ours * theirs).sum() / ours.square().sum().clamp(min=1e-30)) if self.bias is None else 1.0

    def _probed(self, tail: Tail | Seq2SeqTail) -> tuple[Tensor, Tensor]:
        """Our logits and the tail's, for some hidden states that its blocks might have made."""
        module = twin(tail.model)
        trim(module, tail.family.stacks[-1], 0, 0, table=False, before=False, after=True)
        module.train(False)
        places = torch.arange(4, device=self.device)[None]
        probe = (torch.arange(4.0 * self.width, device=self.device).sin() * 3).view(1, 4, -1).to(tail.model.dtype)
        empty = type(tail)(module, head=True)
        with torch.no_grad():
            theirs = tail_logits(empty, probe, Inputs(torch.ones_like(places), places))[0].double()
            features = self._normed(probe[0])
            ours = [self.logits(features, part, self.rows(part)) for part in self.vocabulary(4)]
        return torch.cat(ours, 1), theirs


def nearest_tokens(
    unembedding: Unembedding,
    hidden: Tensor,
    gradient: Tensor,
    *,
    predicted: float,
    match: Match = Match.DIRECTION,
    candidates: Tensor | None = None,
) -> Tensor:
    """The tokens whose gradients the given ones are most like, `[rows]`.

    With t = -N u and c = Wᵀ p, a row needs for every k

        tᵀ d_k = (J t)ᵀ (W_k - c),    ‖d_k‖² = ‖Jᵀ W_k‖² - 2 (J Jᵀ c)ᵀ W_k + ‖Jᵀ c‖²,

    three products with W, whose rows are read block by block, and no vector per row and token.

    Args:
        unembedding: The vendor's norm and head.
        hidden: z, `[rows, width]`.
        gradient: u = dL/dz, `[rows, width]`.
        predicted: N, over the loss's scale.
        match: The rule.
        candidates: `[vocab]` bool.
    """
    guesses = torch.empty(len(hidden), dtype=torch.int64, device=unembedding.device)
    allowed = None if candidates is None else candidates.to(unembedding.device)
    with torch.no_grad():
        for rows, jacobian in unembedding.jacobians(hidden):
            wanted = -predicted * gradient[rows].to(unembedding.device).double()
            guesses[rows] = _nearest(unembedding, jacobian, wanted, match, allowed)
    return guesses


def _nearest(
    unembedding: Unembedding, jacobian: _Jacobian, wanted: Tensor, match: Match, allowed: Tensor | None
) -> Tensor:
    centre, likeliest = unembedding.expected(jacobian.features)
    pushed, pulled = jacobian.push(wanted), jacobian.gram(centre)
    offset, size = (pushed * centre).sum(1, keepdim=True), (pulled * centre).sum(1, keepdim=True)
    best = _Best(wanted)
    for part in unembedding.vocabulary(len(wanted)):
        table = unembedding.rows(part)
        squares = jacobian.squares(table) - 2 * pulled @ table.T + size
        # p may be all one token's, whose d_k is then lost among the terms of its square
        squares = squares.maximum(_FLOAT32_ROUNDING**2 * size)
        scores = _score(pushed @ table.T - offset, squares, match)
        if allowed is not None:
            scores[:, ~allowed[part]] = -torch.inf
        best.include(scores, part.start)
    if match is Match.DISTANCE:
        return best.column
    # a customer as sure as that sends nothing but rounding, and what the vendor holds likeliest is better
    silent = torch.linalg.vector_norm(wanted, dim=1) <= _FLOAT32_ROUNDING * size[:, 0].sqrt()
    if allowed is not None:
        silent &= allowed[likeliest]
    return torch.where(silent, likeliest, best.column)


def _score(product: Tensor, square: Tensor, match: Match) -> Tensor:
    """From tᵀ d and ‖d‖²: the cosine but for ‖t‖, or the negated squared distance but for ‖t‖²."""
    if match is Match.DISTANCE:
        return 2 * product - square
    return product / square.clamp_min(torch.finfo(square.dtype).tiny).sqrt()


class _Best:
    """Each row's largest score so far, and its column; of equals, the first.

    Args:
        like: Rows `[rows, width]` float64.
    """

    def __init__(self, like: Tensor) -> None:
        self.score = like.new_full((len(like),), -torch.inf)
        self.column = torch.zeros(len(like), dtype=torch.int64, device=like.device)

    def include(self, scores: Tensor, start: int) -> None:
        """Includes columns `start` and following."""
        highest, column = scores.max(1)
        better = highest > self.score
        self.score = torch.where(better, highest, self.score)
        self.column = torch.where(better, column + start, self.column)


def _same(one: Tensor, other: Tensor, tolerance: float) -> bool:
    return one.shape == other.shape and bool((one - other).abs().max() <= tolerance * other.abs().max())
