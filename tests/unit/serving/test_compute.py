"""Whose work comes next in the compute thread, by a clock of our own."""

from __future__ import annotations

import asyncio
import logging
import math
import threading
from collections import Counter, deque
from collections.abc import Callable, Generator
from concurrent.futures import Executor, Future
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cutlayer.serving.compute import ComputeThread, FairQueue

Work = tuple[str, float]
"""Whose it is, and what it takes."""


class FirstComeFirstServed(FairQueue[Work]):
    """The planted fault: what every tenant waited in before."""

    def __init__(self) -> None:
        super().__init__()
        self._all: deque[tuple[str, Work]] = deque()

    def __len__(self) -> int:
        return len(self._all)

    def add(self, tenant: str, work: Work, *, first: bool = False) -> None:
        self._all.append((tenant, work))

    def take(self) -> tuple[str, Work]:
        return self._all.popleft()

    def charge(self, tenant: str, seconds: float) -> None:
        pass


def serve(queue: FairQueue[Work], arrivals: list[tuple[float, Work]]) -> list[tuple[str, float, float, float]]:
    """One server: whose each work was, when it came, when it was begun and when it ended."""
    coming, now, done, since = deque(sorted(arrivals)), 0.0, [], {}
    while coming or len(queue):
        if not len(queue):
            now = max(now, coming[0][0])
        while coming and coming[0][0] <= now:
            at, work = coming.popleft()
            since[id(work)] = at
            queue.add(work[0], work)
        tenant, work = queue.take()
        began, now = now, now + work[1]
        while coming and coming[0][0] <= now:  # those who come meanwhile wait
            at, other = coming.popleft()
            since[id(other)] = at
            queue.add(other[0], other)
        queue.charge(tenant, work[1])
        done.append((tenant, since[id(work)], began, now))
    return done


def longest_wait(queue: FairQueue[Work]) -> float:
    """Of a tenant with short work, while another has a hundred long ones waiting."""
    arrivals = [(0.0, ("greedy", 10.0)) for _ in range(100)]
    arrivals += [(25.0 * number, ("modest", 0.1)) for number in range(1, 10)]
    done = serve(queue, arrivals)
    return max(began - came for tenant, came, began, _ in done if tenant == "modest")


def test_a_tenant_waits_for_one_piece_of_another() -> None:
    assert longest_wait(FairQueue()) <= 10.0
    assert longest_wait(FirstComeFirstServed()) > 700.0, "the planted fault must show"


def test_shares_are_of_time_and_not_of_turns() -> None:
    arrivals = [(0.0, ("long", 9.0)) for _ in range(50)] + [(0.0, ("short", 1.0)) for _ in range(450)]
    done = serve(FairQueue(), arrivals)
    served = Counter[str]()
    for tenant, _, began, ended in done:
        served[tenant] += round(ended - began)
        if sum(served.values()) > 800:
            break
        assert abs(served["long"] - served["short"]) <= 9 + 1


times = st.floats(0.01, 20.0)
works = st.lists(
    st.tuples(st.floats(0.0, 200.0), st.tuples(st.sampled_from(["a", "b", "c", "d"]), times)), min_size=1, max_size=60
)


def latest(queue: FairQueue[Work], works: list[tuple[float, Work]]) -> float:
    """By how much any work begins later than one piece of each other tenant after it would on a server of its own.

    That server is slower by the number of tenants. Each tenant is served in its own order, and everything is.
    """
    done = serve(queue, works)
    assert len(done) == len(works)
    longest: dict[str, float] = {}
    for _, (owner, took) in works:
        longest[owner] = max(took, longest.get(owner, 0.0))
    late = -math.inf
    for tenant in longest:
        own = [entry for entry in done if entry[0] == tenant]
        assert [entry[1] for entry in own] == sorted(entry[1] for entry in own)
        free = 0.0
        others = sum(took for owner, took in longest.items() if owner != tenant)
        for _, came, began, ended in own:
            alone = max(came, free)
            late = max(late, began - alone - others)
            free = alone + len(longest) * (ended - began)
    return late


AFTER_MORE_THAN_ITS_SHARE = [
    (0.0, ("a", 3.0)),
    (0.0, ("b", 1.0)),
    (3.0, ("a", 1.0)),
    (3.0, ("b", 1.0)),
    (3.0, ("b", 1.0)),
]
"""The second work of `a` comes as its first one ends, and waits for three of `b`, which is owed as much."""


@settings(deadline=None, max_examples=200)
@given(works=works)
@example(works=AFTER_MORE_THAN_ITS_SHARE)
def test_nobody_waits_for_more_than_one_piece_of_each_other_beyond_its_share(works: list[tuple[float, Work]]) -> None:
    assert latest(FairQueue(), works) <= 1e-6


def test_that_it_would_be_seen() -> None:
    greedy = [(0.0, ("greedy", 10.0)) for _ in range(100)]
    assert latest(FirstComeFirstServed(), [*greedy, (25.0, ("modest", 0.1))]) > 900.0, "the planted fault must show"


def test_a_tenant_that_was_idle_has_saved_up_nothing() -> None:
    arrivals = [(0.0, ("busy", 1.0)) for _ in range(200)] + [(100.0, ("idle", 1.0)) for _ in range(100)]
    done = serve(FairQueue(), arrivals)
    after = [tenant for tenant, _, began, _ in done if began >= 101.0][:20]
    assert Counter(after) == {"busy": 10, "idle": 10}


def test_one_that_worked_alone_owes_nothing_afterwards() -> None:
    arrivals = [(0.0, ("early", 50.0))]
    arrivals += [(60.0, (tenant, 1.0)) for tenant in ("early", "late") for _ in range(20)]
    done = serve(FairQueue(), arrivals)
    assert Counter(tenant for tenant, *_ in done[1:11]) == {"early": 5, "late": 5}


def test_the_queue_forgets_those_who_have_nothing_to_do() -> None:
    queue = FairQueue[Work]()
    serve(queue, [(float(number), (f"tenant-{number}", 0.5)) for number in range(1000)])
    assert len(queue._served) == len(queue._waiting) == 0
    with pytest.raises(IndexError):
        queue.take()


# ---------------------------------------------------------------- the thread


class ByHand(Executor):
    """Runs a call when it is told to."""

    def __init__(self) -> None:
        self.calls: deque[Callable[[], object]] = deque()

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()

        def run() -> None:
            future.set_result(fn(*args, **kwargs))

        self.calls.append(run)
        return future

    def run(self) -> None:
        while self.calls:
            self.calls.popleft()()


def test_work_is_divided_where_it_yields_and_others_are_served_between() -> None:
    executor, order, seen = ByHand(), [], []
    thread = ComputeThread(1, executor, watch=lambda tenant, waited, took: seen.append((tenant, waited, took)),
                           clock=iter(range(1000)).__next__)  # fmt: skip

    def pieces(tenant: str, count: int) -> Generator[None, None, str]:
        for number in range(count):
            order.append(f"{tenant} {number}")
            if number + 1 < count:
                yield
        return f"{tenant} is done"

    def at_once(tenant: str) -> int:
        order.append(tenant)
        return 7

    async def ask() -> None:
        long = asyncio.ensure_future(thread.run(pieces, "long", 3))
        after = asyncio.ensure_future(thread.run(at_once, "long"))
        await asyncio.sleep(0)
        short = [asyncio.ensure_future(thread.run(at_once, "short")) for _ in range(2)]
        await asyncio.sleep(0)
        executor.run()
        assert await long == "long is done"
        assert [await after, await short[0], await short[1]] == [7, 7, 7]

    asyncio.run(ask())
    assert order == ["long 0", "short", "long 1", "short", "long 2", "long"], "a tenant's calls stay in order"
    assert [tenant for tenant, *_ in seen] == ["long", "short", "long", "short", "long", "long"]
    assert all(took == 1 for *_, took in seen)


def test_a_tenant_is_charged_for_what_its_work_took() -> None:
    """Neither for its turns nor for its waiting; what it waited is told apart."""
    executor, order, seen, now = ByHand(), [], [], [0.0]
    thread = ComputeThread(1, executor, watch=lambda *told: seen.append(told), clock=lambda: now[0])

    def work(tenant: str, seconds: float) -> None:
        order.append(tenant)
        now[0] += seconds

    for _ in range(3):
        thread.post(work, "long", 3.5)
    for _ in range(8):
        thread.post(work, "short", 1.0)
    executor.run()
    assert order == ["long", *["short"] * 4, "long", *["short"] * 3, "long", "short"]
    assert seen[:3] == [("long", 0.0, 3.5), ("short", 3.5, 1.0), ("short", 4.5, 1.0)]


def test_a_later_piece_waits_from_the_end_of_the_one_before() -> None:
    """Or the metrics would tell of waiting in which the work itself was done."""
    executor, seen, now = ByHand(), [], [0.0]
    thread = ComputeThread(1, executor, watch=lambda *told: seen.append(told), clock=lambda: now[0])

    def pieces(_: str) -> Generator[None, None, None]:
        now[0] += 3
        yield
        now[0] += 2

    def short(_: str) -> None:
        now[0] += 1

    thread.post(pieces, "long")
    thread.post(short, "short")
    executor.run()
    assert seen == [("long", 0, 3), ("short", 3, 1), ("long", 1, 2)]


def test_an_error_between_pieces_is_its_callers() -> None:
    def fails(_: str) -> Generator[None, None, None]:
        yield
        raise ValueError("here")

    thread = ComputeThread(1)

    async def ask() -> None:
        with pytest.raises(ValueError, match="here"):
            await thread.run(fails, "a")
        assert await thread.run(lambda tenant: tenant * 2, "b") == "bb"

    asyncio.run(ask())
    thread.close(lambda: None)


def test_closing_finishes_what_was_begun_and_what_waits() -> None:
    done: list[str] = []
    go = threading.Event()

    def pieces(tenant: str) -> Generator[None, None, None]:
        go.wait(10)
        for _ in range(3):
            yield
        done.append(tenant)

    thread = ComputeThread(1)
    for tenant in ("a", "b", "a"):
        thread.post(pieces, tenant)
    go.set()
    thread.close(lambda: done.append("last"))
    assert sorted(done[:3]) == ["a", "a", "b"]
    assert done[3:] == ["last"]


def test_what_nobody_waits_for_is_logged_when_it_fails(caplog: pytest.LogCaptureFixture) -> None:
    private = "a " + "text"

    def fails(_: str) -> None:
        raise ValueError(private)

    thread = ComputeThread(1)
    with caplog.at_level(logging.ERROR):
        thread.post(fails, "a")
        thread.close(lambda: None)
    assert "ValueError" in caplog.text
    assert private not in caplog.text


def test_the_starter_of_the_thread_sets_its_threads() -> None:
    thread = ComputeThread(1)
    assert asyncio.run(thread.run(lambda _: torch.get_num_threads(), "a")) == 1
    thread.close(lambda: None)


def test_a_caller_that_goes_away_stops_nothing_and_another_is_served() -> None:
    done: list[str] = []
    begun, go_on = threading.Event(), threading.Event()

    def slow(_: str) -> str:
        begun.set()
        assert go_on.wait(10)
        done.append("slow")
        return "slow"

    async def leave() -> str:
        left = asyncio.ensure_future(thread.run(slow, "a"))
        assert await asyncio.to_thread(begun.wait, 10)
        left.cancel()
        with pytest.raises(asyncio.CancelledError):
            await left
        go_on.set()
        return await thread.run(lambda _: "next", "a")

    thread = ComputeThread(1)
    assert asyncio.run(leave()) == "next"
    assert done == ["slow"]
    thread.close(lambda: None)


def test_a_result_that_comes_after_its_loop_was_closed_is_nobodys(caplog: pytest.LogCaptureFixture) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def slow(_: str) -> None:
        begun.set()
        assert go_on.wait(10)

    async def leave() -> None:
        left = asyncio.ensure_future(thread.run(slow, "a"))
        assert await asyncio.to_thread(begun.wait, 10)
        assert not left.done()

    thread = ComputeThread(1)
    asyncio.run(leave())
    go_on.set()
    thread.close(lambda: None)
    assert not caplog.records
