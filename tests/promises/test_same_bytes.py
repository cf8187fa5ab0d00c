"""The same identity gives the same bytes, and is charged once: in another order, another job, another query.

A text that leaves twice with different noise is two looks at it. So it is not enough that the ledger
counts few draws: the bytes under an identity must be the same, and other bytes another identity.
"""

from __future__ import annotations

import math
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from cutlayer import vendor
from cutlayer.core import Place, PrivacyError, Rows
from cutlayer.customer import Client, FinetuneResult
from cutlayer.privacy import Release, Vault
from cutlayer.privacy.privatizers.vector import VectorPrivatizer
from cutlayer.wire import WireType, routes, unpack
from tests.promises.runs import TEST, TRAIN, Sent, corpus, customer, finetune
from tests.service.tiny import write_tiny_bert

NOISY_ROWS = {"bottom": 1, "mechanism": "vector", "place": Place.ACTIVATIONS}
SETTINGS: dict[str, dict[str, Any]] = {
    "ids": {},
    "cti": {"cti": True},
    "cti, class-free": {"cti_class_free": True},
    "noisy rows": {"mechanism": "vector"},
    "rows after a block": {"bottom": 1},
    "noisy rows after a block": NOISY_ROWS,
    "no noise": {"eta": math.inf, "bottom": 1},
}
DEV = corpus(10, seed=5)
TEXTS = {text for data in (TRAIN, DEV, TEST) for text in data.texts}


def in_another_order() -> Any:
    order = list(range(len(TRAIN)))
    random.Random(7).shuffle(order)
    return TRAIN.select(order)


def check_one_look(client: Client, *, draws: int) -> None:
    """One digest under each identity, so many draws of a training text, and each draw charged once."""
    digests, drawn, charged = defaultdict(set), defaultdict(set), Counter()
    for release in client.ledger.releases():
        digests[release.identity].add(release.digest)
        drawn[release.content].add(release.draw)
        charged[release.draw] += release.charged
    assert len(drawn) == len(TEXTS)
    assert {len(found) for found in digests.values()} == {1}, "an identity left with other bytes"
    assert max(len(found) for found in drawn.values()) == draws
    assert set(charged.values()) == {1}, "a draw was charged twice, or not at all"


@pytest.mark.parametrize("name", SETTINGS)
def test_jobs_and_queries_take_the_same_look(name: str, data_dir: Path, api_key: str, tmp_path: Path) -> None:
    with customer(data_dir, api_key, tmp_path / "home") as client:
        finetune(client, dev=DEV, **SETTINGS[name])
        again = finetune(client, train=in_another_order(), dev=DEV, **SETTINGS[name])
        client.predict(again.adapter_id, TRAIN)
        # under CTI noise depends on the label in training, which a query has not
        check_one_look(client, draws=2 if name == "cti" else 1)


def rows_of(result: FinetuneResult) -> Iterator[torch.Tensor]:
    """The rows of each text of a run's shards."""
    for frame in Sent.by(result).frames:
        if frame.route == routes.SHARD_PUT:
            payload = unpack(frame.tensors())
            assert isinstance(payload, Rows)
            yield from (payload.select([place]).packed.values for place in range(len(payload)))


@pytest.fixture
def other_last_bits(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From its call on the bottom computes as it would in other batches: the last bits of rows differ."""

    def change() -> None:
        noised = VectorPrivatizer.activations

        def in_another_batch(privatizer: VectorPrivatizer, release: Release, rows: Rows) -> Release:
            last_bits = rows.packed.with_values(rows.packed.values * (1 + 1e-6))
            return noised(privatizer, release, Rows(last_bits, rows.segment_lengths))

        monkeypatch.setattr(VectorPrivatizer, "activations", in_another_batch)

    return change


def test_noise_on_rows_is_one_look_in_every_precision(
    data_dir: Path, api_key: str, tmp_path: Path, other_last_bits: Callable[[], None]
) -> None:
    with customer(data_dir, api_key, tmp_path / "home") as client:
        first = finetune(client, dev=DEV, budget=6, **NOISY_ROWS)
        other_last_bits()
        second = finetune(client, train=in_another_order(), dev=DEV, budget=6, wire_type=WireType.FP32, **NOISY_ROWS)
        short, exact = ({row.bfloat16().float().numpy().tobytes() for row in rows_of(run)} for run in (first, second))
        assert short == exact
        check_one_look(client, draws=1)


def test_a_lost_vault_is_another_look(
    data_dir: Path,
    api_key: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    other_last_bits: Callable[[], None],
) -> None:
    """Rows that are made again may differ in their last bits, so they get other noise, and it is charged."""
    with customer(data_dir, api_key, tmp_path / "home") as client:
        finetune(client, dev=DEV, **NOISY_ROWS)
        monkeypatch.setattr(Vault, "get_many", lambda _, identities: [None] * len(identities))
        monkeypatch.setattr(Vault, "put_many", lambda _, bodies: dict(bodies))
        other_last_bits()
        with pytest.raises(PrivacyError, match="released before with other bytes"):
            finetune(client, dev=DEV, out=tmp_path / "refused", **NOISY_ROWS)
        finetune(client, dev=DEV, wire_type=WireType.FP32, **NOISY_ROWS)
        assert sum(release.charged for release in client.ledger.releases()) == 2 * len(TEXTS)


def test_another_model_gets_its_own_rows(data_dir: Path, api_key: str, tmp_path: Path) -> None:
    other = tmp_path / "other vendor"
    vendor.init(other, models=[str(write_tiny_bert(tmp_path / "other", seed=12))], threads=1, max_bottom=2)
    settings: dict[str, Any] = {"eta": math.inf, "bottom": 1, "dev": DEV}
    with customer(data_dir, api_key, tmp_path / "home") as client:
        first = {row.numpy().tobytes() for row in map(torch.Tensor.float, rows_of(finetune(client, **settings)))}
    with customer(other, vendor.keys.create(other, "clinic"), tmp_path / "home") as client:
        second = {row.numpy().tobytes() for row in map(torch.Tensor.float, rows_of(finetune(client, **settings)))}
    assert not first & second
