"""Connections that are opened and not used: they are closed, counted, and in nobody's way."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import uvicorn

from cutlayer.serving.listening import Connection, Listener, listen

Serve = Callable[..., Listener]
REQUEST = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: keep-alive\r\nContent-Length: 3\r\n\r\n"


class Hasty(Connection):
    head_seconds = 0.5


async def application(scope: dict[str, Any], receive: Any, send: Any) -> None:
    """Answers once the body is there."""
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Serves in a thread of this process, with as many connections as it is told."""
    with contextlib.ExitStack() as stack:

        def start(*, most: int = 100) -> Listener:
            listener = stack.enter_context(listen("127.0.0.1", 0))
            listener.most = most
            config = uvicorn.Config(
                application,  # type: ignore[arg-type]
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
