"""The baseline is the split run, unsplit: with the same seed and no privacy both give the same losses."""

from __future__ import annotations

import json
import math
from contextlib import closing

import pytest
import torch

from cutlayer import vendor
from cutlayer.core import ConfigError
from cutlayer.customer import Client, Lora, Objective, Silent, Training
from cutlayer.customer.defaults import settle_training
from cutlayer.recipes.reference.classifier import train_centralised
from cutlayer.recipes.reference.fit import ReferenceRun
from cutlayer.wire.transports import LocalTransport
from tests.promises.runs import clear_order, give_secret
from tests.quick import slow_but
from tests.recipes import worlds
from tests.service.tiny import write_tiny_bert


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return write_tiny_bert(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture
def client(tmp_path, tiny):
    vendor.init(tmp_path / "vendor", models=[f"tiny={tiny}"], threads=1)
    key = vendor.keys.create(tmp_path / "vendor", "clinic")
    app = vendor.create_app(vendor.VendorSettings.load(tmp_path / "vendor"))
    with closing(Client(home=give_secret(tmp_path / "home"), transport=LocalTransport(app, key))) as client:
        yield client


TRAIN, DEV, TEST = (worlds.dataset(n, seed=n) for n in (100, 30, 40))


LORA = Lora()


def reference(model, training, *, seed=0, order=0, tuning=LORA):
    settled = settle_training(training, Objective.CLASSIFICATION, tuning)
    return ReferenceRun(TRAIN, DEV, TEST, str(model), settled, tuning, seed, clear_order(order))


@pytest.mark.parametrize("dropout", slow_but([True], [False, True]))
def test_centralised_and_split_training_without_privacy_are_the_same_run(tmp_path, client, tiny, dropout):
    training = Training(epochs=4, patience=4, batch_size=8, learning_rate=3e-2, dropout=dropout)
    tuning = Lora(target_modules="all-linear", lora_dropout=0.1)
    whole = train_centralised(reference(tiny, training, seed=3, order=3, tuning=tuning), progress=Silent())
    split = client.finetune(
        TRAIN,
        dev=DEV,
        test=TEST,
        eta=math.inf,
        tuning=tuning,
        training=training,
        seed=3,
        out=tmp_path / "run",
    )
    lines = (tmp_path / "run" / "losses.jsonl").read_text().splitlines()
    losses = [entry["loss"] for entry in map(json.loads, lines)]
    assert len(losses) == len(whole.losses) == 4 * math.ceil(len(TRAIN) / 8)
    assert losses == pytest.approx(whole.losses, rel=1e-4)
    assert split.dev == pytest.approx(whole.dev)
    assert split.ua == whole.accuracy.value
    # and it is not the run in which nothing is trained
    still = training.model_copy(update={"learning_rate": 1e-12})
    untrained = train_centralised(reference(tiny, still, seed=3, order=3, tuning=tuning), progress=Silent())
    assert untrained.losses[0] == pytest.approx(whole.losses[0])
    assert untrained.losses != pytest.approx(whole.losses, rel=1e-2)


@pytest.mark.parametrize(
    "device",
    [
        "cpu",
        pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")),
    ],
)
def test_it_runs_where_it_is_told_to(tiny, device):
    training = Training(epochs=2, batch_size=8, dropout=False)
    first, second = (
        train_centralised(reference(tiny, training), progress=Silent(), device=each) for each in ("cpu", device)
    )
    assert second.losses == pytest.approx(first.losses, rel=1e-3)
    with pytest.raises(ConfigError, match="device"):
        train_centralised(reference("", training), progress=Silent(), device="tpu")


def test_another_seed_is_another_run(tiny):
    training = Training(epochs=1, batch_size=8)
    first, second = (train_centralised(reference(tiny, training, seed=seed), progress=Silent()) for seed in (0, 1))
    assert first.losses != second.losses


def test_it_stops_when_dev_no_longer_rises_and_keeps_the_best_epoch(tiny):
    # a rate this high breaks the model after the first epoch or two
    training = Training(epochs=8, patience=2, batch_size=8, learning_rate=1.0)
    run = train_centralised(reference(tiny, training), progress=Silent())
    best = run.dev.index(max(run.dev))
    assert len(run.dev) == min(8, best + 1 + 2)
