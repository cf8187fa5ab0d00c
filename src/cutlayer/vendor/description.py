"""How routes of the protocol are added to the framework, and whose a request is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastapi import Request
from fastapi.responses import JSONResponse, Response

from cutlayer.serving.refusal import MEDIA_TYPE
from cutlayer.wire import Route
from cutlayer.wire.problem import Problem
from cutlayer.wire.transports.answer import TENSOR_MEDIA_TYPE

EVENT_MEDIA_TYPE = "text/event-stream"
_PROBLEM = {"content": {MEDIA_TYPE: {"schema": Problem.model_json_schema()}}}
PROBLEMS: dict[int | str, dict[str, Any]] = {
    "4XX": {"description": "The vendor refuses, and says what to do.", **_PROBLEM},
    "5XX": {"description": "The vendor cannot, and says what to do.", **_PROBLEM},
}
_BYTES = {"schema": {"type": "string", "format": "binary"}}


def at(route: Route) -> dict[str, Any]:
    """How a route of the protocol is added, so that path, method and description cannot drift from it."""
    responses = dict(PROBLEMS)
    described: dict[str, Any] = {"security": [{"key": []}]}
    if route.tensors:
        roles: Sequence[str] = sorted(" + ".join(sorted(names)) for names in route.tensors)
        described["requestBody"] = {
            "required": True,
            "description": f"A safetensors block with the tensors {', or '.join(roles)}.",
            "content": {TENSOR_MEDIA_TYPE: _BYTES},
        }
    if route.reply_tensors or route.raw_reply:
        responses[200] = {"description": "Bytes", "content": {TENSOR_MEDIA_TYPE: _BYTES}}
    if route.is_event and route.reply is not None:
        schema = route.reply.model_json_schema()
        responses[200] = {"description": "A server-sent event", "content": {EVENT_MEDIA_TYPE: {"schema": schema}}}
    return {
        "path": route.path,
        "methods": [route.method],
        "operation_id": route.name,
        "responses": responses,
        "openapi_extra": described,
        "response_class": JSONResponse if route.reply is not None and not route.is_event else Response,
        "response_model": None if route.is_event else route.reply,
        "status_code": 200 if route.reply or route.reply_tensors or route.raw_reply else 204,
    }


def tenant_of(request: Request) -> str:
    """Whose a request is that the door has let in."""
    tenant: str = request.state.tenant
    return tenant
