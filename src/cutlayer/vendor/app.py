"""The vendor's service: every route of the protocol, health, metrics and its own description."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Executor
from contextlib import AsyncExitStack, asynccontextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any, Concatenate, ParamSpec, TypeVar

from fastapi import FastAPI, Header, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.openapi.utils import get_openapi
from fastapi.responses import FileResponse, Response

from cutlayer.core import Cut
from cutlayer.core.files import remove_leftovers
from cutlayer.serving.compute import ComputeThread, Pieces, return_memory
from cutlayer.serving.door import key_in, wrong_key
from cutlayer.serving.refusal import log_without_values
from cutlayer.vendor import problems
from cutlayer.vendor.adapters import Adapters
from cutlayer.vendor.alone import Loops, Standings, add_alone
from cutlayer.vendor.catalogue import Catalogue, cut_of, pick_device
from cutlayer.vendor.database import open_database
from cutlayer.vendor.denoisers import in_training
from cutlayer.vendor.description import PROBLEMS, at, tenant_of
from cutlayer.vendor.door import VendorDoor
from cutlayer.vendor.embeddings import add_embeddings
from cutlayer.vendor.frames import Handler, ShortWay, in_tensors
from cutlayer.vendor.generations import Generations
from cutlayer.vendor.jobs import Jobs
from cutlayer.vendor.keys import METRICS, Doorkeeper
from cutlayer.vendor.lock import lock
from cutlayer.vendor.log import GRADIENT, SOURCE, SOURCE_GRADIENT, STEP
from cutlayer.vendor.metrics import Metrics
from cutlayer.vendor.problems import not_found
from cutlayer.vendor.residents import Residents
from cutlayer.vendor.settings import VendorSettings
from cutlayer.vendor.steps import STEP_ROUTES
from cutlayer.vendor.store import HEAD_BYTES, RecordStore, Upload
from cutlayer.wire import routes
from cutlayer.wire.generation import GenerationInfo, GenerationSpec
from cutlayer.wire.messages import (
    AdapterInfo,
    AdapterList,
    ArchiveManifest,
    Digest,
    Identifier,
    JobInfo,
    JobSpec,
    ModelList,
    ModelName,
    RecordSetInfo,
    RecordSetSpec,
    SealRequest,
    ServiceInfo,
    ShardInfo,
    ShardNumber,
    SnapshotRequest,
    StepNumber,
)
from cutlayer.wire.transports.answer import DIGEST_HEADER, TENSOR_MEDIA_TYPE

_WRITE_BYTES = 2**20
_SECONDS_BETWEEN_EXPIRIES = 10.0
_SECONDS_BETWEEN_RETURNS = 60.0
_NOBODY = ""
"""Whose the vendor's own work is."""

_FRAMES = {
    SOURCE: "Begins an encoder-decoder's step with its source texts, or answers a repetition.",
    STEP: "Takes the next step, or answers a repetition.",
    GRADIENT: "Takes the gradient of the last step alone.",
    SOURCE_GRADIENT: "Takes the gradient of the encoder's output, which ends an encoder-decoder's step.",
}
"""Frames of a job's steps that are answered with tensors, and what each does."""

P = ParamSpec("P")
T = TypeVar("T")


class Vendor:
    """The parts of a running vendor.

    Args:
        settings: Its settings.
        executor: Runs all that computes.

    Raises:
        ConfigError: Another process serves the same data folder, or the database belongs to another one.
        StorageError: Database or data folder cannot be used.
    """

    def __init__(self, settings: VendorSettings, executor: Executor | None = None) -> None:
        self.settings = settings
        self._lock = lock(settings.data_dir)
        try:
            remove_leftovers(settings.data_dir, in_use=in_training)
            self.database = open_database(settings, claim=True)
            self.catalogue = Catalogue(settings, pick_device(settings.device))
        except BaseException:
            os.close(self._lock)
            raise
        self.store = RecordStore(settings, self.database, self.catalogue)
        self.residents = Residents(settings.limits, self.catalogue.device)
        self.jobs = Jobs(settings, self.database, self.catalogue, self.store, self.residents)
        self.adapters = Adapters(settings, self.database, self.catalogue, self.residents)
        self.generations = Generations(settings, self.adapters, self.catalogue)
        self.residents.unpin = self.generations.unpin
        self.metrics = Metrics()
        self.compute = ComputeThread(settings.compute_threads, executor, watch=self.metrics.computed)
        self.standings = Standings(self.jobs, self.database)
        self.loops = Loops(self.jobs, self.standings, self.compute)
        self.doorkeeper = Doorkeeper(self.database)
        self.metrics.live_jobs.set_function(lambda: self.jobs.live)
        self.metrics.live_job_bytes.set_function(lambda: self.jobs.held_bytes)
        self.metrics.live_adapters.set_function(lambda: self.adapters.live)
        self.metrics.live_adapter_bytes.set_function(lambda: self.adapters.held_bytes)
        self.metrics.generations.set_function(lambda: self.generations.live)
        self.metrics.generation_bytes.set_function(lambda: self.generations.size)
        self.metrics.graph_bytes.set_function(lambda: self.jobs.graph_bytes)

    def close(self) -> None:
        """Writes jobs to disk and lets go of everything."""
        self.loops.stop()
        self.compute.close(self.jobs.close)
        self.database.close()
        os.close(self._lock)


def create_app(settings: VendorSettings, *, executor: Executor | None = None) -> FastAPI:
    """The vendor's service as an ASGI application.

    Args:
        settings: The vendor's settings, of a data folder that `init` made.
        executor: Runs all that computes, one call at a time; a thread of its own by default.
    """
    vendor = Vendor(settings, executor)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as group:
            background = [group.create_task(_expire(vendor)), group.create_task(_return_memory())]
            yield
            for task in background:
                task.cancel()
        await run_in_threadpool(vendor.close)

    app = FastAPI(
        title="cutlayer vendor",
        version=_version(),
        description="Fine-tune and query the top of a model without showing the vendor your text.",
        lifespan=lifespan,
        docs_url=None,  # its pages load scripts from elsewhere
        redoc_url=None,
    )
    app.state.vendor = vendor
    app.openapi = lambda: _describe(app)  # type: ignore[method-assign]
    problems.install(app)
    _add_control(app, vendor)
    _add_records(app, vendor)
    add_embeddings(app, settings, vendor.catalogue, vendor.compute)
    _add_jobs(app, vendor)
    add_alone(app, vendor.loops, vendor.jobs, vendor.standings, vendor.compute)
    frames = _add_generations(app, vendor)
    _add_operations(app, vendor)
    app.add_middleware(ShortWay, handlers=frames)
    app.add_middleware(VendorDoor, doorkeeper=vendor.doorkeeper, limits=settings.limits, metrics=vendor.metrics)
    return app


# ---------------------------------------------------------------- service, models, adapters


def _add_control(app: FastAPI, vendor: Vendor) -> None:
    @app.api_route(**at(routes.SERVICE))
    def service() -> ServiceInfo:
        """What this vendor is."""
        settings = vendor.settings
        return ServiceInfo(
            version=_version(),
            default_model=settings.default_model,
            max_body_bytes=settings.limits.max_body_bytes,
            max_rows_per_step=settings.limits.max_rows_per_step,
            max_step_bytes=settings.limits.max_step_bytes,
            threads=settings.compute_threads,
        )

    @app.api_route(**at(routes.MODELS))
    def models() -> ModelList:
        """The models on offer."""
        return ModelList(models=tuple(card.info for card in vendor.catalogue.cards.values()))

    async def written(tenant: str, model: str, cut: Cut) -> tuple[ArchiveManifest, Path]:
        found = await run_in_threadpool(vendor.catalogue.written_archive, model, cut)
        if found is None:
            found = await vendor.compute.run(lambda _: vendor.catalogue.archive(model, cut), tenant)
        return found

    @app.api_route(**at(routes.ARCHIVE))
    async def archive(request: Request, model: ModelName, cut: str) -> ArchiveManifest:
        """What a customer receives of a model for a cut."""
        manifest, _ = await written(tenant_of(request), model, cut_of(cut))
        return manifest

    @app.api_route(**at(routes.ARCHIVE_FILE))
    async def archive_file(request: Request, model: ModelName, cut: str, file: str) -> Response:
        """One file of an archive."""
        manifest, folder = await written(tenant_of(request), model, cut_of(cut))
        if file not in {entry.name for entry in manifest.files}:
            raise not_found("file", file if file.isalnum() else "of that name")
        return FileResponse(folder / file, media_type=TENSOR_MEDIA_TYPE)

    @app.api_route(**at(routes.ADAPTERS))
    def adapters(request: Request) -> AdapterList:
        """The tenant's adapters."""
        return vendor.adapters.list(tenant_of(request))

    @app.api_route(**at(routes.ADAPTER_GET))
    def adapter(request: Request, adapter: Identifier) -> AdapterInfo:
        """One adapter."""
        return vendor.adapters.info(tenant_of(request), adapter)

    @app.api_route(**at(routes.ADAPTER_DELETE))
    async def delete_adapter(request: Request, adapter: Identifier) -> None:
        """Deletes an adapter."""
        await run_in_threadpool(vendor.adapters.delete, tenant_of(request), adapter)
        vendor.compute.post(vendor.generations.forget, tenant_of(request), adapter)

    @app.api_route(**at(routes.ADAPTER_INFER))
    async def infer(request: Request, adapter: Identifier) -> Response:
        """The adapted top's output for a release."""
        body = await request.body()
        return in_tensors(await vendor.compute.run(vendor.adapters.infer, tenant_of(request), adapter, body))

    @app.api_route(**at(routes.ADAPTER_GENERATE))
    async def write(request: Request, adapter: Identifier) -> Response:
        """The ids that follow those of a release, by beam search."""
        body = await request.body()
        return in_tensors(await vendor.compute.run(vendor.adapters.write, tenant_of(request), adapter, body))


# ---------------------------------------------------------------- record sets


def _add_records(app: FastAPI, vendor: Vendor) -> None:
    store = vendor.store

    @app.api_route(**at(routes.RECORD_SET_PUT))
    def put(request: Request, record_set: Identifier, spec: RecordSetSpec) -> RecordSetInfo:
        """Opens a record set, or finds it open."""
        return store.put(tenant_of(request), record_set, spec)

    @app.api_route(**at(routes.RECORD_SET_GET))
    def info(request: Request, record_set: Identifier) -> RecordSetInfo:
        """A record set; shards that it does not list are to be sent again."""
        return store.info(tenant_of(request), record_set)

    @app.api_route(**at(routes.RECORD_SET_DELETE))
    def delete(request: Request, record_set: Identifier) -> None:
        """Deletes a record set."""
        store.delete(tenant_of(request), record_set)

    @app.api_route(**at(routes.SEAL))
    def seal(request: Request, record_set: Identifier, sealing: SealRequest) -> RecordSetInfo:
        """Closes a record set."""
        return store.seal(tenant_of(request), record_set, sealing)

    @app.api_route(**at(routes.SHARD_PUT))
    async def put_shard(
        request: Request,
        record_set: Identifier,
        shard: ShardNumber,
        sha256: Annotated[Digest, Header(alias=DIGEST_HEADER, description="SHA-256 of the body")],
    ) -> ShardInfo:
        """Stores a shard, or finds it stored."""
        size = int(request.headers.get("content-length", 0))
        upload = await run_in_threadpool(store.receive, tenant_of(request), record_set, shard, size=size, sha256=sha256)
        if isinstance(upload, ShardInfo):
            async for _ in request.stream():
                pass
            return upload
        async with AsyncExitStack() as stack:
            await run_in_threadpool(upload.__enter__)
            stack.push_async_exit(_in_threadpool(upload))
            buffer = bytearray()
            checked = False
            async for chunk in request.stream():
                buffer += chunk
                if not checked and len(buffer) >= min(size, HEAD_BYTES):
                    upload.check_head(bytes(buffer[:HEAD_BYTES]))
                    checked = True
                if checked and len(buffer) >= _WRITE_BYTES:
                    await run_in_threadpool(upload.write, bytes(buffer))
                    buffer.clear()
            if not checked:
                upload.check_head(bytes(buffer))
            await run_in_threadpool(upload.write, bytes(buffer))
            return await run_in_threadpool(upload.finish)


def _in_threadpool(upload: Upload) -> Any:
    async def leave(*exception: object) -> None:
        await run_in_threadpool(upload.__exit__, *exception)

    return leave


# ---------------------------------------------------------------- jobs


def _add_jobs(app: FastAPI, vendor: Vendor) -> None:
    jobs = vendor.jobs

    async def run(
        call: Callable[Concatenate[str, str, P], Pieces[T]],
        request: Request,
        job: str,
        *arguments: P.args,
        **options: P.kwargs,
    ) -> T:
        """Runs a call on a tenant's job in its turn; what can be done before is done before."""
        tenant = tenant_of(request)
        if not jobs.is_live(tenant, job):
            await run_in_threadpool(jobs.read_ahead, tenant, job)
        return await vendor.compute.run(call, tenant, job, *arguments, **options)

    @app.api_route(**at(routes.JOB_PUT))
    async def put(request: Request, job: Identifier, spec: JobSpec) -> JobInfo:
        """Starts a job, or finds it started."""
        await run_in_threadpool(vendor.store.read_ahead, tenant_of(request), spec.record_sets)
        info = await vendor.compute.run(jobs.put, tenant_of(request), job, spec)
        await run_in_threadpool(vendor.loops.start, tenant_of(request), job, info)
        return info

    @app.api_route(**at(routes.JOB_GET))
    async def info(request: Request, job: Identifier) -> JobInfo:
        """Where a job stands."""
        info = await run_in_threadpool(jobs.info, tenant_of(request), job)
        return info if info is not None else await run(jobs.resume, request, job)

    @app.api_route(**at(routes.JOB_DELETE))
    async def delete(request: Request, job: Identifier) -> None:
        """Deletes a job."""
        try:
            await run_in_threadpool(jobs.delete, tenant_of(request), job)
        finally:
            vendor.compute.post(jobs.forget, tenant_of(request), job)

    def add_frame(kind: int, description: str) -> None:
        summary = STEP_ROUTES[kind].name.removeprefix("job.").replace("-", " ").title()

        @app.api_route(**at(STEP_ROUTES[kind]), summary=summary, description=description)
        async def accept(request: Request, job: Identifier, step: StepNumber) -> Response:
            return in_tensors(await run(jobs.accept, request, job, kind, step, await request.body()))

    for kind, description in _FRAMES.items():
        add_frame(kind, description)

    @app.api_route(**at(routes.STEP_GET))
    async def output(request: Request, job: Identifier, step: StepNumber) -> Response:
        """The output of the last step again."""
        body = await run_in_threadpool(jobs.kept_output, tenant_of(request), job, step)
        return in_tensors(body if body is not None else await run(jobs.output, request, job, step))

    @app.api_route(**at(routes.UPDATE))
    async def update(request: Request, job: Identifier, step: StepNumber) -> JobInfo:
        """Takes the update that waits for what the customer tells of its own gradients."""
        return await run(jobs.update, request, job, step, await request.body())

    @app.api_route(**at(routes.JOB_INFER))
    async def infer(request: Request, job: Identifier) -> Response:
        """A job's output in evaluation mode."""
        return in_tensors(await run(jobs.infer, request, job, await request.body()))

    @app.api_route(**at(routes.SNAPSHOT))
    async def snapshot(request: Request, job: Identifier, at: SnapshotRequest) -> JobInfo:
        """Keeps the adapter as it is."""
        return await run(jobs.snapshot, request, job, at.step)

    @app.api_route(**at(routes.ROLLBACK))
    async def rollback(request: Request, job: Identifier, to: SnapshotRequest) -> JobInfo:
        """Takes a job back to a checkpoint."""
        return await run(jobs.rollback, request, job, to.step)

    @app.api_route(**at(routes.FINISH))
    async def finish(request: Request, job: Identifier, at: SnapshotRequest) -> AdapterInfo:
        """Publishes the adapter and ends the job."""
        info = await run(jobs.finish, request, job, at.step)
        vendor.compute.post(vendor.generations.forget, tenant_of(request), job)
        return info


# ---------------------------------------------------------------- generation


def _add_generations(app: FastAPI, vendor: Vendor) -> dict[str, Handler]:
    """Adds the routes; returns handlers of those that are to take the short way."""
    run, generations = vendor.compute.run, vendor.generations

    @app.api_route(**at(routes.GENERATION_PUT))
    async def put(request: Request, generation: Identifier, spec: GenerationSpec) -> GenerationInfo:
        """Starts a session, or finds it started."""
        return await run(generations.put, tenant_of(request), generation, spec)

    @app.api_route(**at(routes.GENERATION_STEP))
    async def step(request: Request, generation: Identifier, step: StepNumber) -> Response:
        """Takes the next positions of a session's texts, or answers a repetition."""
        return in_tensors(await answer(tenant_of(request), generation, step, body=await request.body()))

    async def answer(tenant: str, generation: str, step: int, *, body: bytes) -> bytes:
        return await run(generations.step, tenant, generation, step, body)

    @app.api_route(**at(routes.GENERATION_DELETE))
    def delete(request: Request, generation: Identifier) -> None:
        """Ends a session."""
        generations.delete(tenant_of(request), generation)

    return {routes.GENERATION_STEP.name: answer}


async def _expire(vendor: Vendor) -> None:
    """What happens where nobody asks: sessions end, what is idle leaves memory, and jobs trained here go on."""
    limits = vendor.settings.limits
    while True:
        await run_in_threadpool(vendor.loops.wake)
        await asyncio.sleep(min(_SECONDS_BETWEEN_EXPIRIES, limits.generation_seconds, limits.live_seconds))
        if vendor.generations.live:
            await vendor.compute.run(lambda _: vendor.generations.expire(), _NOBODY)
        if vendor.jobs.live or vendor.adapters.live:
            try:
                await vendor.compute.run(lambda _: vendor.residents.expire(), _NOBODY)
            except Exception as error:
                # A job that could not write its state comes back from its log; the service goes on.
                log_without_values(error)


async def _return_memory() -> None:
    """Returns what was freed to the machine, from time to time.

    Tensors of ever other sizes, as texts of ever other lengths make them, leave holes in the heap that the next ones do
    not fit into: without this a process grows to several times what it holds. Not after each request, since pages that
    were returned have to be cleared again before they are used.
    """
    while True:
        await asyncio.sleep(_SECONDS_BETWEEN_RETURNS)
        await run_in_threadpool(return_memory)


# ---------------------------------------------------------------- operations


def _add_operations(app: FastAPI, vendor: Vendor) -> None:
    @app.get("/healthz", operation_id="health", responses=PROBLEMS)
    def health() -> dict[str, str]:
        """Whether the vendor is up and reaches its database."""
        vendor.database.check()
        return {"status": "ok"}

    @app.get("/metrics", include_in_schema=False)
    def metrics(request: Request) -> Response:
        """Prometheus metrics, for those with the operator's key: they name tenants.

        Where a request comes from says nothing: behind a proxy on this machine all come from here.
        """
        if not vendor.settings.metrics_from_anywhere and vendor.doorkeeper.tenant(key_in(request)) != METRICS:
            raise wrong_key(request, "a key made by: cutlayer vendor key create --metrics")
        return Response(vendor.metrics.render(), media_type="text/plain; version=0.0.4")


def _describe(app: FastAPI) -> dict[str, Any]:
    """The service's OpenAPI description, with its keys."""
    if app.openapi_schema is None:
        described = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
        described["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        app.openapi_schema = described
    return app.openapi_schema


def _version() -> str:
    try:
        return version("cutlayer")
    except PackageNotFoundError:
        return "0"
