"""kill -9 of the vendor, the customer and both while a language model is tuned, or continues a text.

The reference is the same run left alone. What must be equal is the digest of the vendor's adapter and that of
the customer's own weights.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from cutlayer.core import Cut
from cutlayer.customer import Client, Sampling, Training
from cutlayer.wire import routes
from tests.promises.runs import corpus
from tests.quick import slow_but
from tests.service.kills import Kills, combinations
from tests.service.process import VendorProcess

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
FAST = {("all weights, clipped and accumulated", "both", "after publishing")}


@pytest.fixture
def data_dir(decoder_dir: Path) -> Path:
    return decoder_dir


@pytest.mark.parametrize(("mode", "victim", "point"), combinations(MODES, POINTS, fast=FAST))
def test_a_killed_run_ends_bit_identical_on_both_sides(mode: str, victim: str, point: str, kills: Kills) -> None:
    expected = kills.undisturbed(mode, MODES[mode])
    assert kills.survived(victim, POINTS[point], MODES[mode]) == expected
    assert bool(expected["own"]) == (mode != "nothing of the customer's")


@pytest.mark.parametrize("died", slow_but(["session"], ["process", "session"]))
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
