"""A Ray cluster of one machine, which the tests start and end."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator

import pytest

START = ["start", "--head", "--block", "--num-cpus=2", "--include-dashboard=false", "--node-ip-address=127.0.0.1"]


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """A cluster's address."""
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'cutlayer[ray]'")
    folder = tempfile.mkdtemp(prefix="ray")  # pytest's own paths are longer than a socket's may be
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "RAY_USAGE_STATS_ENABLED": "0"}
    command = [sys.executable, "-m", "ray.scripts.scripts", *START, "--port=0", f"--temp-dir={folder}"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as head:
        try:
            assert head.stdout is not None
            lines = iter(head.stdout.readline, "")
            address = next(line.partition("--address=")[2].strip("' \n") for line in lines if "--address=" in line)
            yield f"127.0.0.1:{address.rpartition(':')[2]}"  # tests reach no other
        finally:
            head.send_signal(signal.SIGTERM)
            head.communicate(timeout=60)
    shutil.rmtree(folder, ignore_errors=True)
