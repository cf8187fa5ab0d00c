"""Frames to a vendor in the same process: no socket, the same requests and the same checks."""

from __future__ import annotations

import asyncio
import contextlib
import http
import threading
from collections.abc import Awaitable, Callable, Coroutine, MutableMapping
from typing import Any, TypeVar

from cutlayer.core import VendorError
from cutlayer.wire.frame import Frame, Reply
from cutlayer.wire.transports.answer import read_answer, request_headers

T = TypeVar("T")
_Event = MutableMapping[str, Any]
AsgiApp = Callable[
    [MutableMapping[str, Any], Callable[[], Awaitable[_Event]], Callable[[_Event], Awaitable[None]]], Awaitable[None]
]
_ASGI = {"version": "3.0", "spec_version": "2.3"}


class LocalTransport:
    """Frames to an ASGI application in this process.

    The application runs in a thread of its own, start-up and shut-down included. Byte counts are
    those of the same request and answer as HTTP/1.1 text.

    Args:
        app: The vendor's application.
        api_key: The tenant's key.
    """

    def __init__(self, app: AsgiApp, api_key: str) -> None:
        self._app = app
        self._api_key = api_key
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="local-vendor", daemon=True)
        self._thread.start()
        self._lifespan = _Lifespan(app)
        self._closed = False
        self._run(self._lifespan.start())

    @property
    def peer(self) -> str:
        """Who gets the frames."""
        return "this process"

    def send(self, frame: Frame) -> Reply:
        """Sends one frame.

        Raises:
            VendorError: The vendor refused.
            AuthError: The vendor does not accept the key.
        """
        if self._closed:
            raise VendorError("This transport is closed.", remedy="Make another one.")
        body = frame.encode()
        headers = {"Host": "vendor.local", **request_headers(frame, body, self._api_key)}
        if body:
            headers["Content-Length"] = str(len(body))
        fields = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
        scope = {
            "type": "http",
            "asgi": _ASGI,
            "http_version": "1.1",
            "scheme": "http",
            "method": frame.route.method,
            "path": frame.path,
            "raw_path": frame.path.encode(),
            "query_string": b"",
            "root_path": "",
            "headers": fields,
            "client": ("127.0.0.1", 0),
            "server": ("vendor.local", 80),
            "state": self._lifespan.state.copy(),
        }
        status, answered, content = self._run(_exchange(self._app, scope, body))
        sent = _head(f"{frame.route.method} {frame.path} HTTP/1.1", fields) + len(body)
        received = _head(f"HTTP/1.1 {status} {http.HTTPStatus(status).phrase}", answered) + len(content)
        try:
            return read_answer(
                frame, status=status, content=content, request=body, uplink_bytes=sent, downlink_bytes=received
            )
        except VendorError as error:
            error.uplink_bytes, error.downlink_bytes = sent, received
            raise

    def close(self) -> None:
        """Shuts the vendor's application down."""
        if self._closed:
            return
        self._closed = True
        self._run(self._lifespan.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


async def _exchange(
    app: AsgiApp, scope: MutableMapping[str, Any], body: bytes
) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
    """One request: status, headers and body of the answer."""
    unread = [{"type": "http.request", "body": body, "more_body": False}]
    answer: list[_Event] = []

    async def receive() -> _Event:
        if unread:
            return unread.pop()
        await asyncio.Event().wait()  # the customer stays connected until it has its answer
        raise AssertionError

    async def send(event: _Event) -> None:
        answer.append(event)

    await app(scope, receive, send)
    if not answer:
        raise VendorError("The vendor's application gave no answer.")
    return (
        answer[0]["status"],
        [(bytes(name), bytes(value)) for name, value in answer[0].get("headers", [])],
        b"".join(event.get("body", b"") for event in answer[1:]),
    )


class _Lifespan:
    """The application's start-up and shut-down."""

    def __init__(self, app: AsgiApp) -> None:
        self._app = app
        self.state: dict[str, Any] = {}

    async def start(self) -> None:
        self._to_app: asyncio.Queue[_Event] = asyncio.Queue()
        self._from_app: asyncio.Queue[_Event] = asyncio.Queue()
        scope = {"type": "lifespan", "asgi": _ASGI, "state": self.state}
        self._task = asyncio.ensure_future(self._app(scope, self._to_app.get, self._from_app.put))
        await self._tell("startup")

    async def stop(self) -> None:
        await self._tell("shutdown")
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    async def _tell(self, event: str) -> None:
        await self._to_app.put({"type": f"lifespan.{event}"})
        answer = asyncio.create_task(self._from_app.get())
        await asyncio.wait({answer, self._task}, return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            answer.cancel()
            await self._task  # raises what stopped the application
            raise VendorError(f"The vendor's application ended before its {event}.")
        if answer.result()["type"].endswith(".failed"):
            raise VendorError(f"The vendor's application failed at {event}: {answer.result().get('message', '')}")


def _head(first_line: str, fields: list[tuple[bytes, bytes]]) -> int:
    """Length of a message's head as text."""
    return len(first_line) + 2 + sum(len(name) + len(value) + 4 for name, value in fields) + 2
