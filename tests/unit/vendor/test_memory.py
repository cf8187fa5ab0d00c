"""What jobs may take of the vendor's memory, and of everybody's time when they come back."""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from cutlayer.core import VendorError
from cutlayer.vendor.jobs import Jobs
from cutlayer.vendor.journal import Journal
from cutlayer.vendor.trainer import Trainer
from cutlayer.wire import Frame, routes
from cutlayer.wire.transports import LocalTransport
from tests.service.customer import Customer, ask
from tests.unit.vendor.test_generations import Clock, gauge
from tests.unit.vendor.test_jobs import Open, at, info, query, resumed, vendor_of


def test_a_step_whose_graph_is_too_large_is_refused_before_it_is_computed(
    open_vendor: Open, data_dir: Path, change_settings: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    change_settings(data_dir, limits={"max_graph_bytes": 1_000_000})
    customer = Customer(open_vendor())
    customer.upload()
    customer.start()

    def computed(*_: object) -> None:
        raise AssertionError("the step was computed")

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "forward", computed)
        with pytest.raises(VendorError, match=r"on 8 texts takes about \d{7} .* gives a step 1000000") as caught:
            customer.take(1, None)
    assert caught.value.status == 422
    assert "smaller batches" in caught.value.remedy
    assert info(customer).step == 0
    one = {"records": torch.zeros(1, dtype=torch.uint8)}
    customer.transport.send(Frame(routes.STEP, {"job": customer.job, "step": 1}, None, one))


def test_graphs_that_wait_stay_below_the_limit_together(
    open_vendor: Open, data_dir: Path, change_settings: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three jobs in turn where two graphs find room: the one that waits longest leaves, and ends with the same bits."""
    customer = Customer(open_vendor())
    straight = customer.run().sha256
    customer.transport.close()
    limit = 10_000_000
    change_settings(data_dir, limits={"max_graph_bytes": limit})
    transport = open_vendor()
    jobs = vendor_of(transport).jobs
    waiting = []
    make_room = Jobs._make_room

    def watched(self: Jobs, job: Any, size: int) -> None:
        make_room(self, job, size)
        waiting.append([live.graph_bytes for live in self._live.values() if live is not job] + [size])

    monkeypatch.setattr(Jobs, "_make_room", watched)
    together = [Customer(transport, job=f"{n:032x}") for n in range(10, 14)]
    pending: list[Tensor | None] = [None] * len(together)
    for each in together:
        each.upload()
        each.start()
    for step in range(1, customer.steps + 1):
        for number, each in enumerate(together):
            pending[number] = each.take(step, pending[number])
            assert sum(live.graph_bytes for live in jobs._live.values()) <= limit
    assert max(sum(sizes) for sizes in waiting) <= limit
    assert max(sum(size > 0 for size in sizes) for sizes in waiting) > 1, "they leave only if they must"
    assert {at(each, routes.FINISH, each.steps).sha256 for each in together} == {straight}


def test_a_job_that_leaves_takes_its_graph_along(transport: LocalTransport) -> None:
    customer = Customer(transport)
    customer.upload()
    customer.start()
    customer.take(1, None)
    [live] = vendor_of(transport).jobs._live.values()
    graph = weakref.ref(live._trainer._output)
    assert graph() is not None
    live.leave()
    assert graph() is None
    vendor_of(transport).jobs._live.clear()
    assert info(customer).step == 1


def test_a_resumed_job_replays_a_bounded_number_of_steps(
    open_vendor: Open, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever `checkpoint_every` says; the checkpoints to roll back to are those that it says."""
    customer = Customer(open_vendor(), checkpoint_every=10)
    straight = customer.run().sha256
    ask(customer.transport, routes.JOB_DELETE, job=customer.job)
    customer.upload()
    monkeypatch.setattr("cutlayer.vendor.journal._STEPS", 3)
    monkeypatch.setattr("cutlayer.vendor.job.LiveJob.leave", lambda self: self.close())
    taken = []
    forward = Trainer.forward
    monkeypatch.setattr(Trainer, "forward", lambda self, payload: taken.append(self.step) or forward(self, payload))
    for until in (8, 12):
        customer.train(customer.start(), until=until)
        customer.transport.close()
        customer.transport = open_vendor()
        taken.clear()
        assert resumed(customer).checkpoints == ((0,) if until < 10 else (0, 10))
        assert 1 <= len(taken) <= 3
    assert at(customer, routes.ROLLBACK, 10).step == 10
    assert customer.run().sha256 == straight


# ---------------------------------------------------------------- what jobs and adapters hold


@pytest.fixture
def straight(open_vendor: Open) -> tuple[Customer, int]:
    """A job that ran alone, finished, and the bytes that it held."""
    customer = Customer(open_vendor())
    customer.upload()
    customer.start()
    held = vendor_of(customer.transport).jobs.held_bytes
    customer.run()
    customer.transport.close()
    return customer, held


def test_jobs_hold_no_more_than_they_may(
    straight: tuple[Customer, int], open_vendor: Open, data_dir: Path, change_settings: Callable[..., None]
) -> None:
    """Three jobs in turn where two find room: the one that was used the longest ago leaves."""
    alone, held = straight
    limit = 5 * held // 2
    change_settings(data_dir, limits={"max_live_bytes": limit})
    transport = open_vendor()
    together = [Customer(transport, job=f"{n:032x}") for n in range(10, 13)]
    for each in together:
        each.upload()
        each.start()
    assert gauge(transport, "live_jobs") == 2
    pending: list[Tensor | None] = [None] * len(together)
    for step in range(1, alone.steps + 1):
        for number, each in enumerate(together):
            pending[number] = each.take(step, pending[number])
            assert held < gauge(transport, "live_job_bytes") <= limit
            assert gauge(transport, "live_jobs") == 2
    assert {at(each, routes.FINISH, each.steps).sha256 for each in together} == {alone.sha256}
    assert (gauge(transport, "live_jobs"), gauge(transport, "live_job_bytes")) == (0, 0)


def test_last_answers_count(
    straight: tuple[Customer, int], open_vendor: Open, data_dir: Path, change_settings: Callable[..., None]
) -> None:
    """Two jobs fit as they begin, and no longer once one has been answered."""
    _, held = straight
    change_settings(data_dir, limits={"max_live_bytes": 2 * held})
    transport = open_vendor()
    for job in ("a" * 32, "b" * 32):
        customer = Customer(transport, job=job)
        customer.upload()
        customer.start()
    assert gauge(transport, "live_job_bytes") == 2 * held
    customer.take(1, None)
    assert gauge(transport, "live_jobs") == 1
    assert held < gauge(transport, "live_job_bytes") < 2 * held


def test_a_job_that_would_not_fit_alone_is_refused_before_any_text_leaves(
    straight: tuple[Customer, int], open_vendor: Open, data_dir: Path, change_settings: Callable[..., None]
) -> None:
    _, held = straight
    change_settings(data_dir, limits={"max_live_bytes": held - 1})
    customer = Customer(open_vendor(), job="a" * 32)
    match = rf"Job too large: This job takes {held} bytes .* all jobs and adapters {held - 1}"
    with pytest.raises(VendorError, match=match) as caught:
        customer.start()
    assert caught.value.status == 422
    assert "lora" in caught.value.remedy
    assert "max_live_bytes" in caught.value.remedy
    with pytest.raises(VendorError, match="no job"):
        info(customer)


def test_an_idle_job_leaves_memory_and_goes_on_with_the_same_bits(
    straight: tuple[Customer, int], open_vendor: Open
) -> None:
    """Its weights go at once, without the garbage collector, and the graph that waits with them."""
    alone, held = straight
    transport = open_vendor()
    residents, clock = vendor_of(transport).residents, Clock()
    residents._clock = clock
    customer = Customer(transport, job="a" * 32)
    customer.upload()
    customer.start()
    pending = None
    for step in range(1, customer.steps + 1):
        pending = customer.take(step, pending)
        clock.now += 600
        list(residents.expire())
        assert gauge(transport, "live_job_bytes") > held, "it is not over before its time"
        [live] = vendor_of(transport).jobs._live.values()
        weights = weakref.ref(next(iter(live._trainer._trained.values())))
        del live
        gc.disable()
        try:
            clock.now += 1
            list(residents.expire())
            assert weights() is None
        finally:
            gc.enable()
        for name in ("live_jobs", "live_job_bytes", "graph_bytes"):
            assert gauge(transport, name) == 0
    assert at(customer, routes.FINISH, customer.steps).sha256 == alone.sha256


def test_an_idle_job_leaves_where_nobody_asks_for_anything(
    open_vendor: Open, data_dir: Path, change_settings: Callable[..., None]
) -> None:
    change_settings(data_dir, limits={"live_seconds": 0.2})
    customer = Customer(open_vendor())
    customer.run()
    query(customer)
    other = Customer(customer.transport, job="a" * 32)
    other.upload()
    other.start()
    deadline = time.monotonic() + 20
    names = ("live_jobs", "live_job_bytes", "live_adapters", "live_adapter_bytes")
    while any(gauge(customer.transport, name) for name in names):
        assert time.monotonic() < deadline, "they are still there"
        time.sleep(0.05)
    other.train(info(other))


def test_what_cannot_leave_does_not_end_the_service(
    open_vendor: Open, data_dir: Path, change_settings: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    change_settings(data_dir, limits={"live_seconds": 0.2})
    customer = Customer(open_vendor())
    customer.upload()
    customer.start()
    customer.take(1, None)
    failed = []

    def fail(*_: object) -> None:
        failed.append(1)
        raise RuntimeError("out of memory")

    monkeypatch.setattr(Journal, "_state", fail)
    deadline = time.monotonic() + 20
    while not failed or gauge(customer.transport, "live_jobs"):
        assert time.monotonic() < deadline, "the job is still there"
        time.sleep(0.05)
    assert resumed(customer).step == 1, "its log has it all"
    while len(failed) < 2:
        assert time.monotonic() < deadline, "idle jobs leave no more"
        time.sleep(0.05)


def test_adapters_leave_for_jobs_and_jobs_for_adapters(
    straight: tuple[Customer, int], open_vendor: Open, data_dir: Path, change_settings: Callable[..., None]
) -> None:
    """One account: whichever was used the longest ago leaves."""
    published, held = straight
    change_settings(data_dir, limits={"max_live_bytes": held})
    published.transport = transport = open_vendor()
    expected = query(published)
    assert 0 < gauge(transport, "live_adapter_bytes") < held
    customer = Customer(transport, job="a" * 32)
    customer.upload()
    customer.start()
    assert (gauge(transport, "live_jobs"), gauge(transport, "live_adapters")) == (1, 0)
    assert torch.equal(query(published), expected)
    assert (gauge(transport, "live_jobs"), gauge(transport, "live_adapters")) == (0, 1)
    assert resumed(customer).step == 0
    assert (gauge(transport, "live_adapters"), gauge(transport, "live_adapter_bytes")) == (0, 0)
