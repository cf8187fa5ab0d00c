"""Next tokens read from a boundary alone, in generation and evaluation.

The vendor computes the upper boundary and owns the tail that the customer's began as, so it runs that
tail itself: its argmax is what the customer's model would say next. With a tail that was never trained
this *is* the generated text; training moves it away. Noise on gradients does not touch it.
Ref: this project's study, (b) of what the vendor can read all the same.
"""

from __future__ import annotations

import torch
from torch import Tensor

from cutlayer.attacks.language.tail import NO_TARGET
from cutlayer.attacks.language.tail_blocks import final_hidden
from cutlayer.attacks.language.unembedding import Unembedding
from cutlayer.models.cutting import Tail
from cutlayer.models.inputs import Inputs
from cutlayer.models.seq2seq import Seq2SeqTail


def read_greedy_tokens(
    tail: Tail | Seq2SeqTail, hidden: Tensor, inputs: Inputs, *, dtype: torch.dtype = torch.float32
) -> Tensor:
    """Guesses the token that the customer's model predicts at each position.

    A generated text's boundary is all that crossed for it, prompt and steps one after the other: a tail
    over the whole computes what a tail with a cache did step by step.

    Args:
        tail: The vendor's own, as it was before any training.
        hidden: The upper boundary, `[batch, seq, width]`.
        inputs: Mask and positions, padded on either side.
        dtype: Element type in which the tail's blocks are computed.

    Returns:
        `[batch, seq]` int64: after each real position the greedy choice, at padding `NO_TARGET`.

    Raises:
        Inapplicable: The tail does not end in norm and head over a vocabulary.
        DataError: The mask is of another batch.
    """
    unembedding = Unembedding.of(tail)
    states = final_hidden(tail, hidden, inputs, dtype=dtype)
    real = inputs.attention_mask.bool().to(unembedding.device)
    guesses = torch.full(real.shape, NO_TARGET, device=unembedding.device)
    guesses[real] = unembedding.most_likely(states[real])
    return guesses
