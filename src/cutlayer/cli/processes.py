"""What commands that run until they are stopped share."""

from __future__ import annotations

import os
import signal
import sys


def end_with_stdin() -> None:
    """Ends this process when the other end of its standard input is gone, however that happened."""
    sys.stdin.buffer.read()
    os.kill(os.getpid(), signal.SIGTERM)
