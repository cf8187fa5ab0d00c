"""What must decide nothing of what leaves: a file's order, true labels under reports, what the vendor is told."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from scipy import stats

from cutlayer.customer import Client, TrainBottom
from cutlayer.customer.derived import dropout_seed
from cutlayer.customer.order import Order
from cutlayer.customer.prepare import LabelledTexts
from cutlayer.customer.trainer import Trainer
from cutlayer.data import Dataset
from cutlayer.privacy import CustomerSecret, LabelResponse
from cutlayer.wire import routes, unpack
from cutlayer.wire.recording import Direction, read_recording
from cutlayer.wire.transports import RecordingTransport
from tests.promises.runs import LABELS, SEED, TEST, TRAIN, TRAINING, Sent, customer, finetune
from tests.settings import specs

FORMS: dict[str, dict[str, Any]] = {
    "ids": {},
    "trained block": {"bottom": 1, "train_bottom": TrainBottom.CACHED},
    "redrawn": {"train_bottom": TrainBottom.RESAMPLE},
}


@pytest.fixture(autouse=True)
def named_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs have random names; these have one, so that their frames can be compared."""
    monkeypatch.setattr(secrets, "token_hex", lambda size=32: "ab" * size)


@contextmanager
def fresh(data_dir: Path, api_key: str, folder: Path) -> Iterator[Client]:
    """A customer whose secret is always the same, of a vendor who has not met it."""
    with customer(data_dir, api_key, folder) as client:
        yield client


def sent(data_dir: Path, api_key: str, folder: Path, train: Dataset, **settings: Any) -> list[tuple[str, str, bytes]]:
    """What a run sends: routes, places and bodies, in order. The job is deleted, so that the next may take its name."""
    with fresh(data_dir, api_key, folder) as client:
        given = {"training": TRAINING, "test": TEST, "eta": 6.0, "seed": SEED} | settings
        result = client.finetune(train, **specs(given))
        frames = [(each.route.name, str(sorted(each.where.items())), each.body) for each in Sent.by(result).frames]
        client.delete_adapter(result.adapter_id)
    return frames


def with_labels(dataset: Dataset, labels: list[str]) -> Dataset:
    return replace(dataset, labels=tuple(labels))


# ---------------------------------------------------------------- the file's order


@pytest.mark.parametrize("form", FORMS)
def test_rows_in_another_order_are_the_same_run_to_the_bit(
    form: str, data_dir: Path, api_key: str, tmp_path: Path
) -> None:
    """A file that was sorted by label, by date or by name sends what a shuffled one does."""
    by_label = sorted(range(len(TRAIN)), key=lambda row: (TRAIN.labels or ())[row])
    runs = [
        sent(data_dir, api_key, tmp_path / str(number), TRAIN.select(rows), test=TEST.select(tests), **FORMS[form])
        for number, (rows, tests) in enumerate(
            ((range(len(TRAIN)), range(len(TEST))), (by_label, range(len(TEST))[::-1]))
        )
    ]
    assert runs[0] == runs[1]


def test_record_numbers_do_not_follow_the_file(data_dir: Path, api_key: str, tmp_path: Path) -> None:
    """Kendall's tau of places in the file and of records, for files of one order and secrets of their own."""
    correlations = []
    for number in range(6):
        texts = Dataset(tuple((f"w{place}",) for place in range(60)), tuple(LABELS[place // 20] for place in range(60)))
        home = tmp_path / str(number)
        home.mkdir()
        with customer(data_dir, api_key, home / "home") as client:
            client.home.__dict__["secret"] = CustomerSecret.unsafe(number, names=client.home.secret)
            result = client.finetune(
                texts,
                dev=TEST,
                eta=float("inf"),
                seed=3,
                training=TRAINING.model_copy(update={"epochs": 1}),
                out=home / "run",
            )
            (first, *_) = (
                unpack(frame.tensors()) for frame in Sent.by(result).frames if frame.route is routes.SHARD_PUT
            )
            client.delete_adapter(result.adapter_id)
        places = first.segments[0].values - 31  # type: ignore[union-attr]  # the tiny tokenizer numbers `w0` as 31
        correlations.append(stats.kendalltau(places.numpy(), range(60)).statistic)
    # of random orders tau has mean 0 and a deviation of about 0.088 each
    assert abs(sum(correlations) / 6) < 5 * 0.088 / 6**0.5
    assert len({round(each, 6) for each in correlations}) == 6


def test_predictions_are_asked_for_in_an_order_of_their_own(data_dir: Path, api_key: str, tmp_path: Path) -> None:
    with fresh(data_dir, api_key, tmp_path / "home") as client:
        adapter = finetune(client).adapter_id
        asked = []
        for texts in (list(TEST.texts), list(TEST.texts)[::-1]):
            recorder = RecordingTransport(client.transport, tmp_path / f"asked-{len(asked)}")
            asking = Client(transport=recorder, home=tmp_path / "home", device="cpu")
            answers = asking.predict(adapter, texts)
            recorder.close()
            frames = read_recording(tmp_path / f"asked-{len(asked)}")
            bodies = [
                each.body for each in frames if each.direction is Direction.UP and each.route is routes.ADAPTER_INFER
            ]
            asked.append((bodies, dict(zip(texts, answers, strict=True))))
        assert asked[0] == asked[1], "the same texts in two orders: the same frames, and each its own answer"


@pytest.mark.parametrize("fault", ["file order", "the seed that the vendor is told"])
def test_an_order_that_tells_is_caught(
    fault: str, data_dir: Path, api_key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted: rows as they come, or sorted by what the vendor could compute."""
    if fault == "file order":
        monkeypatch.setattr(Order, "of", lambda order, texts: list(range(len(texts))))
        with pytest.raises(AssertionError):
            test_rows_in_another_order_are_the_same_run_to_the_bit("ids", data_dir, api_key, tmp_path)
        return
    told = CustomerSecret.unsafe(3)
    honest = Order.__init__
    monkeypatch.setattr(Order, "__init__", lambda order, secret, purpose: honest(order, told, purpose))
    with pytest.raises(AssertionError):
        test_the_order_of_a_run_needs_the_secret(data_dir, api_key, tmp_path)


def test_the_order_of_a_run_needs_the_secret(data_dir: Path, api_key: str, tmp_path: Path) -> None:
    """Two customers with the same data, settings and seed: the vendor cannot tell the one's order from the other's."""
    orders = []
    for number in range(2):
        with customer(data_dir, api_key, tmp_path / f"of-{number}") as client:
            client.home.__dict__["secret"] = CustomerSecret.unsafe(100 + number, names=client.home.secret)
            result = finetune(client, eta=float("inf"))
            orders.append(
                [each.body for each in Sent.by(result).frames if each.route in (routes.SHARD_PUT, routes.STEP)]
            )
            client.delete_adapter(result.adapter_id)
    assert orders[0][0] != orders[1][0], "records"
    assert orders[0][1:] != orders[1][1:], "batches"


# ---------------------------------------------------------------- true labels


def reports_by_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each record's report whatever its label: so that two runs with other true labels have equal reports."""
    monkeypatch.setattr(LabelResponse, "_respond", lambda response, identity, label, classes: identity[0] % classes)


@pytest.mark.parametrize("form", FORMS)
def test_equal_reports_of_other_labels_send_equal_bytes(
    form: str, data_dir: Path, api_key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In training, in the choice of the best epoch, and in when to stop: what is sent follows from reports alone."""
    reports_by_text(monkeypatch)
    assert twice(data_dir, api_key, tmp_path, **FORMS[form])


def twice(data_dir: Path, api_key: str, folder: Path, **settings: Any) -> bool:
    """Whether two runs with other true labels send the same."""
    labels = list(TRAIN.labels or ())
    others = [LABELS[(LABELS.index(label) + 1) % 3] for label in labels]
    runs = [
        sent(
            data_dir, api_key, folder / str(number), with_labels(TRAIN, given), test=None,
            label_epsilon=1.0,
            **settings,
        )
        for number, given in enumerate((labels, others))
    ]  # fmt: skip
    return runs[0] == runs[1]


FAULTS = {
    "best epoch": ("stopping", lambda texts: texts.dev),
    "losses": ("_reported", lambda texts: (texts.rows.labels, texts.rows.dev_labels)),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_true_labels_that_decide_something_are_caught(
    fault: str, data_dir: Path, api_key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reports_by_text(monkeypatch)
    # a tiny model learns nothing from reports, so that its epochs would be equally good by any labels
    monkeypatch.setattr(Trainer, "_dev_value", lambda trainer, stage: good_by_labels(trainer))
    assert twice(data_dir, api_key, tmp_path / "honest")
    name, planted = FAULTS[fault]
    monkeypatch.setattr(LabelledTexts, name, property(planted))
    assert not twice(data_dir, api_key, tmp_path / "planted")


def good_by_labels(trainer: Trainer) -> float:
    """A dev value of each epoch that follows from the labels that it is measured by."""
    labels = trainer.dev.labels
    assert isinstance(labels, torch.Tensor)
    return float((labels[len(trainer.run.state.dev) :] == 0).double().mean())


# ---------------------------------------------------------------- the seed that the vendor is told


def test_dropout_of_the_customer_needs_the_secret() -> None:
    """What `dropout_seed` gives is derived here again from the secret's bytes, and differs between customers."""
    for key in (bytes(range(32)), bytes(32)):
        digest = hashlib.blake2b(b"dropout/3", key=key, digest_size=32).digest()
        assert dropout_seed(CustomerSecret(key), 3) == int.from_bytes(digest[:8], "little") % 2**63
