"""A batch of sequences that grow token by token: what customer and vendor keep of it, each for itself."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from cutlayer.core import Ragged
from cutlayer.models.cutting import Part, block_list
from cutlayer.models.inputs import Inputs
from cutlayer.models.quantization import shape_of


class Decoding:
    """Which positions of each sequence are real, and where its next ones stand.

    New positions are aligned on the right, so that the newest of every sequence share a column; a
    sequence that gets none, because it has ended, is padded there. Hugging Face's models decode
    prompts that are padded on the right wrongly.

    Attributes:
        mask: `[n, seen]` int64, 1 at real positions.
        positions: `[n]` int64: real positions of each sequence so far.
    """

    def __init__(self, sequences: int) -> None:
        self.mask = torch.zeros(sequences, 0, dtype=torch.int64)
        self.positions = torch.zeros(sequences, dtype=torch.int64)

    def grow(self, lengths: Tensor) -> Inputs:
        """Adds positions.

        Args:
            lengths: `[n]` int64, how many each sequence gets.

        Returns:
            Mask over all positions and positions of the new ones; its ids or rows are still to be set.
        """
        width = int(lengths.max())
        if width == 1:
            new = lengths[:, None]
            positions = (self.positions[:, None] + new - 1).clamp(min=0)
        else:
            new = (torch.arange(width) >= width - lengths[:, None]).to(torch.int64)
            positions = (self.positions[:, None] + new.cumsum(1) - 1).clamp(min=0)
        self.mask = torch.cat([self.mask, new], 1)
        self.positions = self.positions + lengths
        return Inputs(attention_mask=self.mask, position_ids=positions)

    def new(self, inputs: Inputs) -> Tensor:
        """`[n, new]` bool: the real ones among the positions that `grow` added."""
        return inputs.attention_mask[:, -inputs.position_ids.shape[1] :].bool()

    def pad(self, values: Ragged, inputs: Inputs) -> Tensor:
        """`[n, new, ...]`: new items aligned on the right, zeros elsewhere."""
        real = self.new(inputs)
        padded = values.values.new_zeros(*real.shape, *values.values.shape[1:])
        padded[real.to(padded.device)] = values.values
        return padded

    def reorder(self, parents: Tensor) -> None:
        """Has sequence `i` go on from what sequence `parents[i]` was; `parents` is `[n]` int64."""
        self.mask, self.positions = self.mask[parents], self.positions[parents]


_SMALL_PASS = 2**23
"""Weights times positions up to which a pass takes no longer in one thread: on two cores 2 to 4 ms."""


def weights_of(part: Part) -> int:
    """Weights that a position of a text is multiplied with in a part: its blocks' and its head's."""
    head = part.model.get_output_embeddings() if part.has_head else None
    held = (*part.block_parameters(), *(head.parameters() if head else ()))
    return sum(math.prod(shape_of(parameter)) for parameter in held)


def threads_of_pass(weights: int, positions: int, *, most: int) -> int:
    """Threads for new positions of growing texts.

    A small pass waits more for its threads to meet than it computes, the more so where the other party, or anything
    else, computes on the same machine.

    Args:
        weights: As `weights_of` counts them.
        positions: New ones, of all texts.
        most: Threads for all that is larger.
    """
    return 1 if weights * positions <= _SMALL_PASS else most


def cache_bytes(part: Part, *, sequences: int, positions: int, source_positions: int = 0) -> int:
    """Bytes of keys and values that a part's cache takes at most, in fp32.

    Args:
        part: Whose decoder blocks they are of.
        sequences: How many texts grow.
        positions: Of each, at most.
        source_positions: Of each source text, to which an encoder-decoder's decoder blocks attend, too.
    """
    heads, width = key_value_shape(part)
    blocks = len(block_list(part.model, part.family.stacks[-1]))
    return 2 * 4 * blocks * heads * width * sequences * (positions + source_positions)


def key_value_shape(part: Part) -> tuple[int, int]:
    """How many heads of keys and values a part's blocks have, and the width of one."""
    config = part.model.config
    heads = int(config.num_attention_heads)
    width = int(getattr(config, "head_dim", None) or getattr(config, "d_kv", None) or config.hidden_size // heads)
    return int(getattr(config, "num_key_value_heads", None) or heads), width
