"""kill -9 of the vendor, the customer and both: the run goes on and ends with the same bits.

The reference is the same run left alone. Noise comes from a seed here, so that two customers draw
the same; what must be equal is the digest of the adapter's weights, and what the ledger charged.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.service.process import Nursery, VendorProcess

POINTS = {
    "while releasing": ("privatize and release dev", 1),
    "in an epoch": ("epoch 1", 3),
    "before the last evaluation": ("epoch 2", 4),
    "after publishing": ("test", 1),
}
RELEASING_UNSTORED = ("dev after epoch 1", 1)
"""Of a trained bottom nothing is stored: each step and each evaluation makes releases of its own."""
MODES: dict[str, dict[str, Any]] = {
    "frozen": {},
    "frozen block": {"bottom": 1},
    "redraw": {"train_bottom": "resample"},
    "memoised": {"train_bottom": "cached", "bottom": 1},
}

_CUSTOMERS = """
import json, os, sys, traceback
from transformers import BertForSequenceClassification, PreTrainedTokenizerFast
from tests.service import run_child
print("ready", flush=True)
for line in sys.stdin:
    order = json.loads(line)
    child = os.fork()
    if child:
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
        continue
    for stream, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(order[name], os.O_WRONLY | os.O_CREAT | os.O_TRUNC), stream)
    sys.argv[1:] = order["arguments"]
    status = 1
    try:
        run_child.main()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
"""


class Customers(Nursery):
    """Runs customers in processes of their own, forked for the same reason as vendors are."""

    def __init__(self) -> None:
        super().__init__(_CUSTOMERS)

    def run(self, process: VendorProcess, key: str, home: Path, settings: dict[str, Any]) -> dict[str, Any] | None:
        """The result of a customer's process, or `None` if it was killed."""
        home.mkdir(exist_ok=True)
        out, err = home / "out", home / "err"
        arguments = [process.url, key, str(home), json.dumps(settings)]
        status = self.ask({"arguments": arguments, "out": str(out), "err": str(err)})
        if status == "-9":
            return None
        assert status == "0", err.read_text()[-3000:]
        result: dict[str, Any] = json.loads(out.read_text().splitlines()[-1])
        return result


@pytest.fixture(scope="module")
def customers() -> Iterator[Customers]:
    forks = Customers()
    yield forks
    forks.close()


@pytest.fixture(scope="module")
def references() -> dict[str, Any]:
    """What each mode ends with when nobody disturbs it; made when first asked for."""
    return {}


def reference(
    mode: str, references: dict[str, Any], customers: Customers, process: VendorProcess, key: str, home: Path
) -> dict[str, Any]:
    if mode not in references:
        references[mode] = customers.run(process, key, home, MODES[mode] | {"die": None})
    found: dict[str, Any] = references[mode]
    return found


FAST = {
    # every victim at every point, each in another mode
    ("vendor", "while releasing"): "frozen block",
    ("vendor", "in an epoch"): "frozen",
    ("vendor", "before the last evaluation"): "redraw",
    ("customer", "while releasing"): "redraw",
    ("customer", "in an epoch"): "frozen block",
    ("customer", "before the last evaluation"): "frozen",
    ("both", "while releasing"): "frozen",
    ("both", "in an epoch"): "redraw",
    ("both", "before the last evaluation"): "frozen block",
    ("vendor", "after publishing"): "frozen",
    ("customer", "after publishing"): "redraw",
    ("both", "after publishing"): "memoised",
}
FAST_TOO = ("memoised", "both", "before the last evaluation")
"""Two steps after the last checkpoint, so both go back and train them again."""


def combinations() -> list[Any]:
    """All of them; those that are not named as fast are left to `make test-all`."""
    fast = {FAST_TOO} | {(mode, *where) for where, mode in FAST.items()}
    every = [(mode, victim, point) for mode in MODES for victim in ("vendor", "customer", "both") for point in POINTS]
    return [pytest.param(*each, id=" - ".join(each), marks=() if each in fast else pytest.mark.slow) for each in every]


@pytest.mark.parametrize(("mode", "victim", "point"), combinations())
def test_a_killed_run_ends_bit_identical(
    mode: str,
    victim: str,
    point: str,
    customers: Customers,
    process: VendorProcess,
    api_key: str,
    tmp_path: Path,
    references: dict[str, Any],
) -> None:
    expected = reference(mode, references, customers, process, api_key, tmp_path / "undisturbed")
    pids = {"vendor": [process.pid], "customer": [0], "both": [process.pid, 0]}[victim]
    stored = "train_bottom" not in MODES[mode]
    when = POINTS[point] if stored or point != "while releasing" else RELEASING_UNSTORED
    settings = MODES[mode] | {"die": [*when, pids]}
    if victim == "vendor":
        found = survive_vendor(customers, process, api_key, tmp_path / "killed", settings)
    else:
        assert customers.run(process, api_key, tmp_path / "killed", settings) is None
        if victim == "both":
            process.buried()
            process.start()
        found = customers.run(process, api_key, tmp_path / "killed", MODES[mode] | {"die": None})
    assert found == expected


def survive_vendor(
    customers: Customers, process: VendorProcess, key: str, home: Path, settings: dict[str, Any]
) -> dict[str, Any] | None:
    """Starts the vendor again while the customer, still alive, keeps asking."""

    def revive() -> None:
        process.buried()
        process.start()

    helper = threading.Thread(target=revive)
    helper.start()
    found = customers.run(process, key, home, settings)
    helper.join()
    return found
