"""Jobs that the vendor trains alone: the same weights as with labels at the customer, over `kill -9` too."""

from __future__ import annotations

import json
import math
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from cutlayer import vendor
from cutlayer.core import BudgetError, ConfigError, VendorError
from cutlayer.customer import Client
from cutlayer.customer.settings import Lora, Prefix
from cutlayer.data import Dataset
from cutlayer.wire import Frame, routes
from cutlayer.wire.messages import JobProgress, JobState
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
