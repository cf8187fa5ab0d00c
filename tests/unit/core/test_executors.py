"""Executors: the same pieces wherever they run; what fails, dies or is stopped; how many are in flight."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from cutlayer.core import ConfigError, CutlayerError, DataError, MissingExtraError, Stopped, WorkerError, errors
from cutlayer.core.executors import Done, Executor, executor
from cutlayer.core.worker import Failure

PACKAGES = ("cutlayer", "tests")
BEHAVE = "tests.unit.core.pieces:behave"
SECRET = "Maria Weber has the flu"


def pieces(*told: dict[str, object]) -> list[str]:
    return [json.dumps(each) for each in told]


def numbered(count: int) -> list[str]:
    return pieces(*({"number": number} for number in range(count)))


def by_number(done: list[Done]) -> list[Done]:
    return sorted(done, key=lambda each: each.index)


def results(done: list[Done]) -> list[dict[str, object]]:
    assert [each.failure for each in done] == [None] * len(done)
    return [json.loads(each.result or "") for each in done]


def children() -> set[int]:
    """Processes that this one started and did not yet bury, zombies included."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if int(path.read_text().rpartition(")")[2].split()[1]) == os.getpid():
                found.add(int(path.parent.name))
    return found


@pytest.fixture(params=[1, 2], ids=["in this process", "two processes"])
def either(request: pytest.FixtureRequest) -> Executor:
    return executor(jobs=request.param, packages=PACKAGES)


@pytest.fixture
def two() -> Iterator[Executor]:
    before = children()
    yield executor(jobs=2, packages=PACKAGES)
    assert children() <= before, "no worker is left, not even as a zombie"


def test_every_piece_is_computed_once_and_known_by_its_place(either: Executor) -> None:
    done = list(either.run(BEHAVE, numbered(9)))
    assert [each.index for each in by_number(done)] == list(range(9))
    assert [found["number"] for found in results(by_number(done))] == list(range(9))


def test_an_argument_may_wait_for_another_piece(either: Executor) -> None:
    done: dict[int, Done] = {}

    def told() -> Iterator[str | None]:
        yield from numbered(2)
        while len(done) < 2:
            yield None
        yield from pieces({"number": 2})

    for piece in either.run(BEHAVE, told()):
        done |= {piece.index: piece}
    assert [found["number"] for found in results(by_number([*done.values()]))] == [0, 1, 2]


def test_this_process_computes_unless_asked_otherwise() -> None:
    assert {found["process"] for found in results(list(executor(packages=PACKAGES).run(BEHAVE, numbered(3))))} == {
        os.getpid()
    }


def test_workers_are_other_processes_that_share_the_cores(
    two: Executor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS")
    meet = {"do": "meet", "folder": str(tmp_path), "processes": 2}
    found = results(list(two.run(BEHAVE, pieces(*[meet] * 4))))
    processes = {each["process"] for each in found}
    assert len(processes) == 2
    assert os.getpid() not in processes
    assert {each["threads"] for each in found} == {str(max(1, len(os.sched_getaffinity(0)) // 2))}


def test_a_failing_piece_stops_no_other_and_tells_no_record(either: Executor) -> None:
    told = pieces({"number": 0}, {"do": "stumble", "record": SECRET}, {"do": "refuse"}, {"number": 3})
    first, stumbled, refused, last = by_number(list(either.run(BEHAVE, told)))
    assert first.result is not None
    assert last.result is not None
    assert stumbled.failure is not None
    assert stumbled.failure.kind == "ValueError"
    assert "pieces.py, line " in stumbled.failure.message
    assert 'raise ValueError(told["record"])' in stumbled.failure.trace
    assert SECRET not in repr(stumbled)
    assert refused.failure == Failure("DataError", "Row 3 has no text.", "Fill it in.")


def test_a_failure_is_the_same_error_again() -> None:
    again = Failure.of(DataError("Row 3 has no text.", remedy="Fill it in.")).error()
    assert isinstance(again, DataError)
    assert (again.message, again.remedy) == ("Row 3 has no text.", "Fill it in.")
    assert Failure("VendorError", "m").error().status == 0  # type: ignore[attr-defined]
    for kind in ("ValueError", "inspect", "Fault"):
        assert type(Failure(kind, "m").error()) is RuntimeError


def test_an_error_that_puts_its_words_together_itself_is_the_same_again(monkeypatch: pytest.MonkeyPatch) -> None:
    class TooManyError(CutlayerError):
        exit_code = 99

        def __init__(self, count: int) -> None:
            super().__init__(f"{count} are too many.", remedy="Take fewer.")

    monkeypatch.setattr(errors, "TooManyError", TooManyError, raising=False)
    again = Failure.of(TooManyError(3)).error()
    assert isinstance(again, TooManyError)
    assert (str(again), again.exit_code) == ("3 are too many. Take fewer.", 99)


def test_the_users_wish_stops_all(either: Executor) -> None:
    told = pieces({"do": "stop"}, *[{"do": "wait", "seconds": 0.1}] * 20)
    with pytest.raises(Stopped, match="on purpose"):
        list(either.run(BEHAVE, told))


def test_what_a_piece_prints_is_no_answer(two: Executor, capfd: pytest.CaptureFixture[str]) -> None:
    assert results(list(two.run(BEHAVE, pieces({"do": "print", "number": 4}))))[0]["number"] == 4
    captured = capfd.readouterr()
    assert captured.out == ""
    assert "not an answer\nnor this" in captured.err


def test_a_worker_that_dies_fails_its_piece_and_is_replaced_once(two: Executor) -> None:
    told = pieces({"number": 0}, {"do": "die"}, *({"number": number} for number in range(2, 8)))
    done = by_number(list(two.run(BEHAVE, told)))
    assert [each.index for each in done if each.failure] == [1]
    failure = done[1].failure
    assert failure is not None
    assert failure.kind == "WorkerError"
    assert "Signal 9" in failure.message
    assert isinstance(failure.error(), WorkerError)


def test_where_no_worker_is_left_the_rest_is_said_to_be_missing(two: Executor) -> None:
    told = pieces(*[{"do": "die"}] * 4, *[{"number": 1}] * 3)
    done = by_number(list(two.run(BEHAVE, told)))
    assert [each.result for each in done] == [None] * 7
    assert {each.failure.kind for each in done if each.failure} == {"WorkerError"}
    assert ["No worker process is left" in str(each.failure) for each in done] == [False] * 4 + [True] * 3


def test_a_corpus_of_any_size_is_asked_for_piece_by_piece(two: Executor) -> None:
    asked = 0

    def endless() -> Iterator[str]:
        nonlocal asked
        while True:
            asked += 1
            yield json.dumps({"number": asked - 1})

    with contextlib.closing(two.run(BEHAVE, endless())) as done:
        for handed_out in range(1, 30):
            next(done)
            assert asked <= handed_out + 4


def test_pieces_in_order_wait_for_the_slow_one_and_are_bounded_all_the_same(two: Executor) -> None:
    asked = 0

    def first_is_slow() -> Iterator[str]:
        nonlocal asked
        for number in range(12):
            asked += 1
            yield json.dumps({"number": number, "do": "wait", "seconds": 1.0 if number == 0 else 0.0})

    done = two.run(BEHAVE, first_is_slow(), in_order=True)
    first = next(done)
    assert (first.index, asked) == (0, 4)
    assert [each.index for each in done] == list(range(1, 12))


def test_leaving_early_stops_workers_at_once(two: Executor, tmp_path: Path) -> None:
    told = pieces({"number": 0}, *[{"do": "stay", "folder": str(tmp_path)}] * 3)
    with contextlib.closing(two.run(BEHAVE, told)) as done:
        next(done)
        while not any(tmp_path.iterdir()):
            time.sleep(0.01)
        begun = time.monotonic()
    assert time.monotonic() - begun < 20


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT], ids=["killed", "Ctrl-C"])
def test_workers_end_with_the_process_that_started_them(how: signal.Signals, tmp_path: Path) -> None:
    """Though they are in the middle of a piece."""
    program = (
        # a shell's background jobs ignore it
        "import signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from cutlayer.core.executors import executor\n"
        f"told = {pieces(*[{'do': 'stay', 'folder': str(tmp_path)}] * 2)}\n"
        f"list(executor(jobs=2, packages={PACKAGES}).run({BEHAVE!r}, told))\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, env=environment, start_new_session=True, stderr=subprocess.PIPE) as parent:
        while len(workers := [int(path.name) for path in tmp_path.iterdir()]) < 2:
            assert parent.poll() is None
            time.sleep(0.05)
        assert all(map(alive, workers))
        os.killpg(parent.pid, how)  # as a terminal does
        _, error = parent.communicate(timeout=60)
    assert error.count(b"KeyboardInterrupt") == (how is signal.SIGINT), "no worker has anything to say"
    deadline = time.monotonic() + 20
    while any(map(alive, workers)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(alive, workers))


def alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize(
    "function", ["os:system", "cutlayerx.core:f", "cutlayer.core.worker", "cutlayer.core:a.b", ":f", "cutlayer/core:f"]
)
def test_only_functions_of_allowed_packages_are_called(function: str) -> None:
    for jobs in (1, 2):
        with pytest.raises(ConfigError, match="must be MODULE:NAME of a function in cutlayer"):
            executor(jobs=jobs).run(function, ["{}"])


def test_a_worker_refuses_what_its_parent_would(two: Executor) -> None:
    from cutlayer.core.worker import answer, read_answer

    failure = read_answer(answer("os:system", "true", ["cutlayer"]))
    assert isinstance(failure, Failure)
    assert failure.kind == "ConfigError"


def test_settings_without_a_meaning_are_refused() -> None:
    with pytest.raises(ConfigError, match="jobs = 0"):
        executor(jobs=0)
    with pytest.raises(ConfigError, match="must be left out with `ray`"):
        executor(jobs=2, ray="auto")


@pytest.mark.skipif(find_spec("ray") is not None, reason="Ray is installed")
def test_a_missing_ray_is_named_with_what_installs_it() -> None:
    with pytest.raises(MissingExtraError) as refused:
        executor(ray="auto")
    assert "pip install 'cutlayer[ray]'" in refused.value.remedy
