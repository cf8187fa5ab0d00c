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

from dataclasses import dataclass
from enum import StrEnum

import torch
from torch import Tensor

from cutlayer.attacks.language.norm_jacobian import Jacobian
from cutlayer.attacks.language.tail import NO_TARGET, predicting
from cutlayer.attacks.language.tail_blocks import Solver, solve_blocks
from cutlayer.attacks.language.unembedding import Best, Unembedding
from cutlayer.core import DataError
from cutlayer.models.cutting import Tail
from cutlayer.models.inputs import Inputs
from cutlayer.models.seq2seq import Seq2SeqTail

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
class MeanLoss:
    """What a gradient is of: a mean cross-entropy of next tokens, times a scale.

    Attributes:
        predicted: N, the number of tokens that the loss is a mean over, which lengths tell: n - 1 for a text
            of n, summed over all batches that one step accumulates.
        scale: What the customer multiplied that mean by.

    Raises:
        DataError: A loss over no token, or a scale that is not positive.
    """

    predicted: float
    scale: float = 1.0

    def __post_init__(self) -> None:
        if self.predicted < 1 or not self.scale > 0:
            raise DataError(
                f"A mean over {self.predicted} tokens, times {self.scale}, is no loss: both must be positive."
            )


def read_next_tokens(
    tail: Tail | Seq2SeqTail,
    hidden: Tensor,
    gradient: Tensor,
    inputs: Inputs,
    loss: MeanLoss,
    *,
    match: Match = Match.DIRECTION,
    candidates: Tensor | None = None,
    solver: Solver | None = None,
) -> Tensor:
    """Guesses the token after each position of a training batch.

    Args:
        tail: The vendor's own, as it was before any training.
        hidden: h, the upper boundary that the vendor computed, `[batch, seq, width]`.
        gradient: dL/dh as it was sent, of any floating type, `[batch, seq, width]`.
        inputs: Mask and positions, padded on either side.
        loss: What it is the gradient of; matters to `DISTANCE` only.
        match: How rows are compared.
        candidates: `[vocab]` bool, the ids that may be guessed; None allows all.
        solver: Of the gradient at the norm, for a tail with blocks.

    Returns:
        `[batch, seq]` int64 ids, `NO_TARGET` where nothing is predicted.

    Raises:
        Inapplicable: The tail does not end in norm and head over a vocabulary.
        DataError: Shapes that do not belong together.
    """
    unembedding = Unembedding.of(tail)
    found = solve_blocks(tail, hidden, gradient, inputs, solver=solver)
    where = predicting(inputs).to(unembedding.device)
    guesses = torch.full(where.shape, NO_TARGET, device=unembedding.device)
    guesses[where] = nearest_tokens(
        unembedding, found.hidden[where], found.gradient[where], loss, match=match, candidates=candidates
    )
    return guesses


def nearest_tokens(
    unembedding: Unembedding,
    hidden: Tensor,
    gradient: Tensor,
    loss: MeanLoss,
    *,
    match: Match = Match.DIRECTION,
    candidates: Tensor | None = None,
) -> Tensor:
    """The tokens whose gradients at the norm the given ones are most like.

    With t = -N u and c = Wᵀ p, a row needs for every k

        tᵀ d_k = (J t)ᵀ (W_k - c),    ‖d_k‖² = ‖Jᵀ W_k‖² - 2 (J Jᵀ c)ᵀ W_k + ‖Jᵀ c‖²,

    three products with W, whose rows are read block by block, and no vector per row and token.

    Args:
        unembedding: The vendor's norm and head.
        hidden: z, `[rows, width]`.
        gradient: u = dL/dz, `[rows, width]`.
        loss: What it is the gradient of.
        match: The rule.
        candidates: `[vocab]` bool, the ids that may be guessed; None allows all.

    Returns:
        `[rows]` int64.
    """
    guesses = torch.empty(len(hidden), dtype=torch.int64, device=unembedding.device)
    allowed = None if candidates is None else candidates.to(unembedding.device)
    with torch.no_grad():
        for rows, jacobian in unembedding.jacobians(hidden):
            wanted = -loss.predicted / loss.scale * gradient[rows].to(unembedding.device).double()
            guesses[rows] = _nearest(unembedding, jacobian, wanted, match, allowed)
    return guesses


def _nearest(
    unembedding: Unembedding, jacobian: Jacobian, wanted: Tensor, match: Match, allowed: Tensor | None
) -> Tensor:
    centre, likeliest = unembedding.expected(jacobian.features)
    pushed, pulled = jacobian.push(wanted), jacobian.gram(centre)
    offset, size = (pushed * centre).sum(1, keepdim=True), (pulled * centre).sum(1, keepdim=True)
    best = Best(wanted)
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
