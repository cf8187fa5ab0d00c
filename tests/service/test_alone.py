"""Jobs that the vendor trains alone, in processes that are killed, shared and left: states, turns and memory."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from cutlayer import vendor
from cutlayer.core import VendorError
from cutlayer.customer import Client, Detached, FinetuneResult
from cutlayer.customer.settings import FullTuning
from cutlayer.serving.compute import FairQueue
from cutlayer.vendor import alone, app
from cutlayer.wire.messages import JobEntry, JobState
from tests.promises.runs import TRAINING, corpus
from tests.service.process import VendorProcess, Vendors, running
from tests.service.tiny import write_tiny_bert

TRAIN = corpus(120, seed=5, canaries=False)
TRAINING_ALONE = TRAINING.model_copy(update={"epochs": 4, "patience": 4, "batch_size": 4})
ENDLESS = TRAINING.model_copy(update={"epochs": 200, "patience": 200, "batch_size": 8, "save_steps": 1000})


PATIENCE = 300
"""Seconds that a state is waited for: machines are slow that have other things to do."""


@dataclass(frozen=True)
class Watched:
    """A customer, and another one of the same tenant that looks at its jobs."""

    client: Client
    watcher: Client

    def run(self, out: Path, **settings: Any) -> FinetuneResult:
        """Trains at the vendor, and waits."""
        chosen: dict[str, Any] = {"eta": 80, "training": TRAINING_ALONE, "seed": 3, "progress": None} | settings
        found = self.client.finetune(TRAIN, out=out, labels_at="vendor", **chosen)
        assert isinstance(found, FinetuneResult)
        return found

    def begin(self, out: Path, **settings: Any) -> FinetuneResult | Detached:
        """Leaves a run to the vendor, or fetches what became of it."""
        chosen: dict[str, Any] = {"eta": 80, "training": TRAINING_ALONE, "seed": 3, "progress": None} | settings
        return self.client.begin(TRAIN, out=out, labels_at="vendor", **chosen)

    def at(self, state: JobState, *, step: int = 0, job: str | None = None) -> JobEntry:
        """Waits until a job, or the one that is named, is in a state and so far."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            for found in self.watcher.jobs():
                if job in (None, found.job) and found.state is state and (found.step or 0) >= step:
                    return found
            time.sleep(0.01)
        raise AssertionError(f"no job is {state} at step {step}: {self.watcher.jobs()}")


@pytest.fixture
def watched(process: VendorProcess, api_key: str, tmp_path: Path) -> Iterator[Watched]:
    with ExitStack() as stack:
        yield Watched(
            *(stack.enter_context(closing(Client(process.url, api_key, home=tmp_path / name))) for name in "ab")
        )


def restart(process: VendorProcess) -> None:
    process.kill()
    process.start()


class Once:
    """Progress that does something the first time that a stage is shown."""

    def __init__(self, stage: str, act: Callable[[], object]) -> None:
        self.stage = stage
        self.acts = [act]

    def update(self, stage: str, done: int, total: int, note: str = "") -> None:
        if stage == self.stage and self.acts:
            self.acts.pop()()


# ---------------------------------------------------------------- kill -9 in each state


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_killed_while_it_is_queued_and_runs_it_ends_with_the_same_weights(
    process: VendorProcess, watched: Watched, tmp_path: Path
) -> None:
    """Once queued and three times running, while the customer waits; both watch it over the restarts."""
    whole = watched.run(tmp_path / "whole")
    found: list[FinetuneResult] = []

    def kill_queued() -> None:
        assert watched.at(JobState.QUEUED).step == 0
        restart(process)
        watched.at(JobState.QUEUED)

    queued = Once("privatize and release dev", kill_queued)
    thread = threading.Thread(target=lambda: found.append(watched.run(tmp_path / "killed", progress=queued)))
    thread.start()
    step = 0
    for _ in range(3):
        step = watched.at(JobState.RUNNING, step=step + 10).step or 0
        restart(process)
        watched.at(JobState.RUNNING)
    thread.join()
    assert not queued.acts
    check_same(found[0], whole)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_killed_when_it_is_finished_it_is_fetched_with_the_same_weights(
    process: VendorProcess, watched: Watched, tmp_path: Path
) -> None:
    whole = watched.run(tmp_path / "whole")
    begun = watched.begin(tmp_path / "killed")
    assert isinstance(begun, Detached)
    finished = watched.at(JobState.FINISHED, job=begun.job)
    restart(process)
    assert watched.at(JobState.FINISHED, job=begun.job) == finished
    fetched = watched.begin(tmp_path / "killed")
    assert isinstance(fetched, FinetuneResult)
    check_same(fetched, whole)


def check_same(found: FinetuneResult, whole: FinetuneResult) -> None:
    assert found.adapter_sha256 == whole.adapter_sha256
    assert (found.dev, found.train_loss, found.steps) == (whole.dev, whole.train_loss, whole.steps)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("state", [JobState.FAILED, JobState.CANCELLED])
def test_killed_when_it_failed_or_was_cancelled_it_stays_so(
    state: JobState, process: VendorProcess, watched: Watched, data_dir: Path, tmp_path: Path
) -> None:
    settings: dict[str, Any] = {"training": ENDLESS}
    if state is JobState.FAILED:
        settings = {"training": ENDLESS.model_copy(update={"learning_rate": 1e6}), "tuning": FullTuning()}
    begun = watched.begin(tmp_path / "run", **settings)
    assert isinstance(begun, Detached)
    if state is JobState.CANCELLED:
        watched.at(JobState.RUNNING, step=3)
        watched.watcher.cancel_job(begun.job)
    over = watched.at(state)
    restart(process)
    assert watched.at(state) == over
    assert not list(data_dir.glob(f"tenants/*/jobs/{begun.job}")), "its checkpoints and log are gone"
    told = "failed: diverged" if state is JobState.FAILED else "cancelled"
    with pytest.raises(VendorError, match=told):
        watched.begin(tmp_path / "run", **settings)
    assert not watched.watcher.adapters()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_stopped_early_over_restarts_it_stops_at_the_same_epoch(
    process: VendorProcess, watched: Watched, tmp_path: Path
) -> None:
    """What earlier epochs came to outlives the process, and so does the adapter of the best one."""
    settings = {"training": TRAINING_ALONE.model_copy(update={"epochs": 30, "patience": 2})}
    whole = watched.run(tmp_path / "whole", **settings)
    assert whole.epochs < 30
    assert whole.best_epoch == whole.epochs - 2
    begun = watched.begin(tmp_path / "killed", **settings)
    assert isinstance(begun, Detached)
    for epoch in range(1, whole.epochs):
        watched.at(JobState.RUNNING, step=epoch * whole.steps // whole.epochs + 1)
        restart(process)
    watched.at(JobState.FINISHED, job=begun.job)
    fetched = watched.begin(tmp_path / "killed", **settings)
    assert isinstance(fetched, FinetuneResult)
    check_same(fetched, whole)
    assert fetched.best_epoch == whole.best_epoch


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_an_adapter_that_finds_no_place_waits_for_one(
    nursery: Vendors, data_dir: Path, api_key: str, tmp_path: Path, change_settings: Callable[..., None]
) -> None:
    """Two jobs at once, and place for one adapter: nothing that was trained is lost. A third is refused beforehand."""
    change_settings(data_dir, limits={"adapters_per_tenant": 1})
    with (
        running(nursery, data_dir) as process,
        closing(Client(process.url, api_key, home=tmp_path / "home")) as client,
    ):
        both = Watched(client, client)
        runs = {
            begun.job: tmp_path / name
            for name in ("one", "other")
            for begun in [both.begin(tmp_path / name)]
            if isinstance(begun, Detached)
        }
        first = both.at(JobState.FINISHED).job
        (waiting,) = set(runs) - {first}
        with pytest.raises(VendorError, match="adapters already"):
            both.begin(tmp_path / "third")
        told: list[str] = []

        def update(stage: str, done: int, total: int, note: str = "") -> None:
            told.append(note)
            if note == "waits: quota" and client.adapters():
                client.delete_adapter(first)

        client.watch_job(waiting, Mock(update=update))
        assert "waits: quota" in told
        assert isinstance(both.begin(runs[waiting]), FinetuneResult)


# ---------------------------------------------------------------- turns


STEPS = 200
"""That each of two equal jobs takes: enough for what one takes longer by chance to even out."""


def favour_a_tenant() -> None:
    """The fault: the time of one tenant counts for four fifths, so that it is served a quarter more."""
    honest = FairQueue.charge

    def charge(queue: FairQueue[Any], tenant: str, seconds: float) -> None:
        honest(queue, tenant, seconds * (0.8 if tenant == "clinic" else 1))

    FairQueue.charge = charge  # type: ignore[method-assign]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("fault", ["", "tests.service.test_alone:favour_a_tenant"], ids=["as it is", "planted"])
def test_equal_jobs_of_two_tenants_advance_equally(
    fault: str, nursery: Vendors, data_dir: Path, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """From when both run: their steps differ by a tenth at most. Of a queue that is unfair by a quarter it shows."""
    with running(nursery, data_dir, fault=fault) as process, ExitStack() as stack:
        tenants = [
            Watched(client, client)
            for name in ("clinic", "other")
            for key in [vendor.keys.create(data_dir, name)]
            for client in [stack.enter_context(closing(Client(process.url, key, home=tmp_path / name)))]
        ]
        for number, tenant in enumerate(tenants):
            tenant.begin(tmp_path / f"run{number}", training=ENDLESS)
        before = [tenant.at(JobState.RUNNING, step=1).step or 0 for tenant in tenants]
        began = time.monotonic()
        tenants[1].at(JobState.RUNNING, step=before[1] + STEPS)
        after = [tenant.at(JobState.RUNNING).step or 0 for tenant in tenants]
        seconds = time.monotonic() - began
    taken = [last - first for first, last in zip(before, after, strict=True)]
    record_property("steps", taken)
    print(f"{taken} steps in {seconds:.1f} s")  # noqa: T201 - read with pytest -s
    assert (abs(taken[0] - taken[1]) <= 0.1 * max(taken)) == (not fault), taken


# ---------------------------------------------------------------- memory


def keep_memory() -> None:
    """The fault: what a job held is freed, and stays with the process."""
    alone.return_memory = lambda: None


def resident(process: VendorProcess) -> int:
    """Bytes of memory of its own that a process has."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    return 1024 * int(status.partition("RssAnon:")[2].split()[0])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the memory of a process is read from /proc")
@pytest.mark.parametrize("fault", ["", "tests.service.test_alone:keep_memory"], ids=["as it is", "planted"])
def test_a_cancelled_job_gives_its_memory_back_within_a_second(
    fault: str, nursery: Vendors, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """All weights of a model of 34 MB: with gradients and what the optimiser keeps, four times as much."""
    model = write_tiny_bert(tmp_path / "wide", width=512)
    vendor.init(tmp_path / "data", models=[str(model)], threads=1, max_bottom=2)
    key = vendor.keys.create(tmp_path / "data", "clinic")
    held = 4 * sum(file.stat().st_size for file in model.glob("*.safetensors"))
    with (
        running(nursery, tmp_path / "data", fault=fault) as process,
        closing(Client(process.url, key, home=tmp_path / "home")) as client,
    ):
        tenant, before = Watched(client, client), resident(process)
        begun = tenant.begin(tmp_path / "run", training=ENDLESS, tuning=FullTuning())
        assert isinstance(begun, Detached)
        tenant.at(JobState.RUNNING, step=20)
        at_work = resident(process) - before
        client.cancel_job(begun.job)
        cancelled = time.monotonic()
        # the base model stays, which is a quarter
        while resident(process) > before + held // 3 and time.monotonic() < cancelled + 1:
            time.sleep(0.02)
        seconds, left = time.monotonic() - cancelled, resident(process) - before
    record_property("bytes", {"at work": at_work, "left": left, "seconds": seconds})
    print(f"{at_work >> 20} MB at work, {left >> 20} MB left after {seconds:.2f} s")  # noqa: T201 - read with pytest -s
    assert at_work > held
    assert (seconds < 1) == (not fault)


HOLES = 2**30
"""Bytes that are free in a heap, in pieces of a megabyte."""
KEPT: list[bytes] = []


def leave_holes() -> None:
    """Frees most of what was allocated, between pieces that stay."""
    pieces = [bytes(2**15) for _ in range(HOLES // 2**15)]
    KEPT.extend(pieces[31::32])


def leave_holes_and_return_them_soon() -> None:
    """As `leave_holes`, in a vendor that returns what is free every half second."""
    leave_holes()
    app._SECONDS_BETWEEN_RETURNS = 0.5


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the memory of a process is read from /proc")
@pytest.mark.parametrize(
    ("start", "comes"), [(leave_holes_and_return_them_soon, True), (leave_holes, False)], ids=["soon", "in a minute"]
)
def test_holes_of_the_heap_go_back_to_the_machine_while_the_vendor_serves(
    start: Callable[[], None], comes: bool, nursery: Vendors, data_dir: Path
) -> None:
    """As texts of ever other lengths leave them."""
    with running(nursery, data_dir, fault=f"tests.service.test_alone:{start.__name__}") as process:
        started = time.monotonic()
        while resident(process) > HOLES // 2 and time.monotonic() < started + (PATIENCE if comes else 3):
            time.sleep(0.1)
        assert (resident(process) < HOLES // 2) == comes
