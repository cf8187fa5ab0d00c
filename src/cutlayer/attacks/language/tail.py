"""Tails of language models, as an attacker runs its own: which positions predict a token, and with what logits."""

from __future__ import annotations

import torch
from torch import Tensor

from cutlayer.attacks.knowledge import Inapplicable
from cutlayer.models.cutting import Tail, block_list
from cutlayer.models.inputs import Inputs
from cutlayer.models.seq2seq import Seq2SeqTail

NO_TARGET = -1
"""Stands where no token is predicted: at a text's last position and at padding."""


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
    check_without_blocks(tail)
    return tail.decode(hidden, inputs, inputs, hidden)


def check_without_blocks(tail: Seq2SeqTail) -> None:
    """Refuses the tail of an encoder-decoder that has blocks.

    Raises:
        Inapplicable: It has.
    """
    if len(block_list(tail.model, tail.family.stacks[-1])):
        raise Inapplicable(
            "An encoder-decoder's tail with blocks is not read: this attack does not follow their attention to the "
            "encoder's output, which the vendor knows."
        )
