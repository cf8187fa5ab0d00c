"""Connections that are opened and not used: they are closed, counted, and in nobody's way."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import pytest
import uvicorn
from starlette.responses import Response

from cutlayer.serving.door import Door, Visit
from cutlayer.serving.listening import Connection, Listener, listen

Serve = Callable[..., Listener]
REQUEST = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: keep-alive\r\nContent-Length: 3\r\n\r\n"


class Hasty(Connection):
    head_seconds = 0.5
    reading_seconds = 1


async def application(scope: dict[str, Any], receive: Any, send: Any) -> None:
    """Answers once the body is there."""
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


LARGE = bytes(2**25)
"""More than the buffers on the way take."""


async def large(scope: dict[str, Any], receive: Any, send: Any) -> None:
    headers = [(b"content-length", str(len(LARGE)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": LARGE})


async def torn(scope: dict[str, Any], receive: Any, send: Any) -> None:
    """Begins an answer, and fails."""
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    raise FileNotFoundError("it was removed meanwhile")


class OneAtATime(Door):
    """A door that everybody opens."""

    open_paths = frozenset[str]()
    wanted = "any key"
    told: ClassVar[list[int]] = []

    def meant(self, method: str, path: str) -> tuple[str, int]:
        return "large", 0

    async def owner(self, key: str) -> str:
        return key

    def response(self, error: Exception) -> Response:
        return Response(status_code=getattr(error, "status", 500))

    def answered(self, owner: str, name: str, visit: Visit, seconds: float) -> None:
        self.told.append(visit.status)


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Serves in a thread of this process, with as many connections as it is told."""
    with contextlib.ExitStack() as stack:

        def start(*, most: int = 100, application: Any = application) -> Listener:
            listener = stack.enter_context(listen("127.0.0.1", 0))
            listener.most = most
            config = uvicorn.Config(
                application,
                http=Hasty,
                loop="asyncio",
                ws="none",
                lifespan="off",
                log_config=None,
                timeout_keep_alive=60,
            )
            server = uvicorn.Server(config)
            thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
            thread.start()
            stack.callback(thread.join)
            stack.callback(setattr, server, "should_exit", True)
            while not server.started:
                time.sleep(0.01)
            return listener

        yield start


def connect(listener: Listener) -> socket.socket:
    connection = socket.create_connection(listener.getsockname()[:2], timeout=20)
    connection.settimeout(20)
    return connection


def is_served(connection: socket.socket) -> bool:
    connection.sendall(REQUEST + b"abc")
    return is_answered(connection)


def is_answered(connection: socket.socket) -> bool:
    answer = b""
    while not answer.endswith(b"ok") and (received := connection.recv(1000)):
        answer += received
    return answer.endswith(b"ok")


def is_closed(connection: socket.socket) -> bool:
    with contextlib.suppress(ConnectionResetError):
        return connection.recv(1000) == b""
    return True


HALF = (REQUEST[:20],)
DROPS = (b"G",) * 500


@pytest.mark.parametrize(
    ("again", "pieces"),
    [(False, ()), (False, HALF), (False, DROPS), (True, HALF), (True, DROPS)],
    ids=["nothing", "half a head", "drops", "half a second head", "drops of a second head"],
)
def test_a_head_that_does_not_come_to_an_end_is_not_waited_for(
    serve: Serve, again: bool, pieces: tuple[bytes, ...]
) -> None:
    with connect(serve()) as connection:
        if again:
            assert is_served(connection)
        started = time.monotonic()
        with contextlib.suppress(ConnectionError):
            for number, piece in enumerate(pieces):
                connection.sendall(piece)
                time.sleep(0.02 if number else 0)
        assert is_closed(connection)
        assert 0.4 < time.monotonic() - started < 8


def test_who_has_sent_a_head_has_time(serve: Serve) -> None:
    with connect(serve()) as connection:
        for _ in range(2):
            connection.sendall(REQUEST + b"a")
            time.sleep(0.8)
            connection.sendall(b"bc")
            assert is_answered(connection)
            time.sleep(0.8)


def test_one_too_many_is_hung_up_on_and_the_others_stay(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    listener = serve(most=3)
    with contextlib.ExitStack() as stack:
        customer, *_ = [stack.enter_context(connect(listener)) for _ in range(3)]
        assert is_served(customer)
        for _ in range(20):
            with connect(listener) as late:
                assert is_closed(late)
        assert is_served(customer)
        time.sleep(0.8)  # the other two have said nothing
        with connect(listener) as another:
            assert is_served(another)
        assert is_served(customer)
    assert [message for message in caplog.messages if "hanging up" in message] == [
        "3 connections are open; hanging up on further ones"
    ]


def asking(owner: str) -> bytes:
    return f"GET / HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {owner}\r\n\r\n".encode()


def read_all(connection: socket.socket) -> int:
    """Bytes of a whole answer, or of what came before it broke off."""
    connection.settimeout(3)
    found = 0
    with contextlib.suppress(OSError):
        while received := connection.recv(2**20):
            found += len(received)
            if found > len(LARGE):
                break
    return found


def test_an_answer_that_nobody_reads_is_a_request_in_progress_and_no_memory_for_long(serve: Serve) -> None:
    OneAtATime.told.clear()
    door = OneAtATime(large, body_seconds=5, requests_at_once=1, books=logging.getLogger("books"))
    listener = serve(application=door)
    with connect(listener) as silent, connect(listener) as second, connect(listener) as other:
        silent.sendall(asking("one"))
        assert silent.recv(12) == b"HTTP/1.1 200"
        second.sendall(asking("one"))
        assert second.recv(12) == b"HTTP/1.1 429"
        other.sendall(asking("two"))
        assert read_all(other) > len(LARGE), "another's answer comes"
        time.sleep(1.5)
        assert read_all(silent) < len(LARGE), "it was broken off"
        with connect(listener) as later:
            later.sendall(asking("one"))
            assert read_all(later) > len(LARGE)
    assert sorted(OneAtATime.told)[-1] == 429


def test_a_large_answer_that_is_read_slowly_comes_whole(serve: Serve) -> None:
    door = OneAtATime(large, body_seconds=5, requests_at_once=1, books=logging.getLogger("books"))
    with connect(serve(application=door)) as slow:
        slow.sendall(asking("one"))
        found = 0
        for _ in range(6):  # longer together than a part may take
            time.sleep(0.4)
            wanted = found + 2**22
            while found < wanted:
                found += len(slow.recv(wanted - found))
        assert found + read_all(slow) > len(LARGE)


def test_an_answer_that_breaks_off_is_logged(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    """It is too late to tell whoever asked."""
    listener = serve(application=OneAtATime(torn, body_seconds=5, requests_at_once=5, books=logging.getLogger("books")))
    with contextlib.closing(connect(listener)) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert not is_answered(connection)
    assert any("FileNotFoundError" in record.getMessage() for record in caplog.records)
