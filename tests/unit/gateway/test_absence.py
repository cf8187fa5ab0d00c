"""A vendor that takes connections and stays silent: requests are told so in time, and the gateway goes on."""

from __future__ import annotations

import asyncio
import gc
import socket
import threading
import time
import weakref
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from cutlayer.core import VendorError
from cutlayer.customer import Client
from cutlayer.gateway import absence as module
from cutlayer.gateway.absence import Absence
from cutlayer.wire import Frame, routes
from cutlayer.wire.transports import HttpTransport
from tests.unit.gateway.asked import Asking, gateway_of, values_of

SECONDS = 1.0
"""How long the vendor may take."""
SLACK = 1.5
"""For this machine, which may be busy."""


class Silent:
    """Takes connections, and answers nothing."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.taken: list[socket.socket] = []
        self.transport = HttpTransport(f"http://127.0.0.1:{self._listener.getsockname()[1]}", "cl_key")
        threading.Thread(target=self._take, daemon=True).start()

    def _take(self) -> None:
        while True:
            try:
                self.taken.append(self._listener.accept()[0])
            except OSError:
                return

    def close(self) -> None:
        self.transport.close()
        for each in (self._listener, *self.taken):
            each.close()


@pytest.fixture
def silent() -> Iterator[Silent]:
    vendor = Silent()
    yield vendor
    vendor.close()


@pytest.fixture
def asking(client: Client) -> Iterator[Asking]:
    with gateway_of(client, vendor_seconds=SECONDS) as found:
        yield found


def falls_silent(client: Client, silent: Silent) -> None:
    client._opened = silent.transport
    client.answer_within(SECONDS)


async def asked(asking: Asking, requests: list[dict[str, Any]]) -> tuple[list[httpx.Response], float]:
    """Answers to requests at once, and the seconds that they took; what needs no vendor is answered meanwhile."""
    known = {"Authorization": f"Bearer {asking.key}"}
    transport = httpx.ASGITransport(asking.app)
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway", timeout=None) as client:
        began = time.monotonic()
        waiting = [
            asyncio.create_task(
                client.post("/v1/embeddings", json={"model": "tiny", "input": "w1"}, headers=known | headers)
            )
            for headers in requests
        ]
        await asyncio.sleep(SECONDS / 5)
        assert (await client.get("/healthz")).status_code == 200
        assert (await client.get("/v1/models", headers={"Authorization": "Bearer other"})).status_code == 401
        assert not any(each.done() for each in waiting), "what needs no vendor waited for it"
        return list(await asyncio.gather(*waiting)), time.monotonic() - began


def check_away(answers: list[httpx.Response]) -> None:
    assert {(each.status_code, each.json()["error"]["code"]) for each in answers} == {(503, "vendor_unavailable")}
    assert all(int(each.headers["Retry-After"]) > module._SECONDS for each in answers)


def test_who_looks_for_models_waits_once_for_all(client: Client, asking: Asking, silent: Silent) -> None:
    """More requests than there are threads for what would block."""
    falls_silent(client, silent)
    answers, seconds = asyncio.run(asked(asking, [{}] * 60))
    check_away(answers)
    assert seconds < SECONDS + SLACK
    assert len(silent.taken) == 1


def test_batches_that_wait_are_told_with_the_first(client: Client, asking: Asking, silent: Silent) -> None:
    values_of(asking.embed("w1"))
    falls_silent(client, silent)
    etas = [{"X-Cutlayer-Eta": str(eta)} for eta in (6, 3, 1.5, 0.75, 0.375)]  # each is a batch
    answers, seconds = asyncio.run(asked(asking, etas))
    check_away(answers)
    assert seconds < SECONDS + SLACK
    assert len(silent.taken) == 1


def test_a_vendor_that_comes_back_is_asked(client: Client, asking: Asking, silent: Silent) -> None:
    there = client.transport
    falls_silent(client, silent)
    assert asking.embed("w1").status_code == 503
    client._opened = there
    assert asking.embed("w1").status_code == 503  # remembered
    time.sleep(module._SECONDS)
    values_of(asking.embed("w1"))


def test_what_is_remembered_is_that_it_is_away() -> None:
    for status, remembered in ((0, True), (503, True), (429, True), (422, False), (401, False)):
        absence = Absence()
        with pytest.raises(VendorError, match="first"), absence.noted():
            raise VendorError("The first.", status=status, remedy="Wait.")
        if remembered:
            with pytest.raises(VendorError, match=r"The first\. Wait\.") as caught, absence.noted():
                raise AssertionError("it was asked")
            assert caught.value.status == status
        else:
            with absence.noted():
                pass


def test_of_a_batch_that_failed_nothing_is_kept() -> None:
    """An error's traceback holds what the calls above it were given: texts."""
    absence = Absence()

    class Text:
        pass

    def ask(text: Text) -> None:
        with absence.noted():
            raise VendorError("Away.", status=503)

    text = Text()
    left = weakref.ref(text)
    with pytest.raises(VendorError, match="Away") as caught:
        ask(text)
    del text, caught
    gc.collect()
    assert left() is None


def test_all_tries_together_take_no_longer(silent: Silent) -> None:
    silent.transport.answer_within(0.5)
    began = time.monotonic()
    with pytest.raises(VendorError, match="could not be reached") as caught:
        silent.transport.send(Frame(routes.MODELS))
    assert time.monotonic() - began < 0.5 + SLACK
    assert caught.value.status == 0
