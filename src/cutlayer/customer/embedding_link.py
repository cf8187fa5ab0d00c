"""Queries for embeddings; answers are kept, so that no text is asked about twice."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

from cutlayer.core import Tokens, VendorError
from cutlayer.customer.gate import Gate
from cutlayer.customer.link import QueryLink, Stored
from cutlayer.customer.settings import RunSpec
from cutlayer.privacy import Release, Vault
from cutlayer.privacy.release import IDENTITY_BYTES
from cutlayer.wire import routes
from cutlayer.wire.messages import ModelInfo

_LARGEST = 2.0**20
"""That a number of an embedding may be: sums of squares of such numbers fit into fp32 when noise is taken out."""


class EmbeddingLink(QueryLink):
    """Queries for embeddings, of which those that were answered before are not asked again.

    Answers are kept as they came, sealed, by the release that they are of.

    Args:
        gate: The door.
        model: Whose embeddings they are.
        vault: Where answers are kept.
        spec: The settings.

    Attributes:
        texts: `[batch]` int64, which texts the next query is about.
        queries: Of each frame that left, `[rows]` int64: the text that each row of it was released for.
        replaced: How many tokens, or words, of all texts were drawn as others; `None` for rows of noise.
        ids: What the last query was about, where that is token ids.
    """

    def __init__(self, gate: Gate, model: ModelInfo, vault: Vault, spec: RunSpec) -> None:
        embedding = model.require_embedding()
        super().__init__(gate, routes.EMBEDDINGS, {"model": model.name}, outputs=embedding.width)
        self._vault = vault
        told = model.fingerprint, str(embedding.width), embedding.pooling, spec.form.value, spec.wire_type.value
        # by its vendor, too: what one answered must not stand for what another would
        self._context = f"embedding/{'/'.join((*told, gate.peer))}".encode()
        self.texts = torch.arange(0)
        self.queries: list[Tensor] = []
        self.replaced: int | None = 0
        self.ids: Tokens | None = None

    @property
    def sent(self) -> int:
        """Texts that were asked about."""
        return sum(map(len, self.queries))

    def infer(self, sent: Release | Stored) -> Tensor:
        """See `QueryLink.infer`."""
        if isinstance(sent, Stored):
            return super().infer(sent)
        self.ids = sent.payload if isinstance(sent.payload, Tokens) else None
        if self.replaced is not None:
            self.replaced = None if sent.replaced is None else self.replaced + int(sent.replaced.sum())
        names = [
            hashlib.blake2b(self._context, key=identity, digest_size=IDENTITY_BYTES).digest()
            for identity in sent.identities
        ]
        bodies = dict(zip(names, self._vault.get_many(names), strict=True))
        asked = {name: row for row, name in enumerate(names) if bodies[name] is None}
        if asked:
            rows = torch.tensor(list(asked.values()))
            found = super().infer(sent.select(rows)).float().cpu()
            if (largest := float(found.abs().max())) > _LARGEST:  # kept, it would spoil this text's embedding for good
                raise VendorError(
                    f"The vendor's answer has numbers as large as {largest:.1g}, which no embedding has.",
                    status=200,
                    remedy="Ask the vendor. Nothing of the answer is kept.",
                )
            answered = {name: row.numpy().tobytes() for name, row in zip(asked, found, strict=True)}
            bodies |= self._vault.put_many(answered)
            self.queries.append(self.texts[rows])
        return torch.stack([_numbers(bodies[name]) for name in names])


def _numbers(body: bytes | None) -> Tensor:
    if body is None:
        raise TypeError("an answer was asked for and is not there")
    return torch.frombuffer(bytearray(body), dtype=torch.float32)
