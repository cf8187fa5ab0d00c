"""A vendor in a process of its own on loopback: for the demo, recipes, benchmarks and tests.

Whoever measures a split run needs the other party to be really another process, with nothing in
between but HTTP.
"""

from __future__ import annotations

import http.client
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from cutlayer.core import VendorError

_START_SECONDS = 120.0
_LOG = "serve.log"


class VendorProcess:
    """Serves a data folder until the block ends.

    The process can be killed and started again on the same port, so that a customer's retries find it.
    It ends with this one, even if this one is killed: it watches the pipe that is its standard input.

    Args:
        data_dir: A folder that `vendor.init` made.
        environment: What to add to this process's environment.
    """

    def __init__(self, data_dir: Path, *, environment: Mapping[str, str] | None = None) -> None:
        self.data_dir = data_dir
        self._environment = {**os.environ, **(environment or {})}
        self._process: subprocess.Popen[bytes] | None = None
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]

    @property
    def url(self) -> str:
        """Where it answers."""
        return f"http://127.0.0.1:{self.port}"

    def start(self, *, wait: bool = True) -> None:
        """Starts the process, and waits until it answers.

        Raises:
            VendorError: It ended (the last line that it wrote says why), or it did not answer in time and was stopped.
        """
        command = [sys.executable, "-m", "cutlayer.cli", "vendor", "serve"]
        command += ["--data-dir", str(self.data_dir), "--host", "127.0.0.1", "--port", str(self.port)]
        command += ["--until-stdin-closes"]
        with (self.data_dir / _LOG).open("ab") as log:
            earlier = log.tell()  # what processes before this one wrote is no reason of this one's
            self._process = subprocess.Popen(  # noqa: S603 - our own module, arguments from code
                command, stdin=subprocess.PIPE, stdout=log, stderr=subprocess.STDOUT, env=self._environment
            )
        deadline = time.monotonic() + _START_SECONDS
        while wait and not self._answers():
            if self._process.poll() is not None:
                lines = (self.data_dir / _LOG).read_bytes()[earlier:].decode(errors="replace").strip().splitlines()
                raise VendorError(f"The vendor did not start: {lines[-1] if lines else 'it wrote nothing'}.")
            if time.monotonic() > deadline:
                self.kill()
                raise VendorError(
                    f"The vendor did not answer within {_START_SECONDS:g} s of being started, and was stopped. "
                    "If the machine is busy, try again."
                )
            time.sleep(0.05)

    def kill(self) -> None:
        """Ends the process at once, as a power cut would (SIGKILL)."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """Asks the process to end, and waits."""
        self._end(signal.SIGTERM)

    def _end(self, how: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(how)
            try:
                self._process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            if self._process.stdin is not None:
                self._process.stdin.close()
            self._process = None

    def _answers(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=2)
        try:
            connection.request("GET", "/healthz")
            return connection.getresponse().status == 200
        except OSError:
            return False
        finally:
            connection.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
