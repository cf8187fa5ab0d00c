"""kill -9 of the vendor, the customer and both while a language model is tuned, or continues a text.

The reference is the same run left alone. What must be equal is the digest of the vendor's adapter and that of
the customer's own weights.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cutlayer import vendor
from cutlayer.core import Cut
from cutlayer.customer import Client, Sampling, Training
from cutlayer.wire import routes
from tests.promises.runs import corpus
from tests.service.process import VendorProcess
from tests.service.test_run_survives import Customers, survive_vendor
from tests.service.tiny import write_tiny_gpt2

POINTS = {
    "in an epoch": ("epoch 1", 4),
    "before the last evaluation": ("epoch 2", 5),
    "after publishing": ("test", 1),
}
MODES: dict[str, dict[str, Any]] = {
    "adapters": {"bottom": 1, "tail": 1, "language": {}},
    "frozen below": {"bottom": 1, "tail": 1, "train_bottom": "frozen", "language": {}},
    "nothing of the customer's": {"bottom": 0, "tail": 0, "language": {"max_grad_norm": 0.5}},
    "all weights, clipped and accumulated": {
        "bottom": 1, "tail": 0, "language": {"method": "full", "max_grad_norm": 0.5, "gradient_accumulation_steps": 2},
    },
}  # fmt: skip
FAST = {
    ("adapters", "vendor", "in an epoch"),
    ("frozen below", "both", "in an epoch"),
    ("nothing of the customer's", "customer", "before the last evaluation"),
    ("all weights, clipped and accumulated", "customer", "after publishing"),
}


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_gpt2(tmp_path_factory.mktemp("decoder") / "tiny")


@pytest.fixture
def data_dir(decoder: Path, tmp_path: Path) -> Path:
    vendor.init(tmp_path / "data", models=[str(decoder)], threads=1, max_bottom=2, max_tail=1)
    return tmp_path / "data"


@pytest.fixture(scope="module")
def customers() -> Iterator[Customers]:
    forks = Customers()
    yield forks
    forks.close()


@pytest.fixture(scope="module")
def references() -> dict[str, Any]:
    return {}


def combinations() -> list[Any]:
    every = [(mode, victim, point) for mode in MODES for victim in ("vendor", "customer", "both") for point in POINTS]
    return [pytest.param(*each, id=" - ".join(each), marks=() if each in FAST else pytest.mark.slow) for each in every]


@pytest.mark.parametrize(("mode", "victim", "point"), combinations())
def test_a_killed_run_ends_bit_identical_on_both_sides(
    mode: str,
    victim: str,
    point: str,
    customers: Customers,
    process: VendorProcess,
    api_key: str,
    tmp_path: Path,
    references: dict[str, Any],
) -> None:
    if mode not in references:
        references[mode] = customers.run(process, api_key, tmp_path / "undisturbed", MODES[mode] | {"die": None})
    pids = {"vendor": [process.pid], "customer": [0], "both": [process.pid, 0]}[victim]
    settings = MODES[mode] | {"die": [*POINTS[point], pids]}
    if victim == "vendor":
        found = survive_vendor(customers, process, api_key, tmp_path / "killed", settings)
    else:
        assert customers.run(process, api_key, tmp_path / "killed", settings) is None
        if victim == "both":
            process.buried()
            process.start()
        found = customers.run(process, api_key, tmp_path / "killed", MODES[mode] | {"die": None})
    assert found == references[mode]
    assert bool(found["own"]) == (mode != "nothing of the customer's")


@pytest.mark.parametrize("died", ["process", "session"])
def test_a_text_goes_on_unchanged_when_the_vendor_lost_it(
    died: str, process: VendorProcess, api_key: str, tmp_path: Path
) -> None:
    client = Client(process.url, api_key, home=tmp_path / "home", device="cpu")
    tuned = client.finetune(
        corpus(12, seed=1),
        objective="lm",
        eta=math.inf,
        training=Training(epochs=1, max_length=16, dev_share=0.2),
        cut=Cut(bottom=1, tail=1),
    )
    sampling = Sampling(max_new_tokens=12, seed=5)
    prompts = ["w3 w4", "w90 w7 w8 w9"]
    expected = client.generate(tuned.adapter_id, prompts, sampling=sampling)
    pieces: list[str] = []

    def interfere(number: int, piece: str) -> None:
        pieces.append(piece)
        if len(pieces) == 9:
            if died == "process":
                process.kill()
                process.start()
            else:
                last = list(client.ledger.frames())[-1]
                client.gate().send(routes.GENERATION_DELETE, {"generation": last.where["generation"]})

    found = client.generate(tuned.adapter_id, prompts, sampling=sampling, on_text=interfere)
    assert [each.text for each in found] == [each.text for each in expected]
    assert found[0].replays == 1
    assert found[0].round_trips == expected[0].round_trips
    assert expected[0].replays == 0
    client.close()
