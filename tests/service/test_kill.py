"""kill -9 of the vendor: a run that goes on afterwards ends with the same bits as one that nothing happened to."""

from __future__ import annotations

import random
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from cutlayer import vendor
from cutlayer.core import VendorError
from cutlayer.wire import Frame, routes
from cutlayer.wire.messages import JobInfo
from cutlayer.wire.transports import HttpTransport, LocalTransport
from tests.service.customer import Customer, ask
from tests.service.process import VendorProcess


def run_undisturbed(blank_vendor: Path, folder: Path, *, trainable: bool, steps: int, plain: bool = False) -> Customer:
    """A run that nothing happens to, in this process."""
    data_dir = Path(shutil.copytree(blank_vendor, folder / "data"))
    key = vendor.keys.create(data_dir, "clinic")
    transport = LocalTransport(vendor.create_app(vendor.VendorSettings.load(data_dir)), key)
    customer = Customer(transport, trainable=trainable, plain=plain, steps=steps)
    customer.run()
    transport.close()
    return customer


@pytest.fixture(scope="module", params=["frozen", "trainable", "plain"])
def undisturbed(
    request: pytest.FixtureRequest, blank_vendor: Path, tmp_path_factory: pytest.TempPathFactory
) -> Customer:
    folder = tmp_path_factory.mktemp("undisturbed")
    return run_undisturbed(
        blank_vendor, folder, trainable=request.param == "trainable", plain=request.param == "plain", steps=14
    )


def patient(process: VendorProcess, key: str) -> HttpTransport:
    """A transport that waits for a vendor to come back."""
    return HttpTransport(process.url, key, retries=60)


def watch_log(process: VendorProcess, customer: Customer, step: int, then: Callable[[], None]) -> threading.Thread:
    """Calls `then` as soon as the frame of `step` is in the job's log: accepted, and not yet answered."""
    folder = process.data_dir / "tenants" / "clinic" / "jobs" / customer.job / "log"

    def size() -> int:
        return sum(file.stat().st_size for file in folder.glob("*.log"))

    before = size()

    def watch() -> None:
        while size() == before:
            pass
        then()

    thread = threading.Thread(target=watch)
    thread.start()
    return thread


def restart_after(process: VendorProcess) -> Callable[[], None]:
    def restart() -> None:
        process.kill()
        process.start(wait=False)

    return restart


def test_killed_at_three_points(undisturbed: Customer, process: VendorProcess, api_key: str) -> None:
    transport = patient(process, api_key)
    customer = Customer(transport, trainable=undisturbed.trainable, plain=undisturbed.plain)
    customer.upload()
    customer.start()
    pending = None
    for step in range(1, customer.steps + 1):
        if step == 3:  # between an answer and the next frame
            process.kill()
            process.start()
        watcher = None
        if step == 5:  # a frame is in the log and its answer is not out; a checkpoint at 4 may be half written
            watcher = watch_log(process, customer, step, restart_after(process))
        pending = customer.take(step, pending)
        if watcher is not None:
            watcher.join()
        if step == 10:  # a customer that forgot everything, at a vendor that forgot everything
            process.kill()
            process.start()
            info = ask(transport, routes.JOB_GET, job=customer.job).expect(JobInfo)
            assert info.step == 10
            assert info.gradient_applied == customer.trainable
            if not customer.trainable:
                pending = customer.loss_gradient(10, ask(transport, routes.STEP_GET, job=customer.job, step=10))
    adapter = customer.run()
    transport.close()
    assert adapter.sha256 == undisturbed.sha256
    assert customer.boundary_gradients == undisturbed.boundary_gradients
    for step, output in customer.outputs.items():
        assert output.equal(undisturbed.outputs[step])


def test_repeated_frames_have_one_effect_and_one_answer(
    undisturbed: Customer, process: VendorProcess, api_key: str
) -> None:
    """Every frame is sent three times, once over a vendor that was killed in between."""
    transport = patient(process, api_key)

    class Stutter:
        frames = 0

        def send(self, frame: Frame) -> object:
            first = transport.send(frame)
            if frame.route in (routes.STEP, routes.GRADIENT):
                self.frames += 1
                if self.frames == 7:
                    process.kill()
                    process.start()
                for _ in range(2):
                    again = transport.send(frame)
                    assert {name: t.tolist() for name, t in again.tensors.items()} == {
                        name: t.tolist() for name, t in first.tensors.items()
                    }
            return first

        def close(self) -> None:
            transport.close()

    customer = Customer(Stutter(), trainable=undisturbed.trainable, plain=undisturbed.plain)  # type: ignore[arg-type]
    assert customer.run().sha256 == undisturbed.sha256
    transport.close()


def test_a_graceful_stop_resumes_without_replaying(undisturbed: Customer, process: VendorProcess, api_key: str) -> None:
    transport = patient(process, api_key)
    customer = Customer(transport, trainable=undisturbed.trainable, plain=undisturbed.plain)
    customer.upload()
    customer.train(customer.start(), until=7)
    process.stop()
    assert (process.data_dir / "tenants/clinic/jobs" / customer.job / "checkpoints/recent.safetensors").exists()
    process.start()
    assert customer.run().sha256 == undisturbed.sha256
    transport.close()


@pytest.mark.slow
@pytest.mark.parametrize("trainable", [False, True], ids=["frozen", "trainable"])
@pytest.mark.parametrize("seed", range(3))
def test_killed_again_and_again(
    blank_vendor: Path, process: VendorProcess, api_key: str, tmp_path: Path, trainable: bool, seed: int
) -> None:
    """Kills at random moments, uploads included, while a customer starts over from the vendor's answer each time."""
    expected = run_undisturbed(blank_vendor, tmp_path / "undisturbed", trainable=trainable, steps=150).sha256
    chance = random.Random(seed)
    finished = threading.Event()
    kills = []

    def kill_now_and_then() -> None:
        while not finished.wait(chance.uniform(0.0, 0.6)):
            process.kill()
            process.start()
            kills.append(time.monotonic())

    killer = threading.Thread(target=kill_now_and_then)
    killer.start()
    adapter = None
    try:
        while adapter is None:
            transport = HttpTransport(process.url, api_key, retries=chance.choice([0, 1, 30]))
            try:
                adapter = Customer(transport, trainable=trainable, steps=150).run()
            except VendorError as error:
                if error.status != 0:  # anything but a vendor that is gone
                    raise
                time.sleep(0.1)
            finally:
                transport.close()
    finally:
        finished.set()
        killer.join()
    assert len(kills) >= 3
    assert adapter.sha256 == expected
