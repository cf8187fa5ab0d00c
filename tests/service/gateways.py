"""Gateways in processes of their own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Running:
    """A gateway's process."""

    url: str
    key: str
    log: Path

    @property
    def known(self) -> dict[str, Any]:
        """What an application is told."""
        return {"base_url": f"{self.url}/v1", "api_key": self.key}


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "cutlayer.cli", "gateway", *arguments]


@contextmanager
def running_gateway(home: Path, *settings: str, key: str | None = None) -> Iterator[Running]:
    """A gateway of a customer's folder, whose variables name the vendor.

    Args:
        home: The folder.
        *settings: Of the command.
        key: The gateway's, where it was made already.
    """
    environment = os.environ | {"CUTLAYER_HOME": str(home)}
    if key is None:
        key = json.loads(subprocess.check_output(command("key", "--json"), env=environment))["key"]
    log = home / "gateway.log"
    with log.open("a") as file:
        process = subprocess.Popen(
            command(*settings, "--port", "0", "--json"),
            stdout=subprocess.PIPE, stderr=file, text=True, env=environment,
        )  # fmt: skip
    assert process.stdout is not None
    try:
        yield Running(json.loads(process.stdout.readline())["url"], key, log)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=60)
        process.stdout.close()
