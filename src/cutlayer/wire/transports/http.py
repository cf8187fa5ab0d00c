"""Frames over HTTP/1.1, with the bytes of every request and answer counted where they cross the socket.

A vendor may be hostile. No encoding of answers is asked for or accepted, so what is counted is what is decoded; an
answer is read in pieces and up to the size that its frame allows; heads and framing count, too; and an answer that
trickles ends with its time.
"""

from __future__ import annotations

import http.client
import io
import ipaddress
import math
import socket
import ssl
import time
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, urlsplit

import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection

from cutlayer.core import ConfigError, Fault, VendorError
from cutlayer.printable import quoted
from cutlayer.wire.frame import Frame, Reply
from cutlayer.wire.transports.answer import check_size, read_answer, request_headers

_CONNECT_SECONDS = 10.0
_LONGEST_PAUSE_SECONDS = 5.0
_SHORTEST_SECONDS = 0.001
"""A socket takes no time-out of 0."""
_TRIES_BEFORE_FIRST_CONTACT = 2
"""A mistyped address should fail at once; a vendor that has answered before is worth waiting for."""
_TRY_AGAIN = frozenset({429, 503})
_PIECE_BYTES = 2**20
_HEAD_BYTES = 2**18
"""Most bytes of an answer's status lines and headers; uvicorn's have about 150, a proxy's some thousand."""
_ONE_PIECE = 2**14
"""Bytes of a request, its head included, that leave together."""
_SLOWEST = 2**14
"""Bytes a second: an answer that has begun may take the time-out, and a second more for each of these."""


@dataclass
class _Meter:
    """Bytes of one `send`, above TLS, and what its present try may still receive.

    Attributes:
        sent: Bytes sent, over all tries.
        received: Bytes received, over all tries.
        allowed: What `received` may come to.
        timeout: Seconds that an answer may take beyond what its bytes take at the lowest speed.
    """

    sent: int = 0
    received: int = 0
    allowed: int = 0
    timeout: float = 0.0
    _before: int = 0
    _begun: float | None = None

    def begin(self, most: int) -> None:
        """Begins a try, whose answer has a body of `most` bytes at most."""
        # framing of a chunked body is at most as long as the body, unless somebody wants it to be longer
        self._before, self.allowed, self._begun = self.received, self.received + 2 * most + _HEAD_BYTES, None

    def receive(self, count: int) -> None:
        """Takes note of bytes that arrived.

        Raises:
            VendorError: They are more than any answer has, or come too slowly.
        """
        now = time.monotonic()
        self._begun = now if self._begun is None else self._begun
        self.received += count
        if self.received > self.allowed:
            raise VendorError(
                f"The vendor's answer has more than {self.allowed - self._before} bytes, head and framing included.",
                remedy=_NO_VENDOR,
            )
        came = self.received - self._before
        if now - self._begun > self.timeout + came / _SLOWEST:
            raise VendorError(
                f"The vendor's answer came too slowly: {came} bytes in {now - self._begun:.0f} s.",
                remedy="Check the network and the address, then run the same command again.",
            )


_NO_VENDOR = "Check that the address is a cutlayer vendor's; if it is, ask the vendor: no right answer is like this."


_METER: ContextVar[_Meter] = ContextVar("meter")


class _MeteredSocket(io.RawIOBase):
    """The reading end of a socket, counted. HTTP/1.1 without pipelining: nothing is read ahead of its answer."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        count: int | None = self._inner.readinto(buffer)
        _METER.get().receive(count or 0)
        return count

    def close(self) -> None:
        self._inner.close()
        super().close()


class _MeteredResponse(http.client.HTTPResponse):
    def __init__(self, sock: socket.socket, *args: Any, **kwargs: Any) -> None:
        super().__init__(sock, *args, **kwargs)
        self.fp = io.BufferedReader(_MeteredSocket(self.fp.detach()))


class _Connection(HTTPConnection):
    """Counts what is about to be sent: bytes that a broken connection swallowed may have left, too.

    A short request leaves in one piece. In two, its head would wake the vendor for nothing.
    """

    response_class = _MeteredResponse
    _held: bytearray | None = None

    def request(self, *args: Any, **kwargs: Any) -> None:
        """Sends a request."""
        self._held = bytearray()
        try:
            super().request(*args, **kwargs)
            self._send_held()
        finally:
            self._held = None

    def send(self, data: Any) -> None:
        """Sends bytes of a request, or holds them back until it is whole."""
        if self._held is not None and len(self._held) + len(data) <= _ONE_PIECE:
            self._held += data
            return
        self._send_held()
        self._send(data)

    def _send_held(self) -> None:
        held, self._held = self._held, None
        if held:
            self._send(held)

    def _send(self, data: Any) -> None:
        if self.sock is None:
            self.connect()
        _METER.get().sent += len(data)
        super().send(data)


class _TlsConnection(_Connection, HTTPSConnection):
    """The same over TLS."""


class _Pool(urllib3.HTTPConnectionPool):
    ConnectionCls = _Connection


class _TlsPool(urllib3.HTTPSConnectionPool):
    ConnectionCls = _TlsConnection


def is_loopback(host: str) -> bool:
    """Whether a host name or address means this machine."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


class HttpTransport:
    """Frames to a vendor over a network.

    Every route may be repeated (steps are numbered, things are named by the customer), so a dropped
    connection, a time-out and a vendor that is starting again are answered by sending the same bytes
    again. Safe to use from several threads.

    Args:
        url: The vendor's address. `http://` is accepted for this machine only.
        api_key: The tenant's key.
        ca_cert: PEM file of the certificate to trust, for a vendor that signed its own.
        timeout: Seconds to wait for an answer; the first step of a job may include loading a model. One that has
            begun may take as long again, and a second for each 16 KiB of it.
        retries: How often a frame is sent again before giving up; pauses double from 0.1 s to 5 s.

    Raises:
        ConfigError: The address cannot be used safely.
    """

    def __init__(
        self,
        url: str,
        api_key: str,
        *,
        ca_cert: Path | str | None = None,
        timeout: float = 600.0,
        retries: int = 8,
    ) -> None:
        parts = _parse(url)
        if not api_key or not api_key.isascii() or not api_key.isprintable() or " " in api_key:
            raise ConfigError("The API key is empty or holds characters that no key has.", remedy="Pass --api-key.")
        self.url = url
        self._peer = f"{parts.scheme}://{parts.netloc.lower()}{parts.path.rstrip('/')}"
        self._api_key = api_key
        self._prefix = parts.path.rstrip("/")
        self._retries = retries
        self._reached = False
        self._timeout = timeout
        self._within = math.inf
        make: Any = _Pool
        if parts.scheme == "https":
            make = partial(_TlsPool, ssl_context=_trust(ca_cert))
        self._pool: urllib3.HTTPConnectionPool = make(parts.hostname, parts.port, maxsize=8)

    @property
    def peer(self) -> str:
        """Who gets the frames: the address in one spelling."""
        return self._peer

    def answer_within(self, seconds: float) -> None:
        """Gives up on a frame whose answer has not begun in so many seconds, all tries and pauses together."""
        self._within = seconds
        self._timeout = min(self._timeout, seconds)

    def send(self, frame: Frame) -> Reply:
        """Sends one frame, again where it has to be.

        Raises:
            VendorError: The vendor refused (with its status) or could not be reached (status 0).
            AuthError: The vendor does not accept the key.
        """
        body = frame.encode()
        headers = request_headers(frame, body, self._api_key)
        meter = _Meter(timeout=self._timeout)
        token = _METER.set(meter)
        try:
            status, content, repeated = self._exchange(frame, body, headers)
            if status == 404 and repeated and frame.route.method == "DELETE":
                status = 204  # the try whose answer was lost had deleted it
            return read_answer(
                frame,
                status=status,
                content=content,
                request=body,
                uplink_bytes=meter.sent,
                downlink_bytes=meter.received,
            )
        except VendorError as error:
            error.uplink_bytes, error.downlink_bytes = meter.sent, meter.received
            raise
        finally:
            _METER.reset(token)

    def _exchange(self, frame: Frame, body: bytes, headers: dict[str, str]) -> tuple[int, bytes, bool]:
        """Sends until there is an answer to act on: its status, its body, and whether it took more than one try."""
        attempt = 0
        until = time.monotonic() + self._within
        while True:
            retries = self._retries if self._reached else min(self._retries, _TRIES_BEFORE_FIRST_CONTACT)
            pause = min(0.1 * 2**attempt, _LONGEST_PAUSE_SECONDS)
            left = max(until - time.monotonic(), _SHORTEST_SECONDS)
            _METER.get().begin(frame.reply_bytes)
            try:
                response = self._pool.urlopen(
                    frame.route.method,
                    self._prefix + frame.path,
                    # An empty body still announces its length, so that the vendor need not guess.
                    body=body or None,
                    headers=headers,
                    timeout=urllib3.Timeout(connect=min(_CONNECT_SECONDS, left), read=min(self._timeout, left)),
                    retries=False,
                    redirect=False,
                    preload_content=False,
                    decode_content=False,
                )
                content = _read(frame, response)
                self._reached = True
                pause = max(pause, _seconds(response.headers.get("Retry-After", "")))
                if response.status not in _TRY_AGAIN or attempt >= retries or time.monotonic() + pause >= until:
                    return response.status, content, attempt > 0
            except urllib3.exceptions.SSLError as error:
                if "WRONG_VERSION_NUMBER" in str(error):
                    raise VendorError(
                        f"The vendor at {self.url} answers without TLS.",
                        remedy="Check the port; a vendor on this machine may be reached by http://.",
                    ) from error
                raise VendorError(
                    f"No trusted connection to {self.url}: {reason(error)}.",
                    remedy="Use the name that is in the vendor's certificate; the vendor makes one for another name "
                    "with `vendor init --tls-host`."
                    if "mismatch" in str(error).lower()
                    else "Pass the vendor's certificate as --ca-cert, or check the address.",
                ) from error
            except (urllib3.exceptions.HTTPError, OSError) as error:
                if attempt >= retries or time.monotonic() + pause >= until:
                    # a port that speaks TLS hangs up on plain HTTP
                    hung_up = not self._reached and self.url.startswith("http:") and "without response" in str(error)
                    raise VendorError(
                        f"The vendor at {self.url} could not be reached: {reason(error)}.",
                        remedy=("Use https:// if it serves TLS. " if hung_up else "")
                        + "Check that it is running and run the same command again: it goes on where it stopped.",
                    ) from error
            time.sleep(pause)
            attempt += 1

    def close(self) -> None:
        """Gives connections back."""
        self._pool.close()


def _read(frame: Frame, response: urllib3.BaseHTTPResponse) -> bytes:
    """An answer's body, in pieces and no further than its frame allows.

    Raises:
        VendorError: It is larger, by its own word or in fact, or it is encoded.
    """
    try:
        encoding = response.headers.get("Content-Encoding", "identity")
        if encoding.strip().lower() not in ("", "identity"):
            raise VendorError(
                f"The vendor's answer to {frame.route.name} is encoded ({quoted(encoding, longest=40)}), which was not "
                "asked for.",
                status=response.status,
                remedy="Have the vendor, or the proxy in front of it, send answers as they are.",
            )
        check_size(frame, response.status, response.length_remaining or 0)
        content = io.BytesIO()
        while piece := response.read(_PIECE_BYTES):
            check_size(frame, response.status, content.tell() + len(piece))
            content.write(piece)
    except BaseException:
        response.close()  # what is left of it is not read
        raise
    response.release_conn()
    return content.getvalue()


def _parse(url: str) -> Any:
    try:
        parts = urlsplit(url)
        wrong = _wrong(parts)
    except ValueError:  # its message quotes what it could not read
        wrong = "is no address that can be read"
    if wrong:
        # key and address may have been swapped, and an address may hold a password
        hidden = "(not shown: it may hold a key)"
        raise ConfigError([Fault("vendor", hidden, f"{wrong}; write it as https://vendor.example:8443")])
    if "@" in url or parts.query or parts.fragment:  # a password with a slash in it is parsed as a path
        raise ConfigError("The vendor's address must hold no user, query or fragment.", remedy="Pass only its root.")
    if parts.scheme == "http" and not is_loopback(parts.hostname or ""):
        raise ConfigError(
            f"http:// to {parts.hostname} would send the key and every release in clear.",
            remedy="Use https:// (with --ca-cert for a vendor that signed its own certificate).",
        )
    return parts


def _wrong(parts: SplitResult) -> str:
    """What keeps an address from being used; empty if nothing does."""
    if parts.scheme not in ("http", "https"):
        return "must begin with https:// or http://"
    if not parts.hostname:
        return "names no host"
    try:
        known = parts.port is None or parts.port > 0
    except ValueError:
        known = False
    return "" if known else "has a port that is no number from 1 to 65535"


def _trust(ca_cert: Path | str | None) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=str(ca_cert) if ca_cert is not None else None)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            [Fault("ca_cert", str(ca_cert), f"must be a readable PEM certificate ({reason(error)})")]
        ) from error
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def _seconds(header: str) -> float:
    # isdigit alone is true of a superscript two, which no float is made of
    return min(float(header), _LONGEST_PAUSE_SECONDS) if header.isascii() and header.isdigit() else 0.0


def reason(error: BaseException) -> str:
    """The innermost cause in one line, without addresses of objects."""
    while (inner := error.__cause__ or error.__context__) is not None:
        error = inner
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    # it may quote the vendor's status line
    return quoted(str(error).rsplit(": ", 1)[-1], longest=200) or type(error).__name__
