"""One tenant's large requests, allowed as they are, do not stop another tenant: real processes, real requests."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
import torch

from cutlayer import vendor
from cutlayer.core import Ragged, Tokens
from cutlayer.wire import Frame, WireType, pack, routes
from cutlayer.wire.messages import SnapshotRequest
from cutlayer.wire.transports import HttpTransport
from tests.service.customer import Customer, ask
from tests.service.process import VendorProcess, Vendors, running
from tests.service.tiny import VOCAB, write_tiny_bert

LENGTH = 256
REQUESTS = 4
LONGEST = 0.5
"""Seconds that an answer may take for which nothing is computed."""


@pytest.fixture(scope="module")
def blank_wide_vendor(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """On a model that is wide enough for a request of half the allowed size to take long."""
    model = write_tiny_bert(tmp_path_factory.mktemp("wide") / "tiny", width=192, max_length=LENGTH)
    folder = tmp_path_factory.mktemp("vendor") / "data"
    vendor.init(folder, models=[str(model)], threads=1, max_bottom=2)
    return folder


@pytest.fixture
def data_dir(blank_wide_vendor: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(blank_wide_vendor, tmp_path / "data"))


@pytest.fixture
def wide_process(nursery: Vendors, data_dir: Path) -> Iterator[VendorProcess]:
    with running(nursery, data_dir) as started:
        yield started


def publish(customer: Customer) -> str:
    """An adapter that is not trained; returns its identifier."""
    customer.upload()
    customer.start()
    ask(customer.transport, routes.FINISH, SnapshotRequest(step=0), job=customer.job)
    return customer.job


def half_of_what_is_allowed() -> Tokens:
    lengths = torch.full((vendor.Limits().max_rows_per_step // 2 // LENGTH,), LENGTH - 2)
    return Tokens((Ragged(torch.full((int(lengths.sum()),), 7), lengths),))


@pytest.mark.slow
def test_one_tenant_does_not_stop_another(wide_process: VendorProcess, data_dir: Path) -> None:
    """What only reads or deletes waits for nothing that is computed; a step waits for a piece, not for all."""
    keys = {tenant: vendor.keys.create(data_dir, tenant) for tenant in ("clinic", "greedy")}
    greedy = Customer(HttpTransport(wide_process.url, keys["greedy"]))
    adapter = publish(greedy)
    customer = Customer(HttpTransport(wide_process.url, keys["clinic"]))
    deleted = publish(customer)
    for job in ("a" * 32, "b" * 32):
        customer.job = job
        customer.upload()
        customer.start()
    pending = customer.take(1, None)
    request = Frame(
        routes.ADAPTER_INFER,
        {"adapter": adapter},
        None,
        pack(half_of_what_is_allowed(), vocab_size=VOCAB, wire_type=WireType.FP32),
    )
    answered: list[float] = []
    waits: dict[str, float] = {}

    def load() -> None:
        with closing(HttpTransport(wide_process.url, keys["greedy"])) as transport:
            transport.send(request)
        answered.append(time.monotonic())

    def timed(name: str, call: Callable[[], object]) -> None:
        began = time.monotonic()
        call()
        waits[name] = max(waits.get(name, 0.0), time.monotonic() - began)

    with ThreadPoolExecutor(REQUESTS) as pool, closing(HttpTransport(wide_process.url, keys["clinic"])) as transport:
        began = time.monotonic()
        loads = [pool.submit(load) for _ in range(REQUESTS)]
        time.sleep(0.1)
        step = threading.Thread(target=lambda: timed("job.step", lambda: customer.take(2, pending)))
        step.start()
        timed("job.get", lambda: ask(transport, routes.JOB_GET, job=customer.job))
        timed("job.delete", lambda: ask(transport, routes.JOB_DELETE, job="a" * 32))
        timed("record-set.delete", lambda: ask(transport, routes.RECORD_SET_DELETE, record_set="a" * 32))
        timed("adapter.delete", lambda: ask(transport, routes.ADAPTER_DELETE, adapter=deleted))
        while not all(future.done() for future in loads):
            timed("job.get", lambda: ask(transport, routes.JOB_GET, job=customer.job))
            timed("record-set.get", lambda: ask(transport, routes.RECORD_SET_GET, record_set=customer.job))
            timed("adapters", lambda: ask(transport, routes.ADAPTERS))
            timed("models", lambda: ask(transport, routes.MODELS))
            time.sleep(0.02)
        step.join()
        for future in loads:
            future.result()
    seconds = max(answered) - began
    assert seconds > 3 * LONGEST, "the load is too light to tell"
    own = waits.pop("job.step")
    assert own < seconds / REQUESTS + LONGEST, (
        f"a step waited {own:.1f} of {seconds:.1f} s: not for a piece, but for all"
    )
    assert max(waits.values()) <= LONGEST, waits
