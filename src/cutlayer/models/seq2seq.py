"""Cutting encoder-decoder models: two boundaries go up and two come back.

The customer holds the first encoder blocks and the table (for both stacks), the vendor the other
encoder blocks and the decoder, the tail the last decoder blocks and the head. Decoder blocks below
the vendor would need a further trip, since they attend to the encoder's output. The tail attends to
it too, so it travels down beside the decoder's hidden states.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor
from transformers import Cache, DynamicCache, EncoderDecoderCache, PreTrainedModel

from cutlayer.core import Cut, UnsupportedArchitectureError
from cutlayer.models.anatomy import Kind, family_of
from cutlayer.models.cutting import (
    CutModel,
    Part,
    behead,
    block_list,
    check_depth,
    drop_aliases,
    embedding_table,
    tied_names,
    trim,
)
from cutlayer.models.inputs import Inputs
from cutlayer.models.twin import twin


@dataclass(frozen=True)
class Boundary:
    """What crosses a cut of an encoder-decoder model.

    Attributes:
        encoder: `[batch, source, width]`: hidden states on the way up, the encoder's output on the way
            down. None while decoding: both sides kept it at the first step.
        decoder: `[batch, target, width]`.
    """

    encoder: Tensor | None
    decoder: Tensor


@dataclass
class Seq2SeqCache:
    """What a part keeps between decoding steps.

    Attributes:
        blocks: Keys and values of its decoder blocks.
        encoder: The encoder's output.
    """

    blocks: EncoderDecoderCache
    encoder: Tensor | None = None


class Seq2SeqPart(Part):
    """A part with an encoder and a decoder stack; either may be without blocks."""

    def new_seq2seq_cache(self) -> Seq2SeqCache:
        """An empty cache for decoding step by step."""
        config = self._decoder.config
        return Seq2SeqCache(EncoderDecoderCache(DynamicCache(config=config), DynamicCache(config=config)))

    @property
    def _decoder(self) -> PreTrainedModel:
        return cast(PreTrainedModel, self.model.get_submodule(self.family.stacks[1].path))

    def _encode(self, inputs: Inputs, **source: Tensor | None) -> Tensor:
        hidden: Tensor = self.runner(**source, attention_mask=inputs.attention_mask).last_hidden_state
        return hidden

    def _decode(
        self, encoded: Tensor, inputs: Inputs, decoder: Inputs, cache: Seq2SeqCache | None, **source: Tensor | None
    ) -> Tensor:
        """The decoder's hidden states, or logits where the part ends in the head."""
        blocks: Cache | None = None if cache is None else cache.blocks
        caching: dict[str, Any] = {"past_key_values": blocks, "use_cache": cache is not None}
        if self.has_head:
            logits: Tensor = self.model(
                encoder_outputs=(encoded,),
                attention_mask=inputs.attention_mask,
                decoder_attention_mask=decoder.attention_mask,
                **{f"decoder_{name}": value for name, value in source.items()},
                **caching,
            ).logits
            return logits
        hidden: Tensor = self._decoder(
            encoder_hidden_states=encoded,
            encoder_attention_mask=inputs.attention_mask,
            attention_mask=decoder.attention_mask,
            **source,
            **caching,
        ).last_hidden_state
        return hidden


class Seq2SeqBottom(Seq2SeqPart):
    """What the customer computes before the boundary: encoder blocks and the decoder's embeddings."""

    @property
    def table(self) -> Tensor:
        """The token-embedding table `[vocab, width]`."""
        return embedding_table(self.model)

    def forward(self, inputs: Inputs, decoder: Inputs, *, encode: bool = True) -> Boundary:
        """Both boundaries.

        Args:
            inputs: The source text.
            decoder: The target text so far, or its newest tokens while decoding.
            encode: False from the second decoding step on: only the decoder's boundary is wanted.
        """
        embedded = torch.nn.functional.embedding(cast(Tensor, decoder.input_ids), self.table)
        if not encode:
            return Boundary(None, embedded)
        rows = inputs.inputs_embeds
        if rows is None:
            rows = torch.nn.functional.embedding(cast(Tensor, inputs.input_ids), self.table)
        if len(block_list(self.model, self.stack)):
            rows = self._encode(inputs, inputs_embeds=rows)
        return Boundary(rows, embedded)


class Seq2SeqTop(Seq2SeqPart):
    """What the vendor computes: the other encoder blocks and the decoder."""

    def forward(
        self, inputs: Inputs, decoder: Inputs, boundary: Boundary | None = None, cache: Seq2SeqCache | None = None
    ) -> Boundary | Tensor:
        """Logits, or what goes down to the tail.

        Args:
            inputs: The source text's mask; its ids for a text cut.
            decoder: The target text's mask; its ids for a text cut.
            boundary: From below; None for a text cut.
            cache: This part's cache, while decoding.
        """
        first = cache is None or cache.encoder is None
        if cache is not None and cache.encoder is not None:
            encoded = cache.encoder
        elif boundary is None:
            encoded = self._encode(inputs, input_ids=inputs.input_ids)
        else:
            encoded = self._encode(inputs, inputs_embeds=boundary.encoder)
        if cache is not None:
            cache.encoder = encoded
        source = {"input_ids": decoder.input_ids} if boundary is None else {"inputs_embeds": boundary.decoder}
        result = self._decode(encoded, inputs, decoder, cache, **source)
        return result if self.has_head else Boundary(encoded if first else None, result)


class Seq2SeqTail(Seq2SeqPart):
    """What the customer computes after the upper boundary: decoder blocks and the head."""

    def forward(self, boundary: Boundary, inputs: Inputs, decoder: Inputs, cache: Seq2SeqCache | None = None) -> Tensor:
        """Logits `[batch, target, vocab]`."""
        encoded = boundary.encoder
        if cache is not None:
            encoded = cache.encoder = cache.encoder if encoded is None else encoded
        return self._decode(cast(Tensor, encoded), inputs, decoder, cache, inputs_embeds=boundary.decoder)


@dataclass(frozen=True)
class Seq2SeqParts(CutModel):
    """A cut encoder-decoder model; as `Parts`, with two boundaries."""

    bottom: Seq2SeqBottom | None
    top: Seq2SeqTop
    tail: Seq2SeqTail | None


def split_seq2seq(model: PreTrainedModel, cut: Cut) -> Seq2SeqParts:
    """Cuts an encoder-decoder model; see `split`.

    `cut.bottom` counts encoder blocks, `cut.tail` decoder blocks.

    Raises:
        UnsupportedArchitectureError: The model is no encoder-decoder that can be cut.
        ModelError: The cut does not fit into the model.
    """
    family = family_of(model.config)
    if family.kind is not Kind.ENCODER_DECODER:
        raise UnsupportedArchitectureError(
            f"A {model.config.model_type} model has one stack of blocks.", remedy="Cut it with split."
        )
    depth, target_depth = (len(block_list(model, stack)) for stack in family.stacks)
    check_depth(depth, Cut(bottom=cut.bottom))
    check_depth(target_depth, Cut(tail=cut.tail))
    lower, upper = cut.bottom or 0, target_depth - (cut.tail or 0)
    whole = cut.tail is None
    bottom = tail = None
    if cut.bottom is not None:
        spans = (_Span(0, lower, table=True), _Span(0, 0, table=True))
        bottom = Seq2SeqBottom(_part(model, spans, head=False), head=False)
    spans = (_Span(lower, depth, table=cut.is_text, after=True), _Span(0, upper, table=cut.is_text, after=whole))
    top = Seq2SeqTop(_part(model, spans, head=whole), head=whole)
    if not whole:
        spans = (_Span(0, 0), _Span(upper, target_depth, after=True))
        tail = Seq2SeqTail(_part(model, spans, head=True), head=True)
    tied = tied_names(model, [top], [part for part in (bottom, tail) if part is not None])
    return Seq2SeqParts(cut, tied, bottom, top, tail)


@dataclass(frozen=True)
class _Span:
    """Which blocks of a stack a part holds, and what beside them."""

    first: int
    last: int
    table: bool = False
    after: bool = False


def _part(model: PreTrainedModel, spans: tuple[_Span, _Span], *, head: bool) -> PreTrainedModel:
    part = twin(model)
    for stack, span in zip(family_of(model.config).stacks, spans, strict=True):
        trim(part, stack, span.first, span.last, table=span.table, before=span.table, after=span.after)
    drop_aliases(part)
    if not head:
        behead(part)
    return part
