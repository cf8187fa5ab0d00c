"""The gateway's service: OpenAI's routes for embeddings, answered by the customer's SDK."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import asynccontextmanager, closing
from dataclasses import asdict
from functools import partial
from typing import Any, Generic, TypeVar

import torch
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from cutlayer.core import ConfigError, Fault
from cutlayer.core.jsonable import jsonable
from cutlayer.customer import Client, FinetuneSpec
from cutlayer.customer.embedder import of_length_one
from cutlayer.customer.embedding import AUTO
from cutlayer.customer.handout import choose_model
from cutlayer.customer.validate import choose_privacy
from cutlayer.gateway import answers
from cutlayer.gateway.absence import Absence
from cutlayer.gateway.answers import ApiError, error_for
from cutlayer.gateway.joiner import Answer, Asked, Joiner
from cutlayer.gateway.key import KeyRing
from cutlayer.gateway.requests import ETA_HEADER, EmbeddingsRequest, eta_of, inputs_of, read_request, width_of
from cutlayer.gateway.settings import GatewaySettings
from cutlayer.privacy import Ledger, LedgerSummary, NoPrivacy, PrivacySpec
from cutlayer.serving.compute import ComputeThread
from cutlayer.serving.door import App, Door, path_in
from cutlayer.wire import routes
from cutlayer.wire.messages import ModelInfo, ModelList

_SECONDS_BETWEEN_LOOKS = 10.0
"""At the vendor's models, for names and widths. What a request is answered with is looked at for each batch."""
_JSON_AT_ONCE = 2
"""Bodies that are read or written at a time: a request takes up to 28 times its length in memory, and an answer some 90
bytes for each number of its embeddings."""
_T = TypeVar("_T")


class Shared(Generic[_T]):
    """What many ask for at once and is worked out for all of them, in a thread of its own.

    Args:
        name: The thread's.
        work: Works it out.
    """

    def __init__(self, name: str, work: Callable[[], _T]) -> None:
        self._work = work
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._next: Future[_T] | None = None

    async def find(self) -> _T:
        """What it is now: it is begun after it was asked for, once for all who wait for that."""
        if self._next is None or self._next.running() or self._next.done():
            self._next = self._thread.submit(self._work)
        return await asyncio.shield(asyncio.wrap_future(self._next))

    def close(self) -> None:
        """Finishes what was begun."""
        self._thread.shutdown(cancel_futures=True)


class Gateway:
    """The parts of a running gateway.

    Args:
        client: The customer.
        spec: How texts are privatized; its model is each request's.
        settings: What applications may ask.
        denoiser: What takes the noise out; as of `EmbeddingSettings`.
        executor: Runs all that computes.

    Raises:
        ConfigError: There is no key, or an alias is none.
    """

    def __init__(
        self, client: Client, spec: FinetuneSpec, settings: GatewaySettings, *, denoiser: str, executor: Executor | None
    ) -> None:
        self.client, self.spec, self.settings = client, spec, settings
        self.keys = KeyRing(client.home)
        self.compute = ComputeThread(torch.get_num_threads(), executor)
        client.answer_within(settings.vendor_seconds)
        self.absence = Absence()
        self.joiner = Joiner(client, self.absence, denoiser=denoiser, truncate=settings.truncate)
        self.created = int(time.time())
        self._aliases = _aliases(settings.alias)
        self._served = frozenset(self._aliases.values())
        self._models: dict[str, ModelInfo] = {}
        self._looked = -math.inf
        self._looks = Shared("models", self._look)
        self._summaries = Shared("ledger", self._summary)
        self._json = ThreadPoolExecutor(_JSON_AT_ONCE, thread_name_prefix="json")

    def open(self) -> None:
        """Opens the roads to the models that aliases name, or to the vendor's default one, before anybody asks.

        Raises:
            ConfigError: An alias is of a model that the vendor does not have, or there is no denoiser for the settings.
            VendorError: The vendor does not answer.
        """
        if missing := sorted(set(self._aliases.values()) - set(self._look())):
            allowed = f"must be one of the vendor's models with embeddings: {', '.join(sorted(self._offered()))}"
            raise ConfigError([Fault("alias", missing[0], allowed)])
        # by its name, as requests will have it: else the first of them would open another road to it
        for name in sorted(self._served):
            self.joiner.open(self.spec.model_copy(update={"model": name}))

    async def models(self) -> dict[str, ModelInfo]:
        """The vendor's models by all the names that they have here; asks the vendor where it was not asked of late.

        Those are the models that aliases name; without aliases the one that was the vendor's default when it was first
        asked. Eta is a number in the unit of one model's table, so that no application may choose another model for it.
        Left out is what has no embeddings, or was taken away. However many wait for it, one thread asks: a vendor that
        is silent holds up none in which keys are checked.

        Raises:
            VendorError: The vendor does not answer.
        """
        if time.monotonic() - self._looked <= _SECONDS_BETWEEN_LOOKS:
            return self._models
        return await self._looks.find()

    def _look(self) -> dict[str, ModelInfo]:
        with self.absence.noted():
            if not self._served:
                self._served = frozenset({choose_model(self.client.gate(), None).model.name})
            named = {name: model for name, model in self._offered().items() if name in self._served}
        self._models = {**named, **{alias: named[name] for alias, name in self._aliases.items() if name in named}}
        self._looked = time.monotonic()
        return self._models

    def _offered(self) -> dict[str, ModelInfo]:
        """All of the vendor's models with embeddings."""
        models = self.client.gate().send(routes.MODELS).expect(ModelList).models
        return {model.name: model for model in models if model.embedding is not None}

    async def ledger(self) -> LedgerSummary:
        """What left, in sum, which is read from all entries."""
        return await self._summaries.find()

    def _summary(self) -> LedgerSummary:
        # over a connection of its own: reading all of it takes longer than a batch may wait
        with closing(Ledger(self.client.ledger.path)) as book:
            return book.summary()

    def close(self) -> None:
        """Finishes what waits, and gives connections back."""
        self._looks.close()
        self._summaries.close()
        self._json.shutdown(cancel_futures=True)
        self.compute.close(self.client.close)

    async def model(self, name: str) -> ModelInfo:
        """A model by one of its names here.

        Raises:
            ApiError: None has this name.
        """
        models = await self.models()
        if name not in models:
            raise ApiError(
                404,
                "model_not_found",
                f"This gateway has no model of this name; it has: {', '.join(sorted(models))}. Others, and names that "
                "applications have for them, are given at its start with --alias NAME=MODEL.",
                param="model",
            )
        return models[name]

    async def embed(self, request: Request) -> Response:
        """Answers a request for embeddings."""
        body = await request.body()
        asked, inputs = await asyncio.get_running_loop().run_in_executor(self._json, self._read, body)
        model = await self.model(asked.model)
        width = width_of(asked, self.settings, width=model.require_embedding().width)
        eta = eta_of(request.headers.get(ETA_HEADER), most=self.spec.privacy.eta)
        spec = self.spec.model_copy(update={"privacy": _at(self.spec.privacy, eta), "model": model.name})
        found = await self._answered(request, Asked(inputs, spec))
        values = found.values
        if width < values.shape[1]:
            values = of_length_one(values[:, :width])
        write = partial(
            answers.embeddings,
            values,
            model=asked.model,
            tokens=found.tokens,
            form=asked.encoding_format,
            headers={ETA_HEADER: f"{found.eta:.17g}"},  # so that an application may send it back
        )
        return await asyncio.get_running_loop().run_in_executor(self._json, write)

    def _read(self, body: bytes) -> tuple[EmbeddingsRequest, list[str] | list[list[int]]]:
        asked = read_request(body)
        return asked, inputs_of(asked, self.settings)

    async def _answered(self, request: Request, asked: Asked) -> Answer:
        """Waits for the answer, or for the application to hang up: then what waits still is not sent."""
        self.joiner.add(asked)
        self.compute.post(lambda _: self.joiner.serve(), "")
        answer = asyncio.wrap_future(asked.answer)
        gone = asyncio.ensure_future(_hung_up(request))
        both: set[asyncio.Future[Any]] = {answer, gone}
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                raise ClientDisconnect
            return answer.result()
        finally:
            gone.cancel()
            answer.cancel()


def _at(privacy: PrivacySpec, eta: float) -> PrivacySpec:
    """The same mechanism at an eta; where texts leave as they are, what `--eta` with that number is."""
    if eta == privacy.eta:
        return privacy
    if isinstance(privacy, NoPrivacy):
        return choose_privacy(eta, None)
    return type(privacy).model_validate(privacy.model_dump() | {"eta": eta})


async def _hung_up(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


class GatewayDoor(Door):
    """Wraps the gateway's application.

    Args:
        app: The application.
        keys: The gateway's key.
        settings: What one request may take.
    """

    open_paths = frozenset({"/healthz"})
    wanted = "the key that `cutlayer gateway key` printed"

    def __init__(self, app: App, *, keys: KeyRing, settings: GatewaySettings) -> None:
        super().__init__(
            app,
            body_seconds=settings.body_seconds,
            requests_at_once=settings.requests_at_once,
            books=logging.getLogger("cutlayer.gateway.requests"),
        )
        self._keys = keys
        self._most = settings.max_body_bytes

    def meant(self, method: str, path: str) -> tuple[str, int]:
        """See `Door.meant`."""
        name = path.removeprefix("/v1/").strip("/") if path in _METHODS else "other"
        return name, self._most if name == "embeddings" and method == "POST" else 0

    def misdirected(self, method: str, path: str) -> Exception | None:
        """See `Door.misdirected`."""
        return _astray(method, path, close=True)

    async def owner(self, key: str) -> str | None:
        """See `Door.owner`."""
        opened: bool = await run_in_threadpool(self._keys.opens, key)
        return "application" if opened else None

    def response(self, error: Exception) -> Response:
        """See `Door.response`."""
        return error_for(error).response()


_METHODS = {"/v1/embeddings": "POST", "/v1/models": "GET", "/healthz": "GET", "/ledger": "GET"}


def _astray(method: str, path: str, *, close: bool = False) -> ApiError | None:
    """Why a request has no route; `None` where it has one."""
    headers = {"Connection": "close"} if close else {}
    allowed = _METHODS.get("/v1/models" if path.startswith("/v1/models/") else path)
    if allowed == method:
        return None
    if allowed is not None:
        said = f"This route accepts only {allowed}."
        return ApiError(405, "method_not_allowed", said, headers={**headers, "Allow": allowed})
    there_are = "Available routes: POST /v1/embeddings, GET /v1/models, /ledger and /healthz."
    return ApiError(404, "not_found", f"There is no such route. {there_are}", headers=headers)


def create_app(
    client: Client,
    spec: FinetuneSpec,
    settings: GatewaySettings | None = None,
    *,
    denoiser: str = AUTO,
    executor: Executor | None = None,
) -> Starlette:
    """The gateway as an ASGI application.

    Args:
        client: The customer: its connection, folder and device.
        spec: How texts are privatized; its model is each request's.
        settings: What applications may ask.
        denoiser: What takes the noise out, where there is any; as of `EmbeddingSettings`.
        executor: Runs all that computes, one call at a time; a thread of its own by default.

    Raises:
        ConfigError: There is no key, or an alias is none.
    """
    settings = settings or GatewaySettings()
    gateway = Gateway(client, spec, settings, denoiser=denoiser, executor=executor)

    async def embeddings(request: Request) -> Response:
        return await gateway.embed(request)

    async def models(_: Request) -> Response:
        return answers.models(sorted(await gateway.models()), created=gateway.created)

    async def model(request: Request) -> Response:
        name = request.path_params["name"]
        await gateway.model(name)
        return answers.model(name, created=gateway.created)

    async def health(_: Request) -> Response:
        return answers.plain({"status": "ok"})

    async def ledger(_: Request) -> Response:
        return answers.plain(jsonable(asdict(await gateway.ledger())))

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        await run_in_threadpool(gateway.close)

    async def refuse(request: Request, error: Exception) -> Response:
        return error_for(_astray(request.method, path_in(request.scope)) or error).response()

    listed: Sequence[tuple[str, Callable[..., object], str]] = (
        ("/v1/embeddings", embeddings, "POST"),
        ("/v1/models", models, "GET"),
        ("/v1/models/{name:path}", model, "GET"),
        ("/ledger", ledger, "GET"),
        ("/healthz", health, "GET"),
    )
    app = Starlette(
        routes=[Route(path, call, methods=[method]) for path, call, method in listed],
        exception_handlers={HTTPException: refuse},
        lifespan=lifespan,
    )
    app.state.gateway = gateway
    app.add_middleware(GatewayDoor, keys=gateway.keys, settings=settings)
    return app


def _aliases(given: Sequence[str]) -> dict[str, str]:
    """Models' names by the names that applications have for them.

    Raises:
        ConfigError: One is no pair, or a name is given twice.
    """
    pairs = [each.partition("=") for each in given]
    faults = [
        Fault("alias", each, "must be NAME=MODEL, each name once")
        for each, (name, separator, model) in zip(given, pairs, strict=True)
        if not (name and separator and model) or [other for other, _, _ in pairs].count(name) > 1
    ]
    if faults:
        raise ConfigError(faults)
    return {name: model for name, _, model in pairs}
