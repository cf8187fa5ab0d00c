"""Jobs that the vendor trains alone: they are kept going, listed, watched and cancelled."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Final

from fastapi import FastAPI, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import Response

from cutlayer.vendor.compute import ComputeThread, Pieces
from cutlayer.vendor.description import EVENT_MEDIA_TYPE, at, tenant_of
from cutlayer.vendor.jobs import Jobs
from cutlayer.vendor.problems import log_without_values
from cutlayer.wire import routes
from cutlayer.wire.messages import Count, Identifier, JobInfo, JobList, RecordSetInfo
from cutlayer.wire.transports.answer import event

_SECONDS: Final = 15.0
"""Longest time that a watcher waits for an answer: less than what proxies end a silent connection after."""
_LOOK_SECONDS: Final = 0.2


class Loops:
    """Keeps jobs going that the vendor trains alone.

    Each step is asked of the compute thread by itself, behind all that its tenant asked for before, so that tenants,
    one tenant's jobs and its other requests take turns.

    Args:
        jobs: All jobs.
        compute: Where they are trained.
    """

    def __init__(self, jobs: Jobs, compute: ComputeThread) -> None:
        self._jobs = jobs
        self._compute = compute
        self._lock = threading.Lock()
        self._going: set[tuple[str, str]] = set()
        self._stopped = False

    def wake(self) -> None:
        """Has all jobs go on that have what they need: after a start, and after what stopped one is over."""
        for tenant, job in self._jobs.waiting():
            self._begin(tenant, job)

    def start(self, tenant: str, job: str, info: JobInfo) -> None:
        """Has a job go on that was put, if the vendor is to train it and has what it needs."""
        if info.spec.loop is not None and not info.state.is_over and self._jobs.is_ready(tenant, info.spec):
            self._begin(tenant, job)

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
        except Exception as error:
            # no room for it at the moment: `wake` comes again
            log_without_values(error)
        if goes_on:
            self._compute.post(self._step, tenant, job)
        else:
            with self._lock:
                self._going.discard((tenant, job))


def add_alone(app: FastAPI, jobs: Jobs, loops: Loops, compute: ComputeThread) -> None:
    """Adds the routes of jobs that the vendor trains alone, and the list of all.

    Args:
        app: The application.
        jobs: All jobs.
        loops: What keeps them going.
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
        return jobs.list(tenant_of(request))

    @app.api_route(**at(routes.JOB_CANCEL))
    async def cancel(request: Request, job: Identifier) -> JobInfo:
        """Ends a job without an adapter."""
        return await compute.run(jobs.cancel, tenant_of(request), job)

    @app.api_route(**at(routes.JOB_EVENTS))
    async def events(request: Request, job: Identifier, after: Count) -> Response:
        """Where a job stands, as soon as it is further than event `after`, or after some seconds."""
        until = time.monotonic() + _SECONDS
        while True:
            progress = await run_in_threadpool(jobs.progress, tenant_of(request), job)
            if progress.event > after or progress.state.is_over or time.monotonic() > until:
                return Response(event(progress.event, progress), media_type=EVENT_MEDIA_TYPE)
            await asyncio.sleep(_LOOK_SECONDS)
