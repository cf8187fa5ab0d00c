"""`cutlayer vendor denoiser train` in a process of its own, killed and begun again: it ends with the same bytes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cutlayer import vendor
from tests.promises.runs import corpus


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.slow
def test_a_killed_training_ends_with_the_same_bytes(data_dir: Path, tmp_path: Path) -> None:
    public = tmp_path / "public.jsonl"
    rows = [json.dumps({"text": text}) for (text,) in corpus(200, seed=9, canaries=False).texts]
    public.write_text("\n".join(rows))
    settings = vendor.VendorSettings.load(data_dir)
    folder = settings.denoisers("tiny")
    command = [sys.executable, "-m", "cutlayer.cli", "vendor", "denoiser", "train", "--data-dir", str(data_dir)]
    command += ["--model", "tiny", "--public", str(public), "--mechanism", "vector", "--clip", "--json"]
    command += ["--steps", "200", "--batch-size", "8", "--checkpoint-steps", "20"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}

    def train() -> dict[str, bytes]:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        assert json.loads(done.stdout.splitlines()[-1])["steps"] == 200
        assert "w3" not in done.stdout + done.stderr
        return files(folder)

    whole = train()
    assert whole
    for at in (1, 6, 12, 25):  # checkpoints that are there when it is killed, of all groups
        shutil.rmtree(folder)
        running = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 120
        reached = 0
        while reached < at and running.poll() is None:
            assert time.monotonic() < deadline
            steps = [int(path.stem) // 20 for path in folder.rglob("group-*/[0-9]*.safetensors")]
            reached = sum(steps)
            time.sleep(0.01)
        if at == 6:
            running.send_signal(signal.SIGSTOP)  # else it would be over before another one has begun
            again = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
            assert again.returncode == 3
            assert "is being trained already" in again.stdout + again.stderr
        running.send_signal(signal.SIGKILL)
        running.wait()
        assert not list(folder.glob("[0-9a-f]*")) or at == 25, "a denoiser was published before it was killed"
        assert train() == whole
