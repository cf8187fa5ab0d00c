"""What happens to stored bytes: torn, changed, dropped on the way, or written to a full disk."""

from __future__ import annotations

import hashlib
import http.client
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from cutlayer import vendor
from cutlayer.core import VendorError
from cutlayer.wire import Frame, encode_tensors, routes
from cutlayer.wire.messages import JobInfo, RecordSetInfo
from cutlayer.wire.transports import HttpTransport, LocalTransport
from tests.service.customer import Customer, ask, first_model
from tests.service.process import VendorProcess, Vendors, running


def shard_file(data_dir: Path, customer: Customer, number: int) -> Path:
    return data_dir / "tenants/clinic/record-sets" / customer.job / f"{number:08d}.safetensors"


@pytest.mark.parametrize("damage", ["torn in half", "one bit flipped", "gone"])
def test_a_damaged_shard_is_detected_and_sent_again(process: VendorProcess, api_key: str, damage: str) -> None:
    transport = HttpTransport(process.url, api_key, retries=30)
    customer = Customer(transport)
    customer.upload()
    customer.start()
    pending = customer.take(1, None)
    process.kill()
    path = shard_file(process.data_dir, customer, 1)
    content = bytearray(path.read_bytes())
    if damage == "gone":
        path.unlink()
    else:
        if damage == "torn in half":
            content = content[: len(content) // 2]
        else:
            content[-1] ^= 1
        path.write_bytes(content)
    process.start()
    with pytest.raises(VendorError, match=r"Shard 1 .* is damaged") as caught:
        customer.take(2, pending)
    assert caught.value.status == 409
    info = ask(transport, routes.RECORD_SET_GET, record_set=customer.job).expect(RecordSetInfo)
    assert [shard.number for shard in info.shards] == [0, 2]
    assert info.sealed
    other = first_model(transport)
    wrong = customer.shards(other)[0]
    with pytest.raises(VendorError, match="other bytes"):
        transport.send(Frame(routes.SHARD_PUT, {"record_set": customer.job, "shard": 1}, None, wrong))
    customer.upload()
    customer.take(2, pending)
    transport.close()


def test_a_dropped_upload_leaves_nothing(process: VendorProcess, api_key: str) -> None:
    transport = HttpTransport(process.url, api_key)
    customer = Customer(transport)
    customer.upload()
    body = encode_tensors(customer.shards(first_model(transport))[0])
    other = "e" * 32
    spec = ask(transport, routes.RECORD_SET_GET, record_set=customer.job).expect(RecordSetInfo).spec
    ask(transport, routes.RECORD_SET_PUT, spec, record_set=other)
    with socket.create_connection(("127.0.0.1", process.port)) as connection:
        connection.sendall(
            f"PUT /v1/record-sets/{other}/shards/0 HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {api_key}\r\n"
            f"X-Content-SHA256: {hashlib.sha256(body).hexdigest()}\r\nContent-Length: {len(body)}\r\n\r\n".encode()
            + body[: len(body) // 2]
        )
    # The connection is gone; the same shard, sent whole, is taken.
    transport.send(
        Frame(routes.SHARD_PUT, {"record_set": other, "shard": 0}, None, customer.shards(first_model(transport))[0])
    )
    info = ask(transport, routes.RECORD_SET_GET, record_set=other).expect(RecordSetInfo)
    assert [shard.number for shard in info.shards] == [0]
    folder = process.data_dir / "tenants/clinic/record-sets" / other
    assert [path.name for path in folder.iterdir()] == ["00000000.safetensors"]
    transport.close()


def test_bytes_changed_on_the_way_are_refused(process: VendorProcess, api_key: str) -> None:
    transport = HttpTransport(process.url, api_key)
    customer = Customer(transport)
    customer.upload()
    spec = ask(transport, routes.RECORD_SET_GET, record_set=customer.job).expect(RecordSetInfo).spec
    ask(transport, routes.RECORD_SET_PUT, spec, record_set="e" * 32)
    body = encode_tensors(customer.shards(first_model(transport))[0])
    connection = http.client.HTTPConnection("127.0.0.1", process.port)
    connection.request(
        "PUT",
        f"/v1/record-sets/{'e' * 32}/shards/0",
        body,
        {"Authorization": f"Bearer {api_key}", "X-Content-SHA256": "0" * 64},
    )
    response = connection.getresponse()
    assert response.status == 422
    assert b"checksum" in response.read().lower()
    connection.close()
    transport.close()


def test_a_full_disk_stops_a_job_and_loses_nothing(
    nursery: Vendors, data_dir: Path, api_key: str, blank_vendor: Path, tmp_path: Path
) -> None:
    """Files may grow to 40 kB, which the log reaches after some steps, as no checkpoint shortens it."""
    process = VendorProcess(nursery, data_dir, largest_file=40_000)
    process.start()
    transport = HttpTransport(process.url, api_key, retries=30)
    customer = Customer(transport, trainable=True, checkpoint_every=1000)
    info = customer.start()
    with pytest.raises(VendorError, match="no room") as caught:
        customer.train(info)
    assert caught.value.status == 507
    step = ask(transport, routes.JOB_GET, job=customer.job).expect(JobInfo).step
    assert 1 < step < customer.steps, "the vendor goes on serving, at the step it had"
    process.kill()
    process.largest_file = 0
    process.start()
    assert ask(transport, routes.JOB_GET, job=customer.job).expect(JobInfo).step == step
    adapter = customer.run()
    transport.close()
    process.kill()

    other = Path(shutil.copytree(blank_vendor, tmp_path / "undisturbed"))
    app = vendor.create_app(vendor.VendorSettings.load(other))
    local = LocalTransport(app, vendor.keys.create(other, "clinic"))
    assert Customer(local, trainable=True).run().sha256 == adapter.sha256
    local.close()


def test_an_upload_is_refused_while_there_is_room_for_the_jobs(
    nursery: Vendors, data_dir: Path, api_key: str, change_settings: Callable[..., None]
) -> None:
    change_settings(data_dir, limits={"reserve_bytes": 2**60})
    with running(nursery, data_dir) as process:
        transport = HttpTransport(process.url, api_key)
        with pytest.raises(VendorError, match="no room") as caught:
            Customer(transport).upload()
        assert caught.value.status == 507
        transport.close()


def test_a_step_that_was_not_answered_is_not_lost(process: VendorProcess, api_key: str) -> None:
    """The connection drops while the answer is on its way; the same frame gets the same answer."""
    transport = HttpTransport(process.url, api_key)
    customer = Customer(transport)
    customer.upload()
    customer.start()
    body = encode_tensors(customer.step_tensors(1, None))
    with socket.create_connection(("127.0.0.1", process.port)) as connection:
        connection.sendall(
            f"POST /v1/jobs/{customer.job}/steps/1 HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {api_key}\r\n"
            f"Content-Length: {len(body)}\r\n\r\n".encode()
            + body
        )
    reply = customer.send_step(1, None)
    assert ask(transport, routes.JOB_GET, job=customer.job).expect(JobInfo).step == 1
    again = ask(transport, routes.STEP_GET, job=customer.job, step=1)
    assert torch.equal(reply.tensors["output"], again.tensors["output"])
    transport.close()
