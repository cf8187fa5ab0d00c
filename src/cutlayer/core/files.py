"""Files that are whole or absent, whatever happens while they are written."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

_NO_FOLDERS_SYNCED = (errno.EINVAL, errno.EBADF, errno.ENOTSUP, errno.EACCES, errno.EPERM)
"""What some network file systems say, and folders that may be written to and not be read."""

log = logging.getLogger("cutlayer.files")

TEMPORARY = ".cutlayer-tmp."
"""How the name of every file and folder begins that is not whole yet, or not any more, and of nothing else."""


def make_folder(path: Path, *, mode: int = 0o777) -> None:
    """Makes a folder, and those above it that are not there; on return their names are on disk."""
    if not path.is_dir():
        make_folder(path.parent)
        path.mkdir(mode, exist_ok=True)
        sync_folder(path.parent)


def write_whole(path: Path, content: bytes, *, mode: int | None = 0o600) -> None:
    """Replaces a file: after a crash it holds the old content or the new, and the new is on disk on return.

    Args:
        path: Where. Folders above it are made.
        content: All of it.
        mode: Who may read and write it; `None` leaves that to the umask, as for any file that is shown around.
    """
    make_folder(path.parent)
    temporary = path.with_name(f"{TEMPORARY}{path.name}.{secrets.token_hex(8)}")
    handle = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o666 if mode is None else 0o600)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if mode is not None:
            os.chmod(temporary, mode)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


@contextlib.contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """A new folder that appears at `path`, with all its files on disk, only if the block ends well.

    What stood at `path` before is replaced.
    """
    make_folder(path.parent)
    temporary = Path(tempfile.mkdtemp(dir=path.parent, prefix=f"{TEMPORARY}{path.name}."))
    try:
        yield temporary
        for file in temporary.iterdir():
            sync_file(file)
        sync_folder(temporary)
        with removed(path):
            os.rename(temporary, path)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    sync_folder(path.parent)


@contextlib.contextmanager
def removed(path: Path) -> Iterator[None]:
    """Removes a folder, if there is one, when the block ends well; else it is there again.

    It has a temporary name before the block begins: so if the block deletes what lists the folder, a
    death at any moment leaves no folder that nothing lists, and that stays for ever.
    """
    aside = _set_aside(path)
    if aside is None:
        yield
        return
    try:
        yield
    except BaseException:
        os.rename(aside, path)
        sync_folder(path.parent)
        raise
    _remove(aside)


def _set_aside(path: Path) -> Path | None:
    """Gives a folder a temporary name; `None` where there is none, or whoever else removes it was faster."""
    if not path.exists():
        return None
    aside = Path(tempfile.mkdtemp(dir=path.parent, prefix=f"{TEMPORARY}{path.name}."))
    try:
        os.rename(path, aside)
    except FileNotFoundError:
        aside.rmdir()
        return None
    sync_folder(path.parent)
    return aside


def remove_folder(path: Path) -> None:
    """Removes a folder that nothing lists, if there is one, at once: none of it is there under its name again."""
    with removed(path):
        pass


def sync_file(path: Path) -> None:
    """Waits until a file's content is on disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_folder(path: Path) -> None:
    """Waits until the names in a folder are on disk, where the file system can tell and lets us ask."""
    try:
        sync_file(path)
    except OSError as error:
        if error.errno not in _NO_FOLDERS_SYNCED:
            raise


def bytes_below(folder: Path) -> int:
    """Bytes of all files below a folder. Those that go while they are counted are left out."""
    total = 0
    for path, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.stat(os.path.join(path, name)).st_size
    return total


def remove_leftovers(folder: Path, *, in_use: Callable[[Path], bool] = lambda path: False) -> None:
    """Removes what a crash left half written or half removed below a folder, and nothing that others keep there.

    Args:
        folder: The folder.
        in_use: Whether a living process is writing a file or folder with a temporary name: it stays.
    """
    for path in list(folder.rglob(f"{TEMPORARY}*")):
        if not in_use(path):
            _remove(path)


def _remove(path: Path) -> None:
    """Removes a file or a folder with a temporary name, as far as that can be done."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink()
    if path.exists():
        # Without the path: it names tenants.
        log.error("what was deleted could not be removed; the next start tries again (find -name '%s*')", TEMPORARY)
