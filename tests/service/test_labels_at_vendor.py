"""Jobs that the vendor trains alone: the same weights as with labels at the customer, and what is refused.

What they are over `kill -9`, beside other tenants' and when they end is in `test_alone`.
"""

from __future__ import annotations

import json
import math
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch

import cutlayer
from cutlayer import vendor
from cutlayer.attacks import ATTACKS
from cutlayer.core import BudgetError, ConfigError, Cut, CutlayerWarning, VendorError
from cutlayer.customer import Client, Detached, FinetuneResult, Reconstruction, Silent
from cutlayer.customer.corpora import Corpora
from cutlayer.customer.evidence import Evidence
from cutlayer.customer.handout import local_archive
from cutlayer.customer.settings import Lora, Prefix
from cutlayer.data import Dataset
from cutlayer.privacy import Words
from cutlayer.wire import Form, Frame, routes
from cutlayer.wire.messages import JobState, RecordSetSpec
from cutlayer.wire.transports import HttpTransport
from tests.promises.runs import TRAINING, corpus
from tests.service.process import VendorProcess

TRAIN = corpus(60, seed=5, canaries=False)
TRAINING_ALONE = TRAINING.model_copy(update={"epochs": 2, "patience": 2, "batch_size": 8})
slow = pytest.mark.slow


def run(client: Client, out: Path, *, train: Dataset = TRAIN, **settings: Any) -> Any:
    chosen: dict[str, Any] = {"eta": 80, "training": TRAINING_ALONE, "seed": 3} | settings
    return client.finetune(train, out=out, progress=None, **chosen)


def client_of(process: VendorProcess, key: str, home: Path) -> Client:
    return Client(process.url, key, home=home)


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({"label_epsilon": 1.0}, id="drawn labels"),
        pytest.param({}, id="lora", marks=slow),
        pytest.param({"tuning": Prefix()}, id="prefix", marks=slow),
        pytest.param(
            {
                "training": TRAINING_ALONE.model_copy(
                    update={"epochs": 4, "max_grad_norm": 0.5, "gradient_accumulation_steps": 2, "patience": 1}
                ),
                "tuning": Lora(r=2),
            },
            id="clipped, accumulated, stopped early",
            marks=slow,
        ),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_a_run_left_to_the_vendor_ends_with_the_weights_of_labels_at_the_customer(
    process: VendorProcess, api_key: str, tmp_path: Path, settings: dict[str, Any]
) -> None:
    chosen: dict[str, Any] = {"eta": 80, "training": TRAINING_ALONE, "seed": 3, "progress": None} | settings
    with closing(client_of(process, api_key, tmp_path / "home")) as client:
        here = client.finetune(TRAIN, out=tmp_path / "here", **chosen)
        begun = client.begin(TRAIN, out=tmp_path / "there", labels_at="vendor", **chosen)
        assert isinstance(begun, Detached)
        assert client.watch_job(begun.job, Silent()).state is JobState.FINISHED
        there = client.begin(TRAIN, out=tmp_path / "there", labels_at="vendor", **chosen)
    assert isinstance(there, FinetuneResult)
    assert there.folder == begun.folder == tmp_path / "there"
    assert there.adapter_sha256 == here.adapter_sha256
    assert there.dev == here.dev
    assert (there.steps, there.best_epoch) == (here.steps, here.best_epoch)
    assert there.train_loss == pytest.approx(here.train_loss, abs=1e-12)
    if "label_epsilon" not in settings:
        assert there.label_recovery == 1
        assert math.isinf(there.label_guarantee.budget)


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


HOSTILE = [
    ([0, 1], [0], "Wrong shape"),
    ([0, 1], [0, 2], "Label out of range"),
    ([0, 2], [0, 1], "Wrong records"),
    ([], [], "Wrong shape"),
]


def test_hostile_labels_are_refused(process: VendorProcess, data_dir: Path, api_key: str) -> None:
    where: dict[str, str | int] = {"record_set": "a" * 32}

    def frame(records: list[int], labels: list[int]) -> Frame:
        told = {"records": records, "labels": labels}
        tensors = {role: torch.tensor(numbers, dtype=torch.uint8) for role, numbers in told.items()}
        return Frame(routes.LABELS_PUT, where, None, tensors)

    with closing(HttpTransport(process.url, api_key)) as transport:
        transport.send(Frame(routes.RECORD_SET_PUT, where, SET))
        for records, labels, said in HOSTILE:
            with pytest.raises(VendorError, match=said) as refused:
                transport.send(frame(records, labels))
            assert refused.value.status == 422
    with closing(HttpTransport(process.url, vendor.keys.create(data_dir, "other"))) as transport:
        with pytest.raises(VendorError) as refused:
            transport.send(frame([0, 1], [0, 1]))
        assert refused.value.status == 404  # of another tenant's set not even that there is one


@slow
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


def drawn_words(model: Path, folder: Path) -> dict[str, Any]:
    """Settings of a run whose words are drawn, with public ones before each text."""
    public, tags = folder / "words.tsv", ("NOUN", "VERB", "PRON", "ADP")
    public.write_text("".join(f"{word}\t{tag}\t1\n" for word in ("house", "tree", "river", "bird") for tag in tags))
    privacy = Words(eta=6, space=str(model), vocabulary=public)
    told = Reconstruction(plain_tokens=3, reconstruction_weight=0.001)
    return {"eta": None, "privacy": privacy, "reconstruction": told, "tuning": Lora(pooling="mean")}


@slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("words", [False, True], ids=["tokens", "words"])
def test_an_audit_has_releases_to_attack_and_no_gradients(
    process: VendorProcess, tiny_model: Path, api_key: str, tmp_path: Path, words: bool
) -> None:
    with closing(client_of(process, api_key, tmp_path / "home")) as client:
        settings = drawn_words(tiny_model, tmp_path) if words else {}
        result = run(client, tmp_path / "run", labels_at="vendor", **settings)
        archive = local_archive(client.home, str(tiny_model), result.spec.cut)
        evidence = Evidence.of(result.folder, Corpora(TRAIN, None, None), archive, home=client.home)
    assert result.ep_n > 0  # nearest neighbours, on what was released
    assert list(evidence.truths(ATTACKS["nearest-neighbour"]))
    assert not list(evidence.truths(ATTACKS["output-gradient"]))
    public = tmp_path / "public.jsonl"
    public.write_text("".join(json.dumps({"text": text}) + "\n" for (text,) in corpus(60, seed=9).texts))
    told = cutlayer.audit(
        TRAIN,
        transcript=result.folder,
        home=client.home.path,
        model=str(tiny_model),
        public=str(public),
        only=("nearest-neighbour", *(("known-pairs",) if words else ())),
        progress=None,
    )
    assert told.report.verdict[0].startswith("The vendor has the labels")
    measured = {each.name for each in told.report.attacks if each.status == "measured"}
    assert measured == {"nearest-neighbour", *(("known-pairs",) if words else ())}


def test_a_run_with_labels_here_cannot_be_left(process: VendorProcess, api_key: str, tmp_path: Path) -> None:
    with closing(client_of(process, api_key, tmp_path / "home")) as client:
        with pytest.raises(ConfigError, match="only where the vendor has its labels"):
            client.begin(TRAIN, out=tmp_path / "run", eta=80, progress=None)
        assert not client.jobs()
    assert not (tmp_path / "run").exists()
