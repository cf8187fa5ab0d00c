"""The commands one after the other against a vendor in a process of its own, as a customer would type them."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

import pytest

from cutlayer.data import read_dataset, sample_path
from cutlayer.vendor.process import VendorProcess
from tests.unit.cli.conftest import Run

ROWS = 64
PROMISED = {
    "ua",
    "ua_on",
    "ep",
    "replaced",
    "n_train",
    "n_dev",
    "uplink_bytes",
    "downlink_bytes",
    "tokens_released",
    "seconds",
    "adapter_id",
}


@pytest.fixture
def service(tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    folder = tmp_path / "vendor"
    made = run("vendor", "init", "--data-dir", folder, "--threads", 1, "--json")
    assert made.code == 0
    assert made.result["settings"]["models"] == {"starter": "starter"}
    key = run("vendor", "key", "create", "hospital", "--data-dir", folder, "--json").result["key"]
    assert run("vendor", "key", "create", "--metrics", "--data-dir", folder, "--json").result["name"] == "_metrics"
    with VendorProcess(folder, environment={"OMP_NUM_THREADS": "1"}) as process:
        monkeypatch.setenv("CUTLAYER_VENDOR", process.url)
        monkeypatch.setenv("CUTLAYER_API_KEY", key)
        yield


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    rows = read_dataset(sample_path("train"), text_column="text", label_column="label")
    path = tmp_path / "notes.csv"
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(("note", "ward"))
        table.writerows(
            (text, label) for (text,), label in list(zip(rows.texts, rows.labels or (), strict=True))[:ROWS]
        )
    return path


@pytest.mark.usefixtures("starter_installed", "service")
def test_from_notes_to_labels(notes: Path, tmp_path: Path, run: Run) -> None:
    columns = ("--text-column", "note", "--label-column", "ward")
    trained = run("finetune", "--train", notes, *columns, "--eta", 80, "--epochs", 1, "--seed", 1, "--json")
    assert trained.code == 0, trained.err
    # no terminal here: each stage says in a line of its own that it is done
    assert [line.split()[:2] for line in trained.err.splitlines() if line.startswith("epoch")] == [["epoch", "1/1"]]
    result = trained.result
    assert set(result) >= PROMISED
    # of so few texts a fifth: a tenth would tell nothing
    assert (result["n_train"], result["n_dev"], result["ua_on"]) == (ROWS - 12, 12, "dev")
    assert 0 < result["replaced"] < 1
    assert result["ep"] == pytest.approx(result["replaced"])
    assert set(result["uplink_bytes"]) == {"release", "gradient", "control", "total"}
    adapter = result["adapter_id"]
    assert f"At {len(result['deviations'])} points the method fills in or differs from the papers" in trained.err

    (listed,) = run("adapter", "list", "--json").result["adapters"]
    shown = run("adapter", "show", adapter, "--json").result
    assert listed == shown
    assert shown["sha256"] == result["adapter_sha256"]
    assert listed["privacy"] == shown["privacy"]
    assert listed["privacy"] == {
        "mechanism": "text-to-text",
        "noise": "d-chi",
        "eta": 80.0,
        "cti": False,
        "cti_class_free": False,
        "resampled": False,
    }
    for facts in (run("adapter", "show", adapter).out, run("adapter", "list").out):
        assert "eta 80, text-to-text" in facts
    assert shown["sha256"] in run("adapter", "show", adapter).out

    output = tmp_path / "labelled.csv"
    asked = run(
        "predict", "--adapter", adapter, "--input", notes, "--text-column", "note", "--output", output, "--json"
    )
    assert asked.code == 0, asked.err
    predicted = read_dataset(output, text_column="note", label_column="predicted_label")
    given = read_dataset(notes, text_column="note", label_column="ward")
    assert predicted.texts == given.texts
    assert set(predicted.labels or ()) <= set(given.labels or ())

    seen = tmp_path / "seen.jsonl"
    draws = run("ledger", "show", "--json").result["summary"]["mechanisms"][0]["draws"]
    local = run("privatize", "--input", notes, "--text-column", "note", "--output", seen, "--eta", 80, "--json")
    assert local.result["texts"] == ROWS
    assert local.result["largest_distance"] == result["largest_distance"]
    left = run("ledger", "show", "--frames", "--releases", "--limit", 5, "--json").result
    assert left["summary"]["may_have_left"] == 0
    assert left["summary"]["mechanisms"][0]["draws"] == draws == ROWS
    assert len(left["frames"]) == len(left["releases"]) == 5

    assert run("adapter", "delete", adapter).code == 0
    assert run("adapter", "list", "--json").result["adapters"] == []
    gone = run("adapter", "show", adapter, "--json")
    assert gone.code == 7
    assert gone.result["exit_code"] == 7


@pytest.mark.usefixtures("service")
def test_a_wrong_key_is_refused(run: Run) -> None:
    refused = run("adapter", "list", "--api-key", "cl_000000000000_" + "x" * 43)
    assert refused.code == 8
    assert len(refused.err.strip().splitlines()) == 1


def test_a_second_init_without_models_keeps_them(tmp_path: Path, run: Run) -> None:
    first, second = (
        run("vendor", "init", "--data-dir", tmp_path, "--json", *given).result["settings"]
        for given in (("--model", "mine=starter", "--threads", 1), ("--tls-host", "127.0.0.1"))
    )
    assert second == first
    assert second["models"] == {"mine": "starter"}


def test_keys_are_listed_without_their_secret_and_end(tmp_path: Path, run: Run) -> None:
    folder = tmp_path / "vendor"
    run("vendor", "init", "--data-dir", folder)
    key = run("vendor", "key", "create", "hospital", "--data-dir", folder).out.strip().splitlines()[-1]
    listed = run("vendor", "key", "list", "--data-dir", folder, "--json")
    assert key not in listed.out
    (entry,) = listed.result["keys"]
    assert (entry["tenant"], entry["revoked"]) == ("hospital", None)
    revoked = run("vendor", "key", "revoke", "hospital", "--data-dir", folder, "--json").result["revoked"]
    assert [each["id"] for each in revoked] == [entry["id"]]
    assert run("vendor", "key", "revoke", "hospital", "--data-dir", folder).code == 3


def test_the_port_is_that_of_the_service() -> None:
    from cutlayer.cli.reference import commands
    from cutlayer.vendor import DEFAULT_PORT

    serve = next(command for command in commands() if command.name == "cutlayer vendor serve")
    assert next(each.default for each in serve.parameters if each.names == ("--port",)) == str(DEFAULT_PORT)
