"""kill -9 of the vendor, the customer and both: the run goes on and ends with the same bits.

The reference is the same run left alone. Noise comes from a seed here, so that two customers draw
the same; what must be equal is the digest of the adapter's weights, and what the ledger charged.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.service.process import VendorProcess

POINTS = {
    "while releasing": ("privatize and release dev", 1),
    "in an epoch": ("epoch 1", 3),
    "before the last evaluation": ("epoch 2", 4),
}
MODES: dict[str, dict[str, Any]] = {
    "frozen": {},
    "frozen block": {"bottom": 1},
    "redraw": {"train_bottom": "redraw"},
}


def run(process: VendorProcess, key: str, home: Path, settings: dict[str, Any]) -> dict[str, Any] | None:
    """The result of a customer's process, or `None` if it was killed."""
    root = Path(__file__).parents[2]
    environment = os.environ | {
        "PYTHONPATH": f"{root / 'src'}{os.pathsep}{root}",
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
    }
    command = [sys.executable, str(Path(__file__).with_name("run_child.py"))]
    command += [process.url, key, str(home), json.dumps(settings)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)
    if done.returncode == -9:
        return None
    assert done.returncode == 0, done.stderr[-3000:]
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


@pytest.fixture(scope="module")
def references() -> dict[str, Any]:
    """What each mode ends with when nobody disturbs it; made when first asked for."""
    return {}


def reference(mode: str, references: dict[str, Any], process: VendorProcess, key: str, home: Path) -> dict[str, Any]:
    if mode not in references:
        references[mode] = run(process, key, home, MODES[mode] | {"die": None})
    found: dict[str, Any] = references[mode]
    return found


def slow_unless(*fast: tuple[str, str, str]) -> list[Any]:
    """All combinations; those not named are left to `make test-all`."""
    combinations = [
        (mode, victim, point) for mode in MODES for victim in ("vendor", "customer", "both") for point in POINTS
    ]
    return [
        pytest.param(*each, id=" - ".join(each), marks=() if each in fast else pytest.mark.slow)
        for each in combinations
    ]


@pytest.mark.parametrize(
    ("mode", "victim", "point"),
    slow_unless(
        ("frozen", "vendor", "in an epoch"),
        ("frozen", "customer", "before the last evaluation"),
        ("frozen", "both", "while releasing"),
        ("redraw", "both", "in an epoch"),
    ),
)
def test_a_killed_run_ends_bit_identical(
    mode: str,
    victim: str,
    point: str,
    process: VendorProcess,
    api_key: str,
    tmp_path: Path,
    references: dict[str, Any],
) -> None:
    expected = reference(mode, references, process, api_key, tmp_path / "undisturbed")
    pids = {"vendor": [process.pid], "customer": [0], "both": [process.pid, 0]}[victim]
    settings = MODES[mode] | {"die": [*POINTS[point], pids]}
    if victim == "vendor":
        found = survive_vendor(process, api_key, tmp_path / "killed", settings)
    else:
        assert run(process, api_key, tmp_path / "killed", settings) is None
        if victim == "both":
            process.buried()
            process.start()
        found = run(process, api_key, tmp_path / "killed", MODES[mode] | {"die": None})
    assert found == expected


def survive_vendor(process: VendorProcess, key: str, home: Path, settings: dict[str, Any]) -> dict[str, Any] | None:
    """Starts the vendor again while the customer, still alive, keeps asking."""

    def revive() -> None:
        process.buried()
        process.start()

    helper = threading.Thread(target=revive)
    helper.start()
    found = run(process, key, home, settings)
    helper.join()
    return found
