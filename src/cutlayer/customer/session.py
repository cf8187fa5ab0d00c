"""The one road: text in, the vendor's answer out, gradients back along the same way.

`Session.forward` is the only forward pass. Training calls `loss(...).backward()`; evaluation and
prediction call the same forward in evaluation mode; releasing a corpus once is the first half of it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from cutlayer.core import ModelError, Payload, Rows, Tokens, VendorError
from cutlayer.customer.link import AdapterLink, Exchange, Link, Stored
from cutlayer.models import Archive, seed_dropout, set_dropout
from cutlayer.privacy import Privatizer, Release, Vault
from cutlayer.privacy.release import IDENTITY_BYTES
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


def replaced_tokens(original: Tokens, drawn: Release) -> int | None:
    """How many tokens differ from the original; `None` where noise goes to rows, not to tokens."""
    payload = drawn.payload
    if drawn.pending is not None or isinstance(payload, Rows) or payload.segments[0].values.is_floating_point():
        return None
    pairs = zip(original.segments, payload.segments, strict=True)
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
        dropout: Whether a trained bottom's own dropout is on while training.
        seed: Seed of that dropout.
        device: Where the bottom is computed.
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
        dropout: bool = True,
        seed: int = 0,
        device: torch.device | None = None,
    ) -> None:
        super().__init__()
        self.archive = archive
        self.privatizer = privatizer
        self.link = link
        self.form = form
        self.wire_type = wire_type
        self.vault = vault
        self.train_bottom = train_bottom
        self.device = device or torch.device("cpu")
        self.bottom = None if archive.bottom is None else archive.bottom.to(self.device)
        if self.bottom is not None:
            set_dropout(self.bottom, dropout)
        for parameter in self.trained().values():
            parameter.requires_grad_(True)
        self._seed = seed
        self.train(False)

    def train(self, mode: bool = True) -> Session:
        """Switches to training or evaluation; a frozen bottom always evaluates, without dropout."""
        super().train(mode)
        if self.bottom is not None and not self.train_bottom:
            self.bottom.eval()
        return self

    def forward(self, texts: Texts | Stored, *, look: tuple[int, int] | None = None) -> Tensor:
        """The vendor's output for texts, or for records that it already holds.

        Args:
            texts: `n` texts.
            look: (epoch, step) of a fresh release; `None` takes the memoised one.

        Returns:
            Logits `[n, labels]`.
        """
        sent: Release | Stored
        boundary = None
        if isinstance(texts, Texts):
            drawn = self._draw(texts, look)
            sent, boundary = drawn.release, drawn.boundary
        else:
            sent = texts
        if self.link is None:
            raise VendorError("This session has no vendor to ask.", remedy="Give it a link.")
        if not self.training:
            return self.link.infer(sent)
        if boundary is None:
            boundary = torch.zeros((), requires_grad=True)  # frozen: see Exchange.forward
        output: Tensor = Exchange.apply(boundary, self.link, sent)  # type: ignore[no-untyped-call]
        return output

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
        return replaced_tokens(texts.tokens, drawn)

    def _draw(self, texts: Texts, look: tuple[int, int] | None) -> Drawn:
        """Tokens → privatize → bottom → privatize."""
        drawn = self.privatizer.tokens(texts.tokens, labels=texts.cti_classes, look=look)
        replaced = replaced_tokens(texts.tokens, drawn)
        if self.form is Form.IDS:
            return Drawn(drawn, replaced)
        if self.train_bottom and isinstance(self.link, Link):
            # the bottom changes with every step, so the same draw has other bytes, and another identity
            seed_dropout(self._seed, self.link.step + 1)
            rows = self._bottom_once(drawn)
            # the bits depend on the batch: a text that is evaluated in two frames leaves as two releases of one draw
            batch = hashlib.blake2b(b"".join(drawn.identities), digest_size=16).hexdigest()
            context = f"{self.link.moment}/{self.training}/{batch}".encode()
            return Drawn(drawn.carried_as(rows, context), replaced, rows.packed.values)
        return Drawn(self._kept(drawn), replaced)

    def _bottom(self, tokens: Payload) -> Rows:
        """The bottom's output at all real positions of drawn tokens."""
        if self.bottom is None:
            raise ModelError("A text cut has no bottom.", remedy="Use bottom 0 or more.")
        if isinstance(tokens, Rows):
            raise ModelError("These texts went through the bottom already.")
        template = self.archive.template
        inputs = template.assemble(tokens, table=self.bottom.table)
        return template.unpad(self.bottom(inputs.to(self.device)).cpu(), tokens)

    def _bottom_once(self, drawn: Release) -> Rows:
        """Rows of a batch in which a draw that stands twice is computed once, to the same bits."""
        places = {identity: place for place, identity in reversed(list(enumerate(drawn.identities)))}
        first = sorted(places.values())
        at = {drawn.identities[place]: number for number, place in enumerate(first)}
        rows = self._bottom(drawn.payload.select(first))
        return rows.select([at[identity] for identity in drawn.identities])

    def _kept(self, drawn: Release) -> Release:
        """Rows of a draw, as they were when they were first made.

        The bits of a boundary depend on the batch it was computed in, so rows are kept (sealed) and
        an identity gives the same bytes for ever.
        """
        weights = self.link.moment if self.train_bottom and self.link is not None else "frozen"
        rows_of = f"{self.archive.fingerprint}/{self.archive.manifest.cut.slug}/{weights}"
        # rows with noise are kept exactly: made again for another wire type, in another batch, they would be a new look
        kept_as = self.wire_type if drawn.pending is None else WireType.FP32
        keys = drawn.carried_as(drawn.payload, f"{rows_of}/{kept_as}".encode()).identities
        found = zip(keys, self.vault.get_many(keys), strict=True)
        kept = {key: body for key, body in found if body is not None}
        missing = [place for place, key in enumerate(keys) if key not in kept]
        for start in range(0, len(missing), BOTTOM_BATCH):
            chosen = torch.tensor(missing[start : start + BOTTOM_BATCH])
            part = drawn.select(chosen)
            made = self.privatizer.activations(part, self._bottom(part.payload))
            bodies = (pack(made.payload.select([at]), vocab_size=0, wire_type=kept_as) for at in range(len(made)))
            sealed = zip(chosen.tolist(), made.draws, bodies, strict=True)
            kept |= self.vault.put_many({keys[place]: draw + encode_tensors(body) for place, draw, body in sealed})
        texts = [unpack(decode_tensors(routes.SHARD_PUT, kept[key][IDENTITY_BYTES:])) for key in keys]
        return drawn.recalled(
            Rows.concatenate([text for text in texts if isinstance(text, Rows)]),
            f"{rows_of}/{self.wire_type}".encode(),
            draws=tuple(kept[key][:IDENTITY_BYTES] for key in keys),
        )

    # ------------------------------------------------------------ a trained bottom

    def trained(self) -> dict[str, nn.Parameter]:
        """The bottom's parameters that training changes: the table at depth 0, else the blocks alone."""
        if self.bottom is None or not self.train_bottom:
            return {}
        parameters = dict(self.bottom.model.named_parameters())
        blocks = f"{self.bottom.stack.path}.{self.bottom.stack.blocks}."
        return {name: value for name, value in parameters.items() if name.startswith(blocks)} or parameters

    def load_trained(self, tensors: Mapping[str, Tensor]) -> None:
        """Puts back what `trained` held at some step."""
        parameters = self.trained()
        with torch.no_grad():
            for name, tensor in tensors.items():
                parameters[name].copy_(tensor)
