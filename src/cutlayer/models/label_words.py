"""Labels as words that a decoder writes: how an encoder-decoder, which has no classification head, tells labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

Words = tuple[tuple[int, ...], ...]
"""Of each label the ids that are written for it, in the order of the labels; what closes them is among them."""

_NOTHING: Final = -1


@dataclass(frozen=True)
class LabelWords:
    """What goes into a decoder to score the words of all labels, and what is looked for in what comes out.

    Positions at which all words have the same before them are computed once: one in all where each label has one token.

    Attributes:
        entering: `[sequences, positions]` int64: the start token and what follows it, padded on the right.
        mask: `[sequences, positions]` int64.
        of: `[labels]` int64: which sequence leads to each label's words.
        written: `[labels, positions]` int64: what is to come out at each position; -1 behind the words.
    """

    entering: Tensor
    mask: Tensor
    of: Tensor
    written: Tensor

    @property
    def ids(self) -> Words:
        """Of each label the ids that are written for it."""
        return tuple(tuple(row[row >= 0].tolist()) for row in self.written)

    @classmethod
    def of_ids(cls, words: Sequence[Sequence[int]], *, start: int) -> LabelWords:
        """Those of labels.

        Args:
            words: Of each label its ids, at least one.
            start: The decoder's start token.
        """
        longest = max(map(len, words))
        known: dict[tuple[int, ...], int] = {}
        of = [known.setdefault((start, *ids[:-1]), len(known)) for ids in words]
        entering = torch.tensor([[*ids, *[start] * (longest - len(ids))] for ids in known])
        mask = torch.tensor([[1] * len(ids) + [0] * (longest - len(ids)) for ids in known])
        written = torch.tensor([[*ids, *[_NOTHING] * (longest - len(ids))] for ids in words])
        return cls(entering, mask, torch.tensor(of), written)

    def scores(self, logits: Tensor) -> Tensor:
        """Log-probabilities `[batch, labels]` of each label's words, the sum over their tokens.

        Args:
            logits: `[batch * sequences, positions, vocabulary]`, each text's sequences one after the other.
        """
        logs = logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1)
        logs = logs.unflatten(0, (-1, len(self.entering)))
        of, written = self.of.to(logs.device), self.written.to(logs.device)
        place = torch.arange(written.shape[1], device=logs.device)
        found: Tensor = logs[:, of[:, None], place, written.clamp(min=0)] * (written >= 0)
        return found.sum(-1)


def mean_loss(output: Tensor, labels: Tensor, *, written: bool) -> Tensor:
    """What a classifier learns by, the mean over texts.

    Args:
        output: `[batch, labels]`: logits of a head, or log-probabilities of labels' words.
        labels: `[batch]` int64.
        written: Whether labels are words: what is learnt is to write them, among all that could be written.
    """
    if written:
        return torch.nn.functional.nll_loss(output, labels)
    return torch.nn.functional.cross_entropy(output, labels)
