"""`privatize` is killed in the middle of a corpus, and goes on with what it had drawn."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cutlayer.data import read_dataset, sample_path

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("starter_installed")]

TEXTS = 2500


def test_a_killed_command_goes_on(own_home: Path, tmp_path: Path) -> None:
    texts = read_dataset(sample_path("train"), text_column="text").texts
    notes, output = tmp_path / "notes.jsonl", tmp_path / "out.jsonl"
    rows = (f"{number} {texts[number % len(texts)][0]}" for number in range(TEXTS))
    notes.write_text("".join(json.dumps({"text": row}) + "\n" for row in rows))
    output.write_text("the old rows")
    command = [sys.executable, "-m", "cutlayer.cli", "privatize", "--input", str(notes), "--eta", "60"]

    def kept() -> list[Path]:
        return [path for path in (own_home / "drawn").rglob("*") if path.is_file() and path.name[0] != "."]

    with subprocess.Popen([*command, "--output", str(output), "--jobs", "2"], stderr=subprocess.DEVNULL) as process:
        while len(kept()) < 2:
            assert process.poll() is None, "it ended before it could be killed: raise TEXTS"
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
    assert output.read_text() == "the old rows"
    times = {path: path.stat().st_mtime_ns for path in kept()}
    assert times

    other = tmp_path / "other.jsonl"
    for path, jobs in ((output, "2"), (other, "1")):
        subprocess.run([*command, "--output", str(path), "--jobs", jobs], check=True, stdout=subprocess.DEVNULL)
        assert not kept(), "what is finished is kept no longer"
    assert output.read_bytes() == other.read_bytes()
    assert len(output.read_text().splitlines()) == TEXTS
    assert sorted(path.name for path in tmp_path.iterdir()) == ["notes.jsonl", "other.jsonl", "out.jsonl"]
    assert os.environ["CUTLAYER_HOME"] == str(own_home)
