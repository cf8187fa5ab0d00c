"""A batch of sequences that grow token by token: what customer and vendor keep of it, each for itself."""

from __future__ import annotations

import torch
from torch import Tensor

from cutlayer.core import Ragged
from cutlayer.models.cutting import Part, block_list
from cutlayer.models.inputs import Inputs


class Decoding:
    """Which positions of each sequence are real, and where its next ones stand.

    New positions are aligned on the right, so that the newest of every sequence share a column; a
    sequence that gets none, because it has ended, is padded there. Hugging Face's models decode
    prompts that are padded on the right wrongly.

    Attributes:
        mask: `[n, seen]` int64, 1 at real positions.
    """

    def __init__(self, sequences: int) -> None:
        self.mask = torch.zeros(sequences, 0, dtype=torch.int64)

    @property
    def positions(self) -> Tensor:
        """`[n]` int64: real positions of each sequence so far."""
        return self.mask.sum(1)

    def grow(self, lengths: Tensor) -> Inputs:
        """Adds positions.

        Args:
            lengths: `[n]` int64, how many each sequence gets.

        Returns:
            Mask over all positions and positions of the new ones; its ids or rows are still to be set.
        """
        width = int(lengths.max())
        new = (torch.arange(width) >= width - lengths[:, None]).to(torch.int64)
        positions = (self.positions[:, None] + new.cumsum(1) - 1).clamp(min=0)
        self.mask = torch.cat([self.mask, new], 1)
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
        """Has sequence `i` go on from what sequence `parents[i]` was."""
        self.mask = self.mask[parents]


def cache_bytes(part: Part, *, sequences: int, positions: int, source_positions: int = 0) -> int:
    """Bytes of keys and values that a part's cache takes at most, in fp32.

    Args:
        part: Whose decoder blocks they are of.
        sequences: How many texts grow.
        positions: Of each, at most.
        source_positions: Of each source text, to which an encoder-decoder's decoder blocks attend, too.
    """
    config = part.model.config
    heads = int(config.num_attention_heads)
    width = int(getattr(config, "head_dim", None) or getattr(config, "d_kv", None) or config.hidden_size // heads)
    kept = int(getattr(config, "num_key_value_heads", None) or heads)
    blocks = len(block_list(part.model, part.family.stacks[-1]))
    return 2 * 4 * blocks * kept * width * sequences * (positions + source_positions)
