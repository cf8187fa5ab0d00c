"""The demo: what a newcomer is shown first is true of the texts that it stands beside."""

from __future__ import annotations

import csv
import subprocess
import sys

import pytest

from cutlayer.cli import demo
from cutlayer.data import read_dataset, sample_path
from cutlayer.models import load_tokenizer

SIZES = {"train": 40, "test": 8}


@pytest.fixture
def few(tmp_path, monkeypatch):
    """The demo's messages are some of them."""
    for split, size in SIZES.items():
        rows = read_dataset(sample_path(split), text_column="text", label_column="label")
        with (tmp_path / f"{split}.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(("text", "label"))
            writer.writerows((rows.texts[row][0], rows.labels[row]) for row in range(size))
    monkeypatch.setattr("cutlayer.data.sample_path", lambda split: tmp_path / f"{split}.csv")


@pytest.mark.slow
def test_each_guess_is_of_the_text_above_it(run, few, tmp_path):
    """Records leave in an order of their own, so the first record is not the first text."""
    found = run("demo", "--eta", 80, "--json")
    assert found.code == 0, found.err
    tokenizer = load_tokenizer("starter")
    texts = found.result["texts"]
    assert len(texts) == demo.SHOWN
    for text in texts:
        ids = tokenizer(text["original"], add_special_tokens=False)["input_ids"]
        assert text["guess_without_privacy"] == tokenizer.decode(ids)
        assert text["guess"] == text["released"]
        assert text["guess"] != text["guess_without_privacy"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kept", "said"),
    [(False, "nothing of it is kept. Run it again"), (True, "another --out")],
)
def test_interrupted_it_speaks_of_itself_and_not_of_the_run_within(kept, said, tmp_path):
    options = ("--out", str(tmp_path / "kept")) if kept else ()
    command = [sys.executable, "-m", "cutlayer.cli", "demo", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        for line in process.stderr:
            if line.startswith("epoch"):
                break
        process.terminate()  # taken for Ctrl-C, and not ignored where the tests run in the background
        _, err = process.communicate(timeout=60)
    told = " ".join(err.split())
    assert process.returncode == 130
    assert said in told
    assert "to go on" not in told
    assert "cutlayer-demo-" not in told
