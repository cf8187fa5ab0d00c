"""Jobs that the vendor trains alone: they are kept going, listed, watched and cancelled."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from fastapi import FastAPI, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import Response
from sqlalchemy import select

from cutlayer.serving.compute import ComputeThread, Pieces, return_memory
from cutlayer.serving.refusal import Refusal, log_without_values
from cutlayer.vendor.database import Database, Job
from cutlayer.vendor.description import EVENT_MEDIA_TYPE, at, tenant_of
from cutlayer.vendor.earlier import read_job_spec
from cutlayer.vendor.jobs import Jobs
from cutlayer.vendor.problems import conflict, log, refusal_for
from cutlayer.wire import routes
from cutlayer.wire.messages import (
    Count,
    Identifier,
    JobEntry,
    JobInfo,
    JobList,
    JobProgress,
    JobState,
    RecordSetInfo,
)
from cutlayer.wire.transports.answer import event

_SECONDS: Final = 15.0
"""Longest time that a watcher waits for an answer: less than what proxies end a silent connection after."""
_LOOK_SECONDS: Final = 0.2
_DIGITS: Final = 20
_LIFTED: Final = frozenset(("quota", "labels-damaged", "fingerprint-differs", "not-found"))
"""Refusals that end once the tenant deletes something, or sends it again; or the vendor takes its model back."""
_TRIES: Final = 10
"""Of a step that ends in an error which should not happen, before its job has failed."""


@dataclass(frozen=True)
class Held:
    """Why a job does not go on at the moment.

    Attributes:
        code: The type of a refusal.
        tries: How often its next step has ended in an error that should not happen.
    """

    code: str
    tries: int = 0


class Standings:
    """Where jobs stand, for those who only look. Its methods may be called from any thread.

    Args:
        jobs: All jobs.
        database: Where they are listed.
    """

    def __init__(self, jobs: Jobs, database: Database) -> None:
        self._jobs = jobs
        self._database = database

    def waiting(self) -> Sequence[tuple[str, str]]:
        """Tenant and name of each job that the vendor is to train alone and has all it needs."""
        with self._database.session() as session:
            rows = session.scalars(select(Job).where(Job.final.is_(None))).all()
        found = [(row, read_job_spec(row.spec)) for row in rows]
        return [
            (row.tenant, row.id)
            for row, spec in found
            if spec.loop is not None and self._jobs.is_ready(row.tenant, spec)
        ]

    def list(self, tenant: str) -> JobList:
        """The tenant's jobs."""
        with self._database.session() as session:
            rows = session.scalars(select(Job).where(Job.tenant == tenant).order_by(Job.id)).all()
        return JobList(jobs=tuple(self._entry(row) for row in rows))

    def _entry(self, row: Job) -> JobEntry:
        spec = read_job_spec(row.spec)
        try:
            info = self._jobs.info(row.tenant, row.id)
        except Refusal:  # its model is another one now, or its sets are
            info = None
        return JobEntry(
            job=row.id,
            model=spec.model,
            state=JobState.RUNNING if info is None else info.state,
            step=None if info is None else info.step,
            total_steps=spec.optimiser.total_steps,
            by_vendor=spec.loop is not None,
        )

    def progress(self, tenant: str, name: str, held: Held | None = None) -> JobProgress | None:
        """How far a job is that the vendor trains alone; `None` while it is being resumed.

        Args:
            tenant: Whose it is.
            name: The job.
            held: Why it does not go on.

        Raises:
            Refusal: There is no such job, or the customer sends its steps.
        """
        info = self._jobs.info(tenant, name)
        if info is not None and info.spec.loop is None:
            raise conflict(
                "trained-by-customer",
                f"The customer sends the steps of job {name}.",
                remedy="GET the job to see where it stands.",
            )
        told = None if info is None else info.progress
        if told is None or held is None or told.state.is_over:
            return told
        return told.model_copy(update={"problem": held.code})


class Loops:
    """Keeps jobs going that the vendor trains alone.

    Each step is asked of the compute thread by itself, behind all that its tenant asked for before, so that tenants,
    one tenant's jobs and its other requests take turns.

    Args:
        jobs: All jobs.
        standings: Which of them wait.
        compute: Where they are trained.
    """

    def __init__(self, jobs: Jobs, standings: Standings, compute: ComputeThread) -> None:
        self._jobs = jobs
        self._standings = standings
        self._compute = compute
        self._lock = threading.Lock()
        self._going: set[tuple[str, str]] = set()
        self._held: dict[tuple[str, str], Held] = {}
        self._stopped = False

    def wake(self) -> None:
        """Has all jobs go on that have what they need: after a start, and after what stopped one is over."""
        for tenant, job in self._standings.waiting():
            self._begin(tenant, job)

    def start(self, tenant: str, job: str, info: JobInfo) -> None:
        """Has a job go on that was put, if the vendor is to train it and has what it needs."""
        if info.spec.loop is not None and not info.state.is_over and self._jobs.is_ready(tenant, info.spec):
            self._begin(tenant, job)

    def held(self, tenant: str, job: str) -> Held | None:
        """Why a job does not go on; `None` where it does, or is over."""
        return self._held.get((tenant, job))

    def stop(self) -> None:
        """Lets the steps that were asked for be the last."""
        self._stopped = True

    def _begin(self, tenant: str, job: str) -> None:
        with self._lock:
            if self._stopped or (tenant, job) in self._going:
                return
            self._going.add((tenant, job))
        self._compute.post(self._step, tenant, job)

    def _step(self, tenant: str, job: str) -> Pieces[None]:
        goes_on = False
        try:
            goes_on = (yield from self._jobs.advance(tenant, job)) and not self._stopped
            self._held.pop((tenant, job), None)
        except Exception as error:
            self._hold(tenant, job, error)
        if goes_on:
            self._compute.post(self._step, tenant, job)
        else:
            with self._lock:
                self._going.discard((tenant, job))
            return_memory()

    def _hold(self, tenant: str, job: str, error: Exception) -> None:
        """Ends a job that cannot go on.

        One that waits for room, for the database or for what its tenant is to do is taken up by `wake` again; and so
        is, some times, one whose step ended in an error that should not happen.
        """
        refusal, before = refusal_for(error), self._held.get((tenant, job), Held(""))
        tries = before.tries + 1 if refusal.status == 500 else 0
        if refusal.status > 500 or refusal.code in _LIFTED or 0 < tries < _TRIES:
            self._held[tenant, job] = Held(refusal.code, tries)
            if refusal.code != before.code:
                log.warning("a job waits: %s", refusal.code)
            return
        try:
            self._jobs.fail(tenant, job, refusal.code)
            self._held.pop((tenant, job), None)
        except Exception as another:
            log_without_values(another)  # the database is away, say: `wake` comes again


def add_alone(app: FastAPI, loops: Loops, jobs: Jobs, standings: Standings, compute: ComputeThread) -> None:
    """Adds the routes of jobs that the vendor trains alone, and the list of all.

    Args:
        app: The application.
        loops: Keeps them going.
        jobs: All jobs.
        standings: Where they stand.
        compute: Where they are trained.
    """

    @app.api_route(**at(routes.LABELS_PUT))
    async def put_labels(request: Request, record_set: Identifier) -> RecordSetInfo:
        """Stores the labels of a record set's texts, or finds them stored."""
        body = await request.body()
        return await run_in_threadpool(jobs.labels.put, tenant_of(request), record_set, body)

    @app.api_route(**at(routes.JOBS))
    def list_jobs(request: Request) -> JobList:
        """The tenant's jobs."""
        return standings.list(tenant_of(request))

    @app.api_route(**at(routes.JOB_CANCEL))
    async def cancel(request: Request, job: Identifier) -> JobInfo:
        """Ends a job without an adapter."""
        info = await compute.run(jobs.cancel, tenant_of(request), job)
        compute.post(lambda _: return_memory(), tenant_of(request))
        return info

    @app.api_route(**at(routes.JOB_EVENTS))
    async def events(request: Request, job: Identifier, after: Count) -> Response:
        """Where a job stands, as soon as it is further than event `after`, or after some seconds.

        One event an answer: a browser that asks again gives the number of the last one that it had in `Last-Event-ID`.
        """
        last = request.headers.get("last-event-id", "")
        after = max(after, int(last)) if last.isascii() and last.isdecimal() and len(last) < _DIGITS else after
        until = time.monotonic() + _SECONDS
        while True:
            held = loops.held(tenant_of(request), job)
            progress = await run_in_threadpool(standings.progress, tenant_of(request), job, held)
            if progress is None and time.monotonic() > until:
                raise conflict("resuming", f"Job {job} is being resumed.", remedy="Ask again in a moment.")
            if progress is not None and (progress.event > after or progress.state.is_over or time.monotonic() > until):
                return Response(event(progress.event, progress), media_type=EVENT_MEDIA_TYPE)
            await asyncio.sleep(_LOOK_SECONDS)
