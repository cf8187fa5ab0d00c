"""`cutlayer job`, `finetune --detach`, and what is refused of jobs that the vendor trains alone, as it is typed."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path

import pytest

from cutlayer import vendor
from tests.promises.runs import LABELS, corpus
from tests.service.process import VendorProcess
from tests.unit.cli.conftest import Ran, Run

UNKNOWN = "0" * 32
ALONE = ("--labels-at", "vendor", "--label-epsilon", 1, "--eta", 80, "--batch-size", 8, "--seed", 3)


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    data, path = corpus(40, seed=5, canaries=False), tmp_path / "notes.csv"
    with path.open("w", newline="") as file:
        rows = [(text, label) for (text,), label in zip(data.texts, data.labels or (), strict=True)]
        csv.writer(file).writerows([("text", "label"), *rows])
    return path


def check_silent(*ran: Ran) -> None:
    """No label, and no text, is in what a command prints."""
    for each in ran:
        assert not any(label in each.out + each.err for label in (*LABELS, "w3 "))


@pytest.mark.usefixtures("at_vendor")
def test_a_run_is_left_listed_watched_and_fetched(notes: Path, tmp_path: Path, run: Run) -> None:
    train = ("finetune", "--train", notes, *ALONE, "--epochs", 2, "--out", tmp_path / "run")
    left = run(*train, "--detach", "--json")
    assert left.code == 0, left.err
    job = left.result["job"]
    assert left.result["folder"] == str(tmp_path / "run")
    listed = run("job", "list", "--json")
    (entry,) = listed.result["jobs"]
    assert (entry["job"], entry["model"], entry["by_vendor"]) == (job, "tiny", True)
    assert job in run("job", "list").out
    watched = run("job", "watch", job, "--json")
    assert watched.code == 0, watched.err
    told = watched.result
    assert (told["state"], told["step"], len(told["dev"])) == ("finished", entry["total_steps"], 2)
    assert f"Job {job} is finished, after {told['step']} steps." in run("job", "watch", job).out
    fetched = run(*train, "--json")
    assert fetched.code == 0, fetched.err
    assert fetched.result["dev"] == told["dev"]
    (adapter,) = run("adapter", "list", "--json").result["adapters"]
    assert adapter["sha256"] == fetched.result["adapter_sha256"]
    over = run("job", "cancel", job, "--json")
    assert (over.code, "is finished" in over.result["error"]) == (7, True)
    # a second draw of the same labels, beyond what they may be charged
    beyond = run(*train[:-2], "--label-epsilon", 1.2, "--label-budget", 1.5, "--json")
    assert (beyond.code, beyond.result["exit_code"]) == (6, 6)
    check_silent(left, listed, watched, fetched, over, beyond)


def test_a_job_is_cancelled_and_a_quota_is_told(
    at_vendor: VendorProcess,
    data_dir: Path,
    change_settings: Callable[..., None],
    notes: Path,
    tmp_path: Path,
    run: Run,
) -> None:
    at_vendor.kill()
    change_settings(data_dir, limits={"jobs_per_tenant": 1})
    at_vendor.start()
    train = ("finetune", "--train", notes, *ALONE, "--epochs", 200, "--patience", 200, "--detach", "--json")
    job = run(*train, "--out", tmp_path / "run").result["job"]
    full = run(*train, "--out", tmp_path / "other", "--seed", 4)
    assert full.code == 7
    assert "1 unfinished jobs already" in full.result["error"]
    cancelled = run("job", "cancel", job, "--json")
    assert (cancelled.code, cancelled.result) == (0, {"job": job, "state": "cancelled"})
    assert run("job", "list", "--json").result["jobs"][0]["state"] == "cancelled"
    watched = run("job", "watch", job, "--json")
    assert watched.code == 7
    assert f"Job {job} is cancelled" in watched.result["error"]
    check_silent(full, cancelled, watched)


REFUSED: tuple[tuple[tuple[object, ...], int, str], ...] = (
    (("--eta", 80, "--detach"), 3, "only where the vendor has its labels"),
    ((*ALONE, "--detach", "--public-first", "sample"), 2, "--public-first"),
    ((*ALONE, "--label-column", "ward"), 3, "train has no column 'ward'"),
    ((*ALONE, "--objective", "lm"), 3, "others' labels stay here"),
    ((*ALONE, "--label-budget", 0.5), 6, "beyond the budget of 0.5"),
)


@pytest.mark.usefixtures("at_vendor")
def test_what_is_refused_is_refused_before_a_job_is_there(notes: Path, run: Run) -> None:
    for flags, code, said in REFUSED:
        refused = run("finetune", "--train", notes, *flags, "--json")
        assert refused.code == code, refused.err
        assert said in refused.result["error"]
        check_silent(refused)
    assert run("job", "list", "--json").result["jobs"] == []
    for command in ("watch", "cancel"):
        nonsense, unknown = run("job", command, "../x", "--json"), run("job", command, UNKNOWN, "--json")
        assert (nonsense.code, unknown.code) == (3, 7)
        assert f"no job {UNKNOWN}" in unknown.result["error"]


def test_all_weights_over_a_model_in_4_bits_are_refused(
    at_vendor: VendorProcess,
    data_dir: Path,
    notes: Path,
    run: Run,
) -> None:
    pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed: pip install 'cutlayer[qlora]'")
    at_vendor.kill()
    vendor.init(data_dir, quantize="nf4")
    at_vendor.start()
    refused = run("finetune", "--train", notes, *ALONE, "--method", "full", "--json")
    assert refused.code == 3
    assert "in nf4" in refused.result["error"]
    assert run("job", "list", "--json").result["jobs"] == []
