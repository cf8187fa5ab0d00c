"""Requests that wait are answered together, and none pays for another."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cutlayer.core import BudgetError, VendorError
from cutlayer.customer import Client, FinetuneSpec
from cutlayer.customer import embed as embedding
from cutlayer.customer.embed import Embeddings
from cutlayer.gateway import joiner as module
from cutlayer.gateway.absence import Absence
from cutlayer.gateway.joiner import Asked, Joiner
from cutlayer.privacy import TextToText
from cutlayer.wire import routes
from tests.promises.runs import customer
from tests.unit.gateway.asked import gateway_of, values_of


def asked(*texts: str, eta: float = 6, **spec: Any) -> Asked:
    return Asked(texts, FinetuneSpec(privacy=TextToText(eta=eta), **spec))


def joiner_of(client: Client) -> Joiner:
    return Joiner(client, Absence(), denoiser="none", truncate=False)


def batches(client: Client) -> list[int]:
    """How many texts each frame held."""
    return [entry.texts for entry in client.ledger.frames() if entry.route == routes.EMBEDDINGS.name]


def test_those_who_wait_are_answered_together(client: Client) -> None:
    joiner = joiner_of(client)
    waiting = [asked("w1 w2"), asked("w3", "w4 w5"), asked("w1 w2")]
    for each in waiting:
        joiner.add(each)
    joiner.serve()
    assert batches(client) == [3]  # of equal texts one
    wanted = client.embed(["w1 w2", "w3", "w4 w5"], eta=6, denoiser="none", progress=None).values
    found = [each.answer.result(0) for each in waiting]
    assert [each.tokens for each in found] == [2, 3, 2]
    assert np.array_equal(np.concatenate([found[0].values, found[1].values]), wanted)
    assert np.array_equal(found[2].values, wanted[:1])
    joiner.serve()  # nobody waits


def test_other_settings_are_another_batch(client: Client) -> None:
    joiner = joiner_of(client)
    waiting = [asked("w1"), asked("w2", eta=3), asked("w3")]
    for each in waiting:
        joiner.add(each)
    joiner.serve()
    assert [each.answer.done() for each in waiting] == [True, False, True]
    joiner.serve()
    assert waiting[1].answer.done()
    assert batches(client) == [2, 1]


def test_a_batch_is_bounded(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_TEXTS", 3)
    joiner = joiner_of(client)
    waiting = [asked("w1", "w2"), asked("w3", "w4"), asked("w5"), asked("w6", "w7", "w8", "w9")]
    for each in waiting:
        joiner.add(each)
    joiner.serve()
    assert [each.answer.done() for each in waiting] == [True, False, True, False]
    joiner.serve()
    joiner.serve()
    assert all(each.answer.done() for each in waiting)


def test_one_that_is_refused_harms_no_other(client: Client) -> None:
    joiner = joiner_of(client)
    budget = {"privacy_budget": 7.0}
    first = asked("w1", **budget)
    joiner.add(first)
    joiner.serve()
    client.embed(["w2"], eta=5, denoiser="none", progress=None)
    waiting = [asked("w3", **budget), asked("w2", **budget), asked("w4 " * 200, **budget), asked("w5", " ", **budget)]
    for each in waiting:
        joiner.add(each)
    joiner.serve()
    assert waiting[0].answer.result(0).values.shape == (1, 32)
    assert isinstance(waiting[1].answer.exception(0), BudgetError)
    assert "200 tokens" in str(waiting[2].answer.exception(0))
    assert "input[1]" in str(waiting[3].answer.exception(0))


@pytest.mark.parametrize("status", [200, 400, 413, 422])
def test_what_the_vendor_refuses_of_one_harms_no_other(
    status: int, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    embed = Embeddings.of

    def refuse(road: Embeddings, tokens: Any, texts: Any, progress: Any) -> Any:
        if ("w2",) in texts:
            raise VendorError("It takes no w2.", status=status)
        return embed(road, tokens, texts, progress)

    monkeypatch.setattr(Embeddings, "of", refuse)
    joiner = joiner_of(client)
    waiting = [asked("w1"), asked("w2"), asked("w3")]
    for each in waiting:
        joiner.add(each)
    joiner.serve()
    assert [each.answer.exception(0) is None for each in waiting] == [True, False, True]
    assert isinstance(waiting[1].answer.exception(0), VendorError)


def test_one_that_is_longer_than_a_vendor_takes_harms_no_other(
    data_dir: Path, api_key: str, tmp_path: Path, change_settings: Callable[..., None]
) -> None:
    change_settings(data_dir, limits={"max_rows_per_step": 20})
    with customer(data_dir, api_key, tmp_path / "home") as client, gateway_of(client) as gateway:
        first, long, last = gateway.together(["w5", "w6 " * 40, "w7"])
        assert (long.status_code, long.json()["error"]["code"]) == (400, "context_length_exceeded")
        assert "limit is 18 tokens" in long.json()["error"]["message"]
        for each in (first, last):
            values_of(each)


@pytest.mark.parametrize("status", [0, 401, 403, 429, 500, 503])
def test_a_vendor_that_fails_fails_all_of_them_once(
    status: int, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []

    def fail(*_: object) -> None:
        calls.append(1)
        raise VendorError("It is away.", status=status)

    monkeypatch.setattr(Embeddings, "of", fail)
    joiner = joiner_of(client)
    waiting = [asked("w1"), asked("w2")]
    for each in waiting:
        joiner.add(each)
    joiner.serve()
    assert all(isinstance(each.answer.exception(0), VendorError) for each in waiting)
    assert len(calls) == 1


def test_the_road_that_is_opened_before_is_the_one_that_requests_take(client: Client) -> None:
    with gateway_of(client) as asking:
        gateway = asking.app.state.gateway
        gateway.open()
        ((*_, road),) = gateway.joiner._roads._open
        values_of(asking.embed("w1"))
        assert [each[2] for each in gateway.joiner._roads._open] == [road]


def test_etas_that_take_turns_open_a_road_each_and_fetch_once(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    opened, etas = list[float](), [6, 3, 1.5, 0.75, 0.375]
    openings = Embeddings.open.__func__  # type: ignore[attr-defined]  # of the class method

    def opening(_: type, connection: Any, given: FinetuneSpec, progress: Any, **more: Any) -> Embeddings:
        opened.append(given.privacy.eta)
        return openings(Embeddings, connection, given, progress, **more)  # type: ignore[no-any-return]

    monkeypatch.setattr(Embeddings, "open", classmethod(opening))
    with gateway_of(client) as asking:
        for number in range(2):
            for eta in etas:
                values_of(asking.embed(f"w{number}", headers={"X-Cutlayer-Eta": str(eta)}))
    assert opened == etas
    assert [entry.route for entry in client.ledger.frames()].count(routes.ARCHIVE.name) == 1


def test_large_tables_leave_room_for_few_roads(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedding, "_TABLE_BYTES", 1)
    joiner = joiner_of(client)
    for eta in range(1, 8):
        joiner.open(asked("w1", eta=eta).spec)
    assert [given.privacy.eta for given, *_ in joiner._roads._open] == [4, 5, 6, 7]


def test_what_nobody_waits_for_is_not_sent(client: Client) -> None:
    joiner = joiner_of(client)
    waiting = [asked("w1"), asked("w2")]
    for each in waiting:
        joiner.add(each)
    waiting[0].answer.cancel()
    joiner.serve()
    assert batches(client) == [1]
    assert waiting[1].answer.done()


def test_an_application_that_hangs_up_is_not_waited_for(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    """Its texts do not leave, and the next one gets its answer."""
    with gateway_of(client) as asking:
        gateway, entered, let_go = asking.app.state.gateway, threading.Event(), threading.Event()
        gateway.compute.post(lambda _: (entered.set(), let_go.wait(20)), "")
        entered.wait(20)
        status: Future[int] = Future()

        async def hang_up() -> None:
            body = b'{"input": "w7", "model": "tiny"}'
            events = iter([{"type": "http.request", "body": body}, {"type": "http.disconnect"}])

            async def receive() -> Any:
                return next(events)

            async def send(event: Any) -> None:
                status.set_result(event["status"])

            headers = [(b"authorization", f"Bearer {asking.key}".encode()), (b"content-length", b"%d" % len(body))]
            scope = {
                "type": "http",
                "method": "POST",
                "path": "/v1/embeddings",
                "headers": headers,
                "query_string": b"",
            }
            await asking.app(scope, receive, send)

        with caplog.at_level(logging.INFO):
            asyncio.run(hang_up())
        assert not status.done()
        assert "application embeddings 499" in caplog.text
        let_go.set()
        values_of(asking.embed("w8"))
    assert batches(client) == [1]
