"""Small fine-tuning runs whose every byte can be looked at."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from cutlayer import vendor
from cutlayer.customer import Client, FinetuneResult, Training
from cutlayer.customer.home import Home
from cutlayer.customer.order import Order
from cutlayer.data import Dataset
from cutlayer.privacy import CustomerSecret, NoPrivacy
from cutlayer.vendor import VendorSettings, create_app
from cutlayer.wire.recording import Direction, RecordedFrame, read_recording
from cutlayer.wire.transports import LocalTransport
from tests.settings import specs

LABELS = ("hepatology-ward", "oncology-ward", "cardiology-ward")
CANARIES = ("w250", "w251", "w252")
"""Words whose tokens the tests strike from the candidate list: no draw can return them."""


def corpus(n: int, *, seed: int, canaries: bool = True) -> Dataset:
    """Texts of the tiny vocabulary; in every third the canaries stand in a row."""
    rng = random.Random(seed)
    texts, labels = [], []
    for number in range(n):
        words = [f"w{rng.randrange(240)}" for _ in range(rng.randint(2, 12))]
        if canaries and number % 3 == 0:
            at = rng.randrange(len(words))
            words[at:at] = CANARIES
        texts.append((" ".join(words),))
        labels.append(LABELS[rng.randrange(len(LABELS))])
    return Dataset(tuple(texts), tuple(labels))


SECRET = CustomerSecret(bytes(range(32)))


def give_secret(home: Path) -> Path:
    """A customer's folder whose secret is always the same one: runs of two folders then take their texts alike."""
    if not (home / "secret").exists():
        assert Home(home).ledger.is_empty()
        (home / "secret").touch(mode=0o600)
        (home / "secret").write_bytes(bytes(range(32)))
    return home


def clear_order(seed: int) -> Order:
    """The order of such a folder's runs without privacy."""
    return Order(SECRET, f"run/{seed}/{NoPrivacy().identity}")


@contextmanager
def customer(data_dir: Path, api_key: str, home: Path) -> Iterator[Client]:
    """A customer of a vendor in this process."""
    transport = LocalTransport(create_app(VendorSettings.load(data_dir)), api_key)
    client = Client(transport=transport, home=give_secret(home), device="cpu")
    try:
        yield client
    finally:
        client.close()


@contextmanager
def served(source: str, folder: Path, **offer: Any) -> Iterator[Client]:
    """A customer of a vendor that is made for one model, both in a folder.

    Args:
        source: The model.
        folder: Of both.
        **offer: Further settings of `vendor.init`.
    """
    vendor.init(folder / "vendor", models=[source], threads=torch.get_num_threads(), **offer)
    key = vendor.keys.create(folder / "vendor", "clinic")
    with customer(folder / "vendor", key, folder / "home") as client:
        yield client


SEED = 3
TRAINING = Training(epochs=2, batch_size=8, learning_rate=2e-3, save_steps=3, dev_share=0.2)
TRAIN, TEST = corpus(40, seed=1), corpus(10, seed=2)
LANGUAGE = {"epochs": 2, "max_length": 16, "learning_rate": 2e-3, "save_steps": 3, "dev_share": 0.2}
"""Training of a language model, by name, as `tests.settings.specs` takes it."""


def finetune(
    client: Client,
    *,
    eta: float = 6.0,
    train: Dataset | Path | None = None,
    test: Dataset | None = None,
    **settings: object,
) -> FinetuneResult:
    """A run over 40 texts, tested on 10."""
    return client.finetune(
        TRAIN if train is None else train,
        test=TEST if test is None else test,
        training=TRAINING,
        seed=SEED,
        **specs({"eta": eta, **settings}),
    )


@dataclass(frozen=True)
class Sent:
    """What a run sent, and what it was answered."""

    frames: tuple[RecordedFrame, ...]
    answers: tuple[RecordedFrame, ...]

    @classmethod
    def by(cls, result: FinetuneResult) -> Sent:
        """The frames of a run, in order."""
        recorded = list(read_recording(result.folder / "transcript"))
        up, down = (tuple(frame for frame in recorded if frame.direction is way) for way in Direction)
        return cls(up, down)
