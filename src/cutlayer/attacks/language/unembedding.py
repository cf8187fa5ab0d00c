"""What a tail does after its blocks, checked against the tail itself: a norm, a projection perhaps, and a head."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from cutlayer.attacks.knowledge import Inapplicable
from cutlayer.attacks.language.norm_jacobian import Jacobian, agree, closed_jacobian, dense_jacobian, normed
from cutlayer.attacks.language.tail import tail_logits
from cutlayer.models.anatomy import Kind
from cutlayer.models.cutting import Tail, trim
from cutlayer.models.heads import Head
from cutlayer.models.inputs import Inputs
from cutlayer.models.seq2seq import Seq2SeqTail
from cutlayer.models.twin import twin

_SCORES = 2**22
"""Scores, or numbers of the head, in memory at a time, in float64: 32 MiB, and a few temporaries as large."""
_ROWS = 1024
"""Rows scored together: enough for fast products, few enough to leave long blocks of the vocabulary."""


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
        """Where the head's weights lie, and all products with them are taken."""
        return self.weight.device

    @property
    def width(self) -> int:
        """Numbers of a hidden state: rows of W as seen from the norm have as many."""
        return (self.weight if self.projection is None else self.projection).shape[1]

    def rows(self, ids: Tensor | slice) -> Tensor:
        """Rows of W for `ids` `[n]`, or a slice of them, as seen from the norm: `[n, width]` float64."""
        rows = self.weight[ids].double()
        return rows if self.projection is None else rows @ self.projection.double()

    def logits(self, features: Tensor, part: slice, table: Tensor) -> Tensor:
        """Logits `[rows, n]` of norm(z) `[rows, width]`, for a part of the vocabulary and its rows `[n, width]`."""
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
                features = normed(self.norm, hidden[start : start + _ROWS].to(self.device))
                best = Best(features)
                for part in self.vocabulary(len(features)):
                    best.include(self.logits(features, part, self.rows(part)), part.start)
                guesses[start : start + _ROWS] = best.column
        return guesses

    def expected(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Wᵀ p, `[rows, width]`, and the likeliest ids, `[rows]`, in one pass over the vocabulary."""
        best = Best(features)
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

    def jacobians(self, hidden: Tensor) -> Iterator[tuple[slice, Jacobian]]:
        """The norm's Jacobian at z `[rows, width]`, some rows at a time."""
        for start in range(0, len(hidden), _ROWS):
            some = hidden[start : start + _ROWS].to(self.device)
            closed = closed_jacobian(self.norm, some)
            if closed is not None:
                yield slice(start, start + len(some)), closed
                continue
            step = max(1, _SCORES // self.width**2)
            for offset in range(0, len(some), step):
                few = some[offset : offset + step]
                yield slice(start + offset, start + offset + len(few)), dense_jacobian(self.norm, few)

    def _agrees_with(self, tail: Tail | Seq2SeqTail) -> bool:
        """Whether these are the tail's own logits: a scaled or capped head would show."""
        ours, theirs = self._probed(tail)
        kind = tail.model.dtype
        return agree(ours, theirs, 4e3 * torch.finfo(kind).eps if kind is torch.float32 else 0.1)

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
            features = normed(self.norm, probe[0])
            ours = [self.logits(features, part, self.rows(part)) for part in self.vocabulary(4)]
        return torch.cat(ours, 1), theirs


class Best:
    """Each row's largest score so far, and its column; of equals, the first.

    Args:
        like: Rows `[rows, width]` float64.
    """

    def __init__(self, like: Tensor) -> None:
        self.score = like.new_full((len(like),), -torch.inf)
        self.column = torch.zeros(len(like), dtype=torch.int64, device=like.device)

    def include(self, scores: Tensor, start: int) -> None:
        """Includes scores `[rows, n]`, of columns `start` and following."""
        highest, column = scores.max(1)
        better = highest > self.score
        self.score = torch.where(better, highest, self.score)
        self.column = torch.where(better, column + start, self.column)
