"""The short way of frames that come by the token: from the door to their handler, past the framework's router.

What the framework does on the way (matching a path against all routes, resolving a handler's parameters) takes longer
than some of these frames do. What it would refuse still goes to it, so that there is one set of refusals.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from pydantic import ValidationError
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from cutlayer.serving.door import App, Receive, Scope, Send, path_in
from cutlayer.vendor.door import route_of
from cutlayer.wire import routes
from cutlayer.wire.transports.answer import TENSOR_MEDIA_TYPE

Handler = Callable[..., Awaitable[bytes]]
"""Answers a tenant's frame: called with the tenant, what stands in the path by name, and `body`."""


def in_tensors(body: bytes) -> Response:
    """The framework's answer of encoded tensors."""
    return Response(body, media_type=TENSOR_MEDIA_TYPE)


class ShortWay:
    """Answers some routes itself and hands everything else on. Stands behind the door.

    Args:
        app: The framework's application.
        handlers: By route name.
    """

    def __init__(self, app: App, *, handlers: Mapping[str, Handler]) -> None:
        self._app = app
        self._handlers = handlers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles one request that the door has let in."""
        found = route_of(scope["method"], path_in(scope)) if scope["type"] == "http" else None
        handler = None if found is None else self._handlers.get(found[0].name)
        if found is None or handler is None:
            await self._app(scope, receive, send)
            return
        try:
            where: dict[str, Any] = {
                name: routes.PLACEHOLDERS[name].validate_strings(value) for name, value in found[1].items()
            }
        except ValidationError:
            await self._app(scope, receive, send)
            return
        answer = await handler(scope["state"]["tenant"], **where, body=await _body(receive))
        headers = [(b"content-length", b"%d" % len(answer)), (b"content-type", TENSOR_MEDIA_TYPE.encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": answer})


async def _body(receive: Receive) -> bytes:
    body = bytearray()
    while True:
        event = await receive()
        if event["type"] == "http.disconnect":
            raise ClientDisconnect
        body += event.get("body", b"")
        if not event.get("more_body", False):
            return bytes(body)
