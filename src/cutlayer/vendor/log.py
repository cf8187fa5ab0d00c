"""The write-ahead log of a job: every accepted frame, on disk before it is applied.

The log is a row of segments. A segment begins at a checkpoint and holds the frames after it, so the
log is shortened by removing whole files. An entry is

```
"CLF1" | kind u8 | 3 zero bytes | step u64 | length u64 | sha256 of kind, step and body | body
```
A crash can leave the last entry half written; it was never answered, so it is cut off.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cutlayer.core import StorageError
from cutlayer.vendor.files import sync_folder

_HEADER = struct.Struct("<4sB3xQQ32s")
_MAGIC = b"CLF1"
_SUFFIX = ".log"

STEP = 1
GRADIENT = 2


@dataclass(frozen=True, slots=True)
class Entry:
    """An accepted frame.

    Attributes:
        kind: `STEP` or `GRADIENT`.
        step: The step's number.
        body: The frame's bytes.
    """

    kind: int
    step: int
    body: bytes

    @property
    def digest(self) -> bytes:
        """SHA-256 of all of it."""
        return hashlib.sha256(struct.pack("<BQ", self.kind, self.step) + self.body).digest()

    def encode(self) -> bytes:
        """The entry's bytes."""
        return _HEADER.pack(_MAGIC, self.kind, self.step, len(self.body), self.digest) + self.body


class FrameLog:
    """The log of one job. Lives in the compute thread.

    Args:
        folder: The log's own folder.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._file = -1
        self._before_last = 0

    @property
    def size(self) -> int:
        """Bytes in the newest segment."""
        return os.fstat(self._file).st_size if self._file >= 0 else 0

    def read(self) -> Iterator[Entry]:
        """All entries, oldest first; cuts a torn one off the end, and gets ready to append.

        Raises:
            StorageError: An entry before the last is damaged.
        """
        self._close()
        segments = self._segments()
        for base in segments:
            path = self._path(base)
            content = path.read_bytes()
            at = 0
            while at < len(content):
                entry, end = _decode(content, at)
                if entry is None:
                    if base != segments[-1] or end < len(content):
                        raise StorageError(f"{path} is damaged at byte {at}.", remedy="Roll the job back.")
                    with open(path, "r+b") as file:
                        file.truncate(at)
                        os.fsync(file.fileno())
                    break
                yield entry
                at = end
        self._open(segments[-1] if segments else 0)

    def append(self, entry: Entry) -> None:
        """Writes an entry; it is on disk on return, or (on an error) not there at all."""
        self._before_last = self.size
        view = memoryview(entry.encode())
        try:
            while view:
                view = view[os.write(self._file, view) :]
            os.fdatasync(self._file)
        except OSError:
            self.take_back()
            raise

    def take_back(self) -> None:
        """Removes the entry appended last: it could not be applied."""
        os.ftruncate(self._file, self._before_last)
        os.fsync(self._file)

    def begin_segment(self, base: int, carried: Entry | None) -> None:
        """Starts a segment at a checkpoint.

        Args:
            base: The checkpoint's step.
            carried: The frame whose forward pass waits for its gradient: the checkpoint does not
                hold its graph, so it is replayed.
        """
        self._close()
        self._open(base)
        if carried is not None:
            self.append(carried)

    def forget_before(self, base: int) -> None:
        """Removes the segments before a checkpoint's."""
        for other in self._segments():
            if other < base:
                self._path(other).unlink()

    def clear(self) -> None:
        """Removes all segments, newest first: whenever a crash interrupts it, what is left is a log."""
        self._close()
        for base in reversed(self._segments()):
            self._path(base).unlink()
        sync_folder(self._folder)

    def close(self) -> None:
        """Closes the file."""
        self._close()

    def _segments(self) -> list[int]:
        return sorted(int(path.stem) for path in self._folder.glob(f"*{_SUFFIX}"))

    def _path(self, base: int) -> Path:
        return self._folder / f"{base:010d}{_SUFFIX}"

    def _open(self, base: int) -> None:
        self._file = os.open(self._path(base), os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        sync_folder(self._folder)

    def _close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def _decode(content: bytes, at: int) -> tuple[Entry | None, int]:
    """The entry at a place and where it ends; None where it is not whole."""
    if len(content) - at < _HEADER.size:
        return None, len(content)
    magic, kind, step, length, digest = _HEADER.unpack_from(content, at)
    start = at + _HEADER.size
    if magic != _MAGIC or start + length > len(content):
        return None, len(content)
    entry = Entry(kind, step, content[start : start + length])
    if entry.digest != digest:
        return None, start + length
    return entry, start + length
