"""The short way past the framework: the same answers and refusals, by the same door."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cutlayer.core import VendorError
from cutlayer.vendor import frames
from cutlayer.wire import Frame, routes
from cutlayer.wire.transports import LocalTransport
from cutlayer.wire.transports.local import _exchange
from tests.unit.vendor.test_generations import (  # noqa: F401 - fixtures are used by name
    ONE,
    api_key,
    data_dir,
    decoder,
    grown,
    published,
    put,
)
from tests.unit.vendor.test_jobs import vendor_of


def post(transport: LocalTransport, path: str, body: bytes = b"", *, key: str | None = None) -> tuple[int, Any]:
    """Status and body of a request's answer."""
    given = transport._api_key if key is None else key
    headers = [(b"authorization", f"Bearer {given}".encode()), (b"content-length", b"%d" % len(body))]
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "scheme": "http",
        "method": "POST",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": headers,
        "client": ("127.0.0.1", 0),
        "server": ("vendor", 80),
    }
    status, _, content = transport._run(_exchange(transport._app, scope, body))
    return status, content


@pytest.mark.parametrize("path", [f"{'z' * 32}/steps/1", f"{ONE}/steps/0", f"{ONE}/steps/one", f"{ONE}/steps/-1"])
def test_what_stands_in_a_path_is_refused_as_the_framework_refuses_it(transport: LocalTransport, path: str) -> None:
    ours, told = post(transport, f"/v1/generations/{path}", b"body")
    theirs, expected = post(transport, f"/v1/jobs/{path}", b"body")
    assert ours == theirs == 422
    assert json.loads(told)["detail"] == json.loads(expected)["detail"].replace("job", "generation")


def test_the_framework_is_not_asked(transport: LocalTransport, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or the short way would be dead code."""
    put(transport)
    app = transport._app

    async def forbidden(*_: Any) -> None:
        raise AssertionError("the router was asked")

    monkeypatch.setattr(app.router, "app", forbidden)  # type: ignore[attr-defined]
    frame = Frame(routes.GENERATION_STEP, {"generation": ONE, "step": 1}, None, grown([2, 3]))
    assert len(transport.send(frame).tensors["output"])


def test_the_short_way_is_behind_the_door(transport: LocalTransport) -> None:
    put(transport)
    status, _ = post(transport, f"/v1/generations/{ONE}/steps/1", b"body", key="cl_000000000000_" + "x" * 43)
    assert status == 401
    metrics = vendor_of(transport).metrics.render().decode()
    assert 'cutlayer_requests_total{route="generation.step",status="401",tenant=""} 1.0' in metrics


def test_refusals_and_mistakes_are_told_as_elsewhere(
    transport: LocalTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    frame = Frame(routes.GENERATION_STEP, {"generation": ONE, "step": 1}, None, grown([2, 3]))
    with pytest.raises(VendorError, match="There is no session") as missing:
        transport.send(frame)
    assert missing.value.status == 404
    put(transport)
    status, content = post(transport, f"/v1/generations/{ONE}/steps/1", b"body")
    assert (status, json.loads(content)["title"]) == (422, "Not a frame")

    async def broken(_: Any) -> bytes:
        raise RuntimeError("secret")

    monkeypatch.setattr(frames, "_body", broken)
    with pytest.raises(VendorError, match="made a mistake") as mistake:
        transport.send(frame)
    assert mistake.value.status == 500
