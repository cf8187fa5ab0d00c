"""Labels beside record sets, for jobs that the vendor trains alone."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from cutlayer.core.files import make_folder, write_whole
from cutlayer.vendor.database import Database, Labels, RecordSet
from cutlayer.vendor.problems import conflict, not_found, unacceptable
from cutlayer.vendor.store import RecordStore
from cutlayer.wire import decode_tensors
from cutlayer.wire.messages import RecordSetInfo, RecordSetSpec
from cutlayer.wire.routes import LABELS_PUT


class LabelStore:
    """All tenants' labels. Its methods may block, and may be called from any thread.

    Args:
        store: The record sets.
        database: Where labels are listed.
    """

    def __init__(self, store: RecordStore, database: Database) -> None:
        self._store = store
        self._database = database

    def put(self, tenant: str, name: str, body: bytes) -> RecordSetInfo:
        """Stores the labels of a set's texts beside its records, or finds them stored.

        Args:
            tenant: Whose they are.
            name: The record set.
            body: `records` `[texts]`, which record of the set holds each text, and `labels` `[texts]`.

        Raises:
            Refusal: The set takes none, or others; they are not of its records, or of no class.
        """
        digest = hashlib.sha256(body).hexdigest()
        info = self._store.info(tenant, name)
        records = _labelled_records(info.spec, body)
        with self._store.held():
            with self._database.session() as session:
                known = session.get(Labels, (tenant, name))
                row = session.get(RecordSet, (tenant, name))
            if row is None:
                raise not_found("record set", name)
            if known is not None and known.sha256 != digest:
                raise conflict(
                    "labels-differ",
                    f"Record set {name} has other labels already.",
                    remedy="Send the same bytes as before, or start a new set.",
                )
            if known is None:
                if row.sealed:
                    raise conflict(
                        "sealed", f"Record set {name} is sealed and has no labels.", remedy="Start a new set."
                    )
                self._store.check_room(tenant, len(body))
            make_folder(self._store.folder(tenant, name))
            write_whole(self._file(tenant, name), body)  # again where what was here is damaged
            with self._database.session() as session:
                session.merge(Labels(tenant=tenant, record_set=name, sha256=digest, size=len(body), records=records))
        return info

    def read(self, tenant: str, name: str) -> tuple[Tensor, Tensor | None]:
        """The record `[texts]` int64 of each text of a sealed set, counted from 0, and its label `[texts]` int64.

        Of a set without labels each record is a text of its own.

        Raises:
            Refusal: They are not there, or damaged.
        """
        info = self._store.info(tenant, name)
        if info.spec.num_labels is None:
            return torch.arange(info.records), None
        with self._database.session() as session:
            listed = session.get(Labels, (tenant, name))
        path = self._file(tenant, name)
        body = path.read_bytes() if path.exists() else b""
        if listed is None or hashlib.sha256(body).hexdigest() != listed.sha256:
            raise conflict(
                "labels-damaged",
                f"The labels of record set {name} are damaged or missing on the vendor's disk.",
                remedy="Send them again, with the same bytes.",
            )
        tensors = decode_tensors(LABELS_PUT, body)
        return tensors["records"].to(torch.int64), tensors["labels"].to(torch.int64)

    def _file(self, tenant: str, name: str) -> Path:
        return self._store.folder(tenant, name) / "labels.safetensors"


def _labelled_records(spec: RecordSetSpec, body: bytes) -> int:
    """How many records labels are of, which are checked; no message tells a label.

    Raises:
        Refusal: The set takes none; or they leave a record out, or one is of no class.
    """
    if spec.num_labels is None:
        raise conflict(
            "labels-not-expected", "This record set takes no labels.", remedy="Make one whose spec has num_labels."
        )
    tensors = decode_tensors(LABELS_PUT, body)
    records, labels = (tensors[role].numpy() for role in ("records", "labels"))
    if len(records) != len(labels) or not len(labels):
        raise unacceptable(
            "wrong-shape",
            f"There are {len(labels)} labels for {len(records)} texts.",
            remedy="Send one label for each text.",
        )
    if int(labels.max()) >= spec.num_labels:
        raise unacceptable(
            "label-out-of-range",
            f"A label is none of the {spec.num_labels} that were agreed on.",
            remedy="Number the classes from 0.",
        )
    named = np.unique(records)
    if len(named) != int(named[-1]) + 1:
        raise unacceptable(
            "wrong-records",
            f"Labels are of {len(named)} records, with numbers up to {int(named[-1])}.",
            remedy="Name each record of the set, counted from 0.",
        )
    return len(named)
