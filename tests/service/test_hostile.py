"""Requests that no honest customer sends: each gets its status and a remedy, and the vendor keeps serving."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import json
import os
import resource
import shutil
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
import safetensors.torch
import torch

from cutlayer import vendor
from cutlayer.core import AuthError, Ragged, Tokens, VendorError
from cutlayer.wire import Frame, WireType, encode_tensors, pack, routes
from cutlayer.wire.messages import AdapterInfo, AdapterList, JobInfo
from cutlayer.wire.transports import HttpTransport
from tests.service.customer import Customer, ask, first_model, some_tokens
from tests.service.process import _VENDORS, Nursery, VendorProcess, Vendors, running
from tests.service.tiny import VOCAB


@pytest.fixture(scope="module")
def served(nursery: Vendors, blank_vendor: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[VendorProcess]:
    folder = Path(shutil.copytree(blank_vendor, tmp_path_factory.mktemp("hostile") / "data"))
    with running(nursery, folder) as process:
        yield process


@pytest.fixture(scope="module")
def key(served: VendorProcess) -> str:
    return vendor.keys.create(served.data_dir, "clinic")


@pytest.fixture(scope="module")
def customer(served: VendorProcess, key: str) -> Iterator[Customer]:
    """A tenant with a job at step 1, who must come to no harm."""
    transport = HttpTransport(served.url, key)
    customer = Customer(transport)
    customer.upload()
    customer.start()
    customer.take(1, None)
    yield customer
    transport.close()


@pytest.fixture(autouse=True)
def keeps_serving(served: VendorProcess, customer: Customer) -> Iterator[None]:
    yield
    info = ask(customer.transport, routes.JOB_GET, job=customer.job).expect(JobInfo)
    assert info.step == 1


def request(
    served: VendorProcess, key: str, method: str, path: str, body: bytes = b"", **headers: str
) -> tuple[int, dict[str, object]]:
    """A request as bytes, with whatever headers."""
    connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=30)
    sent = {"Authorization": f"Bearer {key}"} | {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request(method, path, body or None, sent)
    response = connection.getresponse()
    content = response.read()
    connection.close()
    assert response.getheader("content-type") == "application/problem+json"
    problem = json.loads(content)
    assert problem["status"] == response.status
    assert problem["title"]
    assert problem["remedy"]
    return response.status, problem


def test_ten_gigabytes_are_refused_before_they_are_sent(served: VendorProcess, key: str, customer: Customer) -> None:
    with socket.create_connection(("127.0.0.1", served.port), timeout=10) as connection:
        connection.sendall(
            f"PUT /v1/record-sets/{customer.job}/shards/9 HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\n"
            f"X-Content-SHA256: {'0' * 64}\r\nContent-Length: 10000000000\r\n\r\n".encode()
        )
        answer = b"".join(iter(lambda: connection.recv(65536), b""))  # to the end: the vendor closes
        assert answer.startswith(b"HTTP/1.1 413 ")
        assert b"10000000000" in answer
        assert b"connection: close" in answer.lower()


@pytest.mark.parametrize("path", ["/v1/jobs/{job}/steps/2", "/v1/jobs/{job}/infer", "/v1/jobs/{job}"])
def test_a_body_of_unknown_length_is_refused(served: VendorProcess, key: str, customer: Customer, path: str) -> None:
    method = "PUT" if path.endswith("}") else "POST"
    with socket.create_connection(("127.0.0.1", served.port), timeout=10) as connection:
        head = f"{method} {path.format(job=customer.job)} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\n"
        connection.sendall(f"{head}Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n".encode())
        assert connection.recv(65536).startswith(b"HTTP/1.1 411 ")


def test_json_of_many_megabytes_is_refused(served: VendorProcess, key: str, customer: Customer) -> None:
    # only the beginning is sent: the vendor answers and closes at the announced length, and a client still busy
    # sending may lose the answer with the connection
    with socket.create_connection(("127.0.0.1", served.port), timeout=10) as connection:
        connection.sendall(
            f"PUT /v1/jobs/{customer.job} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\n"
            f'Content-Type: application/json\r\nContent-Length: {3 * 2**20}\r\n\r\n{{"x": "a'.encode()
        )
        assert connection.recv(65536).startswith(b"HTTP/1.1 413 ")


def test_keys(served: VendorProcess, key: str) -> None:
    for wrong in ("", "x", key[:-1] + ("a" if key[-1] != "a" else "b"), "cl_" + "0" * 12 + "_" + "a" * 43):
        status, problem = request(served, wrong, "GET", "/v1")
        assert status == 401
        assert wrong == "" or wrong not in json.dumps(problem)
    second = vendor.keys.create(served.data_dir, "clinic")
    transport = HttpTransport(served.url, second)
    ask(transport, routes.SERVICE)
    vendor.keys.revoke(served.data_dir, second.split("_")[1])
    time.sleep(2.5)
    with pytest.raises(AuthError, match="revoked"):
        ask(transport, routes.SERVICE)
    transport.close()


@pytest.fixture(scope="module")
def other(served: VendorProcess, key: str) -> str:
    """Another tenant's key."""
    return vendor.keys.create(served.data_dir, "rival")


def test_other_tenants_find_nothing(served: VendorProcess, customer: Customer, other: str) -> None:
    job = customer.job
    record = encode_tensors({"records": torch.zeros(1, dtype=torch.uint8)})
    for method, path, body in [
        ("GET", f"/v1/jobs/{job}", b""),
        ("DELETE", f"/v1/jobs/{job}", b""),
        ("POST", f"/v1/jobs/{job}/steps/2", record),
        ("GET", f"/v1/jobs/{job}/steps/1", b""),
        ("POST", f"/v1/jobs/{job}/steps/1/gradient", encode_tensors({"gradient": torch.zeros(8, 3)})),
        ("POST", f"/v1/jobs/{job}/infer", record),
        ("POST", f"/v1/jobs/{job}/finish", b'{"step": 0}'),
        ("POST", f"/v1/jobs/{job}/rollback", b'{"step": 0}'),
        ("POST", f"/v1/jobs/{job}/snapshot", b'{"step": 0}'),
        ("GET", f"/v1/record-sets/{job}", b""),
        ("DELETE", f"/v1/record-sets/{job}", b""),
        ("POST", f"/v1/record-sets/{job}/seal", b'{"shards": 1, "records": 1}'),
    ]:
        kind = "application/json" if body.startswith(b"{") else "application/octet-stream"
        status, _ = request(served, other, method, path, body, Content_Type=kind)
        assert status == 404, path
    for method, path in [("PUT", f"/v1/record-sets/{job}/shards/0")]:
        status, _ = request(served, other, method, path, record, X_Content_SHA256="0" * 64)
        assert status == 404
    # A job may name a set that is yet to come, so another tenant's set is one that never comes.
    rival = HttpTransport(served.url, other)
    ask(rival, routes.JOB_PUT, customer.spec(first_model(rival)), job="c" * 32)
    status, problem = request(served, other, "POST", f"/v1/jobs/{'c' * 32}/infer", record)
    assert (status, problem["detail"]) == (404, f"There is no record set {job}.")
    ask(rival, routes.JOB_DELETE, job="c" * 32)
    rival.close()


def test_other_tenants_find_no_adapter(served: VendorProcess, customer: Customer, other: str) -> None:
    """What one tenant published is there for it, before and after another has tried everything."""
    owner = customer.transport
    adapter = Customer(owner, job="a" * 32, steps=2).run()
    tokens = pack(some_tokens(5, vocab_size=VOCAB), vocab_size=VOCAB, wire_type=WireType.FP32)
    query = Frame(routes.ADAPTER_INFER, {"adapter": adapter.adapter}, None, tokens)
    rival = HttpTransport(served.url, other)
    for _ in range(2):
        assert ask(owner, routes.ADAPTER_GET, adapter=adapter.adapter).expect(AdapterInfo) == adapter
        assert ask(owner, routes.ADAPTERS).expect(AdapterList).adapters == (adapter,)
        assert owner.send(query).tensors["output"].shape == (5, 3)  # and it is in memory now
        assert ask(rival, routes.ADAPTERS).expect(AdapterList).adapters == ()
        for method, path, body in [
            ("GET", f"/v1/adapters/{adapter.adapter}", b""),
            ("DELETE", f"/v1/adapters/{adapter.adapter}", b""),
            ("POST", f"/v1/adapters/{adapter.adapter}/infer", encode_tensors(tokens)),
        ]:
            status, problem = request(served, other, method, path, body)
            assert (status, problem["detail"]) == (404, f"There is no adapter {adapter.adapter}."), method
    rival.close()
    ask(owner, routes.ADAPTER_DELETE, adapter=adapter.adapter)
    with pytest.raises(VendorError, match="no adapter"):
        owner.send(query)


def nested(depth: int) -> bytes:
    header = b"[" * depth
    return struct.pack("<Q", len(header)) + header


def lying(entry: dict[str, object]) -> bytes:
    header = json.dumps({"records": entry}).encode()
    return struct.pack("<Q", len(header)) + header + b"\0" * 8


GRADIENT = torch.zeros(8, 3)
"""Of the shape that step 1 waits for, so that what else is in a block is looked at."""


def step(records: torch.Tensor, gradient: torch.Tensor = GRADIENT) -> bytes:
    return encode_tensors({"records": records, "gradient": gradient})


FOUR = torch.zeros(4, dtype=torch.uint8)
BLOCKS = {
    "nothing": (b"", "shorter than 8 bytes"),
    "a few bytes": (b"abc", "shorter than 8 bytes"),
    "text": (b"the patient was seen on Monday " * 50, "its header claims"),
    "a header of 2**60 bytes": (struct.pack("<Q", 2**60) + b"{}", "its header claims 1152921504606846976 bytes"),
    "nested brackets": (nested(4000), "its header cannot be read"),
    "an infinite shape": (
        lying({"dtype": "U8", "shape": [float("inf")], "data_offsets": [0, 8]}),
        "whole numbers from 0 to",
    ),
    "a negative shape": (lying({"dtype": "U8", "shape": [-1], "data_offsets": [0, 8]}), "whole numbers from 0 to"),
    "a huge shape": (lying({"dtype": "U8", "shape": [2**48, 2**48], "data_offsets": [0, 8]}), "header describes"),
    "a shape of floats": (
        lying({"dtype": "U8", "shape": [1e308] * 400, "data_offsets": [0, 8]}),
        "whole numbers from 0 to",
    ),
    "offsets beyond the end": (
        lying({"dtype": "U8", "shape": [8], "data_offsets": [0, 2**40]}),
        "is no safetensors block",
    ),
    "overlapping offsets": (lying({"dtype": "U8", "shape": [8], "data_offsets": [8, 0]}), "is no safetensors block"),
    "metadata": (
        safetensors.torch.save({"records": FOUR, "gradient": GRADIENT}, {"note": "the patient was seen"}),
        "carries metadata; frames have none",
    ),
    "pickle": (b"\x80\x04\x95" + b"\0" * 60, "its header claims"),
    "another type": (step(torch.zeros(4, dtype=torch.int64)), "I64"),
    "another rank": (step(torch.zeros(4, 1, dtype=torch.uint8)), "of rank 1"),
    "another role": (encode_tensors({"labels": FOUR}), "takes tensors"),
    "no gradient": (encode_tensors({"records": FOUR}), "waits for its gradient"),
    "no records": (step(torch.zeros(0, dtype=torch.uint8)), "names no record; the job has records 0 to 59"),
    "records out of range": (
        step(torch.tensor([3, 250], dtype=torch.uint8)),
        "names 250; the job has records 0 to 59",
    ),
    "one record out of range": (
        step(torch.tensor([59, 60], dtype=torch.uint8)),
        "names 60; the job has records 0 to 59",
    ),
    "a gradient of another shape": (
        step(FOUR, torch.zeros(7, 3)),
        "gradient is [7, 3]; the output of step 1 is [8, 3]",
    ),
    "a gradient that is no number": (step(FOUR, torch.full((8, 3), torch.nan)), "gradient holds values that are not"),
    "an infinite gradient": (step(FOUR, torch.full((8, 3), torch.inf)), "gradient holds values that are not finite"),
}


@pytest.mark.parametrize("block", BLOCKS)
def test_bodies_that_are_no_step(served: VendorProcess, key: str, customer: Customer, block: str) -> None:
    path = f"/v1/jobs/{customer.job}/steps/2"
    body, detail = BLOCKS[block]
    status, problem = request(served, key, "POST", path, body, Content_Type="application/octet-stream")
    assert detail in str(problem["detail"])
    assert status == (409 if block == "no gradient" else 422)
    assert "patient" not in json.dumps(problem)


@pytest.mark.parametrize(
    ("route", "step", "remedy"),
    [("steps", 1, "Repeat"), ("steps", 3, "GET"), ("steps", 0, ""), ("gradient", 7, "GET")],
)
def test_steps_out_of_turn(
    served: VendorProcess, key: str, customer: Customer, route: str, step: int, remedy: str
) -> None:
    if route == "steps":
        path, body = f"/v1/jobs/{customer.job}/steps/{step}", {"records": torch.zeros(4, dtype=torch.uint8)}
    else:
        path, body = f"/v1/jobs/{customer.job}/steps/{step}/gradient", {"gradient": torch.zeros(8, 3)}
    status, problem = request(served, key, "POST", path, encode_tensors(body))
    assert status == (422 if step == 0 else 409)
    assert remedy in str(problem["remedy"])


def test_an_output_that_is_not_kept(served: VendorProcess, key: str, customer: Customer) -> None:
    status, problem = request(served, key, "GET", f"/v1/jobs/{customer.job}/steps/7")
    assert status == 409
    assert "The output of step 7 is not kept; the job stands at step 1" in str(problem["detail"])


def test_a_body_that_does_not_come_is_not_waited_for(
    nursery: Vendors, data_dir: Path, api_key: str, change_settings: Callable[..., None]
) -> None:
    change_settings(data_dir, limits={"body_seconds": 0.5})
    with running(nursery, data_dir) as process:
        for path in ("/v1/jobs/{}/steps/1", "/v1/adapters/{}/infer", "/v1/models/tiny/embeddings"):
            with socket.create_connection(("127.0.0.1", process.port), timeout=30) as connection:
                head = f"POST {path.format('d' * 32)} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {api_key}\r\n"
                connection.sendall(f"{head}Content-Length: 1000\r\n\r\nthe patient".encode())
                answer = b"".join(iter(lambda: connection.recv(65536), b""))
                assert answer.startswith(b"HTTP/1.1 408 ")
                assert b"urn:cutlayer:too-slow" in answer
                assert b"connection: close" in answer.lower()


def test_a_step_of_another_form(served: VendorProcess, key: str, customer: Customer) -> None:
    rows = encode_tensors({"rows": torch.zeros(4, 32), "lengths": torch.tensor([[4]], dtype=torch.uint8)})
    status, _ = request(served, key, "POST", f"/v1/jobs/{customer.job}/steps/2", rows)
    assert status == 422


def test_a_query_between_two_steps_has_to_wait(served: VendorProcess, customer: Customer) -> None:
    records = {"records": torch.zeros(4, dtype=torch.uint8)}
    with pytest.raises(VendorError, match="waits for its gradient") as caught:
        customer.transport.send(Frame(routes.JOB_INFER, {"job": customer.job}, None, records))
    assert caught.value.status == 409


EMBEDDED: dict[str, tuple[dict[str, torch.Tensor], str]] = {
    "pairs": ({"ids": torch.zeros(4), "lengths": torch.tensor([[2, 2]])}, "segments"),
    "an id of no token": ({"ids": torch.full((4,), 60_000), "lengths": torch.tensor([[4]])}, "has ids 0 to 299"),
    "more tokens than are said": ({"ids": torch.zeros(4), "lengths": torch.tensor([[5]])}, "lengths"),
    "a text without an end": ({"ids": torch.zeros(300), "lengths": torch.tensor([[300]])}, "302 positions"),
    "numbers that are none": ({"rows": torch.full((6, 32), torch.nan), "lengths": torch.tensor([[4]])}, "finite"),
    "rows of another width": ({"rows": torch.zeros(6, 31), "lengths": torch.tensor([[4]])}, "32"),
    "no texts": ({"ids": torch.zeros(0), "lengths": torch.zeros(0, 1)}, "text"),
}


@pytest.mark.parametrize("fault", EMBEDDED)
def test_what_cannot_be_embedded_is_refused(served: VendorProcess, key: str, fault: str) -> None:
    tensors, said = EMBEDDED[fault]
    whole = {name: each if name == "rows" else each.to(torch.uint16) for name, each in tensors.items()}
    status, problem = request(served, key, "POST", "/v1/models/tiny/embeddings", encode_tensors(whole))
    assert status == 422, problem
    assert said in str(problem["detail"]) + str(problem["remedy"])


def test_embeddings_are_for_those_with_a_key_and_of_models_that_there_are(served: VendorProcess, key: str) -> None:
    body = encode_tensors(
        {"ids": torch.zeros(4, dtype=torch.uint16), "lengths": torch.tensor([[4]], dtype=torch.uint8)}
    )
    told = [
        request(served, given, "POST", f"/v1/models/{model}/embeddings", body)[0]
        for given, model in (("wrong", "tiny"), (key, "other"))
    ]
    assert told == [401, 404]


def test_dead_customers_of_embeddings_stall_nobody(served: VendorProcess, key: str) -> None:
    """Half of them say no more in the middle of a request, the others hang up before their answer."""
    texts = Tokens((Ragged.from_lists([[7] * 30] * 400),))
    tensors = pack(texts, vocab_size=VOCAB, wire_type=WireType.FP32)
    body = encode_tensors(tensors)
    head = (
        f"POST /v1/models/tiny/embeddings HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    ).encode()
    with ExitStack() as silent, closing(HttpTransport(served.url, key)) as living:
        for number in range(16):
            connection = socket.create_connection(("127.0.0.1", served.port), timeout=10)
            if number % 2:
                silent.enter_context(connection)
                connection.sendall(head + body[: len(body) // 2])
            else:
                connection.sendall(head + body)
                connection.close()
        began = time.monotonic()
        found = living.send(Frame(routes.EMBEDDINGS, {"model": "tiny"}, None, tensors))
        seconds = time.monotonic() - began
    assert len(found.tensors["output"]) == 400
    assert seconds < 10, "others waited for those that were gone"


@pytest.mark.parametrize(
    "path", ["/", "/v1/nothing", "/v2", "/v1/jobs/../../etc/passwd", "/v1/jobs/%00", "/v1/jobs/a%2Fb"]
)
def test_paths_that_lead_nowhere(served: VendorProcess, key: str, path: str) -> None:
    status, problem = request(served, key, "GET", path)
    assert status in (404, 422)
    assert "passwd" not in json.dumps(problem)


def test_a_wrong_method(served: VendorProcess, key: str) -> None:
    status, _ = request(served, key, "PATCH", "/v1")
    assert status == 405


@pytest.mark.parametrize("host", ["x?", "x#", "x/healthz?", "x/healthz#", "[", "a@x?", ""])
@pytest.mark.parametrize("path", ["/v1/models", "/v1/models/tiny/archives/1"])
def test_a_forged_host_opens_nothing(served: VendorProcess, host: str, path: str) -> None:
    with socket.create_connection(("127.0.0.1", served.port), timeout=10) as connection:
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
        assert answer.startswith((b"HTTP/1.1 401 ", b"HTTP/1.1 400 ")), answer


def test_a_customer_who_hangs_up_leaves_a_line_in_the_log(served: VendorProcess, key: str, customer: Customer) -> None:
    before = len(served.log.read_text())
    with socket.create_connection(("127.0.0.1", served.port), timeout=10) as connection:
        head = f"POST /v1/jobs/{customer.job}/infer HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\n"
        connection.sendall(f"{head}Content-Length: 1000\r\n\r\nabc".encode())
    while " job.infer " not in (told := served.log.read_text()[before:]):
        time.sleep(0.02)
    assert "clinic job.infer 499" in told
    assert "Traceback" not in told
    assert "ClientDisconnect" not in told


class Poor(Vendors):
    """Forks vendors with few file descriptors and little patience when they are told to stop."""

    def __init__(self) -> None:
        patience = "import cutlayer.serving.listening as listening; listening._STOP_SECONDS = 1"
        Nursery.__init__(self, f"{patience}\n{_VENDORS}")
        resource.prlimit(self._process.pid, resource.RLIMIT_NOFILE, (1024, 1024))


@pytest.fixture(scope="module")
def poor() -> Iterator[Poor]:
    vendors = Poor()
    yield vendors
    vendors.close()


@pytest.fixture
def many_sockets() -> Iterator[None]:
    """Lets this process open 1,200 sockets."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= hard < 2000:
        pytest.skip(f"this process may open {hard} files; the test needs 2000")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2000), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.slow
@pytest.mark.usefixtures("many_sockets")
def test_idle_sockets_are_in_nobodys_way(poor: Poor, data_dir: Path, api_key: str) -> None:
    """More of them than the vendor has file descriptors; its jobs need some of those for every checkpoint."""
    with running(poor, data_dir) as process, contextlib.ExitStack() as stack:
        transport = HttpTransport(process.url, api_key, retries=0)
        stack.callback(transport.close)
        at_work = Customer(transport, trainable=True, checkpoint_every=1)
        at_work.train(at_work.start(), until=2)
        for _ in range(1100):
            stack.enter_context(socket.create_connection(("127.0.0.1", process.port), timeout=10))
        at_work.train(ask(transport, routes.JOB_GET, job=at_work.job).expect(JobInfo), until=6)
        assert len(os.listdir(f"/proc/{process.pid}/fd")) < 700
        log = process.log.read_text()
        assert "Too many open files" not in log
        assert "system resource" not in log
        assert log.count("512 connections are open; hanging up on further ones") == 1
        assert len(log) < 20_000


@pytest.mark.slow
def test_a_customer_who_reads_nothing_does_not_keep_the_vendor_from_stopping(
    poor: Poor, data_dir: Path, api_key: str
) -> None:
    with running(poor, data_dir) as process:
        transport = HttpTransport(process.url, api_key)
        at_work = Customer(transport, trainable=True)
        at_work.train(at_work.start(), until=2)
        model = first_model(transport).name
        ask(transport, routes.ARCHIVE, model=model, cut="1")
        (weights,) = data_dir.glob(f"models/{model}/archives/1-*/weights.safetensors")
        with weights.open("r+b") as file:
            file.truncate(2**26)  # more than fits into the buffers on the way
        with socket.create_connection(("127.0.0.1", process.port), timeout=10) as connection:
            path = f"/v1/models/{model}/archives/1/files/{weights.name}"
            connection.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {api_key}\r\n\r\n".encode())
            assert connection.recv(10).startswith(b"HTTP/1.1 2")
            transport.close()
            started = time.monotonic()
            process.stop()
            assert 1 <= time.monotonic() - started < 20
        process.start()
        transport = HttpTransport(process.url, api_key)
        at_work = Customer(transport, trainable=True)
        info = ask(transport, routes.JOB_GET, job=at_work.job).expect(JobInfo)
        assert (info.step, info.gradient_applied) == (2, True)
        transport.close()


def test_nothing_private_is_in_the_log(served: VendorProcess, key: str) -> None:
    """After all of the above: no key, no body."""
    log = served.log.read_text()
    assert "clinic job.step" in log
    assert key not in log
    assert key.split("_", 2)[2] not in log
    assert "patient" not in log


WORDS = torch.tensor([[1, 0, 1], [2, 0, 0]], dtype=torch.uint8)
PRECEDED = {
    "ids": torch.arange(5, 12, dtype=torch.int32).to(torch.uint16),
    "lengths": torch.tensor([[3], [4]], dtype=torch.uint8),
    "preceding": WORDS,
    "sequences": torch.tensor([0, 1], dtype=torch.uint8),
}
"""A shard of two texts behind three public words."""
SHARDS: dict[str, tuple[dict[str, torch.Tensor], str]] = {
    "too few words": ({"preceding": WORDS[:, :2]}, "plain_tokens = 3 was agreed on"),
    "too few texts": ({"preceding": WORDS[:1]}, "plain_tokens = 3 was agreed on"),
    "too many sequences": ({"sequences": torch.zeros(3, dtype=torch.uint8)}, "plain_tokens = 3 was agreed on"),
    "more pieces than ids": ({"preceding": WORDS + 1}, "more pieces of plain words than it has ids"),
    "pieces that overflow": ({"preceding": torch.full_like(WORDS, 255)}, "more pieces of plain words than it has ids"),
    "a sequence that is none": (
        {"sequences": torch.tensor([0, 2], dtype=torch.uint8)},
        "sequences names 2; plain_sequences = 2 was agreed",
    ),
    "pieces of another type": ({"preceding": WORDS.to(torch.uint16)}, "U16"),
    "pieces of another rank": ({"preceding": WORDS.flatten()}, "of rank 2"),
    "sequences of another rank": ({"sequences": torch.zeros(2, 1, dtype=torch.uint8)}, "of rank 1"),
    "no sequences": ({"sequences": torch.empty(0)}, "takes tensors"),
    "nothing of words": ({"preceding": torch.empty(0), "sequences": torch.empty(0)}, "plain_tokens = 3 was agreed on"),
}


def put_shard(
    served: VendorProcess, key: str, record_set: str, tensors: dict[str, torch.Tensor]
) -> tuple[int, dict[str, object]]:
    body = encode_tensors({role: tensor for role, tensor in tensors.items() if len(tensor)})
    path = f"/v1/record-sets/{record_set}/shards/0"
    kind = "application/octet-stream"
    return request(served, key, "PUT", path, body, Content_Type=kind, X_Content_SHA256=hashlib.sha256(body).hexdigest())


@pytest.mark.parametrize("shard", SHARDS)
def test_shards_that_tell_of_other_public_words(
    served: VendorProcess, key: str, customer: Customer, shard: str
) -> None:
    name = hashlib.md5(shard.encode()).hexdigest()
    other = Customer(customer.transport, plain=True, job=name)
    ask(customer.transport, routes.RECORD_SET_PUT, other.record_set(first_model(customer.transport)), record_set=name)
    changed, detail = SHARDS[shard]
    status, problem = put_shard(served, key, name, PRECEDED | changed)
    assert status == 422
    assert detail in str(problem["detail"])
    ask(customer.transport, routes.RECORD_SET_DELETE, record_set=name)


def test_public_words_that_were_not_agreed_on(served: VendorProcess, key: str, customer: Customer) -> None:
    name = "b" * 32
    plain = Customer(customer.transport, job=name)
    model = first_model(customer.transport)
    ask(customer.transport, routes.RECORD_SET_PUT, plain.record_set(model), record_set=name)
    status, problem = put_shard(served, key, name, PRECEDED)
    assert (status, "plain_tokens = 0 was agreed on" in str(problem["detail"])) == (422, True)
    ask(customer.transport, routes.RECORD_SET_DELETE, record_set=name)


def test_jobs_whose_task_does_not_fit(served: VendorProcess, key: str, customer: Customer) -> None:
    """Other words than the record set's, and steps that name records without words."""
    model = first_model(customer.transport)
    job = Customer(customer.transport, plain=True, job="b" * 32)
    job.upload()
    fewer = job.spec(model).model_copy(update={"reconstruction": None})
    with pytest.raises(VendorError, match="was made for another model, cut or form"):
        ask(customer.transport, routes.JOB_PUT, fewer, job=job.job)
    without = Customer(customer.transport, job="e" * 32)
    without.upload()
    both = job.spec(model).model_copy(update={"record_sets": (job.job, without.job)})
    ask(customer.transport, routes.JOB_PUT, both, job=job.job)
    body = encode_tensors({"records": torch.tensor([0, 61], dtype=torch.uint8)})
    status, problem = request(served, key, "POST", f"/v1/jobs/{job.job}/steps/1", body)
    assert (status, "without plain words before it" in str(problem["detail"])) == (422, True)
    sent = customer.transport.send(
        Frame(routes.JOB_INFER, {"job": job.job}, None, {"records": torch.tensor([0, 61], dtype=torch.uint8)})
    )
    assert sent.tensors["output"].shape == (2, 3)  # a query may name both
    ask(customer.transport, routes.JOB_DELETE, job=job.job)
    for name in (job.job, without.job):
        ask(customer.transport, routes.RECORD_SET_DELETE, record_set=name)


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({"words": [[1, 2], [3]]}, 422),
        ({"words": [[]]}, 422),
        ({"words": [[40]]}, 422),
        ({"words": [[-1]]}, 422),
        ({"words": [[0] * 40] * 26}, 422),
        ({"words": [[0]] * 65}, 422),
        ({"vocabulary": 2**21}, 422),
        ({"width": 0}, 422),
        ({"weight": -1}, 422),
        ({"width": 4096, "vocabulary": 2**20}, 422),
    ],
    ids=str,
)
def test_tasks_that_no_job_has(
    served: VendorProcess, key: str, customer: Customer, changes: dict[str, object], status: int
) -> None:
    """The last one is of a size that this vendor does not take; nothing of it is made."""
    spec = Customer(customer.transport, plain=True, job="f" * 32).spec(first_model(customer.transport))
    asked = json.loads(spec.model_dump_json())
    asked["reconstruction"] |= changes
    body = json.dumps(asked).encode()
    found, problem = request(served, key, "PUT", f"/v1/jobs/{'f' * 32}", body, Content_Type="application/json")
    assert found == status
    assert "reconstruction" in str(problem["detail"])
