"""Connections to a service: how many there may be, how long one may say nothing, and the process that answers them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import socket
import time
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from cutlayer.core import ConfigError
from cutlayer.serving.address import Address
from cutlayer.serving.compute import ThisThread

log = logging.getLogger("cutlayer.serving")
_BACKLOG = 128
_KEEP_ALIVE_SECONDS = 600
"""A customer computes between two steps; uvicorn's 5 s would drop its connection every time."""
_STOP_SECONDS = 30
"""Who does not read its answer may not keep a service from stopping."""
_MOST_CONNECTIONS = 4096
_SECONDS_BETWEEN_WARNINGS = 60


class Connection(H11Protocol):
    """A connection: closed when it is open but says nothing, does not come to an end of a head, or reads no answer.

    uvicorn limits the time between an answer and the next request's first byte, and the door that of a
    body; nothing else limits the time that a head takes, or reading an answer.

    Attributes:
        head_seconds: Time from opening, or from a head's first byte, to the head's end.
        reading_seconds: Time in which a peer must read on, so that more of its answer can be sent. Systems keep some
            megabytes for a connection, and tell of room when a third of them is read.
    """

    head_seconds: float = 20
    reading_seconds: float = 120
    _clocks: dict[str, asyncio.TimerHandle]

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's
        """Starts the clock."""
        self._clocks = {}
        super().connection_made(transport)
        self._watch_head()

    def data_received(self, data: bytes) -> None:
        """Starts the clock at a head's first byte, and stops it at its last."""
        super().data_received(data)
        self._watch_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stops all clocks."""
        for clock in tuple(self._clocks):
            self._stop(clock)
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Starts the clock of a peer that leaves what it was sent unread."""
        super().pause_writing()
        self._start("reading", self.reading_seconds)

    def resume_writing(self) -> None:
        """Stops it: enough was read."""
        self._stop("reading")
        super().resume_writing()

    def _watch_head(self) -> None:
        if self.conn.their_state is h11.IDLE:
            self._start("head", self.head_seconds)
        else:
            self._stop("head")

    def _start(self, clock: str, seconds: float) -> None:
        """Closes the connection after so long; where the clock runs already, it goes on."""
        if clock not in self._clocks:
            self._clocks[clock] = self.loop.call_later(seconds, self.transport.abort)

    def _stop(self, clock: str) -> None:
        if (timer := self._clocks.pop(clock, None)) is not None:
            timer.cancel()


class Listener(socket.socket):
    """A listening socket that hangs up on whoever comes while too many are connected.

    uvicorn's own limit answers everybody with 503 then, those who are connected and at work among
    them; and connections that have not shaken hands for TLS are not counted there. Without a limit
    the process would run out of file descriptors, which jobs need for their logs and checkpoints.

    Attributes:
        most: Connections at a time.
    """

    most = _MOST_CONNECTIONS

    def __init__(self, *arguments: int) -> None:
        super().__init__(*arguments)
        self._accepted: weakref.WeakSet[socket.socket] = weakref.WeakSet()
        self._warned = -float(_SECONDS_BETWEEN_WARNINGS)

    def accept(self) -> tuple[socket.socket, Any]:
        """The next connection.

        Raises:
            ConnectionAbortedError: It was one too many; asyncio goes on to the next.
        """
        connection, address = super().accept()
        if sum(other.fileno() >= 0 for other in self._accepted) >= self.most:
            connection.close()
            if time.monotonic() - self._warned >= _SECONDS_BETWEEN_WARNINGS:
                self._warned = time.monotonic()
                log.warning("%d connections are open; hanging up on further ones", self.most)
            raise ConnectionAbortedError
        self._accepted.add(connection)
        return connection, address


def run(
    make: Callable[[ThisThread], Any],
    address: Address,
    *,
    port: int,
    threads: int,
    on_listening: Callable[[str], object],
) -> None:
    """Answers requests until the process is told to stop; what computes runs in the calling thread.

    Args:
        make: Makes the ASGI application, which computes in what it is given.
        address: Where to listen.
        port: On which port, where the address names none.
        threads: Compute threads.
        on_listening: Told the service's address once requests reach it.

    Raises:
        ConfigError: The address or port cannot be had; or what `make` raises.
    """
    # First what may fail for want of a port, before `make` locks a folder.
    with listen(address.host, port if address.port is None else address.port) as listener:
        listener.most = _most_connections()
        compute = ThisThread(threads)
        config = uvicorn.Config(
            make(compute),
            loop="asyncio",
            http=Connection,
            ws="none",
            lifespan="on",
            log_config=None,
            access_log=False,  # the door keeps its own, without paths
            server_header=False,
            date_header=False,
            backlog=_BACKLOG,
            timeout_keep_alive=_KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=_STOP_SECONDS,
            ssl_certfile=None if address.tls_cert is None else str(address.tls_cert),
            ssl_keyfile=None if address.tls_key is None else str(address.tls_key),
        )
        on_listening(_url("http" if address.tls_cert is None else "https", *listener.getsockname()[:2]))
        server = uvicorn.Server(config)
        with server.capture_signals(), ThreadPoolExecutor(1, thread_name_prefix="http") as http:
            ended = http.submit(server.run, sockets=[listener])
            ended.add_done_callback(lambda _: compute.shutdown())
            compute.work()
            ended.result()


def listen(host: str, port: int) -> Listener:
    """A listening socket.

    Raises:
        ConfigError: The address or port cannot be had.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio turns Nagle's algorithm off for sockets that name their protocol, and for no others:
    # without it every answer waits 40 ms for the customer's delayed acknowledgement.
    listener = Listener(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(_BACKLOG)
    except (OSError, OverflowError) as error:
        listener.close()
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError(
            f"The service cannot listen on {host} port {port}: {reason}.", remedy="Choose another address or port."
        ) from error
    return listener


def _url(scheme: str, host: str, port: int) -> str:
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def _most_connections() -> int:
    """Asks for all the file descriptors that this process may have; half of them are for files."""
    limit, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):  # macOS names a limit that it does not grant
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        limit = hard
    return _MOST_CONNECTIONS if limit == resource.RLIM_INFINITY else min(_MOST_CONNECTIONS, limit // 2)
