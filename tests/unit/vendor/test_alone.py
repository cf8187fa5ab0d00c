"""What becomes of a job that the vendor trains alone, once its next step does not go through."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from typing import Any
from unittest.mock import Mock

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from cutlayer.core import ModelError
from cutlayer.serving.refusal import Refusal
from cutlayer.vendor import alone
from cutlayer.vendor.alone import _TRIES, Held, Loops, Standings, add_alone
from cutlayer.wire.messages import JobProgress, JobState

SECRET = "wombat"
QUOTA = Refusal(403, "quota", "This tenant has 3 adapters already.", remedy="Delete some of them.")


class OneJob:
    """In the place of all jobs: one, whose steps end as they are told to."""

    def __init__(self, *ends: Exception | bool) -> None:
        self.ends = list(ends)
        self.failed: str | None = None

    def advance(self, tenant: str, name: str) -> Iterator[None]:
        yield
        end = self.ends.pop(0)
        if isinstance(end, Exception):
            raise end
        return end  # type: ignore[return-value]

    def fail(self, tenant: str, name: str, problem: str) -> None:
        self.failed = problem


class AtOnce:
    """In the place of the compute thread: what is posted is done before anything else."""

    def post(self, call: Any, tenant: str, *arguments: str) -> None:
        for _ in call(tenant, *arguments):
            pass


def loops_of(job: OneJob) -> Loops:
    standings = Mock(waiting=lambda: [] if job.failed else [("clinic", "a")])
    return Loops(job, standings, AtOnce())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ModelError("A tensor got no gradient."), "not-usable"),
        (Refusal(409, "diverged", "It is no number.", remedy="A smaller rate."), "diverged"),
    ],
)
def test_what_will_never_go_through_ends_the_job_at_once(error: Exception, code: str) -> None:
    job = OneJob(True, error)
    loops_of(job).wake()
    assert job.failed == code


@pytest.mark.parametrize("error", [RuntimeError(SECRET), MemoryError()])
def test_a_mistake_is_tried_again_and_at_last_ends_the_job(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    job = OneJob(*[error] * (2 * _TRIES))
    loops = loops_of(job)
    for tries in range(1, _TRIES):
        loops.wake()
        assert loops.held("clinic", "a") == Held("internal-error", tries)
        assert job.failed is None
    for _ in range(3):
        loops.wake()
    assert job.failed == "internal-error"
    assert len(job.ends) == _TRIES, "one that has failed is not tried again"
    assert loops.held("clinic", "a") is None
    assert SECRET not in caplog.text


def test_tries_count_from_the_last_step_that_went_through() -> None:
    job = OneJob(*([RuntimeError()] * (_TRIES - 1) + [True]) * 3, False)
    loops = loops_of(job)
    while job.ends:
        loops.wake()
    assert job.failed is None


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (QUOTA, "quota"),
        (Refusal(409, "labels-damaged", "They are.", remedy="Send them again."), "labels-damaged"),
        (Refusal(503, "busy", "No room.", remedy="Later."), "busy"),
        (OSError(errno.ENOSPC, SECRET), "disk-full"),
    ],
)
def test_what_passes_is_waited_for_however_long_and_told(error: Exception, code: str) -> None:
    """Training that is over is not lost because its adapter finds no place: a tenant that deletes another makes it."""
    job = OneJob(*[error] * (3 * _TRIES), True, False)
    loops = loops_of(job)
    for _ in range(3 * _TRIES):
        loops.wake()
        assert loops.held("clinic", "a") == Held(code)
    running = JobProgress(job="a" * 32, event=4, state=JobState.RUNNING, step=3, total_steps=9)
    standings = Standings(Mock(info=lambda *_: Mock(progress=running)), Mock())
    told = standings.progress("clinic", "a", loops.held("clinic", "a"))
    assert told is not None
    assert (told.problem, told.state) == (code, JobState.RUNNING)
    loops.wake()
    assert (loops.held("clinic", "a"), job.failed, job.ends) == (None, None, [])
    assert standings.progress("clinic", "a", None) == running


def test_who_asks_again_gets_the_next_event(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alone, "tenant_of", lambda _: "clinic")
    monkeypatch.setattr(alone, "_SECONDS", 0.2)
    monkeypatch.setattr(alone, "_LOOK_SECONDS", 0.01)
    running = JobProgress(job="a" * 32, event=4, state=JobState.RUNNING, step=3, total_steps=9)
    jobs = Mock(**{"info.return_value.progress": running})
    app = FastAPI()
    add_alone(app, loops_of(OneJob()), Mock(), Standings(jobs, Mock()), Mock())
    waited = []
    with TestClient(app) as client:
        for last in ("", "3", "4", "-1", "9" * 40, "x"):
            jobs.info.reset_mock()
            answer = client.get(f"/v1/jobs/{'a' * 32}/events/0", headers={"Last-Event-ID": last})
            assert answer.text.startswith("id: 4\ndata: {")
            waited.append(jobs.info.call_count > 1)
    assert waited == [False, False, True, False, False, False], "the fourth event, once it was had"


def test_an_end_that_cannot_be_written_is_written_later() -> None:
    job = OneJob(*[ModelError("no")] * 2)
    loops, write = loops_of(job), job.fail
    job.fail = Mock(side_effect=RuntimeError)  # type: ignore[method-assign]
    loops.wake()
    job.fail = write  # type: ignore[method-assign]
    loops.wake()
    assert job.failed == "not-usable"
