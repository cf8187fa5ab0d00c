"""The one thread in which a service touches torch, and whose work it takes next.

Two threads of a process that both enter OpenMP slow each other down by 1.5 to 3.8 times on a small
machine, and dropout draws from a generator that a process has one of. So everything that computes,
loading models included, runs here, one piece after the other; that also is the lock which makes jobs
repeat exactly.

A piece cannot be interrupted, so each tenant has a queue of its own, and work that takes long is
divided into pieces, between which other tenants are served.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, overload

import torch

from cutlayer.serving.refusal import log_without_values

P = ParamSpec("P")
T = TypeVar("T")
W = TypeVar("W")

Pieces = Generator[None, None, T]
"""Work that may be divided: each `yield` is a place where other tenants may be served. What holds for the whole
thread (gradients off, the number of threads, the state of a random generator) must not reach across one."""


class FairQueue(Generic[W]):
    """A queue for each tenant; the tenant that was served the least comes next.

    This is start-time fair queueing, with the time that work took in the place of an estimate of it: what a
    job takes that is resumed, or a model that is loaded first, is not known before, and a tenant whose work is
    underestimated would be served more than the others. A tenant that had nothing to do saves up no time: it
    begins where those stand who are being served, or where it stands itself, if it was served more. So in any
    interval in which two tenants always have work waiting, the times that they are served differ by no more than
    the longest piece of each. And work begins, at the latest, one piece of each other tenant after it would on a
    server of its tenant's own that is slower by the number of tenants. So a tenant that asks for no more than an
    even share waits for one piece of each other; one that was just served more waits until the others have
    caught up.

    Ref: P. Goyal, H. M. Vin, H. Cheng, "Start-time fair queueing", SIGCOMM 1996, §2.
    """

    def __init__(self) -> None:
        self._waiting: dict[str, deque[W]] = {}
        self._served: dict[str, float] = {}
        self._now = 0.0

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def add(self, tenant: str, work: W, *, first: bool = False) -> None:
        """Puts work at the end of its tenant's queue, or, where it was begun already, at its beginning."""
        self._served[tenant] = max(self._served.get(tenant, 0.0), self._now)
        queue = self._waiting.setdefault(tenant, deque())
        if first:
            queue.appendleft(work)
        else:
            queue.append(work)

    def take(self) -> tuple[str, W]:
        """The next piece of work and whose it is. What it takes is then to be told with `charge`.

        Raises:
            IndexError: Nothing waits.
        """
        if not self._waiting:
            raise IndexError("nothing waits")
        tenant = min(self._waiting, key=self._served.__getitem__)  # of equals the one that came first
        queue = self._waiting[tenant]
        work = queue.popleft()
        if not queue:
            del self._waiting[tenant]
        self._now = self._served[tenant]
        return tenant, work

    def charge(self, tenant: str, seconds: float) -> None:
        """Notes how long a tenant was served."""
        self._served[tenant] = max(self._served.get(tenant, 0.0), self._now) + seconds
        if not self._waiting:
            # Whoever comes next is alone: nobody is behind.
            self._now = max(self._served.values())
        # Those who would begin where the others stand need not be remembered.
        self._served = {
            name: served for name, served in self._served.items() if name in self._waiting or served > self._now
        }


class ThisThread(Executor):
    """Runs what others submit in the thread that calls `work`.

    A process that only serves computes in its first thread. GNU OpenMP counts that one among those
    that compute, so where another computes on all cores it finds more threads than cores, and has
    them sleep after every operation instead of spin: on two cores a training step of MiniLM on short
    texts then took 130 ms instead of 90.

    Args:
        threads: Threads of a matrix product.
    """

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._calls: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Queues a call."""
        future: Future[T] = Future()
        self._calls.put((future, partial(fn, *args, **kwargs)))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Has `work` return after what was queued before."""
        self._calls.put(None)

    def work(self) -> None:
        """Runs calls, one after the other, until `shutdown`."""
        _start(self._threads)
        while (call := self._calls.get()) is not None:
            future, run = call
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(run())
            except BaseException as error:
                future.set_exception(error)


@dataclass
class _Work:
    """A call that was asked for.

    Attributes:
        future: Where its result goes.
        call: Begins it.
        since: When it was asked for, or its last piece ended.
        pieces: What is left of it, once it was begun.
    """

    future: Future[Any]
    call: Callable[[], object]
    since: float
    pieces: Pieces[object] | None = None


class ComputeThread:
    """Runs tenants' calls in one thread, piece by piece, each tenant in its turn.

    The calls of one tenant follow one another, so that its jobs' lives are each one line of events.

    Args:
        threads: Threads of a matrix product.
        executor: Where to run; a thread of its own by default.
        watch: Told of each piece whose it was, and the seconds that it waited and took.
        clock: Seconds.
    """

    def __init__(
        self,
        threads: int,
        executor: Executor | None = None,
        *,
        watch: Callable[[str, float, float], object] = lambda tenant, waited, took: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._executor = executor or ThreadPoolExecutor(
            1, thread_name_prefix="compute", initializer=_start, initargs=(threads,)
        )
        self._watch = watch
        self._clock = clock
        self._lock = threading.Lock()
        self._queue = FairQueue[_Work]()

    @overload
    async def run(
        self, call: Callable[Concatenate[str, P], Pieces[T]], tenant: str, *arguments: P.args, **options: P.kwargs
    ) -> T: ...

    @overload
    async def run(
        self, call: Callable[Concatenate[str, P], T], tenant: str, *arguments: P.args, **options: P.kwargs
    ) -> T: ...

    async def run(
        self, call: Callable[Concatenate[str, P], object], tenant: str, *arguments: P.args, **options: P.kwargs
    ) -> object:
        """Waits until a tenant's call, and all that it asked for before, is done.

        A caller that goes away does not stop the call: what was accepted is finished.

        Args:
            call: What to run; its first argument is the tenant.
            tenant: Whose it is.
            arguments: Its further arguments.
            options: Its named arguments.
        """
        loop = asyncio.get_running_loop()
        waiting: asyncio.Future[object] = loop.create_future()
        work = self._submit(tenant, partial(call, tenant, *arguments, **options))
        work.add_done_callback(partial(_wake, loop, waiting))
        return await waiting

    def post(
        self, call: Callable[Concatenate[str, P], object], tenant: str, *arguments: P.args, **options: P.kwargs
    ) -> None:
        """As `run`, and nobody waits for it; an error is logged."""
        future = self._submit(tenant, partial(call, tenant, *arguments, **options))
        future.add_done_callback(_log_error)

    def close(self, last: Callable[[], object]) -> None:
        """Finishes what waits, then `last`, and ends the thread."""
        self._executor.submit(self._finish, last).result()
        self._executor.shutdown()

    def _submit(self, tenant: str, call: Callable[[], object]) -> Future[Any]:
        work = _Work(Future(), call, self._clock())
        with self._lock:
            self._queue.add(tenant, work)
        # Which piece is next is decided when the thread is free.
        self._executor.submit(self._serve)
        return work.future

    def _serve(self) -> None:
        """Runs a piece of work of the tenant that comes next."""
        with self._lock:
            if not len(self._queue):
                return  # it was finished at closing
            tenant, work = self._queue.take()
        started = self._clock()
        is_done = _continue(work)
        ended = self._clock()
        waited, work.since = started - work.since, ended
        with self._lock:
            if not is_done:
                self._queue.add(tenant, work, first=True)
            self._queue.charge(tenant, ended - started)
        self._watch(tenant, waited, ended - started)
        if not is_done:
            self._executor.submit(self._serve)

    def _finish(self, last: Callable[[], object]) -> None:
        while len(self._queue):
            self._serve()
        last()


def _continue(work: _Work) -> bool:
    """Runs a piece of it; returns whether it is done."""
    try:
        if work.pieces is None:
            result = work.call()
            if not isinstance(result, Generator):
                work.future.set_result(result)
                return True
            work.pieces = result
        next(work.pieces)
        return False
    except StopIteration as stop:
        work.future.set_result(stop.value)
    except BaseException as error:
        work.future.set_exception(error)
    return True


def _wake(loop: asyncio.AbstractEventLoop, waiting: asyncio.Future[object], work: Future[Any]) -> None:
    """Hands a result to a caller in another thread, at its loop's next turn."""

    def settle() -> None:
        if waiting.done():
            return  # the caller went away
        if (error := work.exception()) is not None:
            waiting.set_exception(error)
        else:
            waiting.set_result(work.result())

    with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
        loop.call_soon_threadsafe(settle)


def _log_error(future: Future[Any]) -> None:
    if (error := future.exception()) is not None:
        log_without_values(error)


def use_threads(count: int) -> None:
    """Sets the number of threads of matrix products, which bits depend on, in the calling thread."""
    if torch.get_num_threads() != count:
        torch.set_num_threads(count)


def memory(device: torch.device) -> int:
    """Bytes of memory there are to compute in: the device's, or what this process may have of the machine's."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    sizes = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    # A container or a service has a limit of its own, which the kernel kills it at.
    with contextlib.suppress(OSError, ValueError, StopIteration):
        groups = Path("/proc/self/cgroup").read_text().splitlines()
        group = next(line for line in groups if line.startswith("0::")).removeprefix("0::/")
        sizes.append(int(Path("/sys/fs/cgroup", group, "memory.max").read_text()))  # ValueError: "max"
    return min(sizes)


def return_memory() -> None:
    """Returns to the machine what was freed in this process.

    glibc keeps it for what comes next: of a job with 135 MB of tensors that had ended, 192 MB stayed with the process.
    Other C libraries, and GPUs, keep what they keep.
    """
    with contextlib.suppress(AttributeError, OSError, TypeError):  # a C library without it, or none to name
        ctypes.CDLL(None).malloc_trim(0)


def _start(threads: int) -> None:
    # Set in this thread: worker threads do not inherit it for matrix products.
    torch.set_num_threads(threads)
    # The first multi-threaded tanh of a process can be wrong in one thread's share.
    torch.tanh(torch.ones(4))
