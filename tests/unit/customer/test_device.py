"""`device`: the same runs with the bottom on the CPU and, where there is one, on a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cutlayer.customer import Client, FinetuneResult, TrainBottom
from cutlayer.privacy import Vector
from cutlayer.vendor import VendorSettings, create_app
from cutlayer.vendor.denoiser_settings import DenoisedReleases, DenoiserTraining
from cutlayer.vendor.denoiser_training import train_denoisers
from cutlayer.wire import routes
from cutlayer.wire.transports import LocalTransport
from tests.promises.runs import LABELS, TEST, Sent, finetune
from tests.service.fixtures import api_key, blank_vendor, data_dir, tiny_model  # noqa: F401 - fixtures, used by name

DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")),
]
SETTINGS: dict[str, dict[str, Any]] = {
    "frozen, ids": {},
    "frozen, rows": {"bottom": 1},
    "frozen, noisy rows": {"mechanism": "vector"},
    "resample": {"train_bottom": TrainBottom.RESAMPLE},
    "cached": {"train_bottom": TrainBottom.CACHED, "bottom": 1},
}


@contextmanager
def on(device: str, data_dir: Path, api_key: str, home: Path) -> Iterator[Client]:  # noqa: F811
    """A customer whose bottoms are computed there, of a vendor in this process."""
    transport = LocalTransport(create_app(VendorSettings.load(data_dir)), api_key)
    with closing(Client(transport=transport, home=home, device=device)) as client:
        assert client.device.type == device
        yield client


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS.keys())
@pytest.mark.parametrize("device", DEVICES)
def test_a_run_and_its_predictions(
    device: str,
    settings: dict[str, Any],
    data_dir: Path,  # noqa: F811
    api_key: str,  # noqa: F811
    tmp_path: Path,
) -> None:
    with on(device, data_dir, api_key, tmp_path / "home") as client:
        result = finetune(client, **settings)
        predictions = client.predict(result.adapter_id, TEST.texts)
    assert 0 <= result.ua <= 1
    assert (result.ep is None) == ("bottom" in settings), result.ep_note
    assert {each.label for each in predictions} <= set(LABELS)
    # the same draws, and the bottom of the best epoch again: what was measured on test is what is predicted
    right = sum(each.label == label for each, label in zip(predictions, TEST.labels or (), strict=True))
    assert right / len(TEST) == result.ua


@pytest.mark.parametrize("device", DEVICES)
def test_denoised_embeddings(
    device: str,
    data_dir: Path,  # noqa: F811
    api_key: str,  # noqa: F811
    tmp_path: Path,
) -> None:
    """The denoiser is computed there, of rows that were looked up here."""
    public = [(f"w{number} w{number + 1} w{number + 2}",) for number in range(40)]
    releases, training = DenoisedReleases(mechanism="vector", clip=True), DenoiserTraining(steps=3, batch_size=4)
    train_denoisers(VendorSettings.load(data_dir), "tiny", [("public", public)], releases, training)
    found = []
    for where in ("cpu", device):
        with on(where, data_dir, api_key, tmp_path / "home") as client:
            found.append(client.embed(TEST, privacy=Vector(eta=20, clip=True), progress=None))
    assert found[1].denoised_for is not None
    assert np.abs(found[0].values - found[1].values).max() < 1e-4


@pytest.mark.parametrize("device", DEVICES)
def test_a_release_of_ids_is_the_cpus_bit_for_bit(
    device: str,
    data_dir: Path,  # noqa: F811
    api_key: str,  # noqa: F811
    tmp_path: Path,
) -> None:
    def shards(result: FinetuneResult) -> list[bytes]:
        return [frame.body for frame in Sent.by(result).frames if frame.route is routes.SHARD_PUT]

    released = []
    for where in ("cpu", device):
        with on(where, data_dir, api_key, tmp_path / f"home-{len(released)}") as client:
            released.append(shards(finetune(client, unsafe_noise_seed=9)))
    assert released[0]
    assert released[0] == released[1]
