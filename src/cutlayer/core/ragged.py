"""Rows of unequal length, packed: the shape in which texts are privatized, stored and sent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True)
class Ragged:
    """`n` sequences without padding, one behind the other.

    Attributes:
        values: `[total, ...]`, the sequences' items.
        lengths: `[n]` int64, how many items each sequence has; their sum is `total`.
    """

    values: Tensor
    lengths: Tensor

    def __post_init__(self) -> None:
        if self.lengths.dim() != 1 or self.lengths.dtype != torch.int64:
            raise ValueError(f"lengths must be int64 [n], not {self.lengths.dtype} {list(self.lengths.shape)}")
        if int(self.lengths.sum()) != len(self.values):
            raise ValueError(f"lengths add up to {int(self.lengths.sum())}, values has {len(self.values)} items")

    @classmethod
    def from_lists(cls, sequences: Sequence[Sequence[int]]) -> Ragged:
        """Packs lists of ids."""
        flat = [item for sequence in sequences for item in sequence]
        return cls(
            torch.tensor(flat, dtype=torch.int64),
            torch.tensor([len(sequence) for sequence in sequences], dtype=torch.int64),
        )

    @classmethod
    def concatenate(cls, parts: Sequence[Ragged]) -> Ragged:
        """Puts the sequences of several packs one behind the other."""
        return cls(torch.cat([part.values for part in parts]), torch.cat([part.lengths for part in parts]))

    @cached_property
    def offsets(self) -> Tensor:
        """`[n + 1]` int64: sequence `i` is `values[offsets[i]:offsets[i + 1]]`."""
        return torch.cat([self.lengths.new_zeros(1), self.lengths.cumsum(0)])

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> Tensor:
        return self.values[int(self.offsets[index]) : int(self.offsets[index + 1])]

    def select(self, indices: Tensor | Sequence[int]) -> Ragged:
        """The sequences at `indices`, `[chosen]` int64, in that order."""
        chosen = torch.as_tensor(indices, dtype=torch.int64)
        lengths = self.lengths[chosen]
        ends = lengths.cumsum(0)
        items = torch.arange(int(ends[-1]) if len(ends) else 0)
        shift = self.offsets[chosen] - (ends - lengths)
        return Ragged(self.values[items + shift.repeat_interleave(lengths)], lengths)

    def first(self, kept: Tensor) -> Ragged:
        """The first `kept[i]` items of each sequence; `kept` is `[n]` int64."""
        if torch.equal(kept, self.lengths):
            return self
        position = torch.arange(len(self.values)) - self.offsets[:-1].repeat_interleave(self.lengths)
        return Ragged(self.values[position < kept.repeat_interleave(self.lengths)], kept.contiguous())

    def beginning(self, items: int) -> Ragged:
        """The first sequences, of so many items together at most; the first one at least."""
        return self.select((self.lengths.cumsum(0) <= max(items, int(self.lengths[0]))).nonzero()[:, 0])

    def preceded_by(self, items: Tensor) -> Ragged:
        """Each sequence with the same items `[m, ...]` before it."""
        if not len(items):
            return self
        parts = [torch.cat([items, self[number]]) for number in range(len(self))]
        return Ragged(torch.cat(parts), self.lengths + len(items))

    def split(self) -> tuple[Tensor, ...]:
        """Each sequence's items, `[length, ...]`."""
        pieces: tuple[Tensor, ...] = self.values.split(self.lengths.tolist())
        return pieces

    def with_values(self, values: Tensor) -> Ragged:
        """The same lengths over other items, `[items, ...]`."""
        return Ragged(values, self.lengths)

    def padded(self, fill: float = 0) -> Tensor:
        """`[n, longest, ...]`, padded on the right with `fill`."""
        return torch.nn.utils.rnn.pad_sequence(list(self.split()), batch_first=True, padding_value=fill)

    def mask(self) -> Tensor:
        """`[n, longest]` int64: 1 where `padded` holds an item."""
        longest = int(self.lengths.max()) if len(self) else 0
        return (torch.arange(longest)[None, :] < self.lengths[:, None]).to(torch.int64)


@dataclass(frozen=True)
class Tokens:
    """Tokens of `n` texts, special tokens left out.

    Attributes:
        segments: One `Ragged` for single texts, two for text pairs; all of the same `n`. Items are
            token ids (int64), or embedding rows `[width]` once a vector mechanism has acted.
    """

    segments: tuple[Ragged, ...]

    def __post_init__(self) -> None:
        if len(self.segments) not in (1, 2) or len({len(segment) for segment in self.segments}) != 1:
            raise ValueError("tokens need one or two segments of the same number of texts")

    def __len__(self) -> int:
        return len(self.segments[0])

    @classmethod
    def concatenate(cls, parts: Sequence[Tokens]) -> Tokens:
        """Puts the texts of several packs, all single or all pairs, one behind the other."""
        columns = zip(*(part.segments for part in parts), strict=True)
        return cls(tuple(Ragged.concatenate(column) for column in columns))

    @property
    def segment_count(self) -> int:
        """1 for single texts, 2 for pairs."""
        return len(self.segments)

    @property
    def total(self) -> int:
        """How many tokens all texts have together."""
        return sum(len(segment.values) for segment in self.segments)

    @property
    def values(self) -> Tensor:
        """`[total, ...]`: the tokens of all texts' first segments, then of their second ones."""
        return torch.cat([segment.values for segment in self.segments])

    @property
    def owners(self) -> Tensor:
        """`[total]` int64: the text that each token is of, in the order of `values`."""
        texts = torch.arange(len(self))
        return torch.cat([texts.repeat_interleave(segment.lengths) for segment in self.segments])

    def with_values(self, values: Tensor) -> Tokens:
        """The same lengths over other items, `[items, ...]` in the order of `values`."""
        parts = values.split([len(segment.values) for segment in self.segments])
        return Tokens(tuple(segment.with_values(part) for segment, part in zip(self.segments, parts, strict=True)))

    def select(self, indices: Tensor | Sequence[int]) -> Tokens:
        """The texts at `indices`, `[chosen]` int64, in that order."""
        return Tokens(tuple(segment.select(indices) for segment in self.segments))


@dataclass(frozen=True)
class PrecededTokens(Tokens):
    """Tokens of `n` texts, each of which begins with the same number of public words.

    Attributes:
        preceding: `[n, words]` int64: how many of the first tokens of each text's first segment are of each of these
            words, which stand one behind the other.
        sequences: `[n]` int64: by number, which words they were before they were drawn.
    """

    preceding: Tensor
    sequences: Tensor

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.preceding) != len(self) or self.sequences.shape != (len(self),):
            raise ValueError("each text needs its own preceding words")
        if (self.preceding.sum(1) > self.segments[0].lengths).any():
            raise ValueError("more tokens are of preceding words than a text has")

    def select(self, indices: Tensor | Sequence[int]) -> PrecededTokens:
        """The texts at `indices`, `[chosen]` int64, in that order."""
        chosen = torch.as_tensor(indices, dtype=torch.int64)
        return PrecededTokens(super().select(chosen).segments, self.preceding[chosen], self.sequences[chosen])

    def with_values(self, values: Tensor) -> PrecededTokens:
        """The same lengths over other items, `[items, ...]` in the order of `values`."""
        return PrecededTokens(super().with_values(values).segments, self.preceding, self.sequences)

    @classmethod
    def concatenate(cls, parts: Sequence[Tokens]) -> Tokens:
        """See `Tokens.concatenate`: texts without such words among them have none any more."""
        whole = Tokens.concatenate(parts)
        told = [part for part in parts if isinstance(part, PrecededTokens)]
        if len(told) < len(parts):
            return whole
        preceding, sequences = zip(*((part.preceding, part.sequences) for part in told), strict=True)
        return cls(whole.segments, torch.cat(preceding), torch.cat(sequences))

    def followed_by(self, texts: Tokens) -> PrecededTokens:
        """These words, each row's by themselves, with a text behind each.

        Args:
            texts: `n` texts.
        """
        first, *others = texts.segments
        joined = [part for pair in zip(self.segments[0].split(), first.split(), strict=True) for part in pair]
        lengths = self.segments[0].lengths + first.lengths
        values = torch.cat([*joined, first.values.new_empty(0)])
        return PrecededTokens((Ragged(values, lengths), *others), self.preceding, self.sequences)

    @classmethod
    def of(cls, words: Ragged, texts: Tokens, *, sequences: Tensor) -> PrecededTokens:
        """Texts behind words of one token each.

        Args:
            words: `n` times the words that stand before a text, of some perhaps the first of them alone.
            texts: `n` texts.
            sequences: `[n]` int64, see the attribute.
        """
        most = int(words.lengths.max()) if len(words) else 0
        return cls((words,), (torch.arange(most) < words.lengths[:, None]).long(), sequences).followed_by(texts)

    def parted(self) -> tuple[Ragged, Tokens]:
        """Tokens of the preceding words alone, and the texts without them."""
        first, *others = self.segments
        before = self.preceding.sum(1)
        place = torch.arange(len(first.values)) - first.offsets[:-1].repeat_interleave(first.lengths)
        own = place >= before.repeat_interleave(first.lengths)
        texts = Ragged(first.values[own], first.lengths - before)
        return Ragged(first.values[~own], before), Tokens((texts, *others))


@dataclass(frozen=True)
class Rows:
    """Boundary rows of `n` texts, special tokens included, padding left out.

    Attributes:
        packed: Values `[total, width]`: each text's rows in order.
        segment_lengths: `[n, segments]` int64: how many rows of each text belong to its first
            (and second) segment, specials counted with the segment they close. Rows add up to
            `packed.lengths`.
    """

    packed: Ragged
    segment_lengths: Tensor

    def __post_init__(self) -> None:
        if not torch.equal(self.segment_lengths.sum(1), self.packed.lengths):
            raise ValueError("segment lengths do not add up to the rows' lengths")

    def __len__(self) -> int:
        return len(self.packed)

    @classmethod
    def concatenate(cls, parts: Sequence[Rows]) -> Rows:
        """Puts the texts of several packs one behind the other."""
        return cls(
            Ragged.concatenate([part.packed for part in parts]), torch.cat([part.segment_lengths for part in parts])
        )

    @property
    def segment_count(self) -> int:
        """1 for single texts, 2 for pairs."""
        return self.segment_lengths.shape[1]

    @classmethod
    def joined(cls, first: Rows, second: Rows) -> Rows:
        """Pairs of texts, each of which was a single one in its own pack."""
        lengths = torch.cat([first.segment_lengths, second.segment_lengths], 1)
        pairs = zip(first.packed.split(), second.packed.split(), strict=True)
        return cls(Ragged(torch.cat([piece for pair in pairs for piece in pair]), lengths.sum(1)), lengths)

    def parted(self) -> tuple[Rows, ...]:
        """Each segment by itself, as single texts."""
        pieces = self.packed.values.split(self.segment_lengths.flatten().tolist())
        segments = self.segment_lengths.shape[1]
        return tuple(
            Rows(Ragged(torch.cat(pieces[side::segments]), lengths.contiguous()), lengths[:, None].contiguous())
            for side, lengths in enumerate(self.segment_lengths.unbind(1))
        )

    @property
    def total(self) -> int:
        """How many rows all texts have together."""
        return len(self.packed.values)

    def select(self, indices: Tensor | Sequence[int]) -> Rows:
        """The texts at `indices`, `[chosen]` int64, in that order."""
        return Rows(self.packed.select(indices), self.segment_lengths[torch.as_tensor(indices, dtype=torch.int64)])


Payload = Tokens | Rows
"""What a release holds: token ids (text-to-text, text cut) or boundary rows."""
