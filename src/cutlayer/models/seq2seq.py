"""Cutting encoder-decoder models: two boundaries go up and two come back, one after the other.

First the source text: the customer's encoder blocks, the vendor's, and the encoder's output comes down, for
all decoder blocks attend to it. Then the target text: the customer's first decoder blocks, the vendor's, and
the tail, which holds the last decoder blocks and the head. The table is the customer's, for both stacks.

A decoder's boundary is made of the labels, shifted by one. With the embeddings alone below it, each row of it
is a row of the table, so a lookup reads them all: at least one decoder block belongs below the cut.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import (
    Cache,
    DynamicCache,
    EncoderDecoderCache,
    PretrainedConfig,
    PreTrainedModel,
)

from cutlayer.core import Cut, ModelError, UnsupportedArchitectureError
from cutlayer.models.anatomy import Kind, family_of
from cutlayer.models.cutting import (
    CutModel,
    Part,
    Parts,
    behead,
    block_list,
    check_depth,
    drop_aliases,
    embedding_table,
    split,
    tied_names,
    trim,
)
from cutlayer.models.inputs import Inputs, Template
from cutlayer.models.label_words import LabelWords, Words
from cutlayer.models.twin import twin


class Seq2SeqPart(Part):
    """A part with an encoder and a decoder stack; either may be without blocks."""

    def new_cache(self) -> EncoderDecoderCache:
        """An empty key-value cache for this part's decoder blocks, for decoding step by step."""
        config = self._decoder.config
        return EncoderDecoderCache(DynamicCache(config=config), DynamicCache(config=config))

    @property
    def _decoder(self) -> PreTrainedModel:
        return cast(PreTrainedModel, self.model.get_submodule(self.family.stacks[1].path))

    def _encode(self, inputs: Inputs, **source: Tensor | None) -> Tensor:
        """The encoder's output; a prompt's positions, if there is one, stand before the text's."""
        virtual, mask = self.virtual, inputs.attention_mask
        if virtual is not None and not virtual.is_prefix:
            entering = self._enter(inputs, None, source)
            source, mask = {**entering.source}, entering.inputs.attention_mask
        hidden: Tensor = self.runner(**source, attention_mask=mask).last_hidden_state
        return hidden

    def _decode(
        self, encoded: Tensor, inputs: Inputs, target: Inputs, cache: Cache | None, **source: Tensor | None
    ) -> Tensor:
        """The decoder's hidden states, or logits where the part ends in the head."""
        virtual, using = self.virtual, cache is not None
        seen, mask = inputs.attention_mask, target.attention_mask
        if encoded.shape[1] > seen.shape[1]:  # virtual positions of the encoder's stand before the text's
            seen = torch.cat([seen.new_ones(len(seen), encoded.shape[1] - seen.shape[1]), seen], 1)
        if virtual is not None and virtual.is_prefix:
            entering = self._enter(target, cache, source)
            mask, cache = entering.inputs.attention_mask, entering.cache
        caching: dict[str, Any] = {"past_key_values": cache, "use_cache": using}
        if self.has_head:
            logits: Tensor = self.model(
                encoder_outputs=(encoded,),
                attention_mask=seen,
                decoder_attention_mask=mask,
                **{f"decoder_{name}": value for name, value in source.items()},
                **caching,
            ).logits
            return logits
        hidden: Tensor = self._decoder(
            encoder_hidden_states=encoded,
            encoder_attention_mask=seen,
            attention_mask=mask,
            **source,
            **caching,
        ).last_hidden_state
        return hidden


class Seq2SeqBottom(Seq2SeqPart):
    """What the customer computes before the boundaries: the first blocks of encoder and decoder."""

    @property
    def table(self) -> Tensor:
        """The token-embedding table `[vocab, width]`."""
        return embedding_table(self.model)

    def encode(self, inputs: Inputs) -> Tensor:
        """The source text's boundary `[batch, source, width]`, from its ids or rows."""
        rows = self._embedded(inputs)
        if not len(block_list(self.model, self.family.stacks[0])):
            return rows
        return self._encode(inputs, inputs_embeds=rows)

    def forward(self, inputs: Inputs) -> Tensor:
        """As `encode`, `[batch, source, width]`: the boundary of a model whose decoder is the vendor's."""
        return self.encode(inputs)

    def decode(self, encoded: Tensor, inputs: Inputs, target: Inputs, cache: Cache | None = None) -> Tensor:
        """The target text's boundary `[batch, target, width]`.

        Args:
            encoded: The encoder's output, from the vendor; not looked at by embeddings alone.
            inputs: The source text's mask.
            target: The target text so far, or its newest tokens while decoding.
            cache: This part's cache, while decoding.
        """
        rows = self._embedded(target)
        if not len(block_list(self.model, self.family.stacks[1])):
            return rows
        return self._decode(encoded, inputs, target, cache, inputs_embeds=rows)

    def _embedded(self, inputs: Inputs) -> Tensor:
        if inputs.inputs_embeds is not None:
            return inputs.inputs_embeds
        return torch.nn.functional.embedding(cast(Tensor, inputs.input_ids), self.table)


class Seq2SeqTop(Seq2SeqPart):
    """What the vendor computes: the blocks between.

    Attributes:
        label_words: What it tells labels by, where it is a classifier.
    """

    label_words: LabelWords | None = None

    def tell(self, words: Words) -> None:
        """Makes it a classifier, in place.

        Args:
            words: Of each label the ids that are written for it, what closes them among them.

        Raises:
            ModelError: The customer holds a part of the decoder.
        """
        if not self.has_head or not isinstance(self._decoder.get_submodule("embed_tokens"), nn.Embedding):
            raise ModelError(
                "Label words need the whole decoder at the vendor, and the customer holds a part of this one."
            )
        self.label_words = LabelWords.of_ids(words, start=int(self.model.config.decoder_start_token_id))

    def forward(self, inputs: Inputs, hidden: Tensor | None = None) -> Tensor:
        """Log-probabilities `[batch, labels]` of the words of each label.

        Args:
            inputs: The text's mask; its ids for a text cut.
            hidden: The text's boundary `[batch, source, width]`; None for a text cut.
        """
        words = self.label_words
        if words is None:
            raise ModelError("This part does not know the words of any label.", remedy="Attach it with label_words.")
        encoded, device = self.encode(inputs, hidden), inputs.attention_mask.device
        times = len(words.entering)
        seen = Inputs(*(each.repeat_interleave(times, 0) for each in (inputs.attention_mask, inputs.position_ids)))
        mask = words.mask.to(device).repeat(len(encoded), 1)
        target = Inputs(mask, (mask.cumsum(1) - 1).clamp(min=0), words.entering.to(device).repeat(len(encoded), 1))
        return words.scores(self.decode(encoded.repeat_interleave(times, 0), seen, target))

    def log_likelihood(self, inputs: Inputs, target: Inputs) -> Tensor:
        """What whole target texts come to, `[batch, 2]`: their log-probability, and of how many tokens, with their end.

        Args:
            inputs: The source texts' ids and mask.
            target: The target texts', behind the start token.
        """
        ids, mask = cast(Tensor, target.input_ids), target.attention_mask
        logits = self.decode(self.encode(inputs), inputs, target)
        ends = mask.sum(1) - 1  # the last position of each is followed by the mark that ends it
        followers = ids.roll(-1, 1).scatter(1, ends[:, None], int(self.model.config.eos_token_id))
        logs = logits.float().log_softmax(-1).gather(-1, followers[..., None])[..., 0]
        return torch.stack([(logs * mask).sum(1), mask.sum(1).to(logs)], 1)

    def encode(self, inputs: Inputs, hidden: Tensor | None = None) -> Tensor:
        """The encoder's output `[batch, source, width]`.

        Args:
            inputs: The source text's mask; its ids for a text cut.
            hidden: The source text's boundary; None for a text cut.
        """
        if hidden is None:
            return self._encode(inputs, input_ids=inputs.input_ids)
        return self._encode(inputs, inputs_embeds=hidden)

    def decode(
        self,
        encoded: Tensor,
        inputs: Inputs,
        target: Inputs,
        hidden: Tensor | None = None,
        cache: Cache | None = None,
    ) -> Tensor:
        """Logits, or the upper boundary `[batch, target, width]` where there is a tail.

        Args:
            encoded: What `encode` returned.
            inputs: The source text's mask.
            target: The target text's mask; its ids for a text cut.
            hidden: The target text's boundary; None for a text cut.
            cache: This part's cache, while decoding.
        """
        if hidden is None:
            return self._decode(encoded, inputs, target, cache, input_ids=target.input_ids)
        return self._decode(encoded, inputs, target, cache, inputs_embeds=hidden)


class Seq2SeqTail(Seq2SeqPart):
    """What the customer computes after the upper boundary: decoder blocks and the head."""

    def decode(
        self, encoded: Tensor, inputs: Inputs, target: Inputs, hidden: Tensor, cache: Cache | None = None
    ) -> Tensor:
        """Logits `[batch, target, vocab]` from the upper boundary; its blocks attend to the encoder's output."""
        return self._decode(encoded, inputs, target, cache, inputs_embeds=hidden)


@dataclass(frozen=True)
class Seq2SeqParts(CutModel):
    """A cut encoder-decoder model; as `Parts`, with two boundaries."""

    bottom: Seq2SeqBottom | None
    top: Seq2SeqTop
    tail: Seq2SeqTail | None


def split_seq2seq(model: PreTrainedModel, cut: Cut) -> Seq2SeqParts:
    """Cuts an encoder-decoder model; see `split`.

    `cut.bottom` counts encoder blocks, `cut.target` and `cut.tail` decoder blocks.

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
    check_depth(target_depth, Cut(bottom=cut.target, tail=cut.tail))
    if cut.is_text and cut.target:
        raise ModelError(
            f"A text cut has no bottom, so no {cut.target} decoder blocks either.", remedy="Use bottom 0 or more."
        )
    lower, upper = cut.bottom or 0, target_depth - (cut.tail or 0)
    whole = cut.tail is None
    bottom = tail = None
    if cut.bottom is not None:
        spans = (_Span(0, lower, table=True), _Span(0, cut.target, table=True))
        bottom = Seq2SeqBottom(_part(model, spans, head=False), head=False)
    spans = (
        _Span(lower, depth, table=cut.is_text, after=True),
        # a whole decoder begins with tokens of its own, where it tells labels
        _Span(cut.target, upper, table=cut.is_text or (whole and not cut.target), after=whole),
    )
    top = Seq2SeqTop(_part(model, spans, head=whole), head=whole)
    if not whole:
        spans = (_Span(0, 0), _Span(upper, target_depth, after=True))
        tail = Seq2SeqTail(_part(model, spans, head=True), head=True)
    tied = tied_names(model, [top], [part for part in (bottom, tail) if part is not None])
    return Seq2SeqParts(cut, tied, family, bottom, top, tail)


def cut_up(model: PreTrainedModel, cut: Cut, *, head: bool = True) -> Parts | Seq2SeqParts:
    """Cuts a model of any family; see `split` and `split_seq2seq`, whose parts keep the head."""
    seq2seq = family_of(model.config).kind is Kind.ENCODER_DECODER
    return split_seq2seq(model, cut) if seq2seq else split(model, cut, head=head)


def target_template(template: Template, config: PretrainedConfig) -> Template | None:
    """Where special tokens stand in a target text, as an encoder-decoder's decoder takes it; None for other models.

    The text is shifted by one: a start token stands before it, and the token that closes it is only predicted.

    Args:
        template: Of the source texts.
        config: The model's.

    Raises:
        ModelError: The configuration names no start token.
    """
    if family_of(config).kind is not Kind.ENCODER_DECODER:
        return None
    start = getattr(config, "decoder_start_token_id", None)
    if start is None:
        raise ModelError(f"This {config.model_type} model's configuration names no decoder_start_token_id.")
    return Template.opened_by(int(start), max_length=template.max_length)


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
