"""Every transport brings the same frames to the same vendor, and the same answers and errors back."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from cutlayer import vendor
from cutlayer.core import AuthError, VendorError
from cutlayer.wire import Frame, Transport, encode_tensors, routes
from cutlayer.wire.messages import ArchiveManifest, ServiceInfo
from cutlayer.wire.recording import Direction, read_recording
from cutlayer.wire.transports import HttpTransport, LocalTransport, RecordingTransport
from tests.service.customer import Customer, ask, first_model
from tests.service.fixtures import (  # noqa: F401 - fixtures are used by name
    api_key,
    blank_vendor,
    data_dir,
    nursery,
    tiny_model,
)
from tests.service.process import VendorProcess, Vendors

KINDS = ["local", "http", "recorded"]


@pytest.fixture(params=KINDS)
def connect(
    request: pytest.FixtureRequest,
    nursery: Vendors,  # noqa: F811
    data_dir: Path,  # noqa: F811
    tmp_path: Path,
) -> Iterator[Callable[[str], Transport]]:
    """Makes transports of one kind to one vendor, by key."""
    if request.param == "http":
        process = VendorProcess(nursery, data_dir)
        process.start()
        opened: list[Transport] = []

        def over_http(key: str) -> Transport:
            opened.append(HttpTransport(process.url, key))
            return opened[-1]

        yield over_http
        for transport in opened:
            transport.close()
        process.kill()
        return
    app = vendor.create_app(vendor.VendorSettings.load(data_dir))
    local: list[LocalTransport] = []

    def in_process(key: str) -> Transport:
        local.append(LocalTransport(app, key))
        return RecordingTransport(local[-1], tmp_path / "transcript") if request.param == "recorded" else local[-1]

    yield in_process
    for transport in local:
        transport.close()


def test_answers_arrive_decoded_and_counted(connect: Callable[[str], Transport], api_key: str) -> None:  # noqa: F811
    transport = connect(api_key)
    reply = ask(transport, routes.SERVICE)
    assert isinstance(reply.control, ServiceInfo)
    assert reply.request_digest == hashlib.sha256(b"").digest()
    assert 100 < reply.uplink_bytes < 300
    assert len(reply.control.model_dump_json()) < reply.downlink_bytes < 600


def test_a_whole_job(connect: Callable[[str], Transport], api_key: str) -> None:  # noqa: F811
    transport = connect(api_key)
    customer = Customer(transport)
    adapter = customer.run()
    assert adapter.num_labels == 3
    frame = Frame(
        routes.SHARD_PUT, {"record_set": customer.job, "shard": 0}, None, customer.shards(first_model(transport))[0]
    )
    reply = transport.send(frame)
    body = encode_tensors(frame.tensors)
    assert reply.request_digest == hashlib.sha256(body).digest()
    assert len(body) < reply.uplink_bytes < len(body) + 500
    ask(transport, routes.ADAPTER_DELETE, adapter=customer.job)


def test_files_arrive_whole(connect: Callable[[str], Transport], api_key: str) -> None:  # noqa: F811
    transport = connect(api_key)
    where: dict[str, str | int] = {"model": "tiny", "cut": "1"}
    manifest = ask(transport, routes.ARCHIVE, **where).expect(ArchiveManifest)
    for file in manifest.files:
        content = ask(transport, routes.ARCHIVE_FILE, file=file.name, **where).raw
        assert (len(content), hashlib.sha256(content).hexdigest()) == (file.size, file.sha256)


def test_refusals_arrive_with_status_and_remedy(connect: Callable[[str], Transport], api_key: str) -> None:  # noqa: F811
    transport = connect(api_key)
    with pytest.raises(VendorError, match="There is no job") as caught:
        ask(transport, routes.JOB_GET, job="0" * 32)
    assert caught.value.status == 404
    assert caught.value.remedy
    records = {"records": torch.zeros(1, dtype=torch.uint8)}
    with pytest.raises(VendorError, match="There is no job") as caught:
        transport.send(Frame(routes.STEP, {"job": "0" * 32, "step": 1}, None, records))
    assert caught.value.status == 404


def test_a_wrong_key_is_an_error_of_its_own(connect: Callable[[str], Transport], api_key: str) -> None:  # noqa: F811
    transport = connect(api_key[:-4] + "AAAA")
    with pytest.raises(AuthError, match="key") as caught:
        ask(transport, routes.SERVICE)
    assert caught.value.status == 401
    assert api_key[-20:-4] not in str(caught.value)


def test_a_recording_holds_what_crossed(data_dir: Path, api_key: str, tmp_path: Path) -> None:  # noqa: F811
    """Every body, in order, both ways; the vendor's own files by digest only."""
    app = vendor.create_app(vendor.VendorSettings.load(data_dir))
    sent: list[Frame] = []

    class Spy:
        def __init__(self, inner: Transport) -> None:
            self.inner = inner

        def send(self, frame: Frame) -> object:
            sent.append(frame)
            return self.inner.send(frame)

        def close(self) -> None:
            self.inner.close()

    spy = Spy(LocalTransport(app, api_key))
    recording = RecordingTransport(spy, tmp_path / "transcript")  # type: ignore[arg-type]
    customer = Customer(recording)
    customer.run()
    manifest = ask(recording, routes.ARCHIVE, model="tiny", cut="1").expect(ArchiveManifest)
    ask(recording, routes.ARCHIVE_FILE, model="tiny", cut="1", file=manifest.files[0].name)
    recording.close()
    spy.close()
    frames = list(read_recording(tmp_path / "transcript"))
    up = [frame for frame in frames if frame.direction is Direction.UP]
    down = [frame for frame in frames if frame.direction is Direction.DOWN]
    assert len(up) == len(down) == len(sent)
    for frame, original in zip(up, sent, strict=True):
        assert (frame.route, dict(frame.where), frame.body) == (original.route, dict(original.where), original.encode())
        assert frame.control() == original.control
    outputs = [frame.tensors()["output"] for frame in down if frame.route is routes.STEP]
    assert all(torch.equal(output, customer.outputs[step]) for step, output in enumerate(outputs, start=1))
    assert down[-1].body == b""
    assert (down[-1].sha256, down[-1].size) == (manifest.files[0].sha256, manifest.files[0].size)
