"""The one thread in which the vendor touches torch.

Two threads of a process that both enter OpenMP slow each other down by 1.5 to 3.8 times on a small
machine, and dropout draws from a generator that a process has one of. So everything that computes,
loading models included, runs here, one call after the other; that also is the lock which makes jobs
repeat exactly.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any, ParamSpec, TypeVar

import torch

P = ParamSpec("P")
T = TypeVar("T")


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


class ComputeThread:
    """Runs calls one after the other in one thread.

    Args:
        threads: Threads of a matrix product.
        executor: Where to run; a thread of its own by default.
    """

    def __init__(self, threads: int, executor: Executor | None = None) -> None:
        self._executor = executor or ThreadPoolExecutor(
            1, thread_name_prefix="compute", initializer=_start, initargs=(threads,)
        )

    async def run(self, call: Callable[P, T], *arguments: P.args, **options: P.kwargs) -> T:
        """Waits for its turn and for the result.

        A caller that goes away does not stop the call: what was accepted is finished.
        """
        return await asyncio.shield(asyncio.wrap_future(self._executor.submit(call, *arguments, **options)))

    def close(self, last: Callable[[], object]) -> None:
        """Finishes what waits, then `last`, and ends the thread."""
        self._executor.submit(last).result()
        self._executor.shutdown()


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


def _start(threads: int) -> None:
    # Set in this thread: worker threads do not inherit it for matrix products.
    torch.set_num_threads(threads)
    # The first multi-threaded tanh of a process can be wrong in one thread's share.
    torch.tanh(torch.ones(4))
