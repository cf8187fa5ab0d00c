"""Memory that tenants share: what is free may be used, and what is beyond a tenant's share is given back."""

from __future__ import annotations

import copy
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cutlayer import vendor
from cutlayer.core import Cut
from cutlayer.models import cache_bytes
from cutlayer.vendor.residents import Residents
from cutlayer.vendor.settings import Limits
from cutlayer.vendor.shares import Holding, first_to_leave, share, taken
from cutlayer.wire import routes
from cutlayer.wire.messages import SnapshotRequest
from cutlayer.wire.transports import LocalTransport
from tests.service.customer import Customer, ask
from tests.unit.vendor.test_generations import (  # noqa: F401 - fixtures are used by name
    BLOCK,
    HEAD,
    ONE,
    decoder,
    end,
    gauge,
    generations,
    grown,
    published,
    put,
    refused,
    step,
    top,
)
from tests.unit.vendor.test_jobs import Open, at, info, resumed, vendor_of
from tests.unit.vendor.test_language_jobs import Author


def beside(transport: LocalTransport, data_dir: Path, tenant: str) -> LocalTransport:
    """Another tenant's way to the same vendor; it ends with the first."""
    other = copy.copy(transport)
    other._api_key = vendor.keys.create(data_dir, tenant)
    return other


# ---------------------------------------------------------------- who gives back


holdings = st.lists(
    st.builds(Holding, st.sampled_from("abcd"), st.integers(1, 50), st.integers(), st.booleans()), max_size=20
)


@settings(deadline=None, max_examples=300)
@given(held=holdings, asking=st.sampled_from("abcd"), size=st.integers(1, 50), limit=st.integers(50, 200))
def test_within_its_share_a_tenant_finds_room_and_others_keep_theirs(
    held: list[Holding[int]], asking: str, size: int, limit: int
) -> None:
    """Whatever others take: where all of it may leave, there is room, and what is within a share stays."""
    held = [Holding(each.tenant, each.size, number) for number, each in enumerate(held)]
    most = share(limit, held, asking)
    if taken(held, asking) + size > most:
        return
    while sum(each.size for each in held) + size > limit:
        leaving = first_to_leave(held, asking=asking, size=size)
        (gone,) = (each for each in held if each.item == leaving)
        assert gone.tenant != asking
        assert taken(held, gone.tenant) > most, "it was within its share"
        held.remove(gone)


def test_of_a_tenants_own_the_first_leaves() -> None:
    held = [Holding("a", 2, 0), Holding("b", 5, 1, False), Holding("b", 1, 2), Holding("b", 1, 3), Holding("a", 2, 4)]
    assert first_to_leave(held, asking="a", size=1) == 2
    assert first_to_leave(held, asking="a", size=9) == 0
    assert first_to_leave([held[1]], asking="a", size=9) is None


# ---------------------------------------------------------------- sessions


@pytest.fixture
def authors_vendor(published: tuple[Path, str], tmp_path: Path) -> tuple[Path, str]:  # noqa: F811
    """A vendor with a tenant who has published adapters, and that tenant's key."""
    return Path(shutil.copytree(published[0], tmp_path / "authors")), published[1]


class TestSessions:
    """Of language models."""

    @pytest.fixture
    def data_dir(self, authors_vendor: tuple[Path, str]) -> Path:
        return authors_vendor[0]

    @pytest.fixture
    def api_key(self, authors_vendor: tuple[Path, str]) -> str:
        return authors_vendor[1]

    def other(
        self, transport: LocalTransport, data_dir: Path, *, tail: int = 0, name: str = "hospital"
    ) -> LocalTransport:
        """A tenant who has published an adapter, too."""
        other = beside(transport, data_dir, name)
        Author(other, {"cut": Cut(bottom=1, tail=tail)}, job=HEAD).start()
        ask(other, routes.FINISH, SnapshotRequest(step=0), job=HEAD)
        return other

    def test_a_tenant_who_took_all_gives_back_what_is_beyond_its_share(
        self,
        open_vendor: Open,
        data_dir: Path,
        decoder: Path,  # noqa: F811
        change_settings: Callable[..., None],
    ) -> None:
        """Twelve sessions of one tenant, and the other one begins six of its own; never a 503."""
        one = cache_bytes(top(decoder, Cut(bottom=1, tail=0)), sequences=2, positions=20)
        change_settings(data_dir, limits={"max_generation_bytes": 12 * one})
        transport = open_vendor()
        other = self.other(transport, data_dir)
        first = [f"{number:032x}" for number in range(12)]
        for name in first:
            put(transport, session=name)
        with refused(503, "Other sessions take this vendor's memory"):
            put(transport, session="f" * 32)
        step(transport, 1, grown([2, 3]), session=first[0])
        for number in range(6):
            put(other, session=f"{number:032x}")
            assert gauge(transport, "generation_bytes") == 12 * one
        with refused(503, "more than its share"):
            put(other)
        with refused(503, "more than its share"):
            put(transport, session="f" * 32)
        kept = {name for tenant, name in generations(transport)._sessions if tenant == "clinic"}
        assert kept == {first[0], *first[7:]}, "those that were used the longest ago ended"
        with refused(404, "no session"):
            step(transport, 1, grown([2, 3]), session=first[1])
        for number in range(6):
            end(other, f"{number:032x}")
        for name in first[1:7]:
            put(transport, session=name)
        assert generations(transport).live == 12, "what nobody else asks for is free again"

    def test_sessions_end_of_the_tenant_that_takes_the_most(
        self,
        open_vendor: Open,
        data_dir: Path,
        decoder: Path,  # noqa: F811
        change_settings: Callable[..., None],
    ) -> None:
        """And not the one that was used the longest ago, where that is all that its tenant has."""
        one = cache_bytes(top(decoder, Cut(bottom=1, tail=0)), sequences=2, positions=20)
        change_settings(data_dir, limits={"max_generation_bytes": 6 * one})
        transport = open_vendor()
        greedy, third = (self.other(transport, data_dir, name=name) for name in ("greedy", "third"))
        put(transport)
        for number in range(5):
            put(greedy, session=f"{number:032x}")
        put(third)
        put(third, session="f" * 32)
        kept = [tenant for tenant, _ in generations(transport)._sessions]
        assert kept == ["clinic", *["greedy"] * 3, *["third"] * 2]

    def test_to_end_a_session_waits_for_nothing(self, transport: LocalTransport) -> None:
        put(transport)
        over, waited = threading.Event(), []
        vendor_of(transport).compute.post(lambda _: waited.append(not over.wait(20)), "greedy")
        end(transport)
        assert not waited, "it waited for another tenant's work"
        over.set()
        assert gauge(transport, "generations") == 0

    def test_what_sessions_keep_in_memory_leaves_for_a_tenant_within_its_share(
        self, open_vendor: Open, data_dir: Path, change_settings: Callable[..., None]
    ) -> None:
        transport = open_vendor()
        other = self.other(transport, data_dir, tail=1)
        put(transport)
        put(transport, adapter=BLOCK, session="5" * 32)
        limit = int(1.2 * gauge(transport, "live_adapter_bytes"))
        transport.close()
        change_settings(data_dir, limits={"max_live_bytes": limit})
        transport = open_vendor()
        again = copy.copy(transport)
        again._api_key = other._api_key
        put(transport)
        put(transport, adapter=BLOCK, session="5" * 32)
        put(again)
        assert gauge(transport, "live_adapter_bytes") <= limit
        assert [tenant for tenant, _ in generations(transport)._sessions] == ["clinic", "hospital"]
        with refused(404, "no session"):
            step(transport, 1, grown([2, 3]))

    def test_a_session_that_is_deleted_while_it_is_computed_is_gone(
        self, open_vendor: Open, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """To delete one waits for nothing that is computed, so it may come in between."""
        transport = open_vendor()
        found = generations(transport)
        put(transport)
        grow = type(found)._grow

        def deleting(self: object, session: object, body: bytes) -> bytes:
            found.delete("clinic", ONE)
            return grow(found, session, body)  # type: ignore[arg-type]

        monkeypatch.setattr(type(found), "_grow", deleting)
        step(transport, 1, grown([2, 3]))
        assert gauge(transport, "generations") == 0
        with refused(404, "no session"):
            step(transport, 2, grown([1, 1]))
        assert [live.sessions for live in vendor_of(transport).adapters._live.values()] == [0]


# ---------------------------------------------------------------- jobs


def crowd(transport: LocalTransport, count: int) -> list[Customer]:
    """Jobs of one tenant, each in memory at first."""
    found = [Customer(transport, job=f"{number:032x}") for number in range(count)]
    for customer in found:
        customer.upload()
        customer.start()
    return found


def in_memory(transport: LocalTransport) -> list[str]:
    return [tenant for tenant, _ in vendor_of(transport).jobs._live]


def test_a_crowd_of_jobs_does_not_push_out_another_tenants_only_one(
    open_vendor: Open, data_dir: Path, change_settings: Callable[..., None]
) -> None:
    """By bytes and by number: those of the tenant leave that has the most."""
    transport = open_vendor()
    (alone,) = crowd(beside(transport, data_dir, "hospital"), 1)
    held = vendor_of(transport).jobs.held_bytes
    key = alone.transport._api_key  # type: ignore[attr-defined]
    transport.close()
    for limits in ({"max_live_bytes": 9 * held // 2}, {"live_jobs": 4, "max_live_bytes": None}):
        change_settings(data_dir, limits=limits)
        transport = open_vendor()
        alone.transport = copy.copy(transport)
        alone.transport._api_key = key
        alone.train(info(alone), until=1 if limits.get("max_live_bytes") else 2)
        for customer in crowd(transport, 8):
            assert info(customer).step == 0
        assert in_memory(transport).count("hospital") == 1, limits
        assert in_memory(transport).count("clinic") == 3, limits
        for customer in crowd(transport, 8):
            ask(transport, routes.JOB_DELETE, job=customer.job)
        transport.close()


def test_graphs_of_a_tenant_beyond_its_share_leave_first(
    open_vendor: Open, data_dir: Path, change_settings: Callable[..., None]
) -> None:
    """However many steps wait for gradients that never come, another tenant's own waits undisturbed."""
    customer = Customer(open_vendor())
    customer.upload()
    customer.start()
    customer.take(1, None)
    one = vendor_of(customer.transport).jobs.graph_bytes
    ask(customer.transport, routes.JOB_DELETE, job=customer.job)
    customer.transport.close()
    change_settings(data_dir, limits={"max_graph_bytes": 3 * one})
    transport = open_vendor()
    (alone,) = crowd(beside(transport, data_dir, "hospital"), 1)
    pending = alone.take(1, None)
    jobs = vendor_of(transport).jobs
    for greedy in crowd(transport, 6):
        greedy.take(1, None)
        assert jobs.graph_bytes <= 3 * one
        assert jobs._live["hospital", alone.job].graph_bytes, "it would have to be computed again"
    alone.take(2, pending)
    assert info(alone).step == 2


def test_room_that_others_are_busy_in_is_waited_for() -> None:
    """What is in the middle of a request may not leave; whoever needs its room is served later, not refused."""

    class Busy:
        held_bytes, pinned, busy, used = 60, False, True, 0.0

        def leave(self) -> None:
            self.held_bytes = 0

    residents = Residents(Limits(max_live_bytes=100), torch.device("cpu"))
    busy = Busy()
    shelf = vendor.residents.Shelf[Busy]({("greedy", "a"): busy})
    residents.add(shelf)
    waiting = residents.make_room("job", 50, tenant="clinic")
    assert next(waiting) is None
    assert next(waiting) is None
    busy.busy = False
    with pytest.raises(StopIteration):
        next(waiting)
    assert not shelf


# ---------------------------------------------------------------- what is deleted


def test_a_job_that_is_deleted_at_work_leaves_nothing(transport: LocalTransport, data_dir: Path) -> None:
    """To delete one waits for nothing that is computed; what it wrote meanwhile goes when it is its turn."""
    customer = Customer(transport)
    customer.upload()
    customer.train(customer.start(), until=5)
    found = vendor_of(transport)
    found.jobs.delete("clinic", customer.job)
    found.jobs._live["clinic", customer.job].leave()  # another job needs the room
    folder = data_dir / "tenants/clinic/jobs" / customer.job
    assert folder.exists()
    transport._run(found.compute.run(found.jobs.forget, "clinic", customer.job))
    assert not folder.exists()
    assert not found.jobs.live
    assert customer.start().step == 0
    transport._run(found.compute.run(found.jobs.forget, "clinic", customer.job))
    assert resumed(customer).step == 0, "one that was started anew stays"


def test_a_job_that_is_deleted_before_it_finishes_publishes_nothing(
    transport: LocalTransport, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    customer = Customer(transport, trainable=True)
    customer.train(customer.start())
    save = vendor.jobs.save_adapter  # type: ignore[attr-defined]

    def deleting(*arguments: object) -> None:
        save(*arguments)
        vendor_of(transport).jobs.delete("clinic", customer.job)

    monkeypatch.setattr("cutlayer.vendor.jobs.save_adapter", deleting)
    with refused(404, "no job"):
        at(customer, routes.FINISH, customer.steps)
    with refused(404, "no job"):
        ask(transport, routes.JOB_DELETE, job=customer.job)
    transport._run(vendor_of(transport).compute.run(lambda _: None, "clinic"))
    assert not (data_dir / "tenants/clinic/adapters" / customer.job).exists()
