"""One process at a time writes into a data folder."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from cutlayer.core import ConfigError, StorageError


def lock(data_dir: Path) -> int:
    """Holds a data folder for this process: two would overwrite each other's jobs, settings and cards.

    Returns:
        A file descriptor; closing it lets go, and so does the end of the process, however it comes.

    Raises:
        ConfigError: Another process holds the folder.
        StorageError: The folder cannot be written.
    """
    try:
        handle = os.open(data_dir / ".lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BaseException:
            os.close(handle)
            raise
    except BlockingIOError as error:
        raise ConfigError(
            f"Another process serves {data_dir}, or sets it up.",
            remedy="Stop the vendor, then run this again; or give this one its own data folder.",
        ) from error
    except OSError as error:
        raise StorageError(
            f"{data_dir} cannot be locked: {error.strerror}.", remedy="Let its owner run this, and on a local disk."
        ) from error
    return handle
