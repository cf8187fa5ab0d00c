"""Pieces of work that the tests of executors have computed."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

from cutlayer.core import DataError, Stopped


def behave(argument: str) -> str:
    """Does what it is told, and says which process did it and with how many threads it may."""
    told = json.loads(argument)
    match told.get("do"):
        case "wait":
            time.sleep(told["seconds"])
        case "refuse":
            raise DataError("Row 3 has no text.", remedy="Fill it in.")
        case "stumble":
            raise ValueError(told["record"])
        case "stop":
            raise Stopped("Stopped on purpose.", remedy="Run it again.")
        case "die":
            os.kill(os.getpid(), signal.SIGKILL)
        case "print":
            sys.stdout.write("not an answer\n")
            sys.stdout.flush()
            os.write(1, b"nor this\n")
        case "meet":  # as many processes as there should be, none of which goes on alone
            folder = Path(told["folder"])
            (folder / str(os.getpid())).touch()
            while len(list(folder.iterdir())) < told["processes"]:
                time.sleep(0.01)
        case "stay":
            (Path(told["folder"]) / str(os.getpid())).touch()
            time.sleep(600)
    return json.dumps({**told, "process": os.getpid(), "threads": os.environ.get("OMP_NUM_THREADS")})
