"""What leaves: the privatized payload and everything the ledger must know about it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from typing import Final

import torch
from torch import Tensor

from cutlayer.core import Payload, Place, Ragged, Rows
from cutlayer.privacy.layout import TextMajor

IDENTITY_BYTES: Final = 16


@dataclass(frozen=True)
class Release:
    """`n` texts as they leave, or as they are on the way to their noise.

    A text's *identity* names its bytes: keyed hash of content, mechanism, parameters and, with a
    trainable bottom, step. Its *draw* names the noise in them: the same draw in another form (token
    ids, then rows computed from these ids) is another identity but no further look, and is charged
    once.

    Attributes:
        payload: Token ids or rows.
        identities: 16 bytes per text.
        draws: 16 bytes per text; the identity under which the text's noise was drawn.
        contents: 16 bytes per text: keyed hash of its token ids. Budgets are kept per content.
        etas: `[n]` float64: the largest eta of any token (or row) of the text; infinite without
            privacy, 0 for a text without tokens.
        tokens: `[n]` int64: content tokens per text.
        mechanism: Its name, for the ledger.
        unit: What etas are counted in; only etas of one unit are added.
        pending: Where noise is still to be added. Such a release must not leave, and the ledger
            does not let it.
        public: Whether anybody may read these texts, so that no budget is held against them.
    """

    payload: Payload = field(repr=False)
    identities: tuple[bytes, ...] = field(repr=False)
    draws: tuple[bytes, ...] = field(repr=False)
    contents: tuple[bytes, ...] = field(repr=False)
    etas: Tensor = field(repr=False)
    tokens: Tensor = field(repr=False)
    mechanism: str
    unit: str
    pending: Place | None = None
    public: bool = False

    def __post_init__(self) -> None:
        counts = {
            len(part) for part in (self.payload, self.identities, self.draws, self.contents, self.etas, self.tokens)
        }
        if len(counts) != 1:
            raise ValueError(f"the parts of a release are of {sorted(counts)} texts")

    def __len__(self) -> int:
        return len(self.identities)

    def carried_as(self, payload: Payload, context: bytes) -> Release:
        """The same draw in another form.

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

    def recalled(self, payload: Payload, context: bytes, *, draws: tuple[bytes, ...]) -> Release:
        """The same draw as it left before, from the vault.

        Args:
            payload: What `Privatizer.activations` returned for this draw and the vault kept.
            context: As in `carried_as`.
            draws: The draws of that, which the vault kept too: noise on rows has a draw of its own.

        Returns:
            As `carried_as`, and no longer pending: the noise is in the payload already. Use the vault
            for the first release too, so that all of them carry the same draw.
        """
        return replace(self.carried_as(payload, context), draws=draws, pending=None)

    def continuing(self, first: Release | None) -> Release:
        """The same, as a further part of texts that began with `first`.

        A text that grows leaves in parts, in each of which other tokens are drawn. No token is drawn
        twice, so the parts together are one look at the text, and are named and charged as such.

        Args:
            first: The release of the texts' beginnings; `None` where this is it.
        """
        return self if first is None else replace(self, contents=first.contents, draws=first.draws)

    def select(self, indices: Tensor) -> Release:
        """The texts at `indices` `[m]`, in that order."""
        chosen = indices.tolist()
        return replace(
            self,
            payload=self.payload.select(indices),
            identities=tuple(self.identities[i] for i in chosen),
            draws=tuple(self.draws[i] for i in chosen),
            contents=tuple(self.contents[i] for i in chosen),
            etas=self.etas[indices],
            tokens=self.tokens[indices],
        )

    def items(self) -> Tensor:
        """`[n]` int64: ids or rows of each text in the payload."""
        if isinstance(self.payload, Rows):
            return self.payload.packed.lengths
        return torch.stack([segment.lengths for segment in self.payload.segments]).sum(0)

    def digests(self) -> tuple[bytes, ...]:
        """16 bytes per text: hash of its part of the payload, so that a second, different draw shows."""
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
