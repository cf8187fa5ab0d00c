"""A recorded transcript on disk: what crossed, in order, and nothing about what it meant.

```
folder/
  frames.jsonl   one line a message: direction, route, where, offset, size, sha256
  frames.bin     the bodies, one behind the other
```
An attack reads a transcript and declared knowledge, never a customer (design, promise 4).
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, BinaryIO

from pydantic import AfterValidator, BaseModel, ConfigDict, NonNegativeInt
from torch import Tensor

from cutlayer.core import StorageError
from cutlayer.wire.messages import Message
from cutlayer.wire.routes import ROUTES, Route
from cutlayer.wire.tensors import decode_tensors

INDEX_FILE = "frames.jsonl"
BODY_FILE = "frames.bin"


class Direction(StrEnum):
    """Who sent a message."""

    UP = "up"
    """The customer: a frame."""
    DOWN = "down"
    """The vendor: the answer to the frame before."""


def _known(route: str) -> str:
    if route not in ROUTES:
        raise ValueError("no such route")
    return route


class Entry(BaseModel):
    """A line of the index.

    Attributes:
        direction: Who sent the message.
        route: The name of its route.
        where: Values of the path's placeholders.
        offset: Where its body begins, or None where the body is not kept.
        size: Its bytes.
        sha256: Their hex digest.
    """

    model_config = ConfigDict(strict=True, frozen=True)

    direction: Direction
    route: Annotated[str, AfterValidator(_known)]
    where: Mapping[str, str | int]
    offset: NonNegativeInt | None
    size: NonNegativeInt
    sha256: str


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
        with (folder / INDEX_FILE).open("rb") as index, (folder / BODY_FILE).open("rb") as bodies:
            yield from _messages(folder, index, bodies)
    except OSError as error:
        raise StorageError(
            f"{folder} holds no recorded transcript: {error.strerror}.", remedy="Record one with RecordingTransport."
        ) from error


def _messages(folder: Path, index: BinaryIO, bodies: BinaryIO) -> Iterator[RecordedFrame]:
    held = os.fstat(bodies.fileno()).st_size
    for number, line in enumerate(index, start=1):
        try:
            entry = Entry.model_validate_json(line)
        except ValueError as error:
            raise StorageError(
                f"Line {number} of {folder / INDEX_FILE} describes no message.", remedy="Record the run again."
            ) from error
        body = b""
        if entry.offset is not None:
            # a size that no file has is not even asked for
            whole = entry.offset + entry.size <= held
            if whole:
                bodies.seek(entry.offset)
                body = bodies.read(entry.size)
            if not whole or hashlib.sha256(body).hexdigest() != entry.sha256:
                raise StorageError(
                    f"Message {number} of {folder} does not match its digest.", remedy="Record the run again."
                )
        yield RecordedFrame(entry.direction, ROUTES[entry.route], entry.where, body, entry.sha256, entry.size)
