"""HTTP transport: exact byte counts and heads, the same frame again after a drop, and addresses it refuses."""

from __future__ import annotations

import hashlib
import socket
import threading
import traceback
from collections.abc import Callable, Iterator

import pytest
import torch

from cutlayer.core import AuthError, ConfigError, Ragged, Tokens, VendorError
from cutlayer.wire import Frame, encode_tensors, pack, routes
from cutlayer.wire.messages import AdapterList, SealRequest, ServiceInfo, WireType
from cutlayer.wire.transports import HttpTransport
from cutlayer.wire.transports.http import is_loopback

SERVICE = ServiceInfo(
    version="1", default_model="m", max_body_bytes=1, max_rows_per_step=1, max_step_bytes=1, threads=1
)


def answer(status: str, body: bytes = b"", *headers: str) -> bytes:
    head = [f"HTTP/1.1 {status}", f"content-length: {len(body)}", *headers, "", ""]
    return "\r\n".join(head).encode() + body


class Wire:
    """A server that plays a script and keeps every byte that arrived.

    A script entry is an answer, or None to hang up without one.
    """

    def __init__(self, script: list[bytes | None]) -> None:
        self.script = script
        self.received = b""
        self.answered = b""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while self.script:
            connection, _ = self._listener.accept()
            with connection:
                while self.script and self._read(connection):
                    planned = self.script.pop(0)
                    if planned is None:
                        break
                    connection.sendall(planned)
                    self.answered += planned

    def _read(self, connection: socket.socket) -> bool:
        data = b""
        while b"\r\n\r\n" not in data:
            chunk = connection.recv(65536)
            if not chunk:
                return False
            data += chunk
        head, _, body = data.partition(b"\r\n\r\n")
        length = next(
            (int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")), 0
        )
        while len(body) < length:
            chunk = connection.recv(65536)
            body += chunk
            data += chunk
        self.received += data
        return True

    def close(self) -> None:
        self._thread.join(10)
        self._listener.close()


@pytest.fixture
def play() -> Iterator[Callable[..., Wire]]:
    wires: list[Wire] = []

    def make(*script: bytes | None) -> Wire:
        wires.append(Wire(list(script)))
        return wires[-1]

    yield make
    for wire in wires:
        wire.close()


GOOD = answer("200 OK", SERVICE.model_dump_json().encode(), "x-long: " + "a" * 300)


def test_every_byte_is_counted(play: Callable[..., Wire]) -> None:
    wire = play(GOOD, GOOD, answer("200 OK", AdapterList(adapters=()).model_dump_json().encode()))
    transport = HttpTransport(wire.url, "key")
    replies = [transport.send(Frame(route)) for route in (routes.SERVICE, routes.SERVICE, routes.ADAPTERS)]
    transport.close()
    wire.close()
    assert sum(reply.uplink_bytes for reply in replies) == len(wire.received)
    assert sum(reply.downlink_bytes for reply in replies) == len(wire.answered)
    assert replies[0].uplink_bytes == replies[1].uplink_bytes


@pytest.mark.parametrize("rows", [1, 6000])
def test_a_short_request_leaves_in_one_piece(
    play: Callable[..., Wire], rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A head that comes alone wakes the vendor for nothing; a long body is not copied for it."""
    block = encode_tensors({"output": torch.zeros(1, 2)})
    wire = play(answer("200 OK", block))
    pieces: list[int] = []
    honest = socket.socket.sendall

    def noting(self: socket.socket, data: bytes, *flags: int) -> None:
        if self.getpeername()[1] == int(wire.url.rsplit(":", 1)[1]):
            pieces.append(len(data))
        honest(self, data, *flags)

    monkeypatch.setattr(socket.socket, "sendall", noting)
    sent = {"rows": torch.zeros(rows, 2), "lengths": torch.tensor([[rows]], dtype=torch.uint16)}
    transport = HttpTransport(wire.url, "key")
    reply = transport.send(Frame(routes.JOB_INFER, {"job": "a" * 32}, tensors=sent))
    transport.close()
    wire.close()
    assert sum(pieces) == reply.uplink_bytes == len(wire.received)
    assert len(pieces) == (1 if rows == 1 else 2)


JOB, RECORD_SET = {"job": "a" * 32}, {"record_set": "b" * 32}
RELEASE = {"ids": torch.tensor([7, 8, 9], dtype=torch.uint16), "lengths": torch.tensor([[3]], dtype=torch.uint8)}
JSON, TENSORS = {"content-type": "application/json"}, {"content-type": "application/octet-stream"}


@pytest.mark.parametrize(
    ("frame", "line", "headers"),
    [
        (Frame(routes.SERVICE), "GET {}/v1 HTTP/1.1", {}),
        (Frame(routes.JOB_DELETE, JOB), f"DELETE {{}}/v1/jobs/{'a' * 32} HTTP/1.1", {}),
        (
            Frame(routes.SEAL, RECORD_SET, SealRequest(shards=1, records=2)),
            f"POST {{}}/v1/record-sets/{'b' * 32}/seal HTTP/1.1",
            {"content-length": "24", **JSON},
        ),
        (
            Frame(routes.STEP, JOB | {"step": 7}, tensors={"records": torch.zeros(8, dtype=torch.uint8)}),
            f"POST {{}}/v1/jobs/{'a' * 32}/steps/7 HTTP/1.1",
            {"content-length": "80", **TENSORS},
        ),
        (
            Frame(routes.SHARD_PUT, RECORD_SET | {"shard": 3}, tensors=RELEASE),
            f"PUT {{}}/v1/record-sets/{'b' * 32}/shards/3 HTTP/1.1",
            {"content-length": "135", **TENSORS, "x-content-sha256": "digest of the body"},
        ),
    ],
    ids=lambda given: given.route.name if isinstance(given, Frame) else "",
)
@pytest.mark.parametrize(
    ("root", "prefix"), [("", ""), ("/", ""), ("/split/eu/", "/split/eu")], ids=["bare", "slash", "prefix"]
)
def test_a_head_holds_nothing_else(
    frame: Frame, line: str, headers: dict[str, str], root: str, prefix: str, play: Callable[..., Wire]
) -> None:
    """Names of headers, their values and the request line, each of which a proxy may log."""
    wire = play(answer("400 Bad Request"))
    transport = HttpTransport(wire.url + root, "cl_key")
    with pytest.raises(VendorError, match="400"):
        transport.send(frame)
    transport.close()
    head, _, body = wire.received.partition(b"\r\n\r\n")
    first, *rest = head.decode().split("\r\n")
    expected = headers | {
        "host": wire.url.removeprefix("http://"),
        "accept-encoding": "identity",
        "authorization": "Bearer cl_key",
        "user-agent": "cutlayer",
    }
    if "x-content-sha256" in headers:
        expected["x-content-sha256"] = hashlib.sha256(body).hexdigest()
    assert first == line.format(prefix)
    arrived = [(name.lower(), value) for name, _, value in (each.partition(": ") for each in rest)]
    assert sorted(arrived) == sorted(expected.items())
    assert body == frame.encode()


def test_an_id_of_a_large_vocabulary_takes_little_more_than_its_four_bytes(play: Callable[..., Wire]) -> None:
    """All included: header of the block, lengths, and the request's head."""
    texts, length, size = 2000, 11, 100_000
    ids = torch.randint(size, (texts * length,), generator=torch.Generator().manual_seed(1))
    release = pack(Tokens((Ragged(ids, torch.full((texts,), length)),)), vocab_size=size, wire_type=WireType.BF16)
    wire = play(answer("400 Bad Request"))
    transport = HttpTransport(wire.url, "cl_key")
    with pytest.raises(VendorError) as caught:
        transport.send(Frame(routes.SHARD_PUT, RECORD_SET | {"shard": 0}, tensors=release))
    transport.close()
    assert caught.value.uplink_bytes == len(wire.received)
    assert 4 < len(wire.received) / len(ids) <= 4.2


def test_a_dropped_connection_gets_the_same_frame_again(play: Callable[..., Wire]) -> None:
    good = answer("200 OK", b"{}")
    wire = play(GOOD, None, None, good)
    transport = HttpTransport(wire.url, "key")
    transport.send(Frame(routes.SERVICE))
    before = len(wire.received)
    frame = Frame(routes.SEAL, {"record_set": "a" * 32}, SealRequest(shards=1, records=1))
    with pytest.raises(VendorError, match="not of this protocol") as caught:
        transport.send(frame)  # the script's answer is no record set, which is as good a sign of arrival
    assert caught.value.status == 200
    assert "shards" in str(caught.value)
    sent = wire.received[before:]
    assert len(sent) % 3 == 0
    assert sent == sent[: len(sent) // 3] * 3
    transport.close()


def test_bytes_of_lost_tries_are_counted_too(play: Callable[..., Wire]) -> None:
    wire = play(GOOD, None, GOOD)
    transport = HttpTransport(wire.url, "key")
    once = transport.send(Frame(routes.SERVICE))
    twice = transport.send(Frame(routes.SERVICE))
    assert twice.uplink_bytes == 2 * once.uplink_bytes
    transport.close()


def test_a_vendor_that_is_busy_is_asked_again(play: Callable[..., Wire]) -> None:
    wire = play(answer("503 Service Unavailable"), answer("429 Too Many Requests", b"", "retry-after: 0"), GOOD)
    transport = HttpTransport(wire.url, "key")
    assert transport.send(Frame(routes.SERVICE)).control == SERVICE
    transport.close()


def test_giving_up_says_what_to_do(play: Callable[..., Wire]) -> None:
    wire = play(GOOD, *[None] * 3)
    transport = HttpTransport(wire.url, "key", retries=2)
    once = transport.send(Frame(routes.SERVICE))
    with pytest.raises(VendorError, match="could not be reached") as caught:
        transport.send(Frame(routes.SERVICE))
    assert caught.value.status == 0
    assert "run the same command again" in caught.value.remedy
    assert caught.value.uplink_bytes == 3 * once.uplink_bytes, "three tries may have left"
    assert caught.value.downlink_bytes == 0
    transport.close()


def test_an_address_where_nobody_listens_fails_soon() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    transport = HttpTransport(f"http://127.0.0.1:{port}", "key", retries=1000)
    with pytest.raises(VendorError, match="Connection refused") as caught:
        transport.send(Frame(routes.SERVICE))
    assert caught.value.uplink_bytes == 0


def test_a_vendor_without_tls_is_told_from_one_without_a_certificate() -> None:
    def speak_plainly() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(65536)
            connection.sendall(answer("400 Bad Request"))

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=speak_plainly, daemon=True).start()
        transport = HttpTransport(f"https://127.0.0.1:{listener.getsockname()[1]}", "key")
        with pytest.raises(VendorError, match="answers without TLS") as error:
            transport.send(Frame(routes.SERVICE))
    assert "http://" in error.value.remedy


def test_a_delete_whose_answer_was_lost_has_worked(play: Callable[..., Wire]) -> None:
    gone = answer("404 Not Found", b'{"title": "Not found", "status": 404}')
    wire = play(GOOD, None, gone, gone)
    transport = HttpTransport(wire.url, "key")
    transport.send(Frame(routes.SERVICE))
    transport.send(Frame(routes.JOB_DELETE, {"job": "a" * 32}))
    with pytest.raises(VendorError, match="Not found"):
        transport.send(Frame(routes.JOB_DELETE, {"job": "a" * 32}))
    transport.close()


@pytest.mark.parametrize(
    ("planned", "status", "match"),
    [
        (answer("502 Bad Gateway", b"<html>"), 502, "status 502 and no explanation"),
        (answer("302 Found", b"", "location: http://elsewhere/"), 302, "302"),
        (answer("200 OK", b"<html>"), 200, "not of this protocol"),
        (answer("200 OK", b'{"version": 1}'), 200, "not of this protocol"),
    ],
)
def test_what_is_no_vendor(play: Callable[..., Wire], planned: bytes, status: int, match: str) -> None:
    transport = HttpTransport(play(planned).url, "key", retries=0)
    with pytest.raises(VendorError, match=match) as caught:
        transport.send(Frame(routes.SERVICE))
    assert caught.value.status == status
    transport.close()


def test_the_key_is_in_no_error(play: Callable[..., Wire]) -> None:
    transport = HttpTransport(play(answer("401 Unauthorized")).url, "very-secret")
    with pytest.raises(AuthError) as caught:
        transport.send(Frame(routes.SERVICE))
    assert "very-secret" not in str(caught.value) + repr(vars(caught.value))
    transport.close()


@pytest.mark.parametrize(
    "url",
    [
        "http://vendor.example",
        "http://192.0.2.1:80",
        "http://0.0.0.0",
        "ftp://127.0.0.1",
        "127.0.0.1:8377",
        "https://",
        "https://user:password@vendor.example",
        "https://vendor.example/?x=1",
        "http://127.0.0.1:99999",
        "",
    ],
)
def test_addresses_that_are_refused(url: str) -> None:
    with pytest.raises(ConfigError):
        HttpTransport(url, "key")


KEY = "cl_0123456789ab_very-secret"


@pytest.mark.parametrize(
    ("url", "match"),
    [
        (KEY, "must begin with https:// or http://"),
        (f"{KEY}:8377", "must begin with https:// or http://"),
        (f"https:///{KEY}", "names no host"),
        (f"https://vendor.example:{KEY}", "has a port that is no number"),
        (f"https://user:{KEY}@vendor.example:99999", "has a port that is no number"),
        (f"https://user:{KEY}/2@vendor.example", "has a port that is no number"),
        (f"https://user:12/{KEY}@vendor.example", "no user"),
        (f"http://user:12/{KEY}@vendor.example", "no user"),
        (f"https://user:{KEY}@vendor.example", "no user"),
        (f"https://vendor.example/?key={KEY}", "no user, query"),
        (f"https://[{KEY}", "is no address that can be read"),
        (f"https://{KEY}\u2100", "is no address that can be read"),
    ],
)
def test_an_address_that_may_hold_a_key_is_not_printed(url: str, match: str) -> None:
    with pytest.raises(ConfigError, match=match) as caught:
        HttpTransport(url, "https://vendor.example")
    assert "very-secret" not in "".join(traceback.format_exception(caught.value)) + repr(vars(caught.value))


@pytest.mark.parametrize("key", ["", "a b", "a\nb", "schlüssel"])
def test_keys_that_no_header_holds(key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        HttpTransport("http://127.0.0.1", key)
    assert not key or key not in str(caught.value)


def test_a_certificate_that_is_none() -> None:
    with pytest.raises(ConfigError, match="ca_cert"):
        HttpTransport("https://vendor.example", "key", ca_cert="/nowhere.pem")


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("::1", True),
        ("[::1]", True),
        ("localhost", True),
        ("127.8.9.1", True),
        ("10.0.0.1", False),
    ],
)
def test_this_machine(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected
