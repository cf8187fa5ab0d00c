"""A vendor in a process of its own, which tests may kill.

Importing torch and transformers takes seconds and says nothing, so one process does it once and forks
a vendor whenever a test starts one. A fork shares code, not state: `kill -9` takes all that it had.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_VENDORS = """
import json, os, pkgutil, resource, sys
from transformers import BertForSequenceClassification, PreTrainedTokenizerFast
from cutlayer.vendor import serve
print("ready", flush=True)
for line in sys.stdin:
    order = json.loads(line)
    if "reap" in order:
        os.waitpid(order["reap"], 0)
        print("gone", flush=True)
        continue
    child = os.fork()
    if child:
        print(child, flush=True)
        continue
    log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream, target in ((os.open(os.devnull, os.O_RDONLY), 0), (log, 1), (log, 2)):
        os.dup2(stream, target)
    if order["largest_file"]:
        resource.setrlimit(resource.RLIMIT_FSIZE, (order["largest_file"],) * 2)
    try:
        if order["fault"]:
            pkgutil.resolve_name(order["fault"])()
        serve(order["data_dir"], port=order["port"])
    finally:
        sys.stderr.flush()
        os._exit(0)
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Nursery:
    """A process that imports once and then takes orders, a line of JSON each, and answers each with a line.

    Args:
        program: What it runs; it says `ready` first.
    """

    def __init__(self, program: str) -> None:
        self._lock = threading.Lock()
        root = Path(__file__).parents[2]
        environment = os.environ | {
            "PYTHONPATH": f"{root / 'src'}{os.pathsep}{root}",
            "OMP_NUM_THREADS": "1",
            "CUDA_VISIBLE_DEVICES": "",
        }
        self._process = subprocess.Popen(
            [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        assert self._answer() == "ready"

    def ask(self, order: dict[str, object]) -> str:
        assert self._process.stdin is not None
        with self._lock:
            self._process.stdin.write(json.dumps(order) + "\n")
            self._process.stdin.flush()
            return self._answer()

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(timeout=30)
        self._process.stdout.close()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


class Vendors(Nursery):
    """The process that forks vendors."""

    def __init__(self) -> None:
        super().__init__(_VENDORS)

    def start(self, data_dir: Path, port: int, log: Path, *, largest_file: int, fault: str) -> int:
        order = {"data_dir": str(data_dir), "port": port, "log": str(log), "largest_file": largest_file}
        return int(self.ask(order | {"fault": fault}))

    def reap(self, child: int) -> None:
        assert self.ask({"reap": child}) == "gone"


class VendorProcess:
    """`vendor.serve` on loopback.

    Args:
        nursery: Who forks it.
        data_dir: A folder that `vendor.init` made.
        tls: Whether it serves TLS, and so is asked for its health over it.
        largest_file: Bytes that a file may have: what a full disk feels like. 0 for no limit.
        fault: A function that plants one in the vendor before it serves, as `module:name`.
    """

    def __init__(
        self, nursery: Vendors, data_dir: Path, *, tls: bool = False, largest_file: int = 0, fault: str = ""
    ) -> None:
        self.data_dir = data_dir
        self.port = free_port()
        self.url = f"{'https' if tls else 'http'}://127.0.0.1:{self.port}"
        self.log = data_dir.parent / f"{data_dir.name}.log"
        self.largest_file = largest_file
        self.fault = fault
        self._nursery = nursery
        self._pid = 0

    @property
    def pid(self) -> int:
        return self._pid

    def start(self, *, wait: bool = True) -> None:
        self._pid = self._nursery.start(
            self.data_dir, self.port, self.log, largest_file=self.largest_file, fault=self.fault
        )
        if wait:
            self.wait()

    def wait(self, seconds: float = 60) -> None:
        """Waits until it is healthy."""
        trust = ssl._create_unverified_context()
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"{self.url}/healthz", timeout=5, context=trust).close()
                return
            time.sleep(0.02)
        raise AssertionError(f"the vendor is not healthy: {self.log.read_text()[-2000:]}")

    def kill(self) -> None:
        """kill -9: no handler runs, nothing is flushed."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """Asks it to end, as an operator does."""
        self._end(signal.SIGTERM)

    def buried(self) -> None:
        """Waits until somebody else has killed it."""
        self._nursery.reap(self._pid)
        self._pid = 0

    def _end(self, number: signal.Signals) -> None:
        if self._pid:
            os.kill(self._pid, number)
            self.buried()


@contextlib.contextmanager
def running(nursery: Vendors, data_dir: Path, **options: Any) -> Iterator[VendorProcess]:
    """A vendor until the block ends; its options are those of `VendorProcess`."""
    process = VendorProcess(nursery, data_dir, **options)
    process.start()
    try:
        yield process
    finally:
        process.kill()
