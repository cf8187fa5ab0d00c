"""Jobs whose vendor dies, or whose disk or database fails, at the worst moment: nothing is lost, and nothing stays."""

from __future__ import annotations

import errno
import os
import resource
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.exc import OperationalError
from torch import Tensor

from cutlayer import vendor
from cutlayer.core import VendorError
from cutlayer.vendor.checkpoints import Checkpoints
from cutlayer.vendor.database import Database
from cutlayer.vendor.trainer import Trainer
from cutlayer.wire import routes
from cutlayer.wire.messages import JobState
from cutlayer.wire.transports import LocalTransport
from tests.service.customer import Customer, ask
from tests.unit.vendor.test_jobs import Open, at, info, job_folder, query, resumed, vendor_of


def files_below(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


class Deaths:
    """What a death of the vendor in the forward pass of a step would leave of a job: its folder as it was then.

    Args:
        folder: The job's folder.
        step: The step in whose forward pass it dies.
        monkeypatch: To watch forward passes.
    """

    def __init__(self, folder: Path, step: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.left = folder.parent.parent / "left"
        self.count = 0
        forward = Trainer.forward

        def watched(trainer: Trainer, payload: Any) -> Tensor:
            if trainer.step + 1 == step:
                self.count += 1
                shutil.copytree(folder, self.left, dirs_exist_ok=True)
            return forward(trainer, payload)

        monkeypatch.setattr(Trainer, "forward", watched)

    def come_true(self) -> None:
        """Puts what a death would have left in place; the vendor must be closed."""
        shutil.rmtree(self.folder)
        os.rename(self.left, self.folder)


@pytest.fixture
def little_memory(data_dir: Path, change_settings: Callable[..., None]) -> None:
    """So little that the steps of these tests are heavy."""
    change_settings(data_dir, limits={"max_graph_bytes": 5_000_000})


@pytest.mark.parametrize("replays", [1, 8], ids=["heavy", "light"])
def test_a_step_that_ends_the_process_is_not_replayed_for_ever(
    open_vendor: Open, data_dir: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, replays: int
) -> None:
    """It ends the process, and its replays; then it is refused once, with what to do, and the job stands before it."""
    if replays == 1:
        request.getfixturevalue("little_memory")
    customer = Customer(open_vendor())
    straight = customer.run().sha256
    ask(customer.transport, routes.JOB_DELETE, job=customer.job)
    customer.upload()
    customer.start()
    pending = None
    for step in range(1, 7):
        pending = customer.take(step, pending)
    deaths = Deaths(job_folder(data_dir, customer), 7, monkeypatch)
    customer.send_step(7, pending)
    for death in range(replays + 1):
        customer.transport.close()
        deaths.come_true()
        customer.transport = open_vendor()
        assert info(customer).step == (7 if death < replays else 6)
    assert deaths.count == 1 + replays
    with pytest.raises(VendorError, match="process ended whenever it computed step 7") as caught:
        customer.send_step(7, pending)
    assert caught.value.status == 422
    assert "smaller batches" in caught.value.remedy
    assert info(customer).step == 6
    customer.send_step(7, pending)
    assert customer.run().sha256 == straight


@pytest.mark.usefixtures("little_memory")
def test_a_step_that_was_answered_is_replayed_however_often_the_process_ends(
    open_vendor: Open, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    customer = Customer(open_vendor())
    customer.upload()
    customer.start()
    customer.take(1, None)
    deaths = Deaths(job_folder(data_dir, customer), 1, monkeypatch)
    monkeypatch.setattr("cutlayer.vendor.job.LiveJob.leave", lambda self: self.close())
    for _ in range(4):
        customer.transport.close()
        customer.transport = open_vendor()
        assert resumed(customer).step == 1
        customer.transport.close()
        deaths.come_true()
        customer.transport = open_vendor()
    assert resumed(customer).step == 1


@pytest.mark.usefixtures("little_memory")
def test_a_failing_replay_is_no_death(open_vendor: Open, data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    customer = Customer(open_vendor())
    customer.upload()
    customer.start()
    deaths = Deaths(job_folder(data_dir, customer), 1, monkeypatch)
    customer.send_step(1, None)
    customer.transport.close()
    deaths.come_true()
    customer.transport = open_vendor()

    def fail(*_: object) -> None:
        raise RuntimeError("cannot allocate memory")

    for _ in range(4):
        with monkeypatch.context() as patch:
            patch.setattr(Trainer, "forward", fail)
            with pytest.raises(VendorError, match="made a mistake"):
                info(customer)
    assert info(customer).step == 1


@contextmanager
def killed_before_removing(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What is removed has another name, and stays: as if the process had ended there."""
    with monkeypatch.context() as patch:
        patch.setattr("cutlayer.core.files._remove", lambda _: None)
        yield


def test_a_deletion_cut_in_half_leaves_nothing_after_the_next_start(
    open_vendor: Open, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    customer = Customer(open_vendor())
    customer.upload()
    customer.train(customer.start(), until=5)
    published = Customer(customer.transport, trainable=True, job="a" * 32)
    published.run()
    with killed_before_removing(monkeypatch):
        ask(customer.transport, routes.JOB_DELETE, job=customer.job)
        ask(customer.transport, routes.RECORD_SET_DELETE, record_set=customer.job)
        ask(customer.transport, routes.ADAPTER_DELETE, adapter=published.job)
    assert files_below(data_dir / "tenants")
    customer.transport.close()
    customer.transport = open_vendor()
    assert files_below(data_dir / "tenants") == []
    assert vendor_of(customer.transport).store.stored_bytes("clinic") == 0


def test_a_deletion_that_the_database_does_not_take_leaves_everything(
    transport: LocalTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    customer = Customer(transport)
    customer.upload()
    customer.train(customer.start(), until=5)
    published = Customer(transport, trainable=True, job="a" * 32)
    published.run()
    session = Database.session

    @contextmanager
    def unheard(self: Database) -> Iterator[Any]:
        with session(self) as opened:
            yield opened
            raise OperationalError("COMMIT", {}, Exception("the connection was lost"))

    deletions: list[tuple[routes.Route, dict[str, str | int]]] = [
        (routes.ADAPTER_DELETE, {"adapter": published.job}),
        (routes.JOB_DELETE, {"job": customer.job}),
    ]
    for route, where in deletions:
        with monkeypatch.context() as patch:
            patch.setattr(Database, "session", unheard)
            with pytest.raises(VendorError, match="database does not answer"):
                ask(transport, route, **where)
    assert info(customer).step == 5
    assert query(published).shape == (5, 3)


def test_a_deletion_that_was_done_and_not_confirmed_is_done_again(transport: LocalTransport, data_dir: Path) -> None:
    """The database had taken it, and the connection to it was lost: the folder was put back."""
    customer = Customer(transport)
    customer.upload()
    customer.train(customer.start(), until=5)
    deletions: list[tuple[routes.Route, str]] = [
        (routes.JOB_DELETE, "job"),
        (routes.RECORD_SET_DELETE, "record_set"),
        (routes.ADAPTER_DELETE, "adapter"),
    ]
    for route, kind in deletions:
        folder = data_dir / "tenants/clinic" / f"{kind.replace('_', '-')}s" / customer.job
        kept = shutil.copytree(folder, data_dir / "kept", dirs_exist_ok=True) if folder.exists() else data_dir / "kept"
        if kind != "adapter":
            ask(transport, route, **{kind: customer.job})
        with pytest.raises(VendorError, match="There is no"):  # not kept, so it waits for what the deletion posted
            ask(transport, routes.STEP_GET, job=customer.job, step=4)
        shutil.copytree(kept, folder)
        with pytest.raises(VendorError, match="There is no") as caught:
            ask(transport, route, **{kind: customer.job})
        assert caught.value.status == 404
        assert not folder.exists()


def test_a_finish_cut_short_leaves_nothing_that_is_not_listed(
    open_vendor: Open, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the adapter is listed, the job's files go at the next start; before, the adapter's go with the job."""
    customer = Customer(open_vendor())
    other = Customer(customer.transport, trainable=True, job="5" * 32)
    for each in (customer, other):
        each.upload()
        each.train(each.start())
    with monkeypatch.context() as dying:
        dying.setattr("cutlayer.vendor.jobs.remove_folder", lambda _: None)
        adapter = at(customer, routes.FINISH, customer.steps)
    assert files_below(job_folder(data_dir, customer))
    customer.transport.close()
    customer.transport = other.transport = open_vendor()
    assert not job_folder(data_dir, customer).exists()
    assert at(customer, routes.FINISH, customer.steps) == adapter
    assert info(other).step == other.steps
    with monkeypatch.context() as dying:
        dying.setattr("cutlayer.vendor.jobs.AdapterInfo", None)
        with pytest.raises(VendorError, match="made a mistake"):
            at(other, routes.FINISH, other.steps)
    folder = data_dir / "tenants/clinic/adapters"
    assert sorted(path.name for path in folder.iterdir()) == sorted([customer.job, other.job])
    ask(other.transport, routes.JOB_DELETE, job=other.job)
    assert [path.name for path in folder.iterdir()] == [customer.job]


def test_a_rollback_cut_short_leaves_no_snapshot_of_the_other_branch(
    transport: LocalTransport, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    customer = Customer(transport)
    customer.upload()
    customer.train(customer.start(), until=7)
    customer.train(info(customer), until=12)
    at(customer, routes.SNAPSHOT, 12)
    forget_after = Checkpoints.forget_after

    def die_after(self: Checkpoints, step: int) -> None:
        forget_after(self, step)
        raise RuntimeError("killed")

    with monkeypatch.context() as dying:
        dying.setattr(Checkpoints, "forget_after", die_after)
        with pytest.raises(VendorError, match="made a mistake"):
            at(customer, routes.ROLLBACK, 4)
    found = info(customer)
    assert (found.step, found.snapshots) == (12, ()), "as it was, or without the snapshots; never with them alone"


def test_a_snapshot_at_the_present_step_is_taken_anew(transport: LocalTransport, data_dir: Path) -> None:
    """One may be there of another branch."""
    customer = Customer(transport)
    customer.upload()
    customer.train(customer.start(), until=6)
    at(customer, routes.SNAPSHOT, 6)
    folder = job_folder(data_dir, customer) / "snapshots"
    own = (folder / "0000000006.safetensors").read_bytes()
    customer.train(info(customer), until=12)
    at(customer, routes.SNAPSHOT, 12)
    at(customer, routes.ROLLBACK, 4)
    customer.train(info(customer), until=6)
    (folder / "0000000006.safetensors").write_bytes(own[:-4] + bytes(4))
    at(customer, routes.SNAPSHOT, 6)
    assert (folder / "0000000006.safetensors").read_bytes() == own


def test_a_log_that_cannot_go_on_at_a_checkpoint_goes_on_before_it(
    open_vendor: Open, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    customer = Customer(open_vendor(), trainable=True)
    straight = customer.run().sha256
    ask(customer.transport, routes.JOB_DELETE, job=customer.job)
    customer.train(customer.start(), until=3)
    open_ = os.open

    def full(path: Any, *arguments: Any, **options: Any) -> int:
        if str(path).endswith("0000000004.log"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return open_(path, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", full)
        customer.take(4, None)
    assert "no checkpoint (No space left on device)" in caplog.text
    customer.train(info(customer), until=6)
    monkeypatch.setattr("cutlayer.vendor.job.LiveJob.leave", lambda self: self.close())
    customer.transport.close()
    customer.transport = open_vendor()
    assert info(customer).step == 6
    assert customer.run().sha256 == straight


def test_a_job_whose_log_is_in_doubt_is_loaded_anew(transport: LocalTransport, monkeypatch: pytest.MonkeyPatch) -> None:
    customer = Customer(transport, trainable=True)
    straight = customer.run().sha256
    ask(transport, routes.JOB_DELETE, job=customer.job)
    customer.train(customer.start(), until=3)

    def fail(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", fail)
        patch.setattr(os, "ftruncate", fail)
        with pytest.raises(VendorError, match="made a mistake"):
            customer.take(4, None)
    assert vendor_of(transport).jobs.live == 0
    assert customer.run().sha256 == straight


def test_a_full_disk_at_the_end_is_said_so_and_loses_nothing(
    transport: LocalTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    customer = Customer(transport, trainable=True)
    customer.train(customer.start())
    save_adapter = vendor.jobs.save_adapter  # type: ignore[attr-defined]
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    def full(*arguments: Any) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (3000, hard))
        try:
            save_adapter(*arguments)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    usage = shutil.disk_usage
    for name, stand_in in (
        ("cutlayer.vendor.jobs.save_adapter", full),
        ("shutil.disk_usage", lambda path: usage(path)._replace(free=3000)),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(name, stand_in)
            with pytest.raises(VendorError, match="no room") as caught:
                at(customer, routes.FINISH, customer.steps)
        assert caught.value.status == 507
    assert info(customer).state is JobState.RUNNING
    assert at(customer, routes.FINISH, customer.steps).step == customer.steps
