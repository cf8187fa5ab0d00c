"""What a classification head reads of a text: its last position, its mean, or what stands behind virtual positions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from cutlayer.core.tuning import Pooling
from cutlayer.models.inputs import Inputs


@contextmanager
def reading(block: nn.Module, inputs: Inputs, before: int, pooling: Pooling) -> Iterator[None]:
    """Has an encoder's head read the text's positions, or their mean, in place of the whole sequence.

    Args:
        block: The last one below the head.
        inputs: The text's mask.
        before: Virtual positions before the text.
        pooling: `text` or `mean`.
    """

    def hand_on(_: nn.Module, __: object, hidden: Tensor) -> Tensor:
        text = hidden[:, before:]
        return mean_of_text(text, inputs)[:, None] if pooling == "mean" else text

    hook = block.register_forward_hook(hand_on)
    try:
        yield
    finally:
        hook.remove()


def mean_of_text(hidden: Tensor, inputs: Inputs) -> Tensor:
    """The mean over each text's positions, `[batch, width]`, of hidden states `[batch, seq, width]` (RAPT eq. 9).

    Public words before a text are not of it.
    """
    real = inputs.attention_mask[:, -hidden.shape[1] :, None].to(hidden)
    if inputs.preceding is not None:
        real = real * (inputs.preceding < 0)[:, :, None]
    return (hidden * real).sum(1) / real.sum(1).clamp(min=1)  # of a text that is empty, too


def pool_last(scores: Tensor, inputs: Inputs) -> Tensor:
    """The score at each text's last real position, `[batch, labels]`.

    Hugging Face's own heads look for padding in the ids; without ids they take the last column,
    padding or not.
    """
    real = inputs.attention_mask[:, -scores.shape[1] :]
    last = (torch.arange(scores.shape[1], device=real.device) * real).argmax(-1)
    return scores[torch.arange(len(scores), device=scores.device), last]
