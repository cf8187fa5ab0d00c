"""What every request passes before anything of it is read: key, length, quota of requests; and after: the books.

Plain ASGI, because the framework would read a body before it asks whose it is.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections import Counter
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request

from cutlayer.vendor.keys import METRICS, Doorkeeper
from cutlayer.vendor.metrics import Metrics
from cutlayer.vendor.problems import Refusal, refusal_for
from cutlayer.vendor.settings import Limits
from cutlayer.wire import ROUTES, Route
from cutlayer.wire.messages import MAX_CONTROL_BYTES

Scope = MutableMapping[str, Any]
Event = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

log = logging.getLogger("cutlayer.vendor.requests")

_PATTERNS = [(route, re.compile(re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", route.path))) for route in ROUTES.values()]
_KEPT = "Bearer "
_OPEN = frozenset({"/healthz", "/metrics", "/openapi.json"})
"""What is answered without a tenant's key. All else asks for one, so that a path which is misread stays closed."""
_HUNG_UP = 499
"""No answer was sent, for there was nobody left to read it; the status is for the books only."""


class Door:
    """Wraps the application.

    Args:
        app: The application.
        doorkeeper: Whose keys are whose.
        limits: What one request and one tenant may take.
        metrics: Where requests are counted.
    """

    def __init__(self, app: App, *, doorkeeper: Doorkeeper, limits: Limits, metrics: Metrics) -> None:
        self._app = app
        self._doorkeeper = doorkeeper
        self._limits = limits
        self._metrics = metrics
        self._in_progress: Counter[str] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope)
        # Not `request.url`: that is made from the Host header, too, which is whatever the customer says.
        path = path_in(scope)
        route, _ = route_of(request.method, path) or (None, {})
        visit = _Visit(receive, send, self._limits.body_seconds)
        started = time.perf_counter()
        tenant = ""
        try:
            if path not in _OPEN:
                tenant = await self._tenant(request)
                scope.setdefault("state", {})["tenant"] = tenant
                visit.keeps_connection = True
            visit.announced = self._check_length(request, route)
            self._enter(tenant)
            try:
                await self._app(scope, visit.receive, visit.send)
            finally:
                self._leave(tenant)
        except ClientDisconnect:
            pass  # there is nobody to answer
        except Exception as error:
            if not visit.answering:
                await refusal_for(error).response()(scope, visit.receive, visit.send)
        finally:
            name = route.name if route is not None else "other"
            seconds = time.perf_counter() - started
            self._metrics.requests.labels(tenant, name, visit.status).inc()
            self._metrics.bytes.labels(tenant, name, "up").inc(visit.received)
            self._metrics.bytes.labels(tenant, name, "down").inc(visit.sent)
            self._metrics.seconds.labels(name).observe(seconds)
            log.info("%s %s %s %.1f ms", tenant or "-", name, visit.status, 1000 * seconds)

    async def _tenant(self, request: Request) -> str:
        key = key_in(request)
        tenant = self._doorkeeper.remembered(key) or await run_in_threadpool(self._doorkeeper.tenant, key)
        if tenant is None or tenant == METRICS:
            raise wrong_key(request, "a key that the vendor made for you")
        return tenant

    def _check_length(self, request: Request, route: Route | None) -> int:
        """The announced length of the body, 0 if there is none."""
        limits = self._limits
        limit = min(limits.max_control_bytes, MAX_CONTROL_BYTES)
        if route is not None and route.tensors:
            limit = limits.max_body_bytes if route.name == "shard.put" else limits.max_step_bytes
        if "transfer-encoding" in request.headers:
            raise Refusal(
                411,
                "length-required",
                "The request does not say how long its body is.",
                remedy="Send Content-Length.",
                headers={"Connection": "close"},
            )
        text = request.headers.get("content-length", "0")
        length = int(text) if text.isascii() and text.isdigit() and len(text) < 20 else -1
        if length < 0 or length > limit:
            raise Refusal(
                413,
                "too-large",
                f"The body has {text[:20]} bytes; this route takes {limit}.",
                remedy="Send less at a time.",
                headers={"Connection": "close"},
            )
        return length

    def _enter(self, tenant: str) -> None:
        if tenant and self._in_progress[tenant] >= self._limits.requests_per_tenant:
            raise Refusal(
                429,
                "too-many-requests",
                f"{self._in_progress[tenant]} requests of this tenant are in progress.",
                remedy="Wait for some of them.",
                headers={"Retry-After": "1"},
            )
        self._in_progress[tenant] += 1
        self._metrics.in_progress.inc()

    def _leave(self, tenant: str) -> None:
        self._in_progress[tenant] -= 1
        self._metrics.in_progress.dec()


def key_in(request: Request) -> str:
    """The API key that a request brings; empty if it brings none."""
    header = request.headers.get("authorization", "")
    return header.removeprefix(_KEPT) if header.startswith(_KEPT) else ""


def wrong_key(request: Request, wanted: str) -> Refusal:
    """Why a request is refused that brings no key, or not the right one.

    Args:
        request: The request.
        wanted: Which one it should bring.
    """
    has_none = not request.headers.get("authorization")
    return Refusal(
        401,
        "wrong-key",
        "The request has no API key."
        if has_none
        else "The API key is not one of this vendor's that opens this, or was revoked.",
        remedy=f"Send `Authorization: Bearer KEY` with {wanted}.",
        headers={"WWW-Authenticate": "Bearer"},
    )


class _Visit:
    """One request's way in and out, counted.

    A refusal that leaves a body unread would close the connection under the customer's hands, who
    would see a broken pipe and no reason. So what was announced (and is within limits) is read to
    its end before a refusal is sent.
    """

    def __init__(self, receive: Receive, send: Send, seconds: float) -> None:
        self._receive = receive
        self._send = send
        self._deadline = time.monotonic() + seconds
        self.keeps_connection = False
        self.announced = 0
        self.received = 0
        self.sent = 0
        self.status = 0
        self.answering = False
        self._whole = False

    async def receive(self) -> Event:
        if self._whole:
            return await self._receive()
        try:
            async with asyncio.timeout(max(0.0, self._deadline - time.monotonic())):
                event = await self._receive()
        except TimeoutError:
            self.announced = 0
            raise Refusal(
                408,
                "too-slow",
                "The body did not arrive in time.",
                remedy="Send it again, in smaller parts.",
                headers={"Connection": "close"},
            ) from None
        if event["type"] == "http.request":
            self.received += len(event.get("body", b""))
            self._whole = not event.get("more_body", False)
        else:
            self._whole = True
            self.status = _HUNG_UP
        return event

    async def send(self, event: Event) -> None:
        if event["type"] == "http.response.start":
            if event["status"] >= 400:
                await self._drain()
            self.answering = True
            self.status = self.status or event["status"]
            if not self.keeps_connection:  # only those with a key may hold one of the vendor's connections
                event["headers"] = [*event.get("headers", ()), (b"connection", b"close")]
        self.sent += len(event.get("body", b""))
        await self._send(event)

    async def _drain(self) -> None:
        while not self._whole and self.received < self.announced:
            try:
                await self.receive()
            except Refusal:
                return


def path_in(scope: Scope) -> str:
    """The path as the application's router reads it: without the part of a proxy or an application around this one."""
    path, root = str(scope["path"]), str(scope.get("root_path", ""))
    return path.removeprefix(root) if path.startswith(f"{root}/") else path


def route_of(method: str, path: str) -> tuple[Route, dict[str, str]] | None:
    """The route that a request is meant for, and what stands in its path; None where there is no such route."""
    for route, pattern in _PATTERNS:
        if route.method == method and (match := pattern.fullmatch(path)):
            return route, match.groupdict()
    return None
