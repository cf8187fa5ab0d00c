"""How soon commands that compute nothing answer: seconds until the first byte that they print.

Run it with `python -m benchmarks.startup`. Each command is a process of its own, and takes turns with the others and
with an interpreter that does nothing. That torch is not imported is checked, and stops the benchmark where it is.

Ratios, for each of `help` (`cutlayer --help`), `ledger` (`ledger show`) and `recipes` (`recipe list`):
    <command>_seconds: Median seconds.
    <command>_vs_python: Times as long as `python -c 'print()'`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from benchmarks.results import write
from cutlayer.core.timing import interleaved
from cutlayer.privacy import Ledger

ROUNDS = 10
CUTLAYER = (sys.executable, "-m", "cutlayer.cli")
COMMANDS: Mapping[str, Sequence[str]] = {
    "python": (sys.executable, "-c", "print()"),
    "help": (*CUTLAYER, "--help"),
    "ledger": (*CUTLAYER, "ledger", "show"),
    "recipes": (*CUTLAYER, "recipe", "list"),
}


def first_byte(command: Sequence[str], environment: Mapping[str, str]) -> None:
    """Runs a command until it prints, and ends it there."""
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) as process:
        if process.stdout is None or not process.stdout.read(1):
            raise RuntimeError(f"{' '.join(command)} printed nothing")
        process.kill()


def check_no_torch(command: Sequence[str], environment: Mapping[str, str]) -> None:
    """Runs a command with Python's own list of what it imports.

    Raises:
        RuntimeError: torch is among it, or the command failed.
    """
    traced = (command[0], "-X", "importtime", *command[1:])
    imports = subprocess.run(traced, env=environment, capture_output=True, text=True, check=True).stderr
    if any(line.rpartition("|")[2].strip() == "torch" for line in imports.splitlines()):
        raise RuntimeError(f"{' '.join(command)} imports torch")


def main() -> None:
    """Measures and writes `benchmarks/results/startup.json`."""
    with tempfile.TemporaryDirectory() as folder:
        Ledger(Path(folder) / "ledger.sqlite").close()
        environment = {**os.environ, "CUTLAYER_HOME": folder}
        for command in COMMANDS.values():
            check_no_torch(command, environment)
        contenders = {name: partial(first_byte, command, environment) for name, command in COMMANDS.items()}
        seconds = interleaved(contenders, rounds=ROUNDS)
    python = seconds.pop("python")
    write(
        "startup",
        {f"{name}_seconds": took for name, took in seconds.items()}
        | {f"{name}_vs_python": took / python for name, took in seconds.items()},
    )


if __name__ == "__main__":
    main()
