"""Frames: one message each, and the only way to bytes and back.

A frame is checked against its route when it is made and again when it is read, so neither side can
send or accept a field that the protocol does not name. Its tensors' bytes are `cutlayer.wire.tensors`;
what has none is sent and read without torch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from pydantic import ValidationError

from cutlayer.wire.header import DTYPE_SIZES, MAX_HEADER_BYTES, FrameError, check_roles
from cutlayer.wire.messages import MAX_ANSWER_BYTES, Message
from cutlayer.wire.routes import PLACEHOLDERS, ROLES, Category, Route

if TYPE_CHECKING:
    from torch import Tensor

_DTYPE_NAMES = {
    "torch.uint8": "U8",
    "torch.uint16": "U16",
    "torch.uint32": "U32",
    "torch.float32": "F32",
    "torch.bfloat16": "BF16",
}
"""What safetensors calls torch's element types that travel."""
M = TypeVar("M", bound=Message)

Shape = tuple[int | None, ...]
"""Sides of a tensor; None for one that is not known."""


@dataclass(frozen=True)
class Frame:
    """One message from the customer.

    Attributes:
        route: What kind of message.
        where: Values of the path's placeholders.
        control: The JSON body.
        tensors: The tensor body, by role.
        shapes: Shapes of the answer's tensors, by role, as far as the request tells them; None for a side that it
            does not tell. More is not read, and another shape is no answer.
        size: Bytes of the answer, where it is a file whose size is known.
    """

    route: Route
    where: Mapping[str, str | int] = field(default_factory=dict)
    control: Message | None = None
    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    shapes: Mapping[str, Shape] = field(default_factory=dict)
    size: int | None = None

    def __post_init__(self) -> None:
        _check_where(self.route, self.where)
        if type(self.control) is not (self.route.control or type(None)):
            raise FrameError(f"{self.route.name} takes {self.route.control}, not {type(self.control)}.")
        if bool(self.tensors) != bool(self.route.tensors):
            raise FrameError(f"{self.route.name}: wrong body.")
        if self.tensors:
            check_roles(self.route, {role: (_name(t), tuple(t.shape)) for role, t in self.tensors.items()})

    @property
    def path(self) -> str:
        """The path with its placeholders filled in."""
        return self.route.path.format(**self.where)

    @property
    def reply_bytes(self) -> int:
        """Most bytes that a good answer has."""
        if self.size is not None:
            return self.size
        sides = [sides for sides in self.shapes.values() if None not in sides]
        if not self.shapes or len(sides) < len(self.shapes):
            return self.route.reply_bytes
        largest = sum(math.prod(side or 0 for side in shape) for shape in sides) * max(DTYPE_SIZES.values())
        # what an update needs beside the tensors of known shape: a norm, and a few numbers a head
        return 8 + MAX_HEADER_BYTES + largest + MAX_ANSWER_BYTES

    def encode(self) -> bytes:
        """The body's bytes."""
        if self.tensors:
            from cutlayer.wire.tensors import encode_tensors

            return encode_tensors(self.tensors)
        return self.control.model_dump_json().encode() if self.control is not None else b""

    def payload_bytes(self) -> dict[Category, int]:
        """Bytes of the tensors, by what they were spent on; envelopes are not counted here."""
        spent = dict.fromkeys(Category, 0)
        for role, tensor in self.tensors.items():
            spent[ROLES[role].category] += tensor.numel() * tensor.element_size()
        return spent


@dataclass(frozen=True)
class Reply:
    """The vendor's answer to a frame.

    Attributes:
        control: The JSON answer.
        tensors: The tensor answer, by role.
        raw: A file's bytes.
        uplink_bytes: Bytes of the request on the wire: request line, headers and body.
        downlink_bytes: Bytes of the answer on the wire: status line, headers and body.
        request_digest: SHA-256 of the request's body, for the ledger.
    """

    control: Message | None = None
    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    raw: bytes = b""
    uplink_bytes: int = 0
    downlink_bytes: int = 0
    request_digest: bytes = b""

    def expect(self, kind: type[M]) -> M:
        """The JSON answer, which must be of this kind.

        Raises:
            FrameError: The vendor answered with something else.
        """
        if not isinstance(self.control, kind):
            raise FrameError(f"The vendor answered with {type(self.control).__name__}, not {kind.__name__}.")
        return self.control


def _check_where(route: Route, where: Mapping[str, str | int]) -> None:
    if where.keys() != route.placeholders:
        raise FrameError(f"{route.name} takes {sorted(route.placeholders)} in its path, not {sorted(where)}.")
    for name, value in where.items():
        try:
            PLACEHOLDERS[name].validate_python(value, strict=True)
        except ValidationError:
            # whatever it is, it was not meant to be seen by anyone else
            raise FrameError(f"{route.name}: what was given for {name} has not the form of one.") from None


def _name(tensor: Tensor) -> str:
    dtype = str(tensor.dtype)
    return _DTYPE_NAMES.get(dtype, dtype)
