"""What a request may not do before anything looks at it: pass without a key, be long, hang up noisily."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import starlette.datastructures

from cutlayer.wire.messages import MAX_CONTROL_BYTES
from cutlayer.wire.transports import LocalTransport
from cutlayer.wire.transports.local import _exchange
from tests.service.customer import Customer, first_model

JOB = f"/v1/jobs/{'e' * 32}"


def scope_of(method: str, path: str, **more: Any) -> dict[str, Any]:
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "scheme": "http",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [],
        "client": ("127.0.0.1", 0),
        "server": ("vendor", 80),
        **more,
    }


def ask(transport: LocalTransport, scope: dict[str, Any], body: bytes = b"") -> tuple[int, dict[str, Any]]:
    status, _, content = transport._run(_exchange(transport._app, scope, body))
    return status, json.loads(content)


def put(transport: LocalTransport, body: bytes) -> tuple[int, str]:
    """Sends a job's spec as bytes; the answer's status and detail."""
    headers = [
        (b"authorization", f"Bearer {transport._api_key}".encode()),
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
    ]
    status, problem = ask(transport, scope_of("PUT", JOB, headers=headers), body)
    return status, problem["detail"]


# ---------------------------------------------------------------- the key


def test_a_forged_host_opens_nothing(transport: LocalTransport, monkeypatch: pytest.MonkeyPatch) -> None:
    """Starlette before 1.0 made a request's URL of whatever the Host header said, its path included."""

    def as_before(self: Any, url: str = "", scope: Any = None, **_: Any) -> None:
        headers = dict((scope or {}).get("headers", ()))
        host = headers.get(b"host", b"").decode("latin-1")
        self._url = f"{scope['scheme']}://{host}{scope['path']}" if scope else url

    monkeypatch.setattr(starlette.datastructures.URL, "__init__", as_before)
    for host in (b"v", b"v?", b"v#", b"v/", b"v/healthz?", b"v?x=/healthz", b"", b"[", b"a@b?"):
        for path in ("/v1/models", "/v1/models/tiny/archives/1", "/v1", "/docs", "/healthz/../v1"):
            assert ask(transport, scope_of("GET", path, headers=[(b"host", host)]))[0] == 401, (host, path)


@pytest.mark.parametrize(
    ("root", "path", "status"),
    [
        ("/api", "/api/healthz", 200),
        ("/api", "/api/v1", 401),
        ("/api", "/v1", 401),
        ("/v1", "/v1/v1", 401),
        ("/healthz", "/healthz/v1", 401),
        ("/v", "/v1", 401),
        ("/api", "/apihealthz", 401),
    ],
)
def test_below_another_path_the_same_is_open(transport: LocalTransport, root: str, path: str, status: int) -> None:
    assert ask(transport, scope_of("GET", path, root_path=root))[0] == status


def test_only_those_with_a_key_keep_their_connection(transport: LocalTransport) -> None:
    key = [(b"authorization", f"Bearer {transport._api_key}".encode())]
    for path, headers, closes in (("/healthz", [], True), ("/v1", [], True), ("/v1", key, False)):
        _, answered, _ = transport._run(_exchange(transport._app, scope_of("GET", path, headers=headers), b""))
        assert ((b"connection", b"close") in answered) == closes


# ---------------------------------------------------------------- control messages


def test_a_message_longer_than_any_is_not_read(transport: LocalTransport) -> None:
    status, detail = put(transport, b"[" + b"0," * (MAX_CONTROL_BYTES // 2) + b"0]")
    assert status == 413
    assert f"this route takes {MAX_CONTROL_BYTES}" in detail


@pytest.mark.parametrize(
    ("elements", "told"),
    [
        ("0," * 5000 + "0", "record_sets.0 = 0: Input should be a valid string"),
        (f'"{"a" * 32}",' * 100 + f'"{"b" * 32}"', "record_sets: Tuple should have at most 64 items"),
        (f'"{"a" * 32}","{"a" * 32}"', "record_sets: Value error, names a set more than once"),
    ],
    ids=["of another type", "too many", "twice the same"],
)
def test_of_a_list_one_fault_is_told(transport: LocalTransport, elements: str, told: str) -> None:
    spec = Customer(transport).spec(first_model(transport)).model_dump(mode="json") | {"record_sets": ["@"]}
    status, detail = put(transport, json.dumps(spec).replace('"@"', elements).encode())
    assert status == 422
    assert detail.startswith(told)
    assert ";" not in detail


def test_names_that_a_customer_makes_up_are_not_repeated(transport: LocalTransport) -> None:
    spec = Customer(transport).spec(first_model(transport)).model_dump(mode="json")
    spec["the patient was seen on Monday"] = 0
    spec["tuning"]["the patient was seen on Tuesday"] = 0
    status, detail = put(transport, json.dumps(spec).encode())
    assert status == 422
    assert sorted(detail.split("; ")) == [
        "body: Extra inputs are not permitted",
        "tuning.lora: Extra inputs are not permitted",
    ]


def test_only_so_many_faults_are_told(transport: LocalTransport) -> None:
    spec = Customer(transport).spec(first_model(transport)).model_dump(mode="json")
    wrong = dict.fromkeys(spec, None) | {f"patient {number}": 0 for number in range(500)}
    status, detail = put(transport, json.dumps(wrong).encode())
    assert status == 422
    assert "model: Input should be a valid string" in detail
    faults = 500 + len(spec) - 4  # null is a value of num_labels and their words, of reconstruction and of the loop
    assert detail.endswith(f"and {faults - 20} more")
    assert len(detail) < 2000
    assert "patient" not in detail


# ---------------------------------------------------------------- hanging up


@pytest.mark.parametrize(
    ("method", "path", "kind"),
    [
        ("POST", f"{JOB}/infer", b"application/octet-stream"),
        ("PUT", JOB, b"application/json"),
        ("PUT", f"/v1/record-sets/{'0' * 31}1/shards/0", b"application/octet-stream"),
    ],
    ids=["tensors", "json", "shard"],
)
def test_a_customer_who_hangs_up_is_no_mistake_of_the_vendor(
    transport: LocalTransport, caplog: pytest.LogCaptureFixture, method: str, path: str, kind: bytes
) -> None:
    Customer(transport).upload()
    headers = [
        (b"authorization", f"Bearer {transport._api_key}".encode()),
        (b"content-type", kind),
        (b"content-length", b"1000"),
        (b"x-content-sha256", b"0" * 64),
    ]
    events = [{"type": "http.request", "body": b"abc", "more_body": True}, {"type": "http.disconnect"}]

    async def receive() -> Any:
        return events.pop(0) if events else await asyncio.Event().wait()

    async def send(_: Any) -> None:
        pass

    with caplog.at_level(logging.INFO):
        transport._run(transport._app(scope_of(method, path, headers=headers), receive, send))  # type: ignore[arg-type]
    assert [record for record in caplog.records if record.levelno > logging.INFO] == []
    assert caplog.messages[-1].split()[2] == "499"


def test_a_settings_limit_that_is_smaller_holds(
    open_vendor: Callable[[], LocalTransport], data_dir: Path, change_settings: Callable[..., None]
) -> None:
    change_settings(data_dir, limits={"max_control_bytes": 1024})
    assert put(open_vendor(), b" " * 1025)[0] == 413
