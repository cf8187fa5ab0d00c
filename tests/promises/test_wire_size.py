"""What a release costs on the wire, request lines and headers included, and what gradients do.

A release's size depends on the texts' lengths alone, so a run that stops before its first step shows it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from cutlayer import vendor
from cutlayer.core import Stopped
from cutlayer.customer import Client
from cutlayer.customer.run import RunState
from cutlayer.data import Dataset, read_dataset
from cutlayer.privacy import TextToText, Vector
from cutlayer.wire import Form, routes
from cutlayer.wire.recording import Direction, read_recording
from cutlayer.wire.transports import RecordingTransport
from tests.promises.runs import SEED, TRAIN, TRAINING, Sent, corpus, customer
from tests.settings import specs

PHRASES = 2000
"""Enough to hide the heads of the frames; more hide them better."""
ROWS_PHRASES = 100
EMBEDDED = 10_000


class StopOnceReleased:
    """Progress that stops a run before it trains."""

    def update(self, stage: str, done: int, total: int, note: str = "") -> None:
        if stage == "privatize and release dev" and done == total:
            raise KeyboardInterrupt


@dataclass(frozen=True)
class Sizes:
    """What was released, and what it took.

    Attributes:
        uplink: Bytes sent for it, as a result's `uplink_bytes["release"]`.
        bodies: Those of them that are no heads of requests.
        tokens: As a result's `tokens_released`.
        numbers: Ids, or elements of rows, that travelled.
    """

    uplink: int
    bodies: int
    tokens: int
    numbers: int


Measure = Callable[..., Sizes]


@pytest.fixture(scope="module")
def phrases(public_data: Path) -> Dataset:
    """Short texts: training phrases of SST-2, 11 tokens each."""
    data = read_dataset(public_data / "sst2" / "train.jsonl.gz", text_column="text", label_column="label")
    return data.select(range(0, len(data), len(data) // PHRASES)[:PHRASES])


@pytest.fixture(scope="module")
def starter_vendor(starter_installed: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("vendor") / "data"
    vendor.init(folder, models=["starter"], max_bottom=1)
    return folder


@pytest.fixture
def measure(starter_vendor: Path, tmp_path: Path) -> Measure:
    """Releases texts at eta 80 and looks at the ledger and the transcript."""

    def run(data: Dataset, **settings: Any) -> Sizes:
        key, out = vendor.keys.create(starter_vendor, "clinic"), tmp_path / "run"
        with customer(starter_vendor, key, tmp_path / "home") as client:
            with pytest.raises(Stopped):
                client.finetune(data, seed=1, out=out, progress=StopOnceReleased(), **specs({"eta": 80, **settings}))
            spent = client.ledger.spent(RunState.model_validate_json((out / "run.json").read_bytes()).run)
        recorded = [frame for frame in read_recording(out / "transcript") if frame.direction is Direction.UP]
        shards = [frame for frame in recorded if frame.route.name == routes.SHARD_PUT.name]
        tensors = [frame.tensors() for frame in shards]
        return Sizes(
            uplink=spent.uplink["release"],
            bodies=sum(frame.size for frame in shards),
            tokens=spent.tokens,
            numbers=sum(each[role].numel() for each in tensors for role in ("ids", "rows") if role in each),
        )

    return run


@pytest.mark.slow
def test_a_token_id_takes_little_more_than_its_two_bytes(phrases: Dataset, measure: Measure) -> None:
    sizes = measure(phrases)
    assert sizes.tokens == sizes.numbers > 10 * PHRASES
    assert 2 * sizes.tokens < sizes.bodies < sizes.uplink, "heads are not counted"
    assert sizes.uplink / sizes.tokens <= 2.2


def test_a_boundary_row_takes_little_more_than_two_bytes_a_dimension(phrases: Dataset, measure: Measure) -> None:
    sizes = measure(phrases.select(range(ROWS_PHRASES)), bottom=1)
    assert 2 * sizes.numbers < sizes.bodies < sizes.uplink, "heads are not counted"
    assert sizes.uplink / sizes.numbers <= 2.05


def test_a_gradient_takes_eight_bytes_a_text_and_epoch(data_dir: Path, api_key: str, tmp_path: Path) -> None:
    """Two labels in fp32. What else a frame holds, its head included, is no gradient's."""
    data = Dataset(TRAIN.texts, tuple("ab"[number % 2] for number in range(len(TRAIN))))
    training = TRAINING.model_copy(update={"epochs": 3, "patience": 3})  # too patient to stop early
    with customer(data_dir, api_key, tmp_path / "home") as client:
        result = client.finetune(data, eta=80, seed=SEED, training=training)
    gradients = [tensors["gradient"] for frame in Sent.by(result).frames if "gradient" in (tensors := frame.tensors())]
    assert (result.epochs, result.n_train) == (3, 32)
    assert {(gradient.dtype, gradient.shape[1]) for gradient in gradients} == {(torch.float32, 2)}
    assert sum(map(len, gradients)) == result.n_train * result.epochs
    assert result.uplink_bytes["gradient"] == 8 * result.n_train * result.epochs


@pytest.mark.slow
@pytest.mark.parametrize("form", Form)
def test_embeddings_of_many_texts_take_as_little(form: Form, data_dir: Path, api_key: str, tmp_path: Path) -> None:
    """In one call; the same texts again take nothing."""
    texts = Dataset(
        tuple(
            (f"w{number // 200} w{number % 200} {text}",)
            for number, (text,) in enumerate(corpus(EMBEDDED, seed=7).texts)
        )
    )
    privacy = TextToText(eta=6) if form is Form.IDS else Vector(eta=6)
    with (
        customer(data_dir, api_key, tmp_path / "home") as client,
        closing(RecordingTransport(client.transport, tmp_path / "asked")) as recorder,
    ):
        asking = Client(transport=recorder, home=tmp_path / "home", device="cpu")
        first, again = (asking.embed(texts, privacy=privacy, denoiser="none", progress=None) for _ in range(2))
    assert (first.sent, again.sent, again.uplink_bytes) == (EMBEDDED, 0, 0)
    up = [frame for frame in read_recording(tmp_path / "asked") if frame.direction is Direction.UP]
    tensors = [frame.tensors() for frame in up if frame.route is routes.EMBEDDINGS]
    numbers = sum(each[form.value].numel() for each in tensors)
    assert numbers == (first.tokens if form is Form.IDS else 32 * (first.tokens + 2 * EMBEDDED))
    assert 2 * numbers < sum(frame.size for frame in up if frame.route is routes.EMBEDDINGS) < first.uplink_bytes
    assert first.uplink_bytes / numbers <= (2.2 if form is Form.IDS else 2.05)
