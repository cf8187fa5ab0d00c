"""What every request to a service passes before it is read: key, length, quota of requests; and after: the books.

Plain ASGI, because the framework would read a body before it asks whose it is.
"""

from __future__ import annotations

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from cutlayer.serving.refusal import Refusal, log_without_values

Scope = MutableMapping[str, Any]
Event = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

_KEPT = "Bearer "
_ANSWER_PART = 2**16
"""Bytes of an answer that are sent at a time."""
_HUNG_UP = 499
"""No answer was sent, for there was nobody left to read it; the status is for the books only."""


class Door(ABC):
    """Wraps an application.

    Args:
        app: The application.
        body_seconds: How long a body may take.
        requests_at_once: Most requests of one key's owner that are in progress.
        books: Where requests are logged, without paths and keys.

    Attributes:
        open_paths: What is answered without a key. All else asks for one, so that a path which is misread stays closed.
        wanted: Which key opens the rest, in a remedy.
    """

    open_paths: frozenset[str]
    wanted: str

    def __init__(self, app: App, *, body_seconds: float, requests_at_once: int, books: logging.Logger) -> None:
        self._app = app
        self._body_seconds = body_seconds
        self._requests_at_once = requests_at_once
        self._books = books
        self._in_progress: Counter[str] = Counter()

    @abstractmethod
    def meant(self, method: str, path: str) -> tuple[str, int]:
        """What a request is for: a name for the books, in which nothing of the path stands, and most bytes of its body.

        Args:
            method: Of the request.
            path: As the application's router reads it.
        """

    def misdirected(self, method: str, path: str) -> Exception | None:
        """Why a request with a body is for nothing here, which is told unread; `None` where the application tells it.

        Args:
            method: Of the request.
            path: As the application's router reads it.
        """
        return None

    @abstractmethod
    async def owner(self, key: str) -> str | None:
        """Whose a key is; `None` of one that opens nothing here."""

    @abstractmethod
    def response(self, error: Exception) -> Response:
        """What is answered where the application was not asked, or raised an error."""

    def answered(self, owner: str, name: str, visit: Visit, seconds: float) -> None:
        """Enters a request into the books when it is answered.

        Args:
            owner: Whose it was; empty without a key.
            name: What it was for.
            visit: Its status, and the bytes of both bodies.
            seconds: From its head to its answer.
        """
        self._books.info("%s %s %s %.1f ms", owner or "-", name, visit.status, 1000 * seconds)

    def enter(self, owner: str) -> None:
        """Counts a request that begins.

        Raises:
            Refusal: Its owner has too many in progress.
        """
        if owner and self._in_progress[owner] >= self._requests_at_once:
            raise Refusal(
                429,
                "too-many-requests",
                f"{self._in_progress[owner]} requests of this key's owner are in progress.",
                remedy="Wait for some of them.",
                headers={"Retry-After": "1"},
            )
        self._in_progress[owner] += 1

    def leave(self, owner: str) -> None:
        """Counts a request that ended."""
        self._in_progress[owner] -= 1

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope)
        # Not `request.url`: that is made from the Host header, too, which is whatever the customer says.
        path = path_in(scope)
        name, most = self.meant(request.method, path)
        visit = Visit(receive, send, self._body_seconds)
        started = time.perf_counter()
        owner = ""
        try:
            if path not in self.open_paths:
                owner = await self._owner(request)
                scope.setdefault("state", {})["tenant"] = owner
                visit.keeps_connection = True
            if _has_body(request) and (wrong := self.misdirected(request.method, path)) is not None:
                raise wrong
            visit.announced = _length(request, most)
            self.enter(owner)
            try:
                await self._app(scope, visit.receive, visit.send)
            finally:
                self.leave(owner)
        except ClientDisconnect:
            pass  # there is nobody to answer
        except Exception as error:
            if visit.answering:
                log_without_values(error)  # too late to say it
            else:
                await self.response(error)(scope, visit.receive, visit.send)
        finally:
            seconds = time.perf_counter() - started
            self.answered(owner, name, visit, seconds)

    async def _owner(self, request: Request) -> str:
        owner = await self.owner(key_in(request))
        if owner is None:
            raise wrong_key(request, self.wanted)
        return owner


def _has_body(request: Request) -> bool:
    return "transfer-encoding" in request.headers or request.headers.get("content-length", "0") != "0"


def _length(request: Request, limit: int) -> int:
    """The announced length of the body, 0 if there is none."""
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
        "The request has no API key." if has_none else "The API key is not one that opens this, or was revoked.",
        remedy=f"Send `Authorization: Bearer KEY` with {wanted}.",
        headers={"WWW-Authenticate": "Bearer"},
    )


class Visit:
    """One request's way in and out, counted.

    A refusal that leaves a body unread would close the connection under the customer's hands, who
    would see a broken pipe and no reason. So what was announced (and is within limits) is read to
    its end before a refusal is sent.

    Attributes:
        status: Of the answer; 499 where nobody was left to read one.
        received: Bytes of the request's body.
        sent: Bytes of the answer's.
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
        """The next part of the body, within the time for all of it."""
        if self._whole:
            event = await self._receive()
            if event["type"] == "http.disconnect" and not self.answering:
                self.status = _HUNG_UP
            return event
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
        """Sends a part of the answer."""
        if event["type"] == "http.response.start":
            if event["status"] >= 400:
                await self._drain()
            self.answering = True
            self.status = self.status or event["status"]
            if not self.keeps_connection:  # only those with a key may hold one of the service's connections
                event["headers"] = [*event.get("headers", ()), (b"connection", b"close")]
        body = event.get("body", b"")
        self.sent += len(body)
        # The server waits for a peer that does not read before it sends, and not after. An answer in one part would end
        # its request, which is counted no more, while all of it is kept for whoever never reads it.
        if len(body) > _ANSWER_PART:
            for start in range(0, len(body), _ANSWER_PART):
                await self._send({**event, "body": body[start : start + _ANSWER_PART], "more_body": True})
            if not event.get("more_body", False):
                await self._send({**event, "body": b""})
        else:
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
