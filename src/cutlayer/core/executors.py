"""Where pieces of work are computed: in this process, in worker processes, or on a Ray cluster.

A piece is a function by name and a text, both in and out: JSON, never a pickled object. What a piece says depends on
its argument alone, so where it runs is nobody's business but the executor's.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import queue
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from cutlayer.core.errors import ConfigError, Fault, WorkerError
from cutlayer.core.extras import require
from cutlayer.core.worker import OWN, Failure, answer, attempt, check_name, find, read_answer

_AHEAD: Final = 2
"""Pieces in flight for each that is computed: one more waits, so that no worker does."""
_LIVES: Final = 2
"""Processes in one worker's place, one after the other: what ends a second one is no accident."""
_CONNECT_SECONDS: Final = 10.0


@dataclass(frozen=True)
class Done:
    """A piece that was computed, or was not.

    Attributes:
        index: The argument's place among all arguments.
        result: What the function returned.
        failure: Why it returned nothing.
    """

    index: int
    result: str | None
    failure: Failure | None

    @classmethod
    def of(cls, index: int, outcome: str | Failure) -> Done:
        """A piece's end."""
        return cls(index, None, outcome) if isinstance(outcome, Failure) else cls(index, outcome, None)

    def expect(self) -> str:
        """The result, where one failure fails everything.

        Raises:
            Exception: What the piece met; see `Failure.error`.
        """
        if self.failure is not None:
            raise self.failure.error()
        return self.result or ""


Pieces = Generator[Done, None, None]


class Executor(Protocol):
    """Computes pieces of work."""

    def run(self, function: str, arguments: Iterable[str | None], *, in_order: bool = False) -> Pieces:
        """Calls a function with each argument.

        However many arguments there are, only a few pieces are in flight: the next argument is asked for when a piece
        was handed out. A piece that fails stops no other one.

        Args:
            function: `package.module:name` of a function from `str` to `str`.
            arguments: What it is called with; asked for in this thread. None says that the next one depends on pieces
                in flight: it is asked for again when one of them is done.
            in_order: Whether pieces come in the order of their arguments, or as they are done.

        Returns:
            The pieces. Close the iterator (`contextlib.closing`) where it may not be read to its end: then all work
            stops at once.

        Raises:
            ConfigError: The function is none that may be called.
            Stopped: A piece was stopped by the user's wish, which ends all of them.
        """
        ...


def executor(*, jobs: int = 1, ray: str | None = None, packages: Sequence[str] = OWN) -> Executor:
    """An executor: in this process, unless asked otherwise.

    Args:
        jobs: Worker processes on this machine; 1 is this process itself. They share its cores: each computes with
            cores / jobs threads, unless `OMP_NUM_THREADS` says otherwise.
        ray: Address of a Ray cluster that runs, `auto` or `host:port`. Its machines need the same version of cutlayer.
            It must be a cluster of your own: whoever may send it tasks may run any code on it.
        packages: Those whose functions may be called.

    Raises:
        ConfigError: The settings have no meaning, alone or together.
        MissingExtraError: Ray is not installed.
    """
    if jobs < 1:
        raise ConfigError([Fault("jobs", jobs, "must be at least 1")])
    if ray is not None:
        if jobs > 1:
            raise ConfigError([Fault("jobs", jobs, "must be left out with `ray`: its cluster knows its own size")])
        _import_ray()
        return RayCluster(ray, packages=packages)
    return Processes(jobs, packages=packages) if jobs > 1 else InProcess(packages=packages)


class InProcess:
    """One piece after the other, in this process and thread.

    Args:
        packages: Those whose functions may be called.
    """

    def __init__(self, *, packages: Sequence[str] = OWN) -> None:
        self._packages = packages

    def run(self, function: str, arguments: Iterable[str | None], *, in_order: bool = False) -> Pieces:
        """Calls a function with each argument; see `Executor.run`. Pieces come in order in any case."""
        called = find(function, self._packages)
        given = (argument for argument in arguments if argument is not None)
        return (Done.of(index, attempt(functools.partial(called, argument))) for index, argument in enumerate(given))


class Processes:
    """Worker processes on this machine, each with one piece at a time.

    A process that dies fails the piece that it had, and is replaced once. Where none is left, what remains fails. They
    write to this process's standard error, and do not see Ctrl-C, which is this process's to answer.

    Args:
        jobs: How many.
        packages: Those whose functions may be called.
    """

    def __init__(self, jobs: int, *, packages: Sequence[str] = OWN) -> None:
        self._jobs, self._packages = jobs, packages

    def run(self, function: str, arguments: Iterable[str | None], *, in_order: bool = False) -> Pieces:
        """Calls a function with each argument; see `Executor.run`."""
        check_name(function, self._packages)
        pool = functools.partial(_Workers, self._jobs, function, self._packages)
        return _windowed(pool, arguments, in_order=in_order)


class RayCluster:
    """A Ray cluster that runs already, each piece a task on one of its cores.

    Ray is given texts alone, and gives back texts. A piece whose process dies is not tried again.

    Args:
        address: `auto`, or `host:port`.
        packages: Those whose functions may be called.
    """

    def __init__(self, address: str, *, packages: Sequence[str] = OWN) -> None:
        self._address, self._packages = address, packages

    def run(self, function: str, arguments: Iterable[str | None], *, in_order: bool = False) -> Pieces:
        """Calls a function with each argument; see `Executor.run`.

        Raises:
            ConfigError: There is no cluster at this address, or it runs another version of Ray or Python.
        """
        check_name(function, self._packages)
        pool = functools.partial(_RayTasks, self._address, function, self._packages)
        return _windowed(pool, arguments, in_order=in_order)


# ---------------------------------------------------------------- pieces in flight


class _Pool(Protocol):
    """Where pieces are computed beside one another.

    Attributes:
        capacity: Pieces in flight at most.
    """

    capacity: int

    def submit(self, index: int, argument: str) -> None:
        """Takes a piece."""
        ...

    def wait(self) -> Done:
        """Waits for one of the pieces that were taken."""
        ...

    def close(self) -> None:
        """Stops all work, and waits until it has stopped."""
        ...


def _windowed(make_pool: Callable[[], _Pool], arguments: Iterable[str | None], *, in_order: bool) -> Pieces:
    """Pieces as they are done, as many in flight as the pool takes; one that waits for its turn counts."""
    given = iter(arguments)
    submitted, flying, handed_out = 0, 0, 0
    held: dict[int, Done] = {}
    with contextlib.closing(make_pool()) as pool:
        while True:
            while flying < pool.capacity and (argument := next(given, None)) is not None:
                pool.submit(submitted, argument)
                submitted += 1
                flying += 1
            if not flying:
                return
            done = pool.wait()
            held[done.index] = done
            while held and (not in_order or handed_out in held):
                yield held.pop(handed_out if in_order else done.index)
                handed_out += 1
                flying -= 1


# ---------------------------------------------------------------- worker processes


class _Workers:
    """Threads of this process, each of which hands pieces to a worker process of its own.

    Args:
        jobs: How many there are at most; each is started when there is a piece for it.
        function: What is called.
        packages: Those whose functions may be called.
    """

    def __init__(self, jobs: int, function: str, packages: Sequence[str]) -> None:
        self.capacity = _AHEAD * jobs
        self._jobs, self._function = jobs, function
        # -P: a file of the folder in which a user stands must not take a module's place
        self._command = [sys.executable, "-P", "-m", "cutlayer.core.worker", *packages]
        threads = str(max(1, _cores() // jobs))
        self._environment = {
            "OMP_NUM_THREADS": threads,
            "RAYON_NUM_THREADS": threads,
            **os.environ,
            "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path),
        }
        self._pieces: queue.SimpleQueue[tuple[int, str] | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[tuple[int, str | Failure]] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[str]] = set()
        self._exhausted = 0
        self._closed = False

    def submit(self, index: int, argument: str) -> None:
        self._pieces.put((index, argument))
        if len(self._threads) < self._jobs:
            # no thread that the interpreter waits for at its end: a caller may have left the pieces unread
            self._threads.append(threading.Thread(target=self._serve, daemon=True))
            self._threads[-1].start()

    def wait(self) -> Done:
        index, outcome = self._done.get()
        return Done.of(index, outcome if isinstance(outcome, Failure) else read_answer(outcome))

    def close(self) -> None:
        with self._lock:
            self._closed = True
            for process in self._running:
                process.kill()
        for _ in self._threads:
            self._pieces.put(None)
        for thread in self._threads:
            thread.join()

    def _serve(self) -> None:
        """Hands over pieces, one at a time, as long as there are processes to hand them to."""
        for _ in range(_LIVES):
            if self._hand_over():
                return
        with self._lock:
            self._exhausted += 1
            others_live = self._exhausted < self._jobs
        # The last one says of what remains that it was not computed. Where fewer threads than jobs were started, there
        # were fewer pieces than it takes to use up their processes.
        while not others_live and (piece := self._pieces.get()) is not None:
            self._done.put((piece[0], Failure.of(_died("No worker process is left: each one and its successor ended"))))

    def _hand_over(self) -> bool:
        """Hands pieces to one process until it dies.

        Returns:
            Whether there is nothing more to hand over.
        """
        process: subprocess.Popen[str] | None = None
        try:
            while (piece := self._pieces.get()) is not None:
                index, argument = piece
                answered = ""
                # no memory for a process or for its answer, or it is gone
                with contextlib.suppress(OSError, MemoryError):
                    process = process or self._start()
                    if process is None:
                        return True
                    answered = _exchange(process, json.dumps({"function": self._function, "argument": argument}))
                if self._closed:
                    return True
                if not answered.endswith("\n"):
                    self._done.put((index, Failure.of(_died(_end_of(process)))))
                    return False
                self._done.put((index, answered))
            return True
        finally:
            if process is not None:
                self._end(process)

    def _start(self) -> subprocess.Popen[str] | None:
        """A process; none where all work stops."""
        with self._lock:
            if self._closed:
                return None
            process = subprocess.Popen(  # noqa: S603 - our own module
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                encoding="ascii",
                env=self._environment,
                start_new_session=True,
            )
            self._running.add(process)
            return process

    def _end(self, process: subprocess.Popen[str]) -> None:
        with self._lock:
            self._running.discard(process)
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            with contextlib.suppress(OSError):  # what was not written yet cannot be
                if pipe is not None:
                    pipe.close()


def _exchange(process: subprocess.Popen[str], request: str) -> str:
    """A line for a line; less than a line where the process ends."""
    if process.stdin is None or process.stdout is None:
        raise ValueError("a worker needs pipes")
    process.stdin.write(request + "\n")
    process.stdin.flush()
    return process.stdout.readline()


def _end_of(process: subprocess.Popen[str] | None) -> str:
    if process is None:
        return "The worker process could not be started"
    code = process.wait()
    return (
        f"The worker process ended with exit code {code}" if code >= 0 else f"Signal {-code} ended the worker process"
    )


def _died(how: str) -> WorkerError:
    return WorkerError(
        f"{how} before the piece was done.",
        remedy="Signal 9 means, as a rule, that memory ran out: use fewer jobs. Then run what is missing again.",
    )


def _cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


# ---------------------------------------------------------------- Ray


def _import_ray() -> Any:
    require("ray")
    import ray

    return ray


def _check_answers(address: str) -> None:
    """Asks whether anybody listens there; Ray itself waits for minutes for one who does not.

    Raises:
        OSError: Nobody does.
        ValueError: It is no address.
    """
    if address != "auto":
        host, _, port = address.removeprefix("ray://").rpartition(":")
        socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_SECONDS).close()


class _RayTasks:
    """Tasks on a Ray cluster.

    Args:
        address: Of the cluster.
        function: What is called.
        packages: Those whose functions may be called.

    Raises:
        ConfigError: It cannot be reached.
    """

    def __init__(self, address: str, function: str, packages: Sequence[str]) -> None:
        self._ray = _import_ray()
        self._function, self._packages = function, tuple(packages)
        self._opened = not self._ray.is_initialized()
        if self._opened:
            try:
                _check_answers(address)
                self._ray.init(address=address, log_to_driver=False, logging_level="warning")
            except Exception as error:  # Ray has no class of its own for these
                raise ConfigError(
                    f"No Ray cluster can be used at {address} ({type(error).__name__}).",
                    remedy="Start one with `ray start --head`, with the versions of Python and Ray that run here, and "
                    "give `auto` or HOST:PORT.",
                ) from error
        # by name, as a function of a module: the cluster imports what is installed there
        self._task = self._ray.remote(num_cpus=1, max_retries=0)(answer)
        self.capacity = _AHEAD * max(1, int(self._ray.cluster_resources().get("CPU", 1)))
        self._flying: dict[Any, int] = {}

    def submit(self, index: int, argument: str) -> None:
        self._flying[self._task.remote(self._function, argument, self._packages)] = index

    def wait(self) -> Done:
        (reference, *_), _ = self._ray.wait(list(self._flying))
        index = self._flying.pop(reference)
        try:
            return Done.of(index, read_answer(self._ray.get(reference)))
        except self._ray.exceptions.RayError as error:  # a process or a machine that is gone; pieces fail otherwise
            return Done.of(
                index,
                Failure.of(
                    WorkerError(
                        f"The cluster did not compute the piece ({type(error).__name__}).",
                        remedy="Look into its log (`ray status`, the dashboard), and run what is missing again.",
                    )
                ),
            )

    def close(self) -> None:
        for reference in self._flying:
            self._ray.cancel(reference, force=True)
        if self._opened:
            self._ray.shutdown()
