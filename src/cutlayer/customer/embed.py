"""Embeddings as a service: texts leave privatized, one row for each comes back. Nothing is trained.

Ref: Split-and-Denoise, arXiv:2310.09130.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from threading import Lock

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from cutlayer.core import (
    ConfigError,
    Cut,
    CutlayerWarning,
    DataError,
    Deviation,
    Fault,
    Guarantee,
    Tokens,
)
from cutlayer.customer.ask import check_texts, frame_positions, frames_of
from cutlayer.customer.clear_words import warn_of_clear_words
from cutlayer.customer.connection import Connection
from cutlayer.customer.defaults import settle
from cutlayer.customer.denoising import Denoising, fetch_denoiser, find_denoiser, steady_thread, why_not
from cutlayer.customer.derived import Privatizing, noise_secret, run_privatizing
from cutlayer.customer.embedding import AUTO, NONE
from cutlayer.customer.embedding_link import EmbeddingLink
from cutlayer.customer.gate import Gate
from cutlayer.customer.handout import Offer, choose_model, fetch_archive
from cutlayer.customer.order import Order
from cutlayer.customer.plan import build_session
from cutlayer.customer.progress import Progress
from cutlayer.customer.session import Session, Texts
from cutlayer.customer.settings import FinetuneSpec, RunSpec
from cutlayer.customer.validate import validate
from cutlayer.data import Dataset
from cutlayer.data.tokenise import UNCUT, shortened
from cutlayer.models import Archive
from cutlayer.privacy.privatizers.words import WordsPrivatizer
from cutlayer.wire.denoisers import DenoiserGroup, DenoiserInfo

_FEWEST_ROADS, _MOST_ROADS = 4, 16
"""That are kept open. An application that asks by several etas takes turns among as many roads."""
_TABLE_BYTES = 2**30
"""Each road searches in a table of its own: of those beyond the fewest, tables may have so many bytes together."""

_MOST_WORDS = 2**18
"""Where words are drawn, a road remembers each that it met, in some 400 bytes: one that met more is opened anew."""


@dataclass(frozen=True)
class Embedded:
    """Embeddings, and what they cost.

    Attributes:
        values: `[n, width]` float32, in the order of the texts.
        model: The vendor's model.
        eta: The privacy parameter, per token; infinite without privacy.
        tokens: Content tokens of all texts, as they left.
        sent: Texts that were sent; the others had been embedded before, or are another's equal.
        cut_texts: Texts that lost their end to the model's positions, to the vendor's, or to `max_length`.
        uplink_bytes: What was sent, headers included.
        downlink_bytes: What was received.
        guarantee: What each release promises, and what not.
        replaced: How many tokens, or words, left as others; `None` where noisy rows left.
        denoiser: Its id; `None` where none was used.
        denoised_for: The etas that it is for.
        deviations: Where privatizer and denoiser differ from the papers.
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
    replaced: int | None
    denoiser: str | None
    denoised_for: tuple[float, float] | None
    deviations: tuple[Deviation, ...]


_ALL_THERE = "must be left out: for embeddings the vendor runs all blocks"


def settle_embedding(given: FinetuneSpec) -> RunSpec:
    """Settings of embeddings with nothing left open: the cut is below all blocks.

    Args:
        given: What was said: model, privacy, `max_length`, and what else a query may have.

    Raises:
        ConfigError: The cut leaves blocks or a tail to the customer; or what validate refuses.
    """
    words = given.privacy.mechanism == "words"
    cut = given.cut or Cut(bottom=None if words else 0)
    own = {"bottom": cut.bottom or None, "tail": cut.tail, "target": cut.target or None}
    if faults := [Fault(name, value, _ALL_THERE) for name, value in own.items() if value is not None]:
        raise ConfigError(faults, remedy="Leave it out, or give bottom 0.")
    if given.privacy.cti is not None:
        raise ConfigError([Fault("cti", given.privacy.cti, "needs labels, and embeddings have none")])
    training = given.training.model_copy(update={"dropout": False})  # nothing is trained
    spec = settle(given.model_copy(update={"cut": cut, "training": training}))
    validate(spec)
    return spec


@dataclass(frozen=True)
class Answered:
    """What became of texts on the road.

    Attributes:
        values: `[n, width]` fp32: their embeddings, in the order of the texts.
        tokens: The texts as far as they left, in the order in which they did.
        order: `[n]` int64: which of the texts each of these is.
        link: Its queries.
    """

    values: Tensor
    tokens: Tokens
    order: Tensor
    link: EmbeddingLink


@dataclass(frozen=True)
class Embeddings:
    """The road to a model's embeddings, as far as it is the same for all texts: it serves one call after another.

    Attributes:
        connection: The way to the vendor.
        spec: The settings.
        offer: The vendor's model and limits.
        session: The road.
        archive: What the vendor handed out.
        privatizing: How texts are read and privatized.
        gate: The door.
        denoiser: What takes the noise out, and the group of etas; `None` where nothing does.
        denoising: The same, ready to compute.
    """

    connection: Connection
    spec: RunSpec
    offer: Offer
    session: Session
    archive: Archive
    privatizing: Privatizing
    gate: Gate
    denoiser: tuple[DenoiserInfo, DenoiserGroup] | None
    denoising: Denoising | None
    _in_use: Lock = field(default_factory=Lock, repr=False, compare=False)

    @classmethod
    def open(
        cls,
        connection: Connection,
        given: FinetuneSpec,
        progress: Progress,
        *,
        denoiser: str,
        beside: Sequence[Embeddings] = (),
    ) -> Embeddings:
        """The road.

        Args:
            connection: The way to the vendor.
            given: How texts are privatized, and by which model they are embedded.
            progress: Where to show progress.
            denoiser: What takes the noise out, where there is any; as of `EmbeddingSettings`.
            beside: Roads of this connection: one to the same model has what the vendor handed out, whatever its eta.

        Raises:
            ConfigError: Settings that do not go together, or for which there is no denoiser.
        """
        spec = settle_embedding(given)
        offer = choose_model(connection.gate(), spec.model or None)
        spec = spec.model_copy(update={"model": offer.model.name})
        asked = spec.training.max_length or offer.model.require_embedding().max_length
        gate = connection.gate_of(f"embed/{offer.model.name}", spec, offer)
        archives = [each.archive for each in beside if (each.offer, each.spec.cut) == (offer, spec.cut)]
        archive = archives[0] if archives else fetch_archive(gate, connection.home, offer.model, spec.cut, progress)
        # a text that is longer than what the vendor takes at a time would be refused, when others have left
        most = [asked, archive.template.max_length, frame_positions(offer, spec)]
        training = spec.training.model_copy(update={"max_length": min(each for each in most if each is not None)})
        spec = spec.model_copy(update={"training": training})
        privatizing = run_privatizing(archive, connection.home, spec)
        session = build_session(archive, connection.home, spec, privatizing, None, connection.device)
        session.eval()
        chosen = denoising = None
        if denoiser not in (AUTO, NONE) and math.isinf(spec.privacy.eta):
            raise ConfigError(
                [Fault("denoiser", denoiser, "has nothing to take out: without privacy there is no noise")]
            )
        if denoiser != NONE and math.isfinite(spec.privacy.eta):
            space = session.privatizer.space
            chosen = find_denoiser(gate, offer, space.fingerprint, spec, denoiser)
            if not chosen[0].without_answer and (why := why_not(chosen[1])) is not None:
                remedy = "Ask the vendor for one that was trained longer, or on more text; or give denoiser none."
                warnings.warn(f"{why} {remedy}", CutlayerWarning, stacklevel=4)
            table, opening = space.require_table().float(), len(archive.template.opening)
            fetched = fetch_denoiser(gate, connection.home, table, *chosen, progress, model=offer.model.name)
            denoising = Denoising(fetched.to(session.device), table, opening, chosen[0].without_answer)
        return cls(connection, spec, offer, session, archive, privatizing, gate, chosen, denoising)

    def is_current(self, given: FinetuneSpec, denoiser: str) -> bool:
        """Whether the vendor would hand out the same model and denoiser now, and few words were met on it.

        Args:
            given: What the road was opened with.
            denoiser: As well.
        """
        words = self.session.reading.dictionary
        if words is not None and len(words.lexicon) > _MOST_WORDS:
            return False
        if choose_model(self.connection.gate(), given.model or None) != self.offer:
            return False
        if self.denoiser is None:
            return True
        table = self.session.privatizer.space.fingerprint
        return self.denoiser == find_denoiser(self.gate, self.offer, table, self.spec, denoiser)

    @property
    def longest(self) -> int:
        """Most tokens of a text, without special tokens; what stands behind them is cut off."""
        return self.archive.template.max_content(1, self.spec.training.max_length)

    def read(self, dataset: Dataset) -> Tokens:
        """Texts as they are read, none of them cut.

        Raises:
            DataError: Pairs.
        """
        if dataset.segments != 1:
            raise DataError(
                "Embeddings are of single texts.", remedy="Embed both texts of a pair, one after the other."
            )
        return self.session.reading.read(dataset, max_content=UNCUT)

    def read_all(self, dataset: Dataset) -> Tokens:
        """Texts as they are read, of which each has a token.

        It warns of texts that will be truncated, and of words that identify and will leave as they are.

        Raises:
            DataError: Pairs, or a text without a token.
        """
        whole = self.read(dataset)
        if empty := [row for row, length in enumerate(whole.segments[0].lengths.tolist(), start=1) if not length]:
            raise DataError(
                f"{len(empty)} of {len(dataset)} texts contain no tokens; the first is text {empty[0]}.",
                remedy="Leave them out.",
            )
        if cut := int((self.lengths(whole) > self.longest).sum()):
            warnings.warn(
                f"{cut} of {len(dataset)} texts are truncated to the first {self.longest} tokens.",
                CutlayerWarning,
                stacklevel=3,
            )
        kept = shortened(whole, self.longest)
        warn_of_clear_words(self.session.privatizer.clear(kept), kept.total, of="these texts")
        return whole

    def lengths(self, whole: Tokens) -> Tensor:
        """`[n]` int64: tokens that each text would leave as, were none cut, without special tokens.

        Words are more tokens, or fewer, by what they are drawn as; those that have no place whatever they become count
        one each.

        Args:
            whole: `n` texts as they were read.
        """
        read, privatizer = whole.segments[0].lengths, self.session.privatizer
        if not isinstance(privatizer, WordsPrivatizer):
            return read
        kept = shortened(whole, self.longest)
        found = privatizer.shape(kept).segments[0].lengths.clone()
        full = (found == self.longest).nonzero()[:, 0]  # which may have lost their end
        if len(full):
            found[full] = privatizer.written_lengths(kept.select(full))
        return found + read - kept.segments[0].lengths

    def ask(self, whole: Tokens, texts: Sequence[tuple[str, ...]], progress: Progress) -> Answered:
        """Has the vendor embed texts; of several threads one at a time.

        What was embedded before under the same settings is not sent again: answers are kept, sealed.

        Args:
            whole: `n` texts as they were read; those that are too long lose their end.
            texts: What their order follows from: the texts themselves.
            progress: Where to show progress.

        Raises:
            BudgetError: A text would be charged beyond the budget; none is sent.
        """
        connection, session, model = self.connection, self.session, self.offer.model
        tokens = shortened(whole, self.longest)
        check_texts(
            connection.home,
            session,
            tokens,
            budget=self.spec.privacy_budget,
            width=model.width,
            progress=progress,
        )
        # Texts of one length leave in an order that tells nothing of the file's. Other noise has another, as of
        # `run_order`: else a vendor that has two looks at them could lay them side by side.
        secret = noise_secret(connection.home, self.spec.unsafe_noise_seed)
        purpose = f"embed/{model.name}/{self.spec.privacy.identity}"
        order = torch.tensor(Order(secret, purpose).of(texts), dtype=torch.int64)
        order = order[tokens.segments[0].lengths[order].argsort(stable=True)]
        link = EmbeddingLink(self.gate, model, connection.home.vault, self.spec)
        tokens = tokens.select(order)
        with self._in_use:
            session.link = link
            values = self._embed(tokens, link, progress)
        values = values[order.argsort()]
        if model.require_embedding().normalize:
            values = nn.functional.normalize(values, dim=1)
        return Answered(values, tokens, order, link)

    @torch.no_grad()
    def _embed(self, tokens: Tokens, link: EmbeddingLink, progress: Progress) -> Tensor:
        """`[n, width]` fp32, in batches of so many positions as a frame may have, padding included.

        All texts leave before any is denoised: a denoiser's weights are the vendor's, and it is given the texts as they
        were. What it makes of one frame's could otherwise decide when the next frame leaves, or whether it does.
        """
        values = torch.empty(len(tokens), self.offer.model.require_embedding().width)
        lengths = self.session.segment_lengths(Texts(tokens)).sum(1)
        frames, left = list(frames_of(lengths, frame_positions(self.offer, self.spec))), list[Tokens | None]()
        for indices in frames:
            link.texts = indices
            values[indices] = self.session(Texts(tokens.select(indices))).float().cpu()
            left.append(link.ids)
            progress.update("embed", int(indices[-1]) + 1, len(tokens))
        if self.denoising is None:
            return values
        with steady_thread() as thread:
            for indices, ids in zip(frames, left, strict=True):
                texts = tokens.select(indices)
                # rows are drawn again, to the same bits: kept, they would be hundreds of times as large as ids
                payload = self.session.release(Texts(texts)).release.payload if ids is None else ids
                values[indices] = thread.submit(self.denoising, values[indices], texts, payload).result()
                progress.update("denoise", int(indices[-1]) + 1, len(tokens))
        return values

    def of(self, whole: Tokens, texts: Sequence[tuple[str, ...]], progress: Progress) -> Embedded:
        """Embeddings of texts, and what they cost; see `ask`.

        Args:
            whole: `n` texts as they were read; those that are too long lose their end.
            texts: What their order follows from: the texts themselves.
            progress: Where to show progress.

        Raises:
            BudgetError: A text would be charged beyond the budget; none is sent.
        """
        asked = self.ask(whole, texts, progress)
        lengths = self.lengths(whole)
        return Embedded(
            values=asked.values.numpy(),
            model=self.offer.model.name,
            eta=self.spec.privacy.eta,
            tokens=int(lengths.clamp(max=self.longest).sum()),
            sent=asked.link.sent,
            cut_texts=int((lengths > self.longest).sum()),
            uplink_bytes=asked.link.uplink_bytes,
            downlink_bytes=asked.link.downlink_bytes,
            guarantee=self.session.privatizer.guarantee,
            replaced=asked.link.replaced,
            denoiser=None if self.denoiser is None else self.denoiser[0].denoiser,
            denoised_for=None if self.denoiser is None else (self.denoiser[1].lowest, self.denoiser[1].highest),
            deviations=(
                *self.session.privatizer.deviations,
                *(() if self.denoising is None else self.denoising.deviations),
            ),
        )


class Roads:
    """Roads that were opened, the last few of them: opening one takes longer than many calls on it.

    Args:
        connection: The way to the vendor.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._open: list[tuple[FinetuneSpec, str, Embeddings]] = []
        self._lock = Lock()

    def find(self, given: FinetuneSpec, progress: Progress, *, denoiser: str) -> Embeddings:
        """The road for these settings; one whose model or denoiser the vendor has changed is opened anew.

        Args:
            given: How texts are privatized, and by which model they are embedded.
            progress: Where to show progress.
            denoiser: What takes the noise out, where there is any; as of `EmbeddingSettings`.

        Raises:
            ConfigError: Settings that do not go together, or for which there is no denoiser.
        """
        with self._lock:
            asked = given, denoiser
            kept = [each for each in self._open if each[:2] == asked and each[2].is_current(*asked)]
            others = [each for each in self._open if each[:2] != asked]
            if kept:
                road = kept[0][2]
            else:
                beside = [each[2] for each in others]
                road = Embeddings.open(self._connection, given, progress, denoiser=denoiser, beside=beside)
            table = road.archive.table
            fitting = _MOST_ROADS if table is None else _TABLE_BYTES // table.nbytes
            self._open = [*others, (*asked, road)][-min(max(fitting, _FEWEST_ROADS), _MOST_ROADS) :]
            return road


def embed(road: Embeddings, dataset: Dataset, progress: Progress) -> Embedded:
    """Embeddings of texts by the vendor's frozen model.

    Args:
        road: The road.
        dataset: Texts.
        progress: Where to show progress.

    Raises:
        DataError: Pairs, or a text without a token.
        BudgetError: A text would be charged beyond the budget; none is sent.
    """
    return road.of(road.read_all(dataset), dataset.texts, progress)
