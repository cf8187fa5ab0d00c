"""What every request passes: quotas, time limits, the books."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from cutlayer import vendor
from cutlayer.core import VendorError
from cutlayer.vendor.log import STEP
from cutlayer.vendor.metrics import Metrics
from cutlayer.vendor.trainer import Trainer
from cutlayer.wire import Frame, Reply, encode_tensors, routes
from cutlayer.wire.transports import LocalTransport
from cutlayer.wire.transports.local import _exchange
from tests.service.customer import Customer, ask, first_model

Open = Callable[[], LocalTransport]


def get(transport: LocalTransport, path: str, *, client: str = "127.0.0.1", **headers: str) -> tuple[int, str]:
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "scheme": "http",
        "method": "GET",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        "client": (client, 0),
        "server": ("vendor", 80),
    }
    status, _, content = transport._run(_exchange(transport._app, scope, b""))
    return status, content.decode()


def test_health_needs_no_key_and_the_rest_does(transport: LocalTransport) -> None:
    assert get(transport, "/healthz") == (200, '{"status":"ok"}')
    assert get(transport, "/openapi.json")[0] == 200
    status, problem = get(transport, "/v1")
    assert status == 401
    assert "Authorization" in json.loads(problem)["remedy"]


def test_metrics_count_and_tell_nothing_else(open_vendor: Open, data_dir: Path) -> None:
    transport = open_vendor()
    customer = Customer(transport)
    customer.run()
    key = vendor.keys.create(data_dir, vendor.keys.METRICS)
    status, text = get(transport, "/metrics", authorization=f"Bearer {key}")
    assert status == 200
    assert 'cutlayer_requests_total{route="job.step",status="200",tenant="clinic"} 14.0' in text
    uplink = sum(len(encode_tensors(tensors)) for tensors in customer.shards(first_model(transport)))
    assert f'cutlayer_body_bytes_total{{direction="up",route="shard.put",tenant="clinic"}} {float(uplink)}' in text
    assert customer.job not in text
    assert 'cutlayer_compute_wait_seconds_count{tenant="clinic"}' in text
    assert 'cutlayer_compute_seconds_count{tenant="clinic"}' in text
    transport.close()
    settings = vendor.VendorSettings.load(data_dir).model_copy(update={"metrics_from_anywhere": True})
    settings.save()
    assert get(open_vendor(), "/metrics", client="192.0.2.7")[0] == 200


def test_times_of_waiting_and_of_work_are_told_apart() -> None:
    metrics = Metrics()
    metrics.computed("clinic", 3.0, 0.5)
    text = metrics.render().decode()
    assert 'cutlayer_compute_wait_seconds_sum{tenant="clinic"} 3.0' in text
    assert 'cutlayer_compute_seconds_sum{tenant="clinic"} 0.5' in text


def test_metrics_ask_for_their_own_key(transport: LocalTransport, data_dir: Path) -> None:
    """They name tenants, and behind a proxy on this machine every request comes from this machine."""
    for client in ("127.0.0.1", "192.0.2.7"):
        for wrong in ({}, {"authorization": f"Bearer {transport._api_key}"}, {"authorization": "Bearer x"}):
            status, problem = get(transport, "/metrics", client=client, **wrong)
            assert status == 401
            assert "clinic" not in problem
            assert "key create --metrics" in json.loads(problem)["remedy"]
    key = vendor.keys.create(data_dir, vendor.keys.METRICS)
    assert get(transport, "/metrics", client="192.0.2.7", authorization=f"Bearer {key}")[0] == 200
    assert get(transport, "/v1", authorization=f"Bearer {key}")[0] == 401, "and it opens nothing else"
    vendor.keys.revoke(data_dir, vendor.keys.METRICS)
    assert get(transport, "/metrics", authorization=f"Bearer {key}")[0] == 401


def test_a_tenant_has_only_so_many_requests_at_a_time(
    open_vendor: Open, data_dir: Path, change_settings: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    change_settings(data_dir, limits={"requests_per_tenant": 2})
    transport = open_vendor()
    customers = [Customer(transport, job=f"{number:032x}") for number in range(2)]
    for customer in customers:
        customer.upload()
        customer.start()
    goes_on = threading.Event()
    forward = Trainer.forward

    def slow(self: Trainer, payload: object) -> torch.Tensor:
        goes_on.wait(30)
        return forward(self, payload)  # type: ignore[arg-type]

    monkeypatch.setattr(Trainer, "forward", slow)
    replies: list[Reply] = []
    threads = [
        threading.Thread(target=lambda one=one: replies.append(one.send_step(1, None)))  # type: ignore[misc]
        for one in customers
    ]
    for thread in threads:
        thread.start()
    while transport._app.state.vendor.metrics.in_progress._value.get() < 2:  # type: ignore[attr-defined]
        pass
    with pytest.raises(VendorError, match="2 requests of this key's owner") as caught:
        ask(transport, routes.SERVICE)
    assert caught.value.status == 429
    goes_on.set()
    for thread in threads:
        thread.join()
    assert len(replies) == 2
    ask(transport, routes.SERVICE)


def test_a_body_that_does_not_arrive_is_given_up(
    open_vendor: Open, data_dir: Path, change_settings: Callable[..., None]
) -> None:
    change_settings(data_dir, limits={"body_seconds": 0.3})
    transport = open_vendor()
    customer = Customer(transport, trainable=True)
    customer.start()
    body = encode_tensors(customer.step_tensors(1, None))
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "scheme": "http",
        "method": "POST",
        "path": f"/v1/jobs/{customer.job}/steps/1",
        "raw_path": b"",
        "query_string": b"",
        "root_path": "",
        "headers": [
            (b"authorization", f"Bearer {transport._api_key}".encode()),
            (b"content-length", str(len(body)).encode()),
        ],
        "client": ("127.0.0.1", 0),
        "server": ("vendor", 80),
    }
    first = [{"type": "http.request", "body": body[:1000], "more_body": True}]
    answer: list[Any] = []

    async def receive() -> Any:
        if first:
            return first.pop()
        return await asyncio.Event().wait()

    async def send(event: Any) -> None:
        answer.append(event)

    async def stall() -> None:
        async with asyncio.timeout(20):
            await transport._app(scope, receive, send)

    transport._run(stall())
    head, content = answer
    assert head["status"] == 408
    assert (b"connection", b"close") in head["headers"], "the rest of the body is no next request"
    problem = json.loads(content["body"])
    assert problem["type"] == "urn:cutlayer:too-slow"
    assert problem["remedy"]
    assert customer.start().step == 0
    customer.train(customer.start(), until=1)


def test_a_customer_who_hangs_up_does_not_stop_its_step(transport: LocalTransport) -> None:
    """The request's task is cancelled while the step is computed; the answer is there when it is asked for."""
    customer = Customer(transport)
    customer.upload()
    customer.start()
    frame = Frame(routes.STEP, {"job": customer.job, "step": 1}, None, customer.step_tensors(1, None))
    compute = transport._app.state.vendor.compute  # type: ignore[attr-defined]
    jobs = transport._app.state.vendor.jobs  # type: ignore[attr-defined]

    async def impatient() -> None:
        task = asyncio.ensure_future(compute.run(jobs.accept, "clinic", customer.job, STEP, 1, frame.encode()))
        await asyncio.sleep(0)
        task.cancel()

    transport._run(impatient())
    reply = customer.send_step(1, None)
    assert reply.tensors["output"].shape == (8, 3)
    assert (
        transport.send(Frame(routes.STEP_GET, {"job": customer.job, "step": 1}))
        .tensors["output"]
        .equal(reply.tensors["output"])
    )
