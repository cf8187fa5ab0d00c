"""What jobs may take of the vendor's memory, and of everybody's time when they come back."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from cutlayer.core import VendorError
from cutlayer.vendor.jobs import Jobs
from cutlayer.vendor.trainer import Trainer
from cutlayer.wire import Frame, routes
from cutlayer.wire.transports import LocalTransport
from tests.service.customer import Customer, ask
from tests.unit.vendor.test_jobs import Open, at, info, vendor_of


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
        with pytest.raises(VendorError, match=r"these 8 texts takes about \d{7} .* gives a step 1000000") as caught:
            customer.take(1, None)
    assert caught.value.status == 422
    assert "smaller batch" in caught.value.remedy
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
    monkeypatch.setattr("cutlayer.vendor.job._STEPS", 3)
    monkeypatch.setattr("cutlayer.vendor.job.LiveJob.leave", lambda self: self.close())
    taken = []
    forward = Trainer.forward
    monkeypatch.setattr(Trainer, "forward", lambda self, payload: taken.append(self.step) or forward(self, payload))
    for until in (8, 12):
        customer.train(customer.start(), until=until)
        customer.transport.close()
        customer.transport = open_vendor()
        taken.clear()
        assert info(customer).checkpoints == ((0,) if until < 10 else (0, 10))
        assert 1 <= len(taken) <= 3
    assert at(customer, routes.ROLLBACK, 10).step == 10
    assert customer.run().sha256 == straight
