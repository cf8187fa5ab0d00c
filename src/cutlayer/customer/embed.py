"""Embeddings as a service: texts leave privatized, one row for each comes back. Nothing is trained.

Ref: Split-and-Denoise, arXiv:2310.09130.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from cutlayer.core import ConfigError, Cut, CutlayerWarning, DataError, Fault, Guarantee
from cutlayer.customer.ask import check_texts
from cutlayer.customer.connection import Connection
from cutlayer.customer.defaults import settle
from cutlayer.customer.derived import noise_secret, run_privatizing
from cutlayer.customer.handout import choose_model, fetch_archive
from cutlayer.customer.link import QueryLink
from cutlayer.customer.order import Order
from cutlayer.customer.plan import build_session
from cutlayer.customer.progress import Progress
from cutlayer.customer.session import Session, Texts
from cutlayer.customer.settings import FinetuneSpec, RunSpec
from cutlayer.customer.validate import validate
from cutlayer.data import Dataset
from cutlayer.data.tokenise import UNCUT, shortened
from cutlayer.models.batches import EVALUATION_POSITIONS, padded_batches
from cutlayer.privacy import Vault
from cutlayer.privacy.release import IDENTITY_BYTES
from cutlayer.wire.messages import ModelInfo

_NAMED = 2**10
"""Texts whose releases are named, and looked up among those that were embedded before, at a time."""


@dataclass(frozen=True)
class Embedded:
    """Embeddings, and what they cost.

    Attributes:
        values: `[n, width]` float32, in the order of the texts.
        model: The vendor's model.
        eta: The privacy parameter, per token; infinite without privacy.
        tokens: Content tokens of all texts.
        sent: Texts that were sent; the others had been embedded before, or are another's equal.
        cut_texts: Texts that lost their end to the model's positions or to `max_length`.
        uplink_bytes: What was sent, headers included.
        downlink_bytes: What was received.
        guarantee: What each release promises, and what not.
    """

    values: NDArray[np.float32]
    model: str
    eta: float
    tokens: int
    sent: int
    cut_texts: int
    uplink_bytes: int
    downlink_bytes: int
    guarantee: Guarantee


def settle_embedding(given: FinetuneSpec) -> RunSpec:
    """Settings of embeddings with nothing left open: the cut is below all blocks.

    Args:
        given: What was said: model, privacy, `max_length`, and what else a query may have.

    Raises:
        ConfigError: The cut leaves blocks or a tail to the customer; or what validate refuses.
    """
    words = given.privacy.mechanism == "words"
    cut = given.cut or Cut(bottom=None if words else 0)
    if cut.bottom or cut.tail is not None or cut.target:
        raise ConfigError(
            [Fault("cut", cut.slug, "must be 0 or text: of embeddings all blocks are the vendor's")],
            remedy="Leave it out.",
        )
    if given.privacy.cti is not None:
        raise ConfigError([Fault("cti", given.privacy.cti, "needs labels, and embeddings have none")])
    training = given.training.model_copy(update={"dropout": False})  # nothing is trained
    spec = settle(given.model_copy(update={"cut": cut, "training": training}))
    validate(spec)
    return spec


def embed(connection: Connection, given: FinetuneSpec, dataset: Dataset, progress: Progress) -> Embedded:
    """Embeddings of texts by the vendor's frozen model.

    What was embedded before under the same settings is not sent again: answers are kept, sealed.

    Args:
        connection: The way to the vendor.
        given: How texts are privatized, and by which model they are embedded.
        dataset: Texts.
        progress: Where to show progress.

    Raises:
        ConfigError: Settings that do not go together.
        DataError: Pairs, or a text without a token.
        BudgetError: A text would be charged beyond the budget; none is sent.
    """
    spec = settle_embedding(given)
    if dataset.segments != 1:
        raise DataError("Embeddings are of single texts.", remedy="Embed both texts of a pair, one after the other.")
    offer = choose_model(connection.gate(), spec.model or None)
    spec = spec.model_copy(update={"model": offer.model.name})
    gate = connection.gate_of(f"embed/{offer.model.name}", spec, offer)
    archive = fetch_archive(gate, connection.home, offer.model, spec.cut, progress)
    privatizing = run_privatizing(archive, connection.home, spec)
    session = build_session(archive, connection.home, spec, privatizing, None, connection.device)
    session.eval()
    whole = session.reading.read(dataset, max_content=UNCUT)
    if empty := [row for row, length in enumerate(whole.segments[0].lengths.tolist(), start=1) if not length]:
        raise DataError(
            f"{len(empty)} of {len(dataset)} texts have no token; the first is text {empty[0]}.",
            remedy="Leave them out.",
        )
    longest = spec.training.max_length or offer.model.embedding.max_length
    tokens = shortened(whole, archive.template.max_content(1, longest))
    cut_texts = int((tokens.segments[0].lengths < whole.segments[0].lengths).sum())
    if cut_texts:
        warnings.warn(
            f"{cut_texts} of {len(dataset)} texts are longer than the model reads, and lose their end.",
            CutlayerWarning,
            stacklevel=2,
        )
    check_texts(
        connection.home,
        session,
        tokens,
        budget=spec.privacy_budget,
        width=offer.model.width,
        of="these texts",
        progress=progress,
    )
    # other texts of one length leave in an order that tells nothing of the file's
    secret = noise_secret(connection.home, spec.unsafe_noise_seed)
    order = torch.tensor(Order(secret, f"embed/{offer.model.name}").of(dataset.texts))
    order = order[tokens.segments[0].lengths[order].argsort(stable=True)]
    link = QueryLink.to_embeddings(gate, offer.model)
    session.link = link
    values, sent = _Asking(
        session,
        _Answers(connection.home.vault, offer.model, spec),
        width=offer.model.embedding.width,
        positions=min(offer.positions, EVALUATION_POSITIONS),
        progress=progress,
    ).embed(Texts(tokens.select(order)))
    values = values[order.argsort()]
    if offer.model.embedding.normalize:
        values = nn.functional.normalize(values, dim=1)
    return Embedded(
        values=values.numpy(),
        model=offer.model.name,
        eta=spec.privacy.eta,
        tokens=tokens.total,
        sent=sent,
        cut_texts=cut_texts,
        uplink_bytes=link.uplink_bytes,
        downlink_bytes=link.downlink_bytes,
        guarantee=session.privatizer.guarantee,
    )


class _Answers:
    """Embeddings as they came, sealed, by the release that they are of: equal releases have equal ones.

    Args:
        vault: Where they are kept.
        model: Of which model.
        spec: The settings.
    """

    def __init__(self, vault: Vault, model: ModelInfo, spec: RunSpec) -> None:
        self._vault = vault
        told = model.fingerprint, model.embedding.pooling, spec.form.value, spec.wire_type.value
        self._context = f"embedding/{'/'.join(told)}".encode()

    def names(self, identities: Sequence[bytes]) -> list[bytes]:
        """Under what the answers to releases are kept."""
        return [
            hashlib.blake2b(self._context, key=identity, digest_size=IDENTITY_BYTES).digest() for identity in identities
        ]

    def get(self, names: Sequence[bytes]) -> list[Tensor | None]:
        """The answers that are kept, `[width]` each."""
        return [
            None if body is None else torch.frombuffer(bytearray(body), dtype=torch.float32)
            for body in self._vault.get_many(names)
        ]

    def put(self, names: Sequence[bytes], values: Tensor) -> None:
        """Keeps answers `[n, width]`."""
        self._vault.put_many(
            {name: row.numpy().tobytes() for name, row in zip(names, values.float().cpu(), strict=True)}
        )


class _Asking:
    """Asks for what is not known yet, in frames of texts of about one length.

    Args:
        session: The road, with its link.
        answers: What is known.
        width: Numbers of an embedding.
        positions: Of one frame, padding included.
        progress: Where to show progress.
    """

    def __init__(self, session: Session, answers: _Answers, *, width: int, positions: int, progress: Progress) -> None:
        self._session = session
        self._answers = answers
        self._width = width
        self._positions = positions
        self._progress = progress

    @torch.no_grad()
    def embed(self, texts: Texts) -> tuple[Tensor, int]:
        """Embeddings `[n, width]` fp32 as the vendor's model makes them, and how many texts were sent."""
        values, names = torch.empty(len(texts), self._width), list[bytes]()
        first: dict[bytes, int] = {}
        for part in torch.arange(len(texts)).split(_NAMED):
            named = self._session.privatizer.named(texts.select(part).tokens, labels=None)
            own = self._answers.names(named.identities)
            for row, name, known in zip(part.tolist(), own, self._answers.get(own), strict=True):
                if known is not None:
                    values[row] = known
                elif name not in first:
                    first[name] = row
            names += own
        asked = torch.tensor(list(first.values()), dtype=torch.int64)
        lengths = self._session.segment_lengths(texts.select(asked)).sum(1) if len(asked) else asked
        for indices in padded_batches(lengths, self._positions):
            rows = asked[indices]
            values[rows] = found = self._session(texts.select(rows)).float().cpu()
            self._answers.put([names[row] for row in rows.tolist()], found)
            self._progress.update("embed", int(indices[-1]) + 1, len(asked))
        for row, name in enumerate(names):  # equal texts were asked for once
            values[row] = values[first.get(name, row)]
        return values, len(asked)
