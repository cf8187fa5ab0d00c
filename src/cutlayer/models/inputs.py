"""From packed tokens to what a Hugging Face model takes, and back, the same on both sides."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Self

import torch
from pydantic import BaseModel, ConfigDict, model_validator
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from cutlayer.core import ConfigError, DataError, Fault, ModelError, PrecededTokens, Ragged, Rows, Tokens


@dataclass(frozen=True)
class Inputs:
    """A batch as a model takes it, except for what a part replaces.

    Attributes:
        attention_mask: `[batch, seen]` int64, 1 at real positions. While decoding with a cache it
            covers the positions seen before, too.
        position_ids: `[batch, seq]` int64, from 0 at a text's first real position; each family's own
            offset is added by its part.
        input_ids: `[batch, seq]` int64, or None where only rows are known.
        inputs_embeds: `[batch, seq, width]`, rows in place of ids.
        token_type_ids: `[batch, seq]` int64, or None for tokenizers without types.
        preceding: `[batch, seq]` int64: at positions of public words before the text, which of them stands there; -1
            elsewhere. None where there are no such words.
    """

    attention_mask: Tensor
    position_ids: Tensor
    input_ids: Tensor | None = None
    inputs_embeds: Tensor | None = None
    token_type_ids: Tensor | None = None
    preceding: Tensor | None = None

    def to(self, device: torch.device | str) -> Inputs:
        """The same batch with all its tensors on another device."""
        present = {name: value for name, value in vars(self).items() if value is not None}
        return replace(self, **{name: value.to(device) for name, value in present.items()})

    def with_ids(self, ids: Tensor) -> Inputs:
        """The same positions with token ids `[batch, seq]`."""
        return replace(self, input_ids=ids)


class Layout(BaseModel):
    """Where special tokens stand around the segments of a text, and each position's type.

    Attributes:
        specials: Ids before the first segment, between segments and after the last: one more than
            there are segments.
        special_types: Their token types, in the same shape.
        segment_types: The token type of each segment.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    specials: tuple[tuple[int, ...], ...]
    special_types: tuple[tuple[int, ...], ...]
    segment_types: tuple[int, ...]

    @model_validator(mode="after")
    def _shapes_match(self) -> Self:
        shapes = [len(ids) for ids in self.specials], [len(types) for types in self.special_types]
        if shapes[0] != shapes[1] or len(self.specials) != len(self.segment_types) + 1:
            raise ValueError("specials, special_types and segment_types do not fit together")
        return self

    @property
    def segments(self) -> int:
        """How many segments a text has."""
        return len(self.segment_types)

    @property
    def special_count(self) -> int:
        """How many special tokens a text gets."""
        return sum(len(ids) for ids in self.specials)

    def closing(self, segment: int) -> int:
        """How many specials count with a segment: those that close it, and for the first those that open the text."""
        return len(self.specials[segment + 1]) + (len(self.specials[0]) if segment == 0 else 0)

    def pieces(self) -> Iterator[tuple[int | None, int, int]]:
        """The text from left to right: (segment or None, special id, type)."""
        for place, (ids, types) in enumerate(zip(self.specials, self.special_types, strict=True)):
            for special, kind in zip(ids, types, strict=True):
                yield None, special, kind
            if place < self.segments:
                yield place, -1, self.segment_types[place]


class Template(BaseModel):
    """Where a tokenizer puts special tokens; customer and vendor build batches by the same one.

    Attributes:
        single: Layout of single texts.
        pair: Layout of text pairs.
        typed: Whether the tokenizer gives token types.
        max_length: The longest sequence, specials included, or None where nobody says.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    single: Layout
    pair: Layout
    typed: bool
    max_length: int | None = None

    @classmethod
    def from_tokenizer(cls, tokenizer: PreTrainedTokenizerBase, *, max_length: int | None = None) -> Template:
        """Learns the layouts by tokenizing two probes, with and without a second segment.

        Args:
            tokenizer: A fast tokenizer.
            max_length: The model's own limit; the smaller of it and the tokenizer's counts.

        Raises:
            ModelError: The tokenizer is not a fast one.
        """
        if not tokenizer.is_fast:
            raise ModelError(
                f"{type(tokenizer).__name__} is not a fast tokenizer.", remedy="Use one that has a tokenizer.json."
            )
        limits = [limit for limit in (max_length, tokenizer.model_max_length) if limit is not None and limit < 2**31]
        return cls(
            single=_probe(tokenizer, "a"),
            pair=_probe(tokenizer, "a", "a"),
            typed="token_type_ids" in tokenizer.model_input_names,
            max_length=min(limits) if limits else None,
        )

    @classmethod
    def opened_by(cls, special: int, *, max_length: int | None) -> Template:
        """Texts with nothing but one special token before them: what an encoder-decoder's decoder takes.

        Args:
            special: Its id.
            max_length: The model's limit.
        """
        single = Layout(specials=((special,), ()), special_types=((0,), ()), segment_types=(0,))
        pair = Layout(specials=((special,), (), ()), special_types=((0,), (), ()), segment_types=(0, 0))
        return cls(single=single, pair=pair, typed=False, max_length=max_length)

    def behind(self, positions: int) -> Template:
        """The same for texts behind so many virtual positions, which count among those that the model takes."""
        return self.model_copy(update={"max_length": None if self.max_length is None else self.max_length - positions})

    def layout(self, segments: int) -> Layout:
        """The layout of single texts (1) or pairs (2)."""
        return self.single if segments == 1 else self.pair

    def special_count(self, segments: int) -> int:
        """How many special tokens a text of so many segments gets."""
        return self.layout(segments).special_count

    @property
    def opening(self) -> tuple[int, ...]:
        """Special ids before a single text, which a text to be continued begins with; those behind it would end it."""
        return self.single.specials[0]

    def max_content(self, segments: int, limit: int | None = None) -> int:
        """How many content tokens of all segments together fit beside the specials.

        Args:
            segments: 1 for single texts, 2 for pairs.
            limit: The caller's own limit on a sequence, specials included.

        Raises:
            ModelError: Nobody says how long a text may be, or the model leaves no room.
            ConfigError: The caller's limit leaves no room.
        """
        limits = [length for length in (self.max_length, limit) if length is not None]
        if not limits:
            raise ModelError(
                "Neither the tokenizer nor the model says how long a text may be.", remedy="Set a maximum length."
            )
        specials = self.special_count(segments)
        if limit is not None and limit <= specials:
            raise ConfigError(
                [Fault("max_length", limit, f"leaves no room beside {specials} special tokens")],
                remedy=f"Use {specials + 1} or more.",
            )
        if min(limits) <= specials:
            raise ModelError(
                f"A model for {min(limits)} tokens has no room beside {specials} special tokens.",
                remedy="Choose another model.",
            )
        return min(limits) - specials

    def segment_lengths(self, tokens: Tokens) -> Tensor:
        """`[n, segments]` int64: rows per segment, specials counted with the segment they close."""
        layout = self.layout(len(tokens.segments))
        return torch.stack(
            [segment.lengths + layout.closing(number) for number, segment in enumerate(tokens.segments)], dim=1
        )

    def assemble(self, tokens: Tokens, *, table: Tensor | None = None) -> Inputs:
        """Adds special tokens and pads on the right.

        Args:
            tokens: Content tokens: ids, or embedding rows `[width]`.
            table: The embedding table `[vocab, width]`. With it the batch has `inputs_embeds`: rows of
                the table for special tokens and ids, given rows as they are. Gradients reach both.

        Raises:
            DataError: A text would have no position at all.
        """
        segments = tokens.segments
        lengths = self.segment_lengths(tokens)
        if len(lengths) and int(lengths.sum(1).min()) == 0:
            raise DataError(
                "A text is empty and the tokenizer adds no special tokens, so there is nothing to compute.",
                remedy="Leave empty texts out.",
            )
        layout = self.layout(len(segments))
        embedded = table is not None
        if not embedded and any(segment.values.is_floating_point() for segment in segments):
            raise ModelError("Embedding rows need the table for their special tokens.", remedy="Pass `table`.")
        pieces = []
        for segment, special, _ in layout.pieces():
            if segment is None:
                piece = torch.full((len(tokens),), special, dtype=torch.int64, device=lengths.device)
            else:
                piece = segments[segment].values
            if table is not None:
                # noisy rows come from the CPU, where their noise was drawn
                piece = piece.to(table.device) if piece.is_floating_point() else table[piece]
            pieces.append(piece)
        packed = Ragged(torch.cat(pieces)[self._order(tokens)], lengths.sum(1))
        inputs = replace(self._frame(lengths), preceding=self.preceding(tokens))
        values = packed.padded()
        return replace(inputs, inputs_embeds=values) if embedded else replace(inputs, input_ids=values)

    def preceding(self, tokens: Tokens) -> Tensor | None:
        """Where the public words before texts stand in the batch that `assemble` makes.

        Returns:
            `[batch, seq]` int64: which word stands at each position, -1 for none; `None` where there are no words.
        """
        if not isinstance(tokens, PrecededTokens):
            return None
        layout = self.layout(len(tokens.segments))
        longest = int(self.segment_lengths(tokens).sum(1).max())
        place = (torch.arange(longest) - len(layout.specials[0])).expand(len(tokens), -1).contiguous()
        ends = tokens.preceding.cumsum(1)
        word = torch.searchsorted(ends, place, right=True)
        return torch.where((place >= 0) & (place < ends[:, -1:]), word, -1)

    def unpad(self, hidden: Tensor, tokens: Tokens) -> Rows:
        """The real positions of `hidden` `[batch, seq, width]`, for a batch that `assemble` made of `tokens`."""
        lengths = self.segment_lengths(tokens)
        mask = self._frame(lengths).attention_mask.bool()
        return Rows(Ragged(hidden[mask.to(hidden.device)], lengths.sum(1)), lengths)

    def from_rows(self, rows: Rows) -> tuple[Tensor, Inputs]:
        """The vendor's way back: padded boundary `[batch, seq, width]` and what goes with it.

        Raises:
            DataError: A segment has fewer rows than the special tokens it must hold.
        """
        layout = self.layout(rows.segment_lengths.shape[1])
        least = torch.tensor([layout.closing(segment) for segment in range(layout.segments)])
        if (rows.segment_lengths < least).any() or (len(rows) and int(rows.packed.lengths.min()) == 0):
            raise DataError(
                f"Each text needs at least {least.tolist()} rows per segment, and one in all, for its special tokens.",
                remedy="Send the rows of special tokens too.",
            )
        return rows.packed.padded(), self._frame(rows.segment_lengths)

    def _order(self, tokens: Tokens) -> Tensor:
        """Maps each packed position to its place in the concatenation of the layout's pieces."""
        layout = self.layout(len(tokens.segments))
        lengths = self.segment_lengths(tokens).sum(1)
        starts = lengths.cumsum(0) - lengths
        order = torch.empty(int(lengths.sum()), dtype=torch.int64)
        used = torch.zeros_like(lengths)
        taken = 0
        for segment, _, _ in layout.pieces():
            counts = torch.ones_like(lengths) if segment is None else tokens.segments[segment].lengths
            total = int(counts.sum())
            within = torch.arange(total) - (counts.cumsum(0) - counts).repeat_interleave(counts)
            order[(starts + used).repeat_interleave(counts) + within] = torch.arange(taken, taken + total)
            used += counts
            taken += total
        return order

    def _frame(self, segment_lengths: Tensor) -> Inputs:
        """Mask, positions and types of a right-padded batch."""
        lengths = segment_lengths.sum(1)
        longest = int(lengths.max()) if len(lengths) else 0
        positions = torch.arange(longest).expand(len(lengths), longest)
        mask = (positions < lengths[:, None]).to(torch.int64)
        if not self.typed:
            return Inputs(attention_mask=mask, position_ids=positions)
        layout = self.layout(segment_lengths.shape[1])
        ends = torch.zeros(len(lengths), dtype=torch.int64)
        types = torch.zeros_like(mask)
        for segment, _, kind in layout.pieces():
            begin = ends
            counts = 1 if segment is None else segment_lengths[:, segment] - layout.closing(segment)
            ends = begin + counts
            types = torch.where((positions >= begin[:, None]) & (positions < ends[:, None]), kind, types)
        return Inputs(attention_mask=mask, position_ids=positions, token_type_ids=types)


def _probe(tokenizer: PreTrainedTokenizerBase, *segments: str) -> Layout:
    encoded = tokenizer(*segments)
    owners = encoded.sequence_ids(0)
    ids: list[int] = encoded["input_ids"]
    types: list[int] = encoded.get("token_type_ids") or [0] * len(ids)
    content = [[at for at, owner in enumerate(owners) if owner == number] for number in range(len(segments))]
    if not all(content):
        raise ModelError("The tokenizer gives no token for the letter a, so its special tokens cannot be located.")
    edges = [-1, *(edge for places in content for edge in (places[0], places[-1])), len(ids)]
    gaps = [range(start + 1, stop) for start, stop in list(pairwise(edges))[::2]]
    return Layout(
        specials=tuple(tuple(ids[at] for at in gap) for gap in gaps),
        special_types=tuple(tuple(types[at] for at in gap) for gap in gaps),
        segment_types=tuple(types[places[0]] for places in content),
    )
