"""The one road: text in, the vendor's answer out, gradients back along the same way.

`Session.forward` is the only forward pass. Training calls `loss(...).backward()`; evaluation and
prediction call the same forward in evaluation mode; releasing a corpus once is the first half of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from cutlayer.core import Payload, Rows, Tokens
from cutlayer.customer.link import AdapterLink, Exchange, Link, Stored
from cutlayer.models import Archive
from cutlayer.privacy import Privatizer, Release, Vault
from cutlayer.wire import Form, WireType, decode_tensors, encode_tensors, pack, routes, unpack

BOTTOM_BATCH = 64
"""Texts that go through the bottom at a time when nothing is trained."""


@dataclass(frozen=True)
class Texts:
    """Texts on the customer's side of the gate.

    Attributes:
        tokens: Their token ids.
        cti_classes: `[n]` int64, the class whose utility importance sets each text's eta (SAP eq. 6);
            `None` where noise must not depend on the label: without CTI, at inference, class-free.
    """

    tokens: Tokens
    cti_classes: Tensor | None = None

    def __len__(self) -> int:
        return len(self.tokens)

    def select(self, indices: Tensor) -> Texts:
        """The texts at `indices`, in that order."""
        classes = None if self.cti_classes is None else self.cti_classes[indices]
        return Texts(self.tokens.select(indices), classes)


@dataclass(frozen=True)
class Drawn:
    """Texts after the first half of the road.

    Attributes:
        release: What may leave.
        replaced: How many tokens the text-to-text draw replaced; `None` if it gave rows of noise.
        boundary: Rows with a graph back to the bottom's parameters, where those are trained.
    """

    release: Release
    replaced: int | None
    boundary: Tensor | None = None


def replaced_tokens(original: Tokens, drawn: Payload) -> int | None:
    """How many tokens differ from the original; `None` where rows, not tokens, were drawn."""
    if isinstance(drawn, Rows) or drawn.segments[0].values.is_floating_point():
        return None
    pairs = zip(original.segments, drawn.segments, strict=True)
    return sum(int((before.values != after.values).sum()) for before, after in pairs)


class Session(nn.Module):
    """Bottom, privatizer and gate of one customer, as a module.

    Args:
        archive: What the vendor handed out: bottom, table, template.
        privatizer: Where and how releases are privatized.
        link: A job's steps, or a published adapter.
        form: What a release is made of on the wire.
        wire_type: Element type of boundary rows on the wire.
        vault: Where released rows are kept, so that the same identity gives the same bytes.
        train_bottom: Whether the bottom's parameters are trained; then rows are never kept.
    """

    def __init__(
        self,
        *,
        archive: Archive,
        privatizer: Privatizer,
        link: Link | AdapterLink | None,
        form: Form,
        wire_type: WireType,
        vault: Vault,
        train_bottom: bool = False,
    ) -> None:
        super().__init__()
        self.archive = archive
        self.privatizer = privatizer
        self.link = link
        self.form = form
        self.wire_type = wire_type
        self.vault = vault
        self.train_bottom = train_bottom
        self.bottom = archive.bottom

    def forward(self, texts: Texts | Stored, *, look: tuple[int, int] | None = None) -> Tensor:
        """The vendor's output for texts, or for records that it already holds.

        Args:
            texts: `n` texts.
            look: (epoch, step) of a fresh release; `None` takes the memoised one.

        Returns:
            Logits `[n, labels]`.
        """
        boundary = None
        if isinstance(texts, Texts):
            drawn = self._draw(texts, look)
            texts, boundary = drawn.release, drawn.boundary
        if not self.training:
            return self.link.infer(texts)
        if boundary is None:
            boundary = torch.zeros((), requires_grad=True)  # frozen: see Exchange.forward
        return Exchange.apply(boundary, self.link, texts)

    def loss(self, texts: Texts | Stored, labels: Tensor, *, look: tuple[int, int] | None = None) -> Tensor:
        """Mean cross-entropy. Labels are an argument of the loss, never of the forward pass."""
        return nn.functional.cross_entropy(self(texts, look=look), labels)

    @torch.no_grad()
    def release(self, texts: Texts, *, look: tuple[int, int] | None = None) -> Drawn:
        """What would leave for these texts: the first half of `forward`."""
        return self._draw(texts, look)

    def count_replaced(self, texts: Texts, *, look: tuple[int, int] | None = None) -> int | None:
        """How many tokens a draw replaces; nothing is computed from it or sent."""
        drawn = self.privatizer.tokens(texts.tokens, labels=texts.cti_classes, look=look)
        return replaced_tokens(texts.tokens, drawn.payload)

    def _draw(self, texts: Texts, look: tuple[int, int] | None) -> Drawn:
        """Tokens → privatize → bottom → privatize."""
        drawn = self.privatizer.tokens(texts.tokens, labels=texts.cti_classes, look=look)
        replaced = replaced_tokens(texts.tokens, drawn.payload)
        if self.form is Form.IDS:
            return Drawn(drawn, replaced)
        if self.train_bottom:
            rows = self._bottom(drawn.payload)
            moved = self.privatizer.activations(drawn, rows)
            # the bottom changes with every step, so the same draw has other bytes, and another identity
            moved = moved.carried_as(moved.payload, f"{self.link.moment}/{self.training}".encode())
            return Drawn(moved, replaced, rows.packed.values)
        return Drawn(self._kept(drawn), replaced)

    def _bottom(self, tokens: Payload) -> Rows:
        """The bottom's output at all real positions of drawn tokens."""
        template = self.archive.template
        inputs = template.assemble(tokens, table=self.bottom.table)
        return template.unpad(self.bottom(inputs.to(self.device)).cpu(), tokens)

    def _kept(self, drawn: Release) -> Release:
        """Rows of a draw, as they were when they were first made.

        The bits of a boundary depend on the batch it was computed in, so rows are kept (sealed) and
        an identity gives the same bytes for ever.
        """
        context = f"{self.archive.manifest.cut.slug}/{self.wire_type}".encode()
        identities = drawn.carried_as(drawn.payload, context).identities
        found = zip(identities, self.vault.get_many(identities), strict=True)
        kept = {identity: body for identity, body in found if body is not None}
        missing = [place for place, identity in enumerate(identities) if identity not in kept]
        for chosen in torch.tensor(missing, dtype=torch.int64).split(BOTTOM_BATCH):
            part = drawn.select(chosen)
            rows = self.privatizer.activations(part, self._bottom(part.payload)).payload
            made = {
                identities[place]: encode_tensors(pack(rows.select([at]), vocab_size=0, wire_type=self.wire_type))
                for at, place in enumerate(chosen.tolist())
            }
            kept |= self.vault.put_many(made)
        texts = [unpack(decode_tensors(routes.SHARD_PUT, kept[identity])) for identity in identities]
        return drawn.carried_as(Rows.concatenate([text for text in texts if isinstance(text, Rows)]), context)

    # ------------------------------------------------------------ a trained bottom

    def trained(self) -> dict[str, nn.Parameter]:
        """The bottom's parameters that training changes: the table at depth 0, else the blocks alone."""
        table = id(self.bottom.table)
        blocks = {id(parameter) for parameter in self.bottom.block_parameters()}
        wanted = blocks or {table}
        return {name: value for name, value in self.bottom.model.named_parameters() if id(value) in wanted}

    def load_trained(self, tensors: Mapping[str, Tensor]) -> None:
        """Puts back what `trained` held at some step."""
        parameters = self.trained()
        with torch.no_grad():
            for name, tensor in tensors.items():
                parameters[name].copy_(tensor)
