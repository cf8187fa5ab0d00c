"""Modules that stand where a part has withheld one, so that the model's own code keeps running."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Never

import torch
from torch import Tensor, nn

from cutlayer.models.anatomy import Neutral


class Withheld(nn.Module):
    """A module that the other party holds."""

    def forward(self, *_: object, **__: object) -> Never:
        """Refuses.

        Raises:
            RuntimeError: Always; this part is called with `inputs_embeds`.
        """
        raise RuntimeError("this part of the model is held by the other party")


class PassThrough(nn.Module):
    """An embedding stage that returns its `inputs_embeds`, which are hidden states already."""

    def __init__(self) -> None:
        super().__init__()
        self.word_embeddings = Withheld()  # `get_input_embeddings` looks for it

    def forward(
        self, input_ids: Tensor | None = None, inputs_embeds: Tensor | None = None, *_: object, **__: object
    ) -> Tensor:
        """Returns `inputs_embeds` `[batch, seq, width]`; ids and all else must be left out or are ignored."""
        if inputs_embeds is None:
            raise RuntimeError("this part of the model takes hidden states, not ids")
        return inputs_embeds


class ZeroPositions(nn.Module):
    """Position embeddings that add nothing: the rows that come in have theirs."""

    def forward(self, *_: object, **__: object) -> Tensor:
        """Returns a zero of shape `[]`, which takes any sum's shape, type and device."""
        return torch.zeros(())


REPLACEMENTS: Mapping[Neutral, Callable[[], nn.Module | None]] = {
    Neutral.WITHHELD: Withheld,
    Neutral.BYPASS: PassThrough,
    Neutral.ZERO: ZeroPositions,
    Neutral.IDENTITY: nn.Identity,
    Neutral.ABSENT: lambda: None,
}
