"""A vendor that a demo, a recipe or a benchmark started ends with it, however that ended."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

CHILD = """
import sys, time
from pathlib import Path
from cutlayer.vendor.process import VendorProcess
with VendorProcess(Path(sys.argv[1])) as process:
    print(process.port, flush=True)
    time.sleep(600)
"""


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_a_killed_parent_takes_its_vendor_along(how: signal.Signals, data_dir: Path) -> None:
    parent = subprocess.Popen([sys.executable, "-c", CHILD, str(data_dir)], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    port = int(parent.stdout.readline())
    assert listens(port)
    parent.send_signal(how)
    parent.wait(10)
    deadline = time.monotonic() + 20
    while listens(port):
        assert time.monotonic() < deadline, "the vendor still listens"
        time.sleep(0.1)
    parent.stdout.close()
