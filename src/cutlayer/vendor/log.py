"""The write-ahead log of a job: every accepted frame, on disk before it is applied.

The log is a row of segments. A segment begins at a checkpoint and holds the frames after it, so the
log is shortened by removing whole files. An entry is

```
"CLF1" | kind u8 | applied u8 | deaths u8 | 0 | step u64 | length u64 | sha256 of kind, step and body | body
```
A crash can leave the last entry half written; it was never answered, so it is cut off.

Applying an entry may end the process, for want of memory, and its replay would end it again, for all
tenants, after every start. So an entry says whether it was ever applied, and if not, how many replays
the process did not outlive.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

from cutlayer.core import StorageError
from cutlayer.core.files import make_folder, sync_folder

_HEADER = struct.Struct("<4sBBBxQQ32s")
_MAGIC = b"CLF1"
_MARKS = 5
"""Where the bytes `applied` and `deaths` stand in an entry."""
_SUFFIX = ".log"

STEP = 1
GRADIENT = 2
UPDATE = 3
SOURCE = 4
SOURCE_GRADIENT = 5


@dataclass(frozen=True, slots=True)
class Entry:
    """An accepted frame.

    Attributes:
        kind: `STEP`, `GRADIENT`, `UPDATE`, `SOURCE` or `SOURCE_GRADIENT`.
        step: The step's number.
        body: The frame's bytes.
        applied: Whether it was applied once.
        deaths: How many times the process ended while it was replayed, if it never was.
    """

    kind: int
    step: int
    body: bytes
    applied: bool = field(default=False, compare=False)
    deaths: int = field(default=0, compare=False)

    @property
    def digest(self) -> bytes:
        """SHA-256 of all of it."""
        return hashlib.sha256(struct.pack("<BQ", self.kind, self.step) + self.body).digest()

    def encode(self) -> bytes:
        """The entry's bytes."""
        marks = self.applied, self.deaths
        return _HEADER.pack(_MAGIC, self.kind, *marks, self.step, len(self.body), self.digest) + self.body


class FrameLog:
    """The log of one job. Lives in the compute thread.

    Args:
        folder: The log's own folder.

    Attributes:
        base: The checkpoint's step at which the newest segment begins.
        in_doubt: Whether the files may hold something else than they should, so that they must be read again.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        make_folder(folder)
        self._file = -1
        self._last = 0
        self.base = 0
        self.in_doubt = False

    @property
    def size(self) -> int:
        """Bytes in the newest segment."""
        return os.fstat(self._file).st_size if self._file >= 0 else 0

    def read(self) -> Iterator[Entry]:
        """All entries, oldest first; cuts a torn one off the end. Gets ready to append.

        Raises:
            StorageError: An entry before the last is damaged.
        """
        self.close()
        segments = self._segments() or [0]
        self.base = segments[-1]
        self._file = self._open(self.base)
        for base in segments:
            path = self._path(base)
            content = path.read_bytes()
            at = 0
            while at < len(content):
                entry, end = _decode(content, at)
                if entry is None:
                    if base != self.base or end < len(content):
                        raise StorageError(f"{path} is damaged at byte {at}.", remedy="Roll the job back.")
                    os.ftruncate(self._file, at)
                    os.fsync(self._file)
                    break
                self._last = at
                is_last = base == self.base and end == len(content)
                # Where another was begun after it, it had been applied.
                yield entry if is_last else replace(entry, applied=True, deaths=0)
                at = end

    def append(self, entry: Entry) -> None:
        """Writes an entry; it is on disk on return, or (on an error) not there at all."""
        self._last = at = self.size
        view = memoryview(entry.encode())
        try:
            while view:
                written = os.pwrite(self._file, view, at)
                view = view[written:]
                at += written
            os.fdatasync(self._file)
        except OSError:
            self.take_back()
            raise

    def take_back(self) -> None:
        """Removes the entry appended or read last: it could not be applied."""
        with self._doubting():
            os.ftruncate(self._file, self._last)
            os.fsync(self._file)

    def note_applied(self) -> None:
        """Notes that the entry appended last was applied.

        Not waited for: a process that is killed does not lose it, and after a power cut the entry is
        only one that may have been applied.
        """
        self._mark(applied=True)

    @contextlib.contextmanager
    def replaying(self, entry: Entry) -> Iterator[None]:
        """Notes that the entry read last is applied again in this block, if it is not known to have been applied."""
        if entry.applied:
            yield
            return
        self._mark(deaths=entry.deaths + 1)
        os.fdatasync(self._file)
        try:
            yield
        except BaseException:
            self._mark(deaths=entry.deaths)  # it failed, and the process lives
            raise
        self._mark(applied=True)

    def begin_segment(self, base: int, carried: Entry | None) -> None:
        """Starts a segment at a checkpoint; where that fails, the one before goes on.

        Args:
            base: The checkpoint's step.
            carried: The frame whose forward pass waits for its gradient: the checkpoint does not
                hold its graph, so it is replayed.
        """
        if base == self.base:
            return
        try:
            opened = self._open(base)
        except OSError:
            # The newest segment is where an entry may be torn, so none may be newer than the one that goes on.
            with self._doubting():
                self._path(base).unlink(missing_ok=True)
            raise
        self.close()
        self._file, self.base = opened, base
        if carried is not None:
            self.append(replace(carried, applied=True))

    def forget_before(self, base: int) -> None:
        """Removes the segments that end at a checkpoint or before it."""
        for segment, following in pairwise(self._segments()):
            if following <= base:
                self._path(segment).unlink()

    def clear(self) -> None:
        """Removes all segments, newest first: whenever a crash interrupts it, what is left is a log."""
        self.close()
        for base in reversed(self._segments()):
            self._path(base).unlink()
        sync_folder(self._folder)

    def close(self) -> None:
        """Closes the file."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _segments(self) -> list[int]:
        return sorted(int(path.stem) for path in self._folder.glob(f"*{_SUFFIX}"))

    def _path(self, base: int) -> Path:
        return _path(self._folder, base)

    def _open(self, base: int) -> int:
        opened = os.open(self._path(base), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            sync_folder(self._folder)
        except OSError:
            os.close(opened)
            raise
        return opened

    def _mark(self, *, applied: bool = False, deaths: int = 0) -> None:
        os.pwrite(self._file, bytes([applied, min(deaths, 255)]), self._last + _MARKS)

    @contextlib.contextmanager
    def _doubting(self) -> Iterator[None]:
        try:
            yield
        except OSError:
            self.in_doubt = True
            raise


def _path(folder: Path, base: int) -> Path:
    return folder / f"{base:010d}{_SUFFIX}"


def _decode(content: bytes, at: int) -> tuple[Entry | None, int]:
    """The entry at a place and where it ends; None where it is not whole."""
    if len(content) - at < _HEADER.size:
        return None, len(content)
    magic, kind, applied, deaths, step, length, digest = _HEADER.unpack_from(content, at)
    start = at + _HEADER.size
    if magic != _MAGIC or start + length > len(content):
        return None, len(content)
    entry = Entry(kind, step, content[start : start + length], bool(applied), deaths)
    if entry.digest != digest:
        return None, start + length
    return entry, start + length


def last_entry(folder: Path) -> tuple[int, Entry | None] | None:
    """The last entry of a log that may be written meanwhile. Of the others only the headers are read.

    Returns:
        Where the newest segment begins, and its last entry, if it has one; `None` where entries are missing or damaged.
    """
    base = max((int(path.stem) for path in folder.glob(f"*{_SUFFIX}")), default=0)
    found, before = None, base
    try:
        with _path(folder, base).open("rb") as file:
            while header := file.read(_HEADER.size):
                magic, kind, applied, deaths, step, length, digest = _HEADER.unpack(header)
                if magic != _MAGIC or step > before + 1:
                    return None
                before = step
                found = Entry(kind, step, b"", bool(applied), deaths), digest, file.tell(), length
                file.seek(length, os.SEEK_CUR)
            if found is None:
                return base, None
            entry, digest, start, length = found
            file.seek(start)
            body = file.read(length)
    except FileNotFoundError:
        return (base, None) if base == 0 else None  # of a job that has taken no frame
    except (OSError, struct.error):
        return None
    entry = replace(entry, body=body)
    return (base, entry) if len(body) == length and entry.digest == digest else None
