"""A transport that keeps a transcript of what crosses another one."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from pathlib import Path

from cutlayer.core import StorageError
from cutlayer.wire.frame import Frame, Reply, encode_tensors
from cutlayer.wire.recording import BODY_FILE, INDEX_FILE, Direction
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
        """Bytes of whole lines in the index, and of the bodies that they describe."""
        lines = (self.folder / INDEX_FILE).read_bytes()
        lines = lines[: lines.rfind(b"\n") + 1]
        kept = [entry for entry in map(json.loads, lines.splitlines()) if entry["offset"] is not None]
        return len(lines), kept[-1]["offset"] + kept[-1]["size"] if kept else 0

    def _cut(self) -> None:
        """Cuts what was written of a message that is not whole."""
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
