"""Jobs that the vendor trains alone: the same weights as with labels at the customer, over `kill -9` too."""

from __future__ import annotations

import math
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch

from cutlayer import vendor
from cutlayer.attacks import ATTACKS
from cutlayer.core import BudgetError, ConfigError, Cut, CutlayerWarning, VendorError
from cutlayer.customer import Client, Detached, FinetuneResult, Silent
from cutlayer.customer.corpora import Corpora
from cutlayer.customer.evidence import Evidence
from cutlayer.customer.handout import local_archive
from cutlayer.customer.settings import Lora, Prefix
from cutlayer.data import Dataset
from cutlayer.wire import Form, Frame, routes
from cutlayer.wire.messages import JobState, RecordSetSpec
from cutlayer.wire.recording import Direction, read_recording
from cutlayer.wire.transports import HttpTransport
from tests.promises.runs import TRAINING, corpus
from tests.service.process import VendorProcess

TRAIN = corpus(120, seed=5, canaries=False)
TRAINING_ALONE = TRAINING.model_copy(update={"epochs": 3, "patience": 3, "batch_size": 8})


def run(client: Client, out: Path, *, train: Dataset = TRAIN, **settings: Any) -> Any:
    chosen: dict[str, Any] = {"eta": 80, "training": TRAINING_ALONE, "seed": 3} | settings
    return client.finetune(train, out=out, progress=None, **chosen)


def client_of(process: VendorProcess, key: str, home: Path) -> Client:
    return Client(process.url, key, home=home)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"tuning": Prefix()},
        {"label_epsilon": 1.0},
        {
            "training": TRAINING_ALONE.model_copy(
                update={"max_grad_norm": 0.5, "gradient_accumulation_steps": 2, "patience": 1}
            ),
            "tuning": Lora(r=2),
        },
    ],
    ids=["lora", "prefix", "drawn labels", "clipped"],
)
@pytest.mark.filterwarnings("ignore")
def test_weights_are_those_of_labels_at_the_customer(
    process: VendorProcess, api_key: str, tmp_path: Path, settings: dict[str, Any]
) -> None:
    with closing(client_of(process, api_key, tmp_path / "home")) as client:
        here = run(client, tmp_path / "here", **settings)
        there = run(client, tmp_path / "there", labels_at="vendor", **settings)
    assert there.adapter_sha256 == here.adapter_sha256
    assert there.dev == here.dev
    assert (there.steps, there.best_epoch) == (here.steps, here.best_epoch)
    assert there.train_loss == pytest.approx(here.train_loss, abs=1e-12)
    if "label_epsilon" not in settings:
        assert there.label_recovery == 1
        assert math.isinf(there.label_guarantee.budget)


@pytest.mark.filterwarnings("ignore")
def test_labels_cross_in_one_kind_of_frame(process: VendorProcess, api_key: str, tmp_path: Path) -> None:
    with closing(client_of(process, api_key, tmp_path / "home")) as client:
        run(client, tmp_path / "run", labels_at="vendor", label_epsilon=1.0)
        listed = list(client.ledger.labels())
        frames = {frame.entry: frame.route for frame in client.ledger.frames()}
    up = [frame for frame in read_recording(tmp_path / "run" / "transcript") if frame.direction is Direction.UP]
    assert {frame.route.name for frame in up if "labels" in frame.route.name} == {"record-set.labels"}
    assert not {frame.route.name for frame in up} & {"job.step", "job.gradient", "job.infer"}
    assert {frames[label.entry] for label in listed} == {"record-set.labels"}
    assert {label.eta for label in listed} == {1.0}


@pytest.mark.filterwarnings("ignore")
def test_killed_at_any_time_it_ends_with_the_same_weights(process: VendorProcess, api_key: str, tmp_path: Path) -> None:
    with closing(client_of(process, api_key, tmp_path / "home")) as client:
        whole = run(client, tmp_path / "whole", labels_at="vendor")
        found: list[Any] = []
        thread = threading.Thread(target=lambda: found.append(run(client, tmp_path / "killed", labels_at="vendor")))
        thread.start()
        for pause in (0.3, 0.4, 0.5, 0.2):
            time.sleep(pause)
            process.kill()
            process.start()
        thread.join()
    assert found[0].adapter_sha256 == whole.adapter_sha256
    assert found[0].dev == whole.dev
    assert found[0].train_loss == whole.train_loss


@pytest.mark.filterwarnings("ignore")
def test_another_tenant_learns_nothing_and_a_cancelled_job_leaves(
    process: VendorProcess, data_dir: Path, api_key: str, tmp_path: Path
) -> None:
    other = client_of(process, vendor.keys.create(data_dir, "other"), tmp_path / "other")
    with closing(client_of(process, api_key, tmp_path / "home")) as client, closing(other):
        long = TRAINING_ALONE.model_copy(update={"epochs": 200, "patience": 200})
        failed: list[VendorError] = []

        def train() -> None:
            try:
                run(client, tmp_path / "run", labels_at="vendor", training=long)
            except VendorError as error:
                failed.append(error)

        thread = threading.Thread(target=train)
        thread.start()
        watcher = client_of(process, api_key, tmp_path / "watcher")
        while not (jobs := watcher.jobs()) or not jobs[0].step:
            time.sleep(0.1)
        assert other.jobs() == ()
        for ask in (lambda: other.cancel_job(jobs[0].job), lambda: other.watch_job(jobs[0].job, Silent())):
            with pytest.raises(VendorError) as refused:
                ask()
            assert refused.value.status == 404
        assert watcher.cancel_job(jobs[0].job).state is JobState.CANCELLED
        thread.join()
        assert "cancelled" in str(failed[0])
        assert not list(data_dir.glob(f"tenants/*/jobs/{jobs[0].job}"))
        with pytest.raises(VendorError) as refused:
            watcher.watch_job(jobs[0].job, Silent())
        assert "cancelled" in str(refused.value)


SET = RecordSetSpec(model="tiny", cut=Cut(bottom=None), form=Form.IDS, segments=1, num_labels=2)


@pytest.mark.parametrize(
    ("records", "labels", "code"),
    [
        ([0, 1], [0], "wrong-shape"),
        ([0, 1], [0, 2], "label-out-of-range"),
        ([0, 2], [0, 1], "wrong-records"),
        ([], [], "wrong-shape"),
    ],
)
def test_hostile_labels_are_refused(
    process: VendorProcess, data_dir: Path, api_key: str, records: list[int], labels: list[int], code: str
) -> None:
    where = {"record_set": "a" * 32}
    tensors = {
        "records": torch.tensor(records, dtype=torch.uint8),
        "labels": torch.tensor(labels, dtype=torch.uint8),
    }
    with closing(HttpTransport(process.url, api_key)) as transport:
        transport.send(Frame(routes.RECORD_SET_PUT, where, SET))
        with pytest.raises(VendorError, match=code.replace("-", " ").capitalize()) as refused:
            transport.send(Frame(routes.LABELS_PUT, where, None, tensors))
        assert refused.value.status == 422
    with closing(HttpTransport(process.url, vendor.keys.create(data_dir, "other"))) as transport:
        with pytest.raises(VendorError) as refused:
            transport.send(Frame(routes.LABELS_PUT, where, None, tensors))
        assert refused.value.status == 404  # of another tenant's set not even that there is one


def test_what_contradicts_labels_at_the_vendor_is_refused_before_anything_leaves(
    process: VendorProcess, api_key: str, tmp_path: Path
) -> None:
    with closing(client_of(process, api_key, tmp_path / "home")) as client:
        with pytest.raises(ConfigError, match="labels_at"):
            client.finetune(TRAIN, objective="lm", eta=80, labels_at="vendor", progress=None)
        with pytest.warns(CutlayerWarning):
            run(client, tmp_path / "first", labels_at="vendor", label_epsilon=1.0, label_budget=1.5)
        with pytest.raises(BudgetError), pytest.warns(CutlayerWarning):
            run(client, tmp_path / "second", labels_at="vendor", label_epsilon=1.2, label_budget=1.5)


@pytest.mark.filterwarnings("ignore")
def test_an_audit_has_releases_to_attack_and_no_gradients(
    process: VendorProcess, tiny_model: Path, api_key: str, tmp_path: Path
) -> None:
    with closing(client_of(process, api_key, tmp_path / "home")) as client:
        result = run(client, tmp_path / "run", labels_at="vendor")
        archive = local_archive(client.home, str(tiny_model), result.spec.cut)
        evidence = Evidence.of(result.folder, Corpora(TRAIN, None, None), archive, home=client.home)
    assert result.ep_n > 0  # nearest neighbours, on what was released
    assert list(evidence.truths(ATTACKS["nearest-neighbour"]))
    assert not list(evidence.truths(ATTACKS["output-gradient"]))


@pytest.mark.filterwarnings("ignore")
def test_a_run_is_left_to_the_vendor_and_fetched_by_the_same_call(
    process: VendorProcess, api_key: str, tmp_path: Path
) -> None:
    settings: dict[str, Any] = {"eta": 80, "training": TRAINING_ALONE, "seed": 3, "labels_at": "vendor"}
    with closing(client_of(process, api_key, tmp_path / "home")) as client:
        waited = run(client, tmp_path / "waited", labels_at="vendor")
        begun = client.begin(TRAIN, out=tmp_path / "left", progress=None, **settings)
        assert isinstance(begun, Detached)
        assert client.watch_job(begun.job, Silent()).state is JobState.FINISHED
        fetched = client.begin(TRAIN, out=tmp_path / "left", progress=None, **settings)
    assert isinstance(fetched, FinetuneResult)
    assert fetched.folder == begun.folder == tmp_path / "left"
    assert fetched.adapter_sha256 == waited.adapter_sha256


def test_a_run_with_labels_here_cannot_be_left(process: VendorProcess, api_key: str, tmp_path: Path) -> None:
    with closing(client_of(process, api_key, tmp_path / "home")) as client:
        with pytest.raises(ConfigError, match="only where the vendor has its labels"):
            client.begin(TRAIN, out=tmp_path / "run", eta=80, progress=None)
        assert not client.jobs()
    assert not (tmp_path / "run").exists()
