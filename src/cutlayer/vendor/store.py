"""The record store: what customers released once, on disk.

A record set is a row of immutable shards. A shard is one frame's safetensors block exactly as it
arrived; it is written beside its place, checked, and renamed, so a file under a shard's name is
whole. Reading maps shards into memory, so sets may be larger than RAM. A mapped file that shrinks
would kill the process (SIGBUS): shards are never changed in place, and a file whose size is not the
one written down is not mapped but asked for again.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import tempfile
import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from sqlalchemy import delete, func, select
from torch import Tensor

from cutlayer.core.files import TEMPORARY, bytes_below, make_folder, removed, sync_folder
from cutlayer.serving.refusal import Refusal
from cutlayer.vendor.catalogue import Catalogue, ModelCard
from cutlayer.vendor.checks import (
    check_ids,
    check_lengths,
    check_preceding,
    check_preceding_shapes,
    check_shapes,
    check_stored_rows,
)
from cutlayer.vendor.database import Adapter, Database, Labels, RecordSet, Shard
from cutlayer.vendor.database import Job as JobRow
from cutlayer.vendor.earlier import read_job_spec
from cutlayer.vendor.problems import conflict, not_found, unacceptable
from cutlayer.vendor.records import MappedShard, Records
from cutlayer.vendor.settings import VendorSettings
from cutlayer.wire import Form, FrameError, read_header
from cutlayer.wire.header import MAX_HEADER_BYTES, check_roles
from cutlayer.wire.messages import JobSpec, RecordSetInfo, RecordSetSpec, SealRequest, ShardInfo
from cutlayer.wire.routes import SHARD_PUT

HEAD_BYTES = 8 + MAX_HEADER_BYTES
"""First bytes of a block that hold its whole header."""


class RecordStore:
    """All tenants' record sets. Its methods may block, and may be called from any thread.

    Args:
        settings: The vendor's settings.
        database: Where sets and shards are listed.
        catalogue: The models they are made for.
    """

    def __init__(self, settings: VendorSettings, database: Database, catalogue: Catalogue) -> None:
        self._settings = settings
        self._database = database
        self._catalogue = catalogue
        self._lock = threading.RLock()
        # Weakly: an upload whose request is cut short before it begins is only forgotten.
        self._arriving: weakref.WeakSet[Upload] = weakref.WeakSet()
        self._verified: set[tuple[Path, int, int]] = set()

    def put(self, tenant: str, name: str, spec: RecordSetSpec) -> RecordSetInfo:
        """Opens a record set, or finds it open."""
        self._catalogue.card(spec.model).check(spec.cut, spec.form)
        with self._lock, self._database.session() as session:
            row = session.get(RecordSet, (tenant, name))
            if row is None:
                kept = session.scalar(select(func.count()).select_from(RecordSet).where(RecordSet.tenant == tenant))
                if (kept or 0) >= self._settings.limits.record_sets_per_tenant:
                    raise Refusal(
                        403, "quota", f"This tenant has {kept} record sets already.", remedy="Delete some of them."
                    )
                session.add(RecordSet(tenant=tenant, id=name, spec=spec.model_dump_json(), sealed=False))
            elif RecordSetSpec.model_validate_json(row.spec) != spec:
                raise conflict(
                    "spec-differs", f"Record set {name} is there with another spec.", remedy="Choose a new identifier."
                )
        return self.info(tenant, name)

    def info(self, tenant: str, name: str) -> RecordSetInfo:
        """A record set with the shards that are whole; what is missing can be sent again."""
        with self._database.session() as session:
            row = session.get(RecordSet, (tenant, name))
            if row is None:
                raise not_found("record set", name)
            listed = session.scalars(
                select(Shard).where(Shard.tenant == tenant, Shard.record_set == name).order_by(Shard.number)
            ).all()
        shards = tuple(
            ShardInfo(number=shard.number, sha256=shard.sha256, size=shard.size, records=shard.records)
            for shard in listed
            if _size(self._file(tenant, name, shard.number)) == shard.size
        )
        return RecordSetInfo(
            record_set=name,
            spec=RecordSetSpec.model_validate_json(row.spec),
            shards=shards,
            sealed=row.sealed,
            records=sum(shard.records for shard in listed),
        )

    def delete(self, tenant: str, name: str) -> None:
        """Deletes a record set that no unfinished job uses."""
        with ExitStack() as stack, self._lock, self._database.session() as session:
            row = session.get(RecordSet, (tenant, name))
            for job in session.scalars(select(JobRow).where(JobRow.tenant == tenant, JobRow.final.is_(None))):
                if row is not None and name in read_job_spec(job.spec).record_sets:
                    raise conflict(
                        "in-use", f"Job {job.id} uses record set {name}.", remedy="Finish or delete the job first."
                    )
            # Also without a row: the deletion of one may have been answered with an error, and done.
            stack.enter_context(removed(self.folder(tenant, name)))
            session.execute(delete(Shard).where(Shard.tenant == tenant, Shard.record_set == name))
            session.execute(delete(Labels).where(Labels.tenant == tenant, Labels.record_set == name))
            session.execute(delete(RecordSet).where(RecordSet.tenant == tenant, RecordSet.id == name))
        if row is None:
            raise not_found("record set", name)

    def seal(self, tenant: str, name: str, request: SealRequest) -> RecordSetInfo:
        """Closes a record set, if it holds exactly what the customer says."""
        with self._lock:  # from the count to the seal, so that no shard comes in between
            info = self.info(tenant, name)
            numbers = {shard.number for shard in info.shards}
            records = sum(shard.records for shard in info.shards)
            # Lazily: the number of shards is whatever the request says.
            missing = list(islice((number for number in range(request.shards) if number not in numbers), 20))
            if missing or (len(numbers), records) != (request.shards, request.records):
                raise conflict(
                    "not-complete",
                    f"Record set {name} holds {len(numbers)} shards with {records} records, "
                    f"not {request.shards} with {request.records}; missing: {missing or 'none'}.",
                    remedy="Send the missing shards, or start a new set.",
                )
            with self._database.session() as session:
                labels = session.get(Labels, (tenant, name))
                if info.spec.num_labels is not None and (labels is None or labels.records != records):
                    raise conflict(
                        "labels-missing",
                        f"Labels of {0 if labels is None else labels.records} records of record set {name} are here; "
                        f"it holds {records}, and num_labels says that each has one.",
                        remedy="Send the labels before sealing.",
                    )
                session.get_one(RecordSet, (tenant, name)).sealed = True
        return info.model_copy(update={"sealed": True})

    def stored_bytes(self, tenant: str) -> int:
        """Bytes of shards, jobs and adapters that a tenant keeps, uploads in progress included."""
        with self._database.session() as session:
            sums = [
                session.scalar(select(func.sum(table.size)).where(table.tenant == tenant)) or 0
                for table in (Shard, Labels, Adapter)
            ]
        jobs = bytes_below(self._settings.tenant(tenant) / "jobs")  # a few files each, so counting them is cheap
        with self._lock:
            arriving = sum(upload.size for upload in self._arriving if upload.tenant == tenant)
        return int(sum(sums)) + jobs + arriving

    def check_quota(self, tenant: str, size: int) -> None:
        """Checks that a tenant may keep so many bytes more.

        Raises:
            Refusal: It may not.
        """
        limit = self._settings.limits.stored_bytes_per_tenant
        kept = self.stored_bytes(tenant)
        if kept + size > limit:
            raise Refusal(
                403,
                "quota",
                f"{size} more bytes would exceed this tenant's quota: {kept} of {limit} used.",
                remedy="Delete record sets, jobs or adapters, or ask the vendor for more.",
            )

    def check_room(self, tenant: str, size: int) -> None:
        """Checks that a tenant may keep so many bytes more, and that there is room on disk for them.

        Raises:
            Refusal: It may not, or there is none.
        """
        self.check_quota(tenant, size)
        self.check_disk(size, reserve=self._settings.limits.reserve_bytes)

    def check_disk(self, size: int, *, reserve: int) -> None:
        """Checks that there is room on disk for so many bytes more, beside uploads in progress.

        Args:
            size: How many.
            reserve: Bytes that must stay free.

        Raises:
            Refusal: There is none.
        """
        with self._lock:
            arriving = sum(upload.size for upload in self._arriving)
        if shutil.disk_usage(self._settings.data_dir).free < size + reserve + arriving:
            raise Refusal(
                507,
                "disk-full",
                f"The vendor has no room for {size} more bytes; nothing was lost.",
                remedy="Try again later, or ask the vendor to make room.",
            )

    # ------------------------------------------------------------ uploads

    def receive(self, tenant: str, name: str, number: int, *, size: int, sha256: str) -> Upload | ShardInfo:
        """Prepares for a shard.

        Args:
            tenant: Whose it is.
            name: The record set.
            number: The shard's number.
            size: Its announced length in bytes.
            sha256: Its announced digest.

        Returns:
            Where to write it, or what is known of it if it is here already.

        Raises:
            Refusal: The set is sealed, the shard differs from the one that is here, or there is no
                room for it.
        """
        with self._lock:  # from the check of room to its reservation, so that uploads at once do not all find the same
            with self._database.session() as session:
                row = session.get(RecordSet, (tenant, name))
                known = session.get(Shard, (tenant, name, number))
            if row is None:
                raise not_found("record set", name)
            if known is not None and known.sha256 != sha256:
                raise conflict(
                    "shard-differs",
                    f"Shard {number} of record set {name} is here with other bytes (sha256 {known.sha256}).",
                    remedy="Send the same bytes as before, or start a new set.",
                )
            if known is not None and _size(self._file(tenant, name, number)) == known.size:
                return ShardInfo(number=number, sha256=sha256, size=known.size, records=known.records)
            if known is None:
                _check_open(row, number)
                self.check_quota(tenant, size)
            self.check_disk(size, reserve=self._settings.limits.reserve_bytes)
            upload = Upload(self, tenant, name, number, size=size, sha256=sha256, spec=row.spec)
            self._arriving.add(upload)
        return upload

    def _accept(self, upload: Upload, temporary: Path, records: int) -> ShardInfo:
        """Gives a checked upload its name and lists it."""
        tenant, name, number = upload.tenant, upload.name, upload.number
        info = ShardInfo(number=number, sha256=upload.sha256, size=upload.size, records=records)
        with self._lock, self._database.session() as session:
            row = session.get(RecordSet, (tenant, name))
            if row is None:
                raise not_found("record set", name)
            known = session.get(Shard, (tenant, name, number))
            if known is None:
                _check_open(row, number)
            elif known.sha256 != upload.sha256:
                raise conflict(
                    "shard-differs",
                    f"Shard {number} of record set {name} arrived twice, with different bytes.",
                    remedy="Start a new set.",
                )
            os.replace(temporary, self._file(tenant, name, number))
            sync_folder(self.folder(tenant, name))
            if known is None:
                session.add(
                    Shard(
                        tenant=tenant,
                        record_set=name,
                        number=number,
                        sha256=upload.sha256,
                        size=upload.size,
                        records=records,
                    )
                )
        return info

    # ------------------------------------------------------------ reading

    def is_sealed(self, tenant: str, spec: JobSpec) -> bool:
        """Whether all record sets of a job are there and sealed; nothing of them is opened.

        Raises:
            Refusal: One that is there was made for another kind of job.
        """
        with self._database.session() as session:
            rows = [session.get(RecordSet, (tenant, name)) for name in spec.record_sets]
        for row in rows:
            if row is not None:
                _check_fits(row.id, RecordSetSpec.model_validate_json(row.spec), spec)
        return all(row is not None and row.sealed for row in rows)

    def open(self, tenant: str, names: Sequence[str], card: ModelCard, spec: JobSpec) -> Records:
        """The records of sealed sets that fit a job, numbered through in order.

        Raises:
            Refusal: A set is not there, not sealed, of another kind, or damaged.
        """
        files = []
        for name in names:
            info = self.info(tenant, name)
            _check_fits(name, info.spec, spec)
            if not info.sealed:
                raise conflict("not-sealed", f"Record set {name} is not sealed.", remedy="Seal it first.")
            whole = {shard.number for shard in info.shards}
            with self._database.session() as session:
                listed = session.scalars(
                    select(Shard).where(Shard.tenant == tenant, Shard.record_set == name).order_by(Shard.number)
                ).all()
            for shard in listed:
                path = self._file(tenant, name, shard.number)
                damaged = shard.number not in whole
                if not damaged and self._settings.verify_shards and not self._verify(path, shard.sha256):
                    path.unlink()  # so that it is listed as missing, and can be sent again
                    damaged = True
                if damaged:
                    raise conflict(
                        "shard-damaged",
                        f"Shard {shard.number} of record set {name} is damaged or missing on the vendor's disk.",
                        remedy="Send the shards that the record set no longer lists, with the same bytes, and go on.",
                    )
                files.append(path)
        return Records([MappedShard.open(path) for path in files], card, spec)

    def read_ahead(self, tenant: str, names: Sequence[str]) -> None:
        """Reads sealed sets through, so that `open` need not: it is for the compute thread, and reading takes long.

        What is damaged is left for `open` to say.
        """
        with self._database.session() as session:
            listed = session.scalars(select(Shard).where(Shard.tenant == tenant, Shard.record_set.in_(names))).all()
        for shard in listed if self._settings.verify_shards else ():
            with contextlib.suppress(OSError):
                self._verify(self._file(tenant, shard.record_set, shard.number), shard.sha256)

    def _verify(self, path: Path, sha256: str) -> bool:
        """Whether a shard is what arrived; read through once per process, as bits rot without a sound."""
        status = path.stat()
        key = path, status.st_ino, status.st_mtime_ns
        if key not in self._verified and _digest(path) == sha256:
            self._verified.add(key)
        return key in self._verified

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Keeps sets as they are while a block looks at one and adds to it."""
        with self._lock:
            yield

    def folder(self, tenant: str, name: str) -> Path:
        """Where a set's files are."""
        return self._settings.tenant(tenant) / "record-sets" / name

    def _file(self, tenant: str, name: str, number: int) -> Path:
        return self.folder(tenant, name) / f"{number:08d}.safetensors"


class Upload:
    """One shard on its way in: checked as it arrives, kept only if it is whole.

    Use as a context manager; without `finish`, nothing of it stays. Room is reserved for it as long as
    there is one.
    """

    def __init__(
        self, store: RecordStore, tenant: str, name: str, number: int, *, size: int, sha256: str, spec: str
    ) -> None:
        self.tenant = tenant
        self.name = name
        self.number = number
        self.size = size
        self.sha256 = sha256
        self._store = store
        self._spec = RecordSetSpec.model_validate_json(spec)
        self._card = store._catalogue.card(self._spec.model)
        self._hash = hashlib.sha256()
        self._written = 0

    def __enter__(self) -> Upload:
        folder = self._store.folder(self.tenant, self.name)
        make_folder(folder)
        handle, path = tempfile.mkstemp(dir=folder, prefix=f"{TEMPORARY}{self.number:08d}.")
        self._file = os.fdopen(handle, "wb", buffering=0)
        self._path = Path(path)
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        self._path.unlink(missing_ok=True)
        with self._store._lock:
            self._store._arriving.discard(self)

    def check_head(self, head: bytes) -> None:
        """Checks the first bytes before anything is written.

        Args:
            head: The first `HEAD_BYTES` of the body, or all of a shorter one.
        """
        header = read_header(head, total=self.size)
        check_roles(SHARD_PUT, header)
        check_shapes(self._card, self._spec, header)
        check_preceding_shapes(self._spec, header)
        records, limit = header["lengths"][1][0], self._store._settings.limits.max_records_per_shard
        if records > limit:
            raise unacceptable(
                "too-many-records",
                f"The shard holds {records} texts; this vendor takes {limit} in one.",
                remedy="Send them as several shards.",
            )

    def write(self, chunk: bytes) -> None:
        """Takes the next bytes."""
        self._hash.update(chunk)
        view = memoryview(chunk)
        while view:
            view = view[self._file.write(view) :]
        self._written += len(chunk)

    def finish(self) -> ShardInfo:
        """Checks what arrived and keeps it.

        Raises:
            Refusal: The bytes are not those announced, or no release of the set's kind.
        """
        if self._written != self.size or self._hash.hexdigest() != self.sha256:
            raise unacceptable(
                "checksum-mismatch",
                f"{self._written} bytes with sha256 {self._hash.hexdigest()} arrived; "
                f"{self.size} bytes with sha256 {self.sha256} were announced.",
                remedy="Send the shard again.",
            )
        os.fsync(self._file.fileno())
        try:
            shard = MappedShard.open(self._path)
        except SafetensorError as error:
            raise FrameError("The body is no safetensors block.") from error
        values = shard.values.numpy() if self._spec.form is Form.IDS else _bits(shard.values)
        check_lengths(self._card, self._spec, shard.lengths, len(shard.values))
        if shard.preceding is not None:
            check_preceding(self._spec, *shard.preceding, shard.lengths)
        if self._spec.form is Form.IDS:
            check_ids(self._card, values)
        else:
            check_stored_rows(values, self._spec.wire_type)
        return self._store._accept(self, self._path, len(shard))


def _check_open(row: RecordSet, number: int) -> None:
    if row.sealed:
        raise conflict("sealed", f"Record set {row.id} is sealed and has no shard {number}.", remedy="Start a new set.")


def _check_fits(name: str, made: RecordSetSpec, spec: JobSpec) -> None:
    labels = None if spec.loop is None else spec.num_labels
    fits = (spec.model, spec.cut, spec.form, spec.segments, spec.wire_type, labels)
    task = spec.reconstruction
    words = {(0, 1)} | (set() if task is None else {(task.plain_tokens, len(task.words))})
    same = fits == (made.model, made.cut, made.form, made.segments, made.wire_type, made.num_labels)
    if not same or (made.plain_tokens, made.plain_sequences) not in words:
        raise unacceptable(
            "records-do-not-fit",
            f"Record set {name} was made for another model, cut or form than the job, for other plain words or labels.",
            remedy="Name a record set that was made for this job's spec.",
        )


def _bits(values: Tensor) -> NDArray[np.integer]:
    kind = torch.int16 if values.dtype is torch.bfloat16 else torch.int32
    bits: NDArray[np.integer] = values.view(kind).numpy().reshape(-1)
    return bits


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return -1


def _digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
