"""A recorded transcript on disk: what crossed, in order, and nothing about what it meant.

```
folder/
  frames.jsonl   one line a message: direction, route, where, kind, offset, size, sha256
  frames.bin     the bodies, one behind the other
```
An attack reads a transcript and declared knowledge, never a customer (design, promise 4).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from torch import Tensor

from cutlayer.core import StorageError
from cutlayer.wire.frame import decode_tensors
from cutlayer.wire.messages import Message
from cutlayer.wire.routes import ROUTES, Route

INDEX_FILE = "frames.jsonl"
BODY_FILE = "frames.bin"


class Direction(StrEnum):
    """Who sent a message."""

    UP = "up"
    """The customer: a frame."""
    DOWN = "down"
    """The vendor: the answer to the frame before."""


@dataclass(frozen=True)
class RecordedFrame:
    """One message of a transcript.

    Attributes:
        direction: Who sent it.
        route: What kind of message.
        where: Values of the path's placeholders.
        body: The bytes that crossed; empty for files that the vendor handed out, which are kept by
            their digest only.
        sha256: Hex digest of the bytes that crossed.
        size: How many they were.
    """

    direction: Direction
    route: Route
    where: Mapping[str, str | int]
    body: bytes
    sha256: str
    size: int

    def tensors(self) -> dict[str, Tensor]:
        """The tensors in the body; none for control messages."""
        down = self.direction is Direction.DOWN
        if not self.body or not (self.route.reply_tensors if down else self.route.tensors):
            return {}
        return decode_tensors(self.route, self.body, reply=down)

    def control(self) -> Message | None:
        """The control message in the body, if it is one."""
        kind = self.route.reply if self.direction is Direction.DOWN else self.route.control
        return kind.model_validate_json(self.body) if kind is not None and self.body else None


def read_recording(folder: Path | str) -> Iterator[RecordedFrame]:
    """The messages of a transcript, in the order in which they crossed.

    Raises:
        StorageError: The folder holds no transcript, or bytes that do not match their digest.
    """
    folder = Path(folder)
    try:
        index = (folder / INDEX_FILE).open("rb")
        bodies = (folder / BODY_FILE).open("rb")
    except OSError as error:
        raise StorageError(
            f"{folder} holds no recorded transcript: {error.strerror}.", remedy="Record one with RecordingTransport."
        ) from error
    with index, bodies:
        for number, line in enumerate(index, start=1):
            try:
                entry = json.loads(line)
                route = ROUTES[entry["route"]]
                direction = Direction(entry["direction"])
                where, size, digest, offset = entry["where"], entry["size"], entry["sha256"], entry["offset"]
            except (ValueError, KeyError, TypeError) as error:
                raise StorageError(
                    f"Line {number} of {folder / INDEX_FILE} describes no message.", remedy="Record the run again."
                ) from error
            body = b""
            if offset is not None:
                bodies.seek(offset)
                body = bodies.read(size)
                if hashlib.sha256(body).hexdigest() != digest:
                    raise StorageError(
                        f"Message {number} of {folder} does not match its digest.", remedy="Record the run again."
                    )
            yield RecordedFrame(direction, route, where, body, digest, size)
