"""What leaves: the privatized payload and everything the ledger must know about it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

import torch
from torch import Tensor

from cutlayer.core import Payload, Place, Ragged, Rows
from cutlayer.privacy.charges import Charges
from cutlayer.privacy.context import NAME_BYTES
from cutlayer.privacy.layout import TextMajor

IDENTITY_BYTES: Final = NAME_BYTES


@dataclass(frozen=True)
class Release:
    """`n` items as they leave, or as they are on the way to their noise.

    An item is a text, or a block of parts of texts. Its *identity* names its bytes: keyed hash of the draws in it and,
    with a trainable bottom, the step. A *draw* names noise: the same draw in another form (token ids, then rows
    computed from these ids) is another identity but no further look, and is charged once.

    Attributes:
        payload: Token ids or rows of `n` items.
        identities: 16 bytes per item.
        of: `[m]` int64, ascending: the item that each text is (a part of).
        contents: 16 bytes per text: names it, as far as it was released, by how it reads.
        draws: 16 bytes per text: name its noise, all of it.
        etas: `[m]` float64: each text's largest eta; infinite without privacy, 0 for a text without tokens.
        tokens: `[m]` int64: content tokens of each text in its item.
        charges: What they cost, token by token.
        mechanism: Its name, for the ledger.
        unit: What etas are counted in; only etas of one unit are added.
        replaced: `[n]` int64: how many tokens, or words, of each item are others than in the text; `None` where noise
            went to rows.
        clear: By kind, `[n]` int64: how many words of each item the privatizer's own rule leaves as they are.
        pending: Where noise is still to be added. Such a release must not leave, and the ledger
            does not let it.
        public: Whether anybody may read these texts, so that no budget is held against them.
    """

    payload: Payload = field(repr=False)
    identities: tuple[bytes, ...] = field(repr=False)
    of: Tensor = field(repr=False)
    contents: tuple[bytes, ...] = field(repr=False)
    draws: tuple[bytes, ...] = field(repr=False)
    etas: Tensor = field(repr=False)
    tokens: Tensor = field(repr=False)
    charges: Charges = field(repr=False)
    mechanism: str
    unit: str
    replaced: Tensor | None = field(default=None, repr=False)
    clear: Mapping[str, Tensor] = field(default_factory=dict, repr=False)
    pending: Place | None = None
    public: bool = False

    def __post_init__(self) -> None:
        if len(self.payload) != len(self.identities):
            raise ValueError(f"a release of {len(self.payload)} items has {len(self.identities)} identities")
        counts = {len(part) for part in (self.of, self.contents, self.draws, self.etas, self.tokens, self.charges)}
        if len(counts) != 1:
            raise ValueError(f"the parts of a release are of {sorted(counts)} texts")

    def __len__(self) -> int:
        return len(self.identities)

    def carried_as(self, payload: Payload, context: bytes) -> Release:
        """The same draws in another form.

        Args:
            payload: The form, a function of this release's payload and nothing private besides.
            context: What the form depends on, for example the cut and, with trainable blocks, the
                step: other bytes need another context.

        Returns:
            A release with new identities and the same draws.
        """
        identities = tuple(
            hashlib.blake2b(context, key=identity, digest_size=IDENTITY_BYTES).digest() for identity in self.identities
        )
        return replace(self, payload=payload, identities=identities)

    def noised(self, payload: Payload, draws: tuple[bytes, ...]) -> Release:
        """The same with noise on the rows of each item, which shows all of it once more.

        Args:
            payload: Noisy rows.
            draws: Of each item.
        """
        of_texts = tuple(draws[item] for item in self.of.tolist())
        return replace(self, payload=payload, draws=of_texts, charges=self.charges.redrawn(of_texts), pending=None)

    def recalled(self, payload: Payload, context: bytes, *, draws: tuple[bytes, ...]) -> Release:
        """The same draws as they left before, from the vault.

        Args:
            payload: What `Privatizer.activations` returned for these draws and the vault kept.
            context: As in `carried_as`.
            draws: Of each item, which the vault kept too: noise on rows has a draw of its own. Where noise went to
                the tokens they say nothing new.

        Returns:
            As `carried_as`, and no longer pending: the noise is in the payload already. Use the vault
            for the first release too, so that all of them carry the same draw.
        """
        carried = self.carried_as(payload, context)
        return carried if self.pending is None else carried.noised(payload, draws)

    @property
    def item_draws(self) -> tuple[bytes, ...]:
        """Of each item the draw of its first text: where noise is on rows, that of all of them."""
        first = torch.searchsorted(self.of, torch.arange(len(self))).tolist()
        return tuple(self.draws[text] for text in first)

    def continuing(self, first: Release | None) -> Release:
        """The same, as a further part of texts that began with `first`, in whose name they are listed.

        What the bytes are depends on the beginning too: of an encoder-decoder's target text on its source.

        Args:
            first: The release of the texts' beginnings; `None` where this is it.
        """
        if first is None:
            return self
        identities = tuple(
            hashlib.blake2b(own, key=begun, digest_size=IDENTITY_BYTES).digest()
            for own, begun in zip(self.identities, first.identities, strict=True)
        )
        return replace(self, identities=identities, contents=first.contents, draws=first.draws)

    def select(self, indices: Tensor) -> Release:
        """The items at `indices` `[k]`, in that order."""
        chosen = indices.tolist()
        texts = Ragged(torch.arange(len(self.of)), torch.bincount(self.of, minlength=len(self))).select(indices)
        kept = texts.values.tolist()
        return replace(
            self,
            payload=self.payload.select(indices),
            identities=tuple(self.identities[i] for i in chosen),
            of=torch.arange(len(chosen)).repeat_interleave(texts.lengths),
            contents=tuple(self.contents[text] for text in kept),
            draws=tuple(self.draws[text] for text in kept),
            etas=self.etas[texts.values],
            tokens=self.tokens[texts.values],
            charges=self.charges.select(texts.values),
            replaced=None if self.replaced is None else self.replaced[indices],
            clear={kind: counts[indices] for kind, counts in self.clear.items()},
        )

    def clear_words(self) -> dict[str, int]:
        """By kind, how many words of all items leave as they are."""
        return {kind: int(counts.sum()) for kind, counts in self.clear.items()}

    def items_of_texts(self) -> Tensor:
        """`[m]` int64: ids or rows of each text in the payload; special tokens' rows are its item's first text's."""
        rows = self.tokens.clone()
        specials = self.items() - torch.zeros_like(self.items()).index_add(0, self.of, self.tokens)
        rows[torch.searchsorted(self.of, torch.arange(len(self)))] += specials
        return rows

    def items(self) -> Tensor:
        """`[n]` int64: ids or rows of each item in the payload."""
        if isinstance(self.payload, Rows):
            return self.payload.packed.lengths
        return torch.stack([segment.lengths for segment in self.payload.segments]).sum(0)

    def digests(self) -> tuple[bytes, ...]:
        """16 bytes per item: hash of its part of the payload, so that a second, different draw shows."""
        if isinstance(self.payload, Rows):
            packed, lengths = self.payload.packed, self.payload.segment_lengths
        else:
            texts = TextMajor.of(self.payload)
            packed, lengths = Ragged(texts.values, texts.per_text), texts.lengths
        # bytes of any element type, bf16 included, which numpy does not have
        raw = packed.values.detach().contiguous().flatten().view(torch.uint8).numpy()
        size = len(raw) // max(len(packed.values), 1)
        ends = (packed.offsets * size).tolist()
        shapes = lengths.numpy()
        digests = []
        for i in range(len(self)):
            digest = hashlib.blake2b(shapes[i].tobytes(), digest_size=16)
            digest.update(raw[ends[i] : ends[i + 1]].data)
            digests.append(digest.digest())
        return tuple(digests)
