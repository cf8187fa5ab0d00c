"""Published adapters: listed, and queried over one shared base.

A query is computed alone: mixing tenants' texts in one batch saved nothing when it was measured, and
would make a text's output depend, in its last bits, on what others asked at the same time.
"""

from __future__ import annotations

from collections import OrderedDict
from contextlib import ExitStack

import torch
from sqlalchemy import select

from cutlayer.models import Seq2SeqTop, Top, load_adapter
from cutlayer.vendor.catalogue import Catalogue
from cutlayer.vendor.checks import read_pair, read_release
from cutlayer.vendor.compute import use_threads
from cutlayer.vendor.database import Adapter, Database
from cutlayer.vendor.files import removed
from cutlayer.vendor.problems import conflict, not_found
from cutlayer.vendor.seq2seq import infer
from cutlayer.vendor.settings import VendorSettings
from cutlayer.vendor.trainer import compute, prepare
from cutlayer.wire import WireType, decode_tensors, encode_tensors, routes
from cutlayer.wire.messages import AdapterInfo, AdapterList


class Adapters:
    """All tenants' adapters.

    `infer` and `forget` run in the compute thread; the others may block anywhere.

    Args:
        settings: The vendor's settings.
        database: Where adapters are listed.
        catalogue: The models they are for.
    """

    def __init__(self, settings: VendorSettings, database: Database, catalogue: Catalogue) -> None:
        self._settings = settings
        self._database = database
        self._catalogue = catalogue
        self._live: OrderedDict[tuple[str, str], tuple[AdapterInfo, Top | Seq2SeqTop]] = OrderedDict()

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

    def infer(self, tenant: str, name: str, body: bytes) -> bytes:
        """The adapted top's output for a release."""
        info, part = self.touch(tenant, name)
        use_threads(self._settings.compute_threads)
        card = self._catalogue.card(info.model)
        tensors = decode_tensors(routes.ADAPTER_INFER, body)
        limit, device = self._settings.limits.max_rows_per_step, self._catalogue.device
        with torch.no_grad():
            if isinstance(part, Seq2SeqTop):
                pair = read_pair(card, info, tensors, limit=limit)
                output = infer(part, card.template, card.targets, pair, device)
            else:
                payload = read_release(card, info, tensors, limit=limit)
                output = compute(part, card.template, prepare(payload, device), device)
        bf16 = info.cut.tail is not None and info.wire_type is WireType.BF16
        return encode_tensors({"output": output.to("cpu", torch.bfloat16 if bf16 else torch.float32)})

    def touch(self, tenant: str, name: str) -> tuple[AdapterInfo, Top | Seq2SeqTop]:
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
            part = load_adapter(self._catalogue.top(info.model, info.cut), self._settings.adapter(tenant, name))
            live = info, part.to(self._catalogue.device)
        self._live[tenant, name] = live
        self._live.move_to_end((tenant, name))
        while len(self._live) > self._settings.limits.live_adapters:
            self._live.popitem(last=False)
        return live
