"""Reconstruction of public words before texts, from what the last block makes of what they became."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch import Tensor, nn

from cutlayer.models.anatomy import Kind
from cutlayer.models.cutting import Part, block_list
from cutlayer.models.heads import draw_head

_NAME: Final = "reconstruction"
"""Of the head's tensors; no model has such a module."""


class ReconstructionHead(nn.Module):
    """Tells which word stood at a place: p = softmax(W_down W_up g).

    Ref: RAPT §III-B2, eq. (7) and (8).

    Args:
        part: The part whose last block it reads.
        width: The head's hidden size, c.
        vocabulary: Words among which it tells, |V_r|.
        seed: Seed of the initialisation; each tensor depends on it and its name alone.
    """

    def __init__(self, part: Part, *, width: int, vocabulary: int, seed: int) -> None:
        super().__init__()
        config = part.model.config
        device = next(part.model.parameters()).device
        self.up = nn.Linear(int(config.hidden_size), width, bias=False, device=device)
        self.down = nn.Linear(width, vocabulary, bias=False, device=device)
        draw_head(self, seed=seed, name=_NAME, std=float(getattr(config, "initializer_range", 0.02)))

    def named(self) -> dict[str, nn.Parameter]:
        """Its parameters `[c, hidden]` and `[vocabulary, c]`, by names that no tensor of a model has."""
        return {f"{_NAME}.{name}": parameter for name, parameter in self.named_parameters()}

    def loss(self, hidden: Tensor, preceding: Tensor, words: Tensor) -> Tensor:
        """The sum over each text's words of -log p, its mean over texts.

        A word of which no piece is left is not told.

        Args:
            hidden: `[batch, seq, hidden]`, the last block's states of the texts' positions.
            preceding: `[batch, seq]` int64, which word stands at each position; -1 for none.
            words: `[batch, m]` int64, the true words.
        """
        of = (preceding[:, None] == torch.arange(words.shape[1], device=preceding.device)[:, None]).to(hidden.dtype)
        pieces = of.sum(2)
        # a product, and no sum by index, which GPUs take in any order
        means = (of / pieces.clamp(min=1)[:, :, None]) @ hidden
        held = pieces > 0
        losses = nn.functional.cross_entropy(self.down(self.up(means[held])), words[held], reduction="sum")
        return losses / len(hidden)


def head_parameters(part: Part, *, width: int, vocabulary: int) -> int:
    """Parameters of a head, counted before any is made."""
    return width * (int(part.model.config.hidden_size) + vocabulary)


@contextmanager
def last_states(part: Part) -> Iterator[list[Tensor]]:
    """Keeps the last hidden states of each forward pass, `[batch, virtual + seq, hidden]`: the head reads them.

    Args:
        part: What is computed. Of a classifier they are what its head is computed from, of a language model what leaves
            these blocks, of an encoder-decoder the encoder's output.
    """
    seen: list[Tensor] = []

    def keep(_: nn.Module, __: object, output: Any) -> None:
        seen.append(output if isinstance(output, Tensor) else output.last_hidden_state)

    # a decoder's norm stands behind its blocks; of an encoder, what is handed to its head may be a mean already
    encoder = part.family.kind is Kind.ENCODER
    module = list(block_list(part.model, part.stack))[-1] if encoder else part.runner
    hook = module.register_forward_hook(keep)
    try:
        yield seen
    finally:
        hook.remove()
