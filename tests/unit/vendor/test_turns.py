"""What need not wait for the compute thread does not, and what does is divided, to the same bits."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import Tensor

from cutlayer import vendor
from cutlayer.core import Payload, Ragged, Rows, Tokens, VendorError
from cutlayer.models import Template
from cutlayer.vendor.checkpoints import Checkpoints
from cutlayer.vendor.passes import divided, in_pieces
from cutlayer.wire import Frame, routes
from cutlayer.wire.messages import AdapterList, RecordSetInfo
from cutlayer.wire.transports import LocalTransport
from tests.service.customer import Customer, ask, first_model, some_rows, some_tokens
from tests.unit.vendor.test_door import get
from tests.unit.vendor.test_jobs import Open, info, job_folder, query, vendor_of
from tests.unit.vendor.test_shares import beside


@contextmanager
def compute_is_taken(transport: LocalTransport) -> Iterator[threading.Event]:
    """Another tenant's piece of work that does not end before the block does, or only to let a test fail."""
    begun, over = threading.Event(), threading.Event()

    def work(_: str) -> None:
        begun.set()
        over.wait()

    failed = threading.Timer(20, over.set)
    failed.start()
    vendor_of(transport).compute.post(work, "greedy")
    begun.wait()
    try:
        yield over
        assert not over.is_set(), "something waited for it"
    finally:
        over.set()
        failed.cancel()


@pytest.mark.parametrize("is_live", [True, False], ids=["live", "after a restart"])
def test_what_only_reads_or_deletes_does_not_wait(open_vendor: Open, is_live: bool) -> None:
    customer = Customer(open_vendor())
    customer.run()
    other = Customer(customer.transport, job="a" * 32)
    other.upload()
    other.train(other.start(), until=3)
    expected, model = info(other), first_model(customer.transport)
    where: dict[str, str | int] = {"model": model.name, "cut": "text"}
    manifest = ask(customer.transport, routes.ARCHIVE, **where).control
    if not is_live:
        customer.transport.close()
        customer.transport = other.transport = open_vendor()
    transport = customer.transport
    assert vendor_of(transport).jobs.live == is_live
    with compute_is_taken(transport):
        assert info(other) == expected
        if is_live:
            ask(transport, routes.STEP_GET, job=other.job, step=3)
        assert info(customer).step == customer.steps, "a finished one"
        assert ask(transport, routes.RECORD_SET_GET, record_set=other.job).expect(RecordSetInfo).sealed
        assert first_model(transport) == model
        ask(transport, routes.SERVICE)
        assert get(transport, "/healthz")[0] == 200
        assert ask(transport, routes.ADAPTERS).expect(AdapterList).adapters == (customer.adapter,)
        assert ask(transport, routes.ARCHIVE, **where).control == manifest
        ask(transport, routes.ARCHIVE_FILE, file="manifest.json", **where)
        assert ask(transport, routes.ADAPTER_GET, adapter=customer.job).control == customer.adapter
        ask(transport, routes.ADAPTER_DELETE, adapter=customer.job)
        ask(transport, routes.JOB_DELETE, job=other.job)
        with pytest.raises(VendorError, match="There is no job"):
            info(other)
        assert vendor_of(transport).jobs.kept_output("clinic", other.job, 3) is None
        ask(transport, routes.RECORD_SET_DELETE, record_set=other.job)
    assert other.start().step == 0


def test_records_are_read_through_before_the_compute_thread_is_asked_for(
    open_vendor: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fifty gigabytes take a minute."""
    customer = Customer(open_vendor())
    customer.upload()
    customer.train(customer.start(), until=3)
    other = Customer(customer.transport, job="a" * 32)
    other.upload()
    customer.transport.close()
    threads = []
    digest = vendor.store._digest  # type: ignore[attr-defined]
    monkeypatch.setattr(
        "cutlayer.vendor.store._digest", lambda path: threads.append(threading.current_thread().name) or digest(path)
    )
    customer.transport = other.transport = open_vendor()
    customer.train(info(customer), until=4)
    other.start()
    assert len(threads) == 6, "each shard once"
    assert not any(name.startswith("compute") for name in threads)


# ---------------------------------------------------------------- divided work

OPENED = Template.opened_by(5, max_length=None)
"""One special token before each text."""


def test_texts_of_nothing_but_special_tokens_take_positions_too() -> None:
    """Else thousands of them would be one piece, for which all others wait."""
    payload = Tokens((Ragged(torch.empty(0, dtype=torch.int64), torch.zeros(40, dtype=torch.int64)),))
    assert [len(part) for part in divided(payload, OPENED, 10)] == [10] * 4


def test_a_release_is_divided_by_positions_and_nothing_is_lost() -> None:
    tokens = some_tokens(40, vocab_size=300, segments=2)
    rows = some_rows(40, width=4)
    for payload in (tokens, rows):
        for most in (1, 20, 64, 10_000):
            parts = list(divided(payload, OPENED, most))
            assert sum(map(len, parts)) == 40
            assert (len(parts) == 40) if most == 1 else (len(parts) == 1) == (most == 10_000)
            for part in parts:
                lengths = part.packed.lengths if isinstance(part, Rows) else 1 + sum(s.lengths for s in part.segments)
                assert len(part) == 1 or len(part) * int(lengths.max()) <= most  # type: ignore[union-attr]
    joined = Rows.concatenate([part for part in divided(rows, OPENED, 20) if isinstance(part, Rows)])
    assert torch.equal(joined.packed.values, rows.packed.values)
    assert next(divided(rows, OPENED, 10_000)) is rows, "as it is where it is small"


@pytest.mark.parametrize("of_texts", [False, True])
def test_texts_of_about_one_length_share_a_piece_and_answers_keep_their_order(of_texts: bool) -> None:
    lengths = torch.tensor([1, 9] * 20)
    payload = Tokens((Ragged(torch.arange(200), lengths),))
    computed: list[int] = []

    def first_ids(piece: Payload) -> Tensor:
        assert isinstance(piece, Tokens)
        computed.append(len(piece) * int(piece.segments[0].lengths.max()))
        return torch.stack([ids[:1] for ids in piece.segments[0].split()])

    def work() -> Iterator[None]:
        answer = yield from in_pieces(payload, OPENED, 40, threads=1, of_texts=of_texts, run=first_ids)
        assert torch.equal(answer[:, 0], lengths.cumsum(0) - lengths)

    assert len(list(work())) == len(computed) - 1
    assert (sum(computed) == 200) == of_texts, "no padding is computed"


def test_an_inference_is_divided_and_others_are_served_meanwhile(
    open_vendor: Open, data_dir: Path, change_settings: Callable[..., None]
) -> None:
    """Of a job and of an adapter; with the outputs that it has in one piece."""
    customer = Customer(open_vendor())
    customer.upload()
    customer.train(customer.start(), until=6)
    whole = infer(customer)
    customer.train(info(customer))
    customer.run()
    published = query(customer)
    customer.transport.close()
    change_settings(data_dir, limits={"positions_per_piece": 12})
    customer.transport = open_vendor()
    again = Customer(customer.transport, job="a" * 32)
    again.upload()
    again.train(again.start(), until=6)
    seen = pieces(customer.transport)
    torch.testing.assert_close(infer(again), whole)
    settle(customer.transport)
    of_job = seen.count("clinic")
    torch.testing.assert_close(query(customer), published)
    settle(customer.transport)
    assert min(of_job, seen.count("clinic") - of_job) > 2, "each is divided"
    assert torch.equal(infer(again), infer(again))


def pieces(transport: LocalTransport) -> list[str]:
    """Whose each piece of work is from now on."""
    compute = vendor_of(transport).compute
    settle(transport)
    seen: list[str] = []
    watch = compute._watch
    compute._watch = lambda tenant, waited, took: seen.append(tenant) or watch(tenant, waited, took)
    return seen


def settle(transport: LocalTransport) -> None:
    """Waits until what was answered is counted, too."""
    transport._run(vendor_of(transport).compute.run(lambda _: None, "nobody"))  # type: ignore[attr-defined]


def test_others_are_served_between_a_steps_two_passes(open_vendor: Open) -> None:
    customer = Customer(open_vendor())
    customer.upload()
    customer.start()
    pending = customer.take(1, None)
    seen = pieces(customer.transport)
    customer.take(2, pending)
    settle(customer.transport)
    assert seen.count("clinic") == 2, "backward, and forward"


def test_idle_jobs_leave_one_by_one(open_vendor: Open) -> None:
    """Each is written to disk; a hundred at once would stop everybody."""
    transport = open_vendor()
    for job in ("a" * 32, "b" * 32):
        customer = Customer(transport, job=job)
        customer.upload()
        customer.start()
    found, seen = vendor_of(transport), pieces(transport)
    found.residents._clock = lambda: time.monotonic() + 10_000
    transport._run(found.compute.run(lambda _: found.residents.expire(), ""))  # type: ignore[attr-defined]
    settle(transport)
    assert not found.jobs.live
    assert seen.count("") == 3, "one for each, and the end"


def infer(customer: Customer) -> torch.Tensor:
    """A job's output for its first records."""
    records = {"records": torch.arange(20, dtype=torch.uint8)}
    reply = customer.transport.send(Frame(routes.JOB_INFER, {"job": customer.job}, None, records))
    return reply.tensors["output"]


def test_a_job_that_is_resumed_lets_others_be_served_between_its_steps(
    open_vendor: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two hundred steps may have to be taken again after a crash."""
    customer = Customer(open_vendor(), checkpoint_every=50)
    customer.upload()
    customer.train(customer.start(), until=9)
    monkeypatch.setattr("cutlayer.vendor.job.LiveJob.leave", lambda self: self.close())
    customer.transport.close()
    customer.transport = open_vendor()
    found = vendor_of(customer.transport)

    async def resume() -> list[str]:
        seen: list[str] = []
        watch = found.compute._watch
        found.compute._watch = lambda tenant, waited, took: seen.append(tenant) or watch(tenant, waited, took)
        resuming = found.compute.run(found.jobs.resume, "clinic", customer.job)
        task = asyncio.ensure_future(resuming)
        while not task.done():
            await found.compute.run(lambda _: None, "hospital")
        assert (await task).step == 9
        return seen

    seen = customer.transport._run(resume())  # type: ignore[attr-defined]
    settle(customer.transport)
    assert seen.count("clinic") >= 9
    assert sum(pair == ("clinic", "hospital") for pair in pairwise(seen)) >= 5


def test_tenants_whose_steps_are_mixed_end_with_the_bits_of_each_alone(open_vendor: Open, data_dir: Path) -> None:
    """Between a step's backward and forward pass others are served, who draw dropout of their own."""
    alone = Customer(open_vendor())
    straight = alone.run().sha256
    transport = alone.transport
    assert isinstance(transport, LocalTransport)
    tenants = [beside(transport, data_dir, f"tenant-{number}") for number in range(3)]
    with ThreadPoolExecutor(3) as pool:
        adapters = list(pool.map(lambda way: Customer(way, steps=14).run(), tenants))
    assert {adapter.sha256 for adapter in adapters} == {straight}


# ---------------------------------------------------------------- where a job stands


def test_where_a_job_stands_is_asked_of_the_disk_only_where_it_tells(open_vendor: Open, data_dir: Path) -> None:
    """What is damaged, or may not have been applied, is for the one who resumes the job."""
    customer = Customer(open_vendor())
    customer.upload()
    customer.train(customer.start(), until=9)
    jobs = vendor_of(customer.transport).jobs
    folder = job_folder(data_dir, customer)
    card = next(iter(vendor_of(customer.transport).catalogue.cards.values()))
    spec = customer.spec(card.info)

    def stands() -> object:
        return vendor.standing.standing_on_disk(folder, spec, card)  # type: ignore[attr-defined]

    assert stands() == jobs._live["clinic", customer.job].standing
    newest = max((folder / "log").iterdir())
    content = newest.read_bytes()
    applied = content.rindex(b"CLF1") + 5
    for damaged in (content[:-1], content + b"CLF1", content[:applied] + b"\0" + content[applied + 1 :]):
        newest.write_bytes(damaged)
        assert stands() is None
    newest.write_bytes(content)
    assert stands() is not None
    checkpoint = max((folder / "checkpoints").iterdir())
    kept = checkpoint.read_bytes()
    checkpoint.write_bytes(kept[:-10])
    assert stands() is None
    checkpoint.unlink()
    assert Checkpoints(folder / "checkpoints").reached() == (4, False)
    assert stands() is None, "the log begins after the checkpoint that is gone"
