"""All tenants' jobs: made, resumed when they are touched, published as adapters."""

from __future__ import annotations

import hashlib
from contextlib import ExitStack, suppress
from pathlib import Path
from weakref import WeakKeyDictionary

import torch
from sqlalchemy import func, select

from cutlayer.core import StorageError
from cutlayer.core.files import bytes_below, remove_folder, removed, whole_folder
from cutlayer.models import save_adapter, weights_file
from cutlayer.serving.compute import Pieces, memory, use_threads
from cutlayer.serving.refusal import Refusal
from cutlayer.vendor.adapters import check_count
from cutlayer.vendor.admission import Admission
from cutlayer.vendor.catalogue import Catalogue
from cutlayer.vendor.database import Adapter, Database, Job, now
from cutlayer.vendor.earlier import read_job_info, read_job_spec
from cutlayer.vendor.job import LiveJob, Room
from cutlayer.vendor.journal import roll_back
from cutlayer.vendor.labels import LabelStore
from cutlayer.vendor.log import UPDATE
from cutlayer.vendor.loop import Examples, Loop, told
from cutlayer.vendor.problems import conflict, not_found
from cutlayer.vendor.residents import Residents, Shelf, held_bytes
from cutlayer.vendor.settings import VendorSettings
from cutlayer.vendor.shares import Holding, first_to_leave
from cutlayer.vendor.standing import Standing, StoredJob, standing_on_disk
from cutlayer.vendor.store import RecordStore
from cutlayer.vendor.trainer import job_bytes
from cutlayer.wire.messages import AdapterInfo, JobInfo, JobSpec, JobState


class Jobs:
    """All tenants' jobs, in the compute thread, so that a job's life is one line of events.

    What says that it may be called from any thread looks at what is there, and may block.

    Jobs in memory are a cache of what is on disk: any that is not busy may be dropped at any time.

    Args:
        settings: The vendor's settings.
        database: Where jobs and adapters are listed.
        catalogue: The models.
        store: The record sets.
        residents: What is in memory.

    Attributes:
        labels: Labels beside the record sets.
    """

    def __init__(
        self,
        settings: VendorSettings,
        database: Database,
        catalogue: Catalogue,
        store: RecordStore,
        residents: Residents,
    ) -> None:
        self._settings = settings
        self._database = database
        self._catalogue = catalogue
        self._store = store
        self.labels = LabelStore(store, database)
        self._admission = Admission(settings.limits, catalogue, store, residents)
        # By default half of it: models, adapters, requests and the backward pass take their share of the rest.
        self._graph_limit = settings.limits.max_graph_bytes or memory(catalogue.device) // 2
        self._residents = residents
        self._live = Shelf[LiveJob]()
        self._loops = WeakKeyDictionary[LiveJob, Loop]()  # they leave memory with their jobs
        residents.add(self._live)
        self._remove_finished()

    @property
    def live(self) -> int:
        """How many jobs are in memory."""
        return len(self._live)

    def is_live(self, tenant: str, name: str) -> bool:
        """Whether a job is in memory. May be called from any thread."""
        return (tenant, name) in self._live

    @property
    def held_bytes(self) -> int:
        """Bytes that they hold of it between frames, the steps that wait left out."""
        return held_bytes(self._live)

    @property
    def graph_bytes(self) -> int:
        """About how many bytes the steps take that wait for their gradients."""
        return sum(live.graph_bytes for live in list(self._live.values()))

    def put(self, tenant: str, name: str, spec: JobSpec) -> Pieces[JobInfo]:
        """Starts a job, or finds it started.

        A job may be put before its record sets are there and sealed, so that a customer hears a
        refusal before any text is released. It is opened when it is touched after that.
        """
        row = self._row(tenant, name)
        if row is None:
            self._admission.check(spec)
            job = StoredJob(name, spec, self._settings.compute_threads, self._folder(tenant, name))
            with self._database.session() as session:
                unfinished = select(func.count()).select_from(Job).where(Job.tenant == tenant, Job.final.is_(None))
                running = session.scalar(unfinished) or 0
            if running >= self._settings.limits.jobs_per_tenant:
                raise Refusal(
                    403,
                    "quota",
                    f"This tenant has {running} unfinished jobs already.",
                    remedy="Finish or delete some of them.",
                )
            if spec.loop is not None:  # nobody is there when its adapter finds no place
                check_count(self._database, tenant, most=self._settings.limits.adapters_per_tenant)
            self._admission.check_size(tenant, spec, graph_limit=self._graph_limit)
            remove_folder(job.folder)
            live = None
            if self._store.is_sealed(tenant, spec):
                live = yield from self._open(tenant, job)
            try:
                with self._database.session() as session:
                    session.add(Job(tenant=tenant, id=name, spec=spec.model_dump_json(), threads=job.threads))
            except BaseException:
                self._drop(tenant, name)
                raise
            return told(job, Standing()) if live is None else told(job, live.standing)
        if self._stored(row).spec != spec:
            raise conflict("spec-differs", f"Job {name} is there with another spec.", remedy="Choose a new identifier.")
        info = self.info(tenant, name)
        return info if info is not None else (yield from self.resume(tenant, name))

    def info(self, tenant: str, name: str) -> JobInfo | None:
        """Where a job stands; `None` where only `resume` tells. May be called from any thread."""
        row = self._existing(tenant, name)
        if row.final is not None:
            return read_job_info(row.final)
        job = self._stored(row)
        live = self._live.get((tenant, name))
        standing = None if live is None else live.standing
        if standing is None:
            self._admission.check_weights(job.spec)
            if not job.was_opened:
                self._store.is_sealed(tenant, job.spec)  # refuses sets that were made for another kind of job
                return told(job, Standing())
            standing = standing_on_disk(job.folder, job.spec, self._catalogue.card(job.spec.model))
        return None if standing is None else told(job, standing)

    def read_ahead(self, tenant: str, name: str) -> None:
        """Reads a job's records through before it is brought back into memory. May be called from any thread."""
        row = self._row(tenant, name)
        if row is not None and row.final is None:
            self._store.read_ahead(tenant, read_job_spec(row.spec).record_sets)

    def resume(self, tenant: str, name: str) -> Pieces[JobInfo]:
        """Where a job stands, brought back into memory."""
        live = yield from self._touch(tenant, name)
        return told(live.stored, live.standing)

    def delete(self, tenant: str, name: str) -> None:
        """Deletes a job; what it published stays. May be called from any thread; `forget` is to follow."""
        with ExitStack() as stack, self._database.session() as session:
            row = session.get(Job, (tenant, name))
            # Also without a row: the deletion of one may have been answered with an error, and done.
            stack.enter_context(removed(self._folder(tenant, name)))
            if session.get(Adapter, (tenant, name)) is None:
                # A death in `finish` leaves an adapter that was never published.
                stack.enter_context(removed(self._settings.adapter(tenant, name)))
            if row is not None:
                session.delete(row)
        if row is None:
            raise not_found("job", name)

    def forget(self, tenant: str, name: str) -> None:
        """Takes a deleted job out of memory, and removes what it wrote while it was deleted."""
        with self._database.session() as session:
            row, adapter = session.get(Job, (tenant, name)), session.get(Adapter, (tenant, name))
        if row is None:
            self._drop(tenant, name)
            remove_folder(self._folder(tenant, name))
            if adapter is None:
                remove_folder(self._settings.adapter(tenant, name))

    def accept(self, tenant: str, name: str, kind: int, step: int, body: bytes) -> Pieces[bytes]:
        """Takes a frame of a step; see `LiveJob.accept`."""
        live = yield from self._touch_theirs(tenant, name)
        try:
            return (yield from live.accept(kind, step, body))
        finally:
            if live.broken:
                self._drop(tenant, name)
            else:
                self._residents.settle(tenant, live)

    def update(self, tenant: str, name: str, step: int, body: bytes) -> Pieces[JobInfo]:
        """Takes the update that waits for what the customer tells of its own gradients."""
        yield from self.accept(tenant, name, UPDATE, step, body)
        return (yield from self._touch(tenant, name)).info

    def kept_output(self, tenant: str, name: str, step: int) -> bytes | None:
        """The output of the last step again, of a job in memory. May be called from any thread."""
        live = self._live.get((tenant, name))
        # One that was deleted stays in memory until `forget`.
        return None if live is None or self._row(tenant, name) is None else live.kept_output(step)

    def output(self, tenant: str, name: str, step: int) -> Pieces[bytes]:
        """The output of the last step again."""
        return (yield from self._touch(tenant, name)).output(step)

    def infer(self, tenant: str, name: str, body: bytes) -> Pieces[bytes]:
        """A job's output in evaluation mode."""
        live = yield from self._touch_theirs(tenant, name)
        return (yield from live.infer(body))

    def snapshot(self, tenant: str, name: str, step: int) -> Pieces[JobInfo]:
        """Keeps the adapter as it is after `step` gradients, to be published later."""
        live = yield from self._touch_theirs(tenant, name)
        kept = live.info.snapshots
        if step not in kept:
            limit = self._settings.limits.snapshots_per_job
            if len(kept) >= limit:
                raise Refusal(
                    403,
                    "quota",
                    f"Job {name} has {len(kept)} snapshots already; it may keep {limit}.",
                    remedy="Finish the job at one of them, or roll it back to before some of them.",
                )
            self._store.check_room(tenant, live.adapter_bytes)
        live.snapshot(step)
        return live.info

    def rollback(self, tenant: str, name: str, step: int) -> Pieces[JobInfo]:
        """Takes a job back to a checkpoint."""
        job = self._stored(self._unfinished(tenant, name))
        _check_theirs(job)
        if not job.was_opened:
            yield from self._touch(tenant, name)  # refused without its record sets, and leaves no folder then
        self._drop(tenant, name)
        roll_back(job, step)
        return (yield from self._touch(tenant, name)).info

    def finish(self, tenant: str, name: str, step: int) -> Pieces[AdapterInfo]:
        """Publishes the adapter after `step` gradients and ends the job."""
        if self._existing(tenant, name).final is not None:
            return self._published(tenant, name, step)
        return self._publish(tenant, name, (yield from self._touch_theirs(tenant, name)), step)

    def _publish(self, tenant: str, name: str, live: LiveJob, step: int) -> AdapterInfo:
        trainer = live.trainer_at(step)
        spec = live.spec
        folder = self._settings.adapter(tenant, name)
        check_count(self._database, tenant, most=self._settings.limits.adapters_per_tenant)
        # The job's own files go when the adapter is there: where that makes room, a quota is no reason to refuse.
        growth = live.adapter_bytes - bytes_below(self._folder(tenant, name))
        if growth > 0:
            self._store.check_quota(tenant, growth)
        self._store.check_disk(live.adapter_bytes, reserve=0)
        with whole_folder(folder) as temporary:
            notes = {"cut": spec.cut.model_dump(), "fingerprint": spec.fingerprint, "model": spec.model, "step": step}
            save_adapter(trainer.part, temporary, notes)
        content = weights_file(folder).read_bytes()
        adapter = AdapterInfo(
            adapter=name,
            model=spec.model,
            fingerprint=spec.fingerprint,
            cut=spec.cut,
            form=spec.form,
            wire_type=spec.wire_type,
            segments=spec.segments,
            num_labels=spec.num_labels,
            virtual_positions=spec.virtual_positions,
            step=step,
            sha256=hashlib.sha256(content).hexdigest(),
            size=len(content),
            created=now(),
        )
        final = told(live.stored, live.standing, JobState.FINISHED)
        with self._database.session() as session:
            size = sum(file.stat().st_size for file in folder.iterdir())
            session.merge(Adapter(tenant=tenant, id=name, info=adapter.model_dump_json(), size=size))
            row = session.get(Job, (tenant, name))
            if row is None:
                raise not_found("job", name)  # it was deleted meanwhile; `forget` removes the adapter
            row.final = final.model_dump_json()
        self._drop(tenant, name)
        remove_folder(self._folder(tenant, name))
        return adapter

    # ------------------------------------------------------------ jobs that the vendor trains alone

    def is_ready(self, tenant: str, spec: JobSpec) -> bool:
        """Whether all that a job learns from is there. May be called from any thread."""
        return self._store.is_sealed(tenant, spec)

    def advance(self, tenant: str, name: str) -> Pieces[bool]:
        """Takes a step of a job that the vendor trains alone, or publishes its best adapter when training is over.

        Returns:
            Whether there is more to do.
        """
        row = self._row(tenant, name)
        if row is None or row.final is not None:
            return False  # it was deleted or cancelled meanwhile
        live = yield from self._touch(tenant, name)
        loop = self._loop(tenant, live)
        if loop.is_over:
            self._publish(tenant, name, live, loop.best_step)
            return False
        try:
            yield from loop.advance(live)
        finally:
            if live.broken:
                self._drop(tenant, name)
            else:
                self._residents.settle(tenant, live)
        return True

    def fail(self, tenant: str, name: str, problem: str) -> None:
        """Ends a job that cannot go on, if it is not over already."""
        row = self._row(tenant, name)
        if row is not None and row.final is None:
            self._end(tenant, name, JobState.FAILED, problem=problem)

    def cancel(self, tenant: str, name: str) -> JobInfo:
        """Ends a job without an adapter; one that was cancelled already stays so.

        Raises:
            Refusal: There is no such job, or it is over in another way.
        """
        row = self._existing(tenant, name)
        if row.final is None:
            return self._end(tenant, name, JobState.CANCELLED)
        final = read_job_info(row.final)
        if final.state is not JobState.CANCELLED:
            raise conflict(final.state, f"Job {name} is {final.state}.", remedy="Delete it instead.")
        return final

    def _end(self, tenant: str, name: str, state: JobState, *, problem: str | None = None) -> JobInfo:
        live = self._live.get((tenant, name))
        with self._database.session() as session:
            row = session.get(Job, (tenant, name))
            if row is None:
                raise not_found("job", name)
            job = self._stored(row)
            standing = None if live is None else live.standing
            if standing is None and job.was_opened:
                with suppress(Refusal):  # its model may be gone
                    standing = standing_on_disk(job.folder, job.spec, self._catalogue.card(job.spec.model))
            final = told(job, standing, state, problem)
            row.final = final.model_dump_json()
        self._drop(tenant, name)
        remove_folder(job.folder)
        return final

    def _loop(self, tenant: str, live: LiveJob) -> Loop:
        """The loop of a job in memory, made when it is first asked for."""
        if live not in self._loops:
            sets, records = [], live.stored_records
            first = 0
            for name in live.spec.record_sets:
                of, labels = self.labels.read(tenant, name)
                sets.append(Examples(of + first, labels, torch.from_numpy(records.lengths)[of + first]))
                first += int(of.max()) + 1
            train, dev = sets
            self._loops[live] = Loop(live.stored, train, dev, positions=self._settings.limits.max_rows_per_step)
        return self._loops[live]

    def _remove_finished(self) -> None:
        """Removes what finished jobs kept to go on with: `finish` may have died before it did."""
        with self._database.session() as session:
            finished = session.execute(select(Job.tenant, Job.id).where(Job.final.is_not(None))).all()
        for tenant, name in finished:
            remove_folder(self._folder(tenant, name))

    def close(self) -> None:
        """Writes all jobs in memory to disk."""
        while self._live:
            self._live.popitem()[1].leave()

    def _published(self, tenant: str, name: str, step: int) -> AdapterInfo:
        with self._database.session() as session:
            row = session.get(Adapter, (tenant, name))
        if row is None:
            raise not_found("adapter", name)
        info = AdapterInfo.model_validate_json(row.info)
        if info.step != step:
            raise conflict(
                "finished",
                f"Job {name} was finished at step {info.step}, not {step}.",
                remedy="Use the adapter that it published.",
            )
        return info

    # ------------------------------------------------------------ memory

    def _touch(self, tenant: str, name: str) -> Pieces[LiveJob]:
        """A job in memory, resumed if need be, with its own number of threads set."""
        live = self._live.get((tenant, name))
        if live is None:
            job = self._stored(self._unfinished(tenant, name))
            self._admission.check_weights(job.spec)
            live = yield from self._open(tenant, job)
        self._keep(tenant, name, live)
        use_threads(live.threads)
        return live

    def _touch_theirs(self, tenant: str, name: str) -> Pieces[LiveJob]:
        """A job in memory whose steps the customer sends."""
        _check_theirs(self._stored(self._unfinished(tenant, name)))
        return (yield from self._touch(tenant, name))

    def _open(self, tenant: str, job: StoredJob) -> Pieces[LiveJob]:
        spec = job.spec
        card = self._catalogue.card(spec.model)
        records = self._store.open(tenant, spec.record_sets, card, spec) if spec.record_sets else None
        held = job_bytes(self._catalogue.top(spec.model, spec.cut), spec)
        yield from self._residents.make_room("job", held, tenant=tenant)
        use_threads(job.threads)
        room = Room(held, self._graph_limit, self._make_room)
        live = LiveJob(job, settings=self._settings, catalogue=self._catalogue, records=records, room=room)
        # It counts from now on, and while it is resumed it is busy.
        self._keep(tenant, job.name, live)
        try:
            yield from live.resume()
        except StorageError as error:
            self._drop(tenant, job.name)
            raise conflict(
                "job-damaged",
                f"What the vendor keeps of job {job.name} is damaged and cannot be resumed.",
                remedy=f"Roll back to a checkpoint ({[0, *job.checkpoints.steps()]}), or delete the job.",
            ) from error
        except BaseException:
            self._drop(tenant, job.name)
            raise
        return live

    def _keep(self, tenant: str, name: str, live: LiveJob) -> None:
        self._residents.keep(self._live, (tenant, name), live, most=self._settings.limits.live_jobs)

    def _make_room(self, job: LiveJob, size: int) -> None:
        """Has jobs leave memory whose graphs wait, until a job's next graph finds room.

        They come back when they are touched, and take their last forward pass again.
        """
        tenant = next(key[0] for key, live in self._live.items() if live is job)
        while True:
            waiting = [
                Holding(key[0], live.graph_bytes, key, not live.busy)
                for key, live in self._live.items()
                if live is not job and live.graph_bytes
            ]
            if sum(holding.size for holding in waiting) + size <= self._graph_limit:
                return
            leaving = first_to_leave(waiting, asking=tenant, size=size)
            if leaving is None:
                return
            self._live.pop(leaving).leave()

    def _drop(self, tenant: str, name: str) -> None:
        live = self._live.pop((tenant, name), None)
        if live is not None:
            live.close()

    def _stored(self, row: Job) -> StoredJob:
        return StoredJob(row.id, read_job_spec(row.spec), row.threads, self._folder(row.tenant, row.id))

    def _folder(self, tenant: str, name: str) -> Path:
        return self._settings.tenant(tenant) / "jobs" / name

    # ------------------------------------------------------------ rows

    def _row(self, tenant: str, name: str) -> Job | None:
        with self._database.session() as session:
            return session.get(Job, (tenant, name))

    def _existing(self, tenant: str, name: str) -> Job:
        row = self._row(tenant, name)
        if row is None:
            raise not_found("job", name)
        return row

    def _unfinished(self, tenant: str, name: str) -> Job:
        row = self._existing(tenant, name)
        if row.final is not None:
            state = read_job_info(row.final).state
            raise conflict(state, f"Job {name} is {state}.", remedy="Query its adapter, or start a new job.")
        return row


def _check_theirs(job: StoredJob) -> None:
    """Refuses a customer's frame of a job that the vendor trains alone."""
    if job.spec.loop is not None:
        raise conflict(
            "trained-by-vendor",
            f"The vendor trains job {job.name} alone.",
            remedy="Watch it, or cancel it.",
        )
