"""Virtual positions before each text: a prompt's rows, or a prefix's keys and values, as PEFT keeps them.

Where they stand. A prompt's rows are put before the text's where these enter the part, and a prefix is what its blocks
attend to before the text. Of a part that begins with the embeddings that is what PEFT computes on the whole model:
virtual positions are numbered from 0, the text's follow. Of a part that begins with a later block, rows come in with
the numbers that they have without a prompt, and nothing below the cut sees virtual positions: there the method *is* the
whole model with rows put in before that block, or keys and values in that block and those above it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import torch
from peft import PeftModel, PrefixTuningConfig, PromptLearningConfig
from torch import Tensor
from transformers import Cache, DynamicCache, EncoderDecoderCache

from cutlayer.models.inputs import Inputs

ADAPTER: Final = "default"
"""PEFT's own name for the only adapter of a model."""


class PrefixCache(DynamicCache):
    """Keys and values that stand before each text, and stay as they are: a block computed again finds the same."""

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any) -> Any:
        """Keys and values `[batch, heads, prefix + seq, dim]` that a block attends to."""
        layer: Any = self.layers[layer_idx]
        return torch.cat([layer.keys, key_states], 2), torch.cat([layer.values, value_states], 2)


@dataclass(frozen=True)
class Entering:
    """A batch as a part's blocks take it.

    Attributes:
        inputs: Mask and positions, virtual ones among them.
        source: Ids or rows.
        cache: What the blocks attend to before the batch.
        before: How many of the positions that are computed are virtual and stand before the text.
    """

    inputs: Inputs
    source: Mapping[str, Tensor | None]
    cache: Cache | None
    before: int = 0


class Virtual:
    """Virtual positions of a part that is tuned with them.

    Args:
        module: PEFT's wrapper.
    """

    def __init__(self, module: PeftModel) -> None:
        self._config: Any = module.peft_config[ADAPTER]
        self._encoder: Any = module.prompt_encoder[ADAPTER]

    @classmethod
    def of(cls, module: object) -> Virtual | None:
        """Those of a module; `None` where it has none."""
        learns = isinstance(module, PeftModel) and isinstance(module.peft_config[ADAPTER], PromptLearningConfig)
        return cls(module) if learns else None  # type: ignore[arg-type]  # it is PEFT's wrapper then

    @property
    def length(self) -> int:
        """How many stand before each text."""
        return int(self._config.num_virtual_tokens)

    @property
    def is_prefix(self) -> bool:
        """Whether they are keys and values of each block, and no rows."""
        return isinstance(self._config, PrefixTuningConfig)

    def enter(
        self,
        inputs: Inputs,
        source: Mapping[str, Tensor | None],
        cache: Cache | None,
        embed: Callable[[Tensor], Tensor],
    ) -> Entering:
        """Puts them before a batch; while decoding, once, and after that only the text's positions are moved.

        Args:
            inputs: The text's mask and positions.
            source: `input_ids` `[batch, seq]`, or `inputs_embeds` `[batch, seq, width]`.
            cache: The part's cache, while decoding.
            embed: Rows `[batch, seq, width]` of ids, where there are ids.
        """
        first = cache is None or cache.get_seq_length() == 0
        batch = len(inputs.attention_mask)
        moved = replace(
            inputs,
            attention_mask=self.mask(inputs.attention_mask),
            position_ids=inputs.position_ids + self.length,
        )
        if self.is_prefix:
            return Entering(moved, source, self.prefixed(cache, batch) if first else cache)
        if not first:
            return Entering(moved, source, cache)
        positions = torch.arange(self.length, device=moved.position_ids.device).expand(batch, -1)
        types = moved.token_type_ids
        moved = replace(
            moved,
            position_ids=torch.cat([positions, moved.position_ids], 1),
            token_type_ids=None if types is None else torch.cat([types.new_zeros(positions.shape), types], 1),
        )
        ids, rows = source.get("input_ids"), source.get("inputs_embeds")
        if rows is None and ids is not None:
            rows = embed(ids)
        return Entering(moved, {"inputs_embeds": self.prompted(rows)}, cache, before=self.length)

    def mask(self, mask: Tensor) -> Tensor:
        """A mask `[batch, seen]` with virtual positions before the text's."""
        return torch.cat([mask.new_ones(len(mask), self.length), mask], 1)

    def prompted(self, rows: Tensor | None) -> Tensor:
        """Rows `[batch, seq, width]` with the prompt's before them."""
        if rows is None:
            raise TypeError("a prompt stands before ids or rows")
        prompt: Tensor = self._encoder.embedding.weight
        return torch.cat([prompt.to(rows.dtype).expand(len(rows), -1, -1), rows], 1)

    def prefixed(self, cache: Cache | None, batch: int) -> Cache:
        """What blocks attend to before the text: the prefix, in an empty cache where there is one.

        Args:
            cache: While decoding, the part's; it is filled.
            batch: Texts.
        """
        config = self._config
        heads = int(config.num_attention_heads)
        shape = self.length, int(config.num_layers) * 2, heads, int(config.token_dim) // heads
        # as PEFT does: [layers * 2, batch, heads, positions, dim], keys and values in turn
        numbers: Tensor = self._encoder.embedding.weight.view(shape).permute(1, 2, 0, 3)[:, None]
        pairs = [(keys, values) for keys, values in numbers.expand(-1, batch, -1, -1, -1).split(2)]
        if cache is None:
            filled = PrefixCache(pairs)
            return filled if config.num_transformer_submodules == 1 else EncoderDecoderCache(filled, DynamicCache())
        into = cache.self_attention_cache if isinstance(cache, EncoderDecoderCache) else cache
        for number, (keys, values) in enumerate(pairs):
            into.update(keys, values, number)
        return cache
