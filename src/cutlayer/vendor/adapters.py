"""Published adapters: listed, and queried over one shared base.

A query is computed alone: mixing tenants' texts in one batch saved nothing when it was measured, and
would make a text's output depend, in its last bits, on what others asked at the same time.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import ClassVar

import torch
from sqlalchemy import func, select

from cutlayer.core import Ragged, Tokens
from cutlayer.core.files import removed
from cutlayer.models import BeamSearch, Continued, Seq2SeqTop, Top, Translated, best_texts, load_adapter, own_bytes
from cutlayer.serving.compute import Pieces, use_threads
from cutlayer.serving.refusal import Refusal
from cutlayer.vendor.catalogue import Catalogue
from cutlayer.vendor.checks import check_positions, check_room, read_growth, read_query, read_search, read_sources
from cutlayer.vendor.database import Adapter, Database
from cutlayer.vendor.passes import answered, infer, writes
from cutlayer.vendor.problems import conflict, not_found, unacceptable
from cutlayer.vendor.residents import Residents, Shelf, held_bytes
from cutlayer.vendor.settings import VendorSettings
from cutlayer.wire import Form, WireType, decode_tensors, encode_tensors, pack, routes
from cutlayer.wire.messages import AdapterInfo, AdapterList

Texts = list[list[int]]
"""Ids of each text."""


def check_count(database: Database, tenant: str, *, most: int) -> None:
    """Checks that a tenant may keep one adapter more.

    Raises:
        Refusal: It may not.
    """
    with database.session() as session:
        kept = session.scalar(select(func.count()).select_from(Adapter).where(Adapter.tenant == tenant)) or 0
    if kept >= most:
        raise Refusal(403, "quota", f"This tenant has {kept} adapters already.", remedy="Delete some of them.")


@dataclass
class LiveAdapter:
    """An adapter in memory.

    Attributes:
        info: What was published.
        part: The adapted top.
        held_bytes: Of its own tensors; the others are its model's.
        used: When it was last asked for something.
        sessions: How many generation sessions use it.
    """

    info: AdapterInfo
    part: Top | Seq2SeqTop
    held_bytes: int
    used: float = 0
    sessions: int = 0
    busy: ClassVar[bool] = False

    @property
    def pinned(self) -> bool:
        """Whether sessions use it, which keep it in memory whatever becomes of it here."""
        return self.sessions > 0

    def leave(self) -> None:
        """Nothing is to be written: it is on disk as it is."""


class Adapters:
    """All tenants' adapters.

    `infer` and `forget` run in the compute thread; the others may block anywhere.

    Args:
        settings: The vendor's settings.
        database: Where adapters are listed.
        catalogue: The models they are for.
        residents: What is in memory.
    """

    def __init__(
        self, settings: VendorSettings, database: Database, catalogue: Catalogue, residents: Residents
    ) -> None:
        self._settings = settings
        self._database = database
        self._catalogue = catalogue
        self._residents = residents
        self._live = Shelf[LiveAdapter]()
        residents.add(self._live)

    @property
    def live(self) -> int:
        """How many adapters are in memory."""
        return len(self._live)

    @property
    def held_bytes(self) -> int:
        """Bytes that they hold of it, without what they share with their models."""
        return held_bytes(self._live)

    def list(self, tenant: str) -> AdapterList:
        """A tenant's adapters, oldest first."""
        with self._database.session() as session:
            rows = session.scalars(select(Adapter).where(Adapter.tenant == tenant)).all()
        adapters = [AdapterInfo.model_validate_json(row.info) for row in rows]
        return AdapterList(adapters=tuple(sorted(adapters, key=lambda adapter: (adapter.created, adapter.adapter))))

    def info(self, tenant: str, name: str) -> AdapterInfo:
        """One adapter."""
        with self._database.session() as session:
            row = session.get(Adapter, (tenant, name))
        if row is None:
            raise not_found("adapter", name)
        return AdapterInfo.model_validate_json(row.info)

    def delete(self, tenant: str, name: str) -> None:
        """Deletes an adapter."""
        with ExitStack() as stack, self._database.session() as session:
            row = session.get(Adapter, (tenant, name))
            # Also without a row: the deletion of one may have been answered with an error, and done.
            stack.enter_context(removed(self._settings.adapter(tenant, name)))
            if row is not None:
                session.delete(row)
        if row is None:
            raise not_found("adapter", name)

    def forget(self, tenant: str, name: str) -> None:
        """Takes an adapter out of memory."""
        self._live.pop((tenant, name), None)

    def infer(self, tenant: str, name: str, body: bytes) -> Pieces[bytes]:
        """The adapted top's output for a release."""
        live = yield from self.touch(tenant, name)
        info, part = live.info, live.part
        card = self._catalogue.card(info.model)
        tensors = decode_tensors(routes.ADAPTER_INFER, body)
        payload = read_query(card, info, tensors, limit=self._settings.limits.max_rows_per_step)
        of_texts = info.cut.tail is None
        return (
            yield from answered(
                payload,
                card.template,
                self._settings,
                lambda piece: infer(part, card.templates, piece, self._catalogue.device),
                of_texts=of_texts,
                bf16=not of_texts and info.wire_type is WireType.BF16,
            )
        )

    def write(self, tenant: str, name: str, body: bytes) -> Pieces[bytes]:
        """The texts that follow those of a release, whose tokens are chosen here: ids of each, its end mark included.

        What chooses tokens is the adapted top, and the norm and head that were handed out: whoever trained these at
        home lets texts grow there.

        Raises:
            Refusal: The adapter takes no ids, or holds a tail of blocks; or a text would become too long.
        """
        live = yield from self.touch(tenant, name)
        info, part = live.info, live.part
        card, limits = self._catalogue.card(info.model), self._settings.limits
        tensors = decode_tensors(routes.ADAPTER_GENERATE, body)
        search = read_search(card, tensors["search"])
        if isinstance(part, Seq2SeqTop) and writes(info):
            prompts = read_sources(card, info, tensors, limit=limits.max_rows_per_step)
            positions = max(int(prompts.lengths.max()) + card.template.special_count(1), 1 + search.max_new_tokens)
        elif info.form is Form.IDS and info.cut.tail == 0 and isinstance(part, Top):
            prompts = read_growth(
                card, info, tensors, sequences=len(tensors["lengths"]), first=True, limit=limits.max_rows_per_step
            )
            positions = int(prompts.lengths.max()) + search.max_new_tokens
        else:
            raise unacceptable(
                "does-not-write",
                f"Adapter {name} is of cut {info.cut.slug}: texts are written here at the text cut with a tail of 0, "
                "or by an encoder-decoder that this vendor holds whole.",
                remedy="Begin a generation session, or query an adapter of that cut.",
            )
        check_room(card, positions + info.virtual_positions)
        check_positions(len(prompts) * search.num_beams, positions, limits.max_rows_per_step)
        # as many texts at a time as a piece has positions for, so that others are served between
        most = max(1, limits.positions_per_piece // (search.num_beams * positions))
        found: Texts = []
        for some in torch.arange(len(prompts)).split(most):
            use_threads(self._settings.compute_threads)
            found += self._best(info, part, prompts.select(some), search)
            yield
        return encode_tensors(
            pack(Tokens((Ragged.from_lists(found),)), vocab_size=card.info.vocab_size, wire_type=info.wire_type)
        )

    def _best(self, info: AdapterInfo, part: Top | Seq2SeqTop, prompts: Ragged, search: BeamSearch) -> Texts:
        """What is written behind prompts, or for source texts."""
        if isinstance(part, Top):
            tail = self._catalogue.tail(info.model, info.cut)
            return best_texts(Continued(part, tail, texts=len(prompts) * search.num_beams), prompts, search)
        card = self._catalogue.card(info.model)
        follow = Translated(part, card.template.assemble(Tokens((prompts,))), beams=search.num_beams)
        starts = torch.full((len(prompts),), card.targets.opening[0])
        return best_texts(follow, Ragged(starts, torch.ones_like(starts)), search)

    def touch(self, tenant: str, name: str) -> Pieces[LiveAdapter]:
        """An adapter in memory, loaded if need be. Runs in the compute thread."""
        live = self._live.get((tenant, name))
        if live is None:
            info = self.info(tenant, name)
            if self._catalogue.card(info.model).info.fingerprint != info.fingerprint:
                raise conflict(
                    "fingerprint-differs",
                    f"Adapter {name} was trained on other weights than {info.model} has now.",
                    remedy="Train it again.",
                )
            top = self._catalogue.top(info.model, info.cut)
            yield from self._residents.make_room("adapter", info.size, tenant=tenant)
            part = load_adapter(top, self._settings.adapter(tenant, name)).to(self._catalogue.device)
            live = LiveAdapter(info, part, own_bytes(part, top))
            # again: beside a head that was trained stands the one that it replaced
            yield from self._residents.make_room("adapter", live.held_bytes, tenant=tenant)
        self._residents.keep(self._live, (tenant, name), live, most=self._settings.limits.live_adapters)
        return live
