"""A transport that keeps a transcript of what crosses another one."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from pathlib import Path

from cutlayer.core import StorageError
from cutlayer.wire.frame import Frame, Reply
from cutlayer.wire.recording import BODY_FILE, INDEX_FILE, Direction, Entry
from cutlayer.wire.tensors import encode_tensors
from cutlayer.wire.transport import Transport


class RecordingTransport:
    """Records every frame before it is sent, and every answer after it came.

    A folder that holds a transcript already is continued; what a crash left half written is cut off.

    Args:
        inner: The transport that carries the frames.
        folder: Where to record, in the format of `cutlayer.wire.recording`.

    Raises:
        StorageError: The folder cannot be written.
    """

    def __init__(self, inner: Transport, folder: Path | str) -> None:
        self._inner = inner
        self._lock = threading.Lock()
        self.folder = Path(folder)
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._index = _open(self.folder / INDEX_FILE)
            self._bodies = _open(self.folder / BODY_FILE)
            self._lines, self._end = self._whole()
            self._cut()
        except OSError as error:
            raise self._failure(error) from error

    @property
    def peer(self) -> str:
        """Who gets the frames: the inner transport's."""
        return self._inner.peer

    def send(self, frame: Frame) -> Reply:
        """Sends one frame and records both ways.

        Raises:
            StorageError: The frame could not be recorded; nothing was sent. Or the answer could not.
        """
        with self._lock:  # an answer stands right behind its frame
            self._write(Direction.UP, frame, frame.encode())
            reply = self._inner.send(frame)
            if reply.raw:
                self._write(Direction.DOWN, frame, reply.raw, keep=False)
            elif reply.tensors:
                self._write(Direction.DOWN, frame, encode_tensors(reply.tensors))
            else:
                content = reply.control.model_dump_json().encode() if reply.control is not None else b""
                self._write(Direction.DOWN, frame, content)
        return reply

    def close(self) -> None:
        """Closes the files. The transport belongs to whoever opened it."""
        os.close(self._index)
        os.close(self._bodies)

    def _write(self, direction: Direction, frame: Frame, body: bytes, *, keep: bool = True) -> None:
        entry = {
            "direction": direction,
            "route": frame.route.name,
            "where": dict(frame.where),
            "offset": self._end if keep else None,
            "size": len(body),
            "sha256": hashlib.sha256(body).hexdigest(),
        }
        line = json.dumps(entry).encode() + b"\n"
        try:
            if keep:
                _write_all(self._bodies, body)
            _write_all(self._index, line)
        except OSError as error:
            self._cut()
            raise self._failure(error) from error
        self._lines += len(line)
        self._end += len(body) if keep else 0

    def _whole(self) -> tuple[int, int]:
        """Bytes of the index up to the first line that is damaged or whose body is not there; and of the bodies.

        A machine that lost its power may have kept more of either file than of the other.
        """
        held = os.fstat(self._bodies).st_size
        lines = end = 0
        with (self.folder / INDEX_FILE).open("rb") as index:
            for line in index:
                try:
                    entry = Entry.model_validate_json(line)
                except ValueError:
                    break
                behind = end if entry.offset is None else end + entry.size
                if not line.endswith(b"\n") or entry.offset not in (None, end) or behind > held:
                    break
                lines, end = lines + len(line), behind
        return lines, end

    def _cut(self) -> None:
        """Cuts what was written of a message that is not whole. No file grows by it: it would hold zeros."""
        os.ftruncate(self._index, self._lines)
        os.ftruncate(self._bodies, self._end)

    def _failure(self, error: OSError) -> StorageError:
        return StorageError(
            f"The transcript in {self.folder} cannot be written: {error.strerror}.",
            remedy="Free some space, or record into another folder.",
        )


def _open(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)


def _write_all(file: int, content: bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(file, view) :]
