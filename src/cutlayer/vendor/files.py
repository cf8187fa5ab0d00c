"""Files that are whole or absent, whatever happens while they are written."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

TEMPORARY = ".cutlayer-tmp."
"""How the name of every file and folder begins that is not whole yet, and of nothing else."""


def write_whole(path: Path, content: bytes, *, mode: int = 0o600) -> None:
    """Replaces a file: after a crash it holds the old content or the new, and the new is on disk on return."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f"{TEMPORARY}{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, mode)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


@contextlib.contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """A new folder that appears at `path`, with all its files on disk, only if the block ends well.

    What stood at `path` before is replaced.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(dir=path.parent, prefix=f"{TEMPORARY}{path.name}."))
    try:
        yield temporary
        for file in temporary.iterdir():
            sync_file(file)
        sync_folder(temporary)
        shutil.rmtree(path, ignore_errors=True)
        os.rename(temporary, path)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    sync_folder(path.parent)


def sync_file(path: Path) -> None:
    """Waits until a file's content is on disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_folder(path: Path) -> None:
    """Waits until the names in a folder are on disk."""
    sync_file(path)


def bytes_below(folder: Path) -> int:
    """Bytes of all files below a folder. Those that go while they are counted are left out."""
    total = 0
    for path, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.stat(os.path.join(path, name)).st_size
    return total


def remove_leftovers(folder: Path) -> None:
    """Removes what a crash left half written anywhere below a folder, and nothing that others keep there."""
    for path in list(folder.rglob(f"{TEMPORARY}*")):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
