"""Frames: one message each, and the only way to bytes and back.

A frame is checked against its route when it is made and again when it is read, so neither side can
send or accept a field that the protocol does not name. Its tensors' bytes are `cutlayer.wire.tensors`;
what has none is sent and read without torch.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from pydantic import ValidationError

from cutlayer.core import ConfigError
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
_DTYPE_SIZES = {"U8": 1, "U16": 2, "U32": 4, "F32": 4, "BF16": 2}
_OTHER_DTYPES = frozenset({"BOOL", "I8", "I16", "I32", "I64", "U64", "F16", "F64"})
"""Told in an error. What else a header calls an element type may be anything, a text for example."""
M = TypeVar("M", bound=Message)

MAX_HEADER_BYTES = 4096
"""A safetensors header here names at most a handful of tensors."""


_LARGEST_SIDE = 2**48
_HIGHEST_RANK = 8
"""Beyond all that travels; within them the number of bytes that a header claims can be told."""


Shape = tuple[int | None, ...]
"""Sides of a tensor; None for one that is not known."""


class FrameError(ConfigError):
    """Bytes or tensors that are no frame of their route."""


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
        largest = sum(math.prod(side or 0 for side in shape) for shape in sides) * max(_DTYPE_SIZES.values())
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


def check_roles(route: Route, found: Mapping[str, tuple[str, tuple[int, ...]]], *, reply: bool = False) -> None:
    """Checks names, element types and ranks of a tensor body against its route.

    Raises:
        FrameError: A role, an element type or a rank that the route does not have.
    """
    allowed = route.reply_tensors if reply else route.tensors
    if frozenset(found) not in allowed:
        options = " or ".join("+".join(sorted(roles)) for roles in allowed)
        named = sorted(found.keys() & ROLES.keys())
        others = len(found) - len(named)  # they may be called anything, a text for example
        given = "+".join(named + [f"{others} of another name"] * bool(others))
        raise FrameError(f"{route.name} takes tensors {options}, not {given or 'none'}.")
    for role, (dtype, shape) in found.items():
        expected = ROLES[role]
        if dtype not in expected.dtypes or len(shape) != expected.rank:
            raise FrameError(
                f"{route.name}: tensor {role} is {dtype}{list(shape)}; "
                f"it must be {' or '.join(expected.dtypes)} of rank {expected.rank}."
            )


def read_header(head: bytes, *, total: int) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Element type and shape of each tensor from a block's first bytes, before the rest is read.

    Args:
        head: The first bytes; at least the 8-byte length and the header.
        total: Length of the whole block in bytes, as announced.

    Raises:
        FrameError: The bytes are no safetensors block of that length.
    """
    if len(head) < 8:
        raise FrameError("The body is no safetensors block: it is shorter than 8 bytes.")
    (size,) = struct.unpack("<Q", head[:8])
    if size > MAX_HEADER_BYTES or size > len(head) - 8:
        raise FrameError(f"The body is no safetensors block: its header claims {size} bytes.")
    try:
        entries = json.loads(head[8 : 8 + size])
        found = {
            str(role): (str(entry["dtype"]), tuple(entry["shape"]))
            for role, entry in entries.items()
            if role != "__metadata__"
        }
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise FrameError("The body is no safetensors block: its header cannot be read.") from error
    if "__metadata__" in entries:
        raise FrameError("The body carries metadata; frames have none.")
    for _, shape in found.values():
        if len(shape) > _HIGHEST_RANK or not all(type(side) is int and 0 <= side <= _LARGEST_SIDE for side in shape):
            raise FrameError(
                f"The body is no safetensors block: a shape is at most {_HIGHEST_RANK} "
                f"whole numbers from 0 to {_LARGEST_SIDE}."
            )
    for dtype, _ in found.values():
        if dtype not in _DTYPE_SIZES:
            told = dtype if dtype in _OTHER_DTYPES else "of another name"
            raise FrameError(f"Element type {told} is not one that travels: {', '.join(_DTYPE_SIZES)}.")
    stored = sum(math.prod(shape) * _DTYPE_SIZES[dtype] for dtype, shape in found.values())
    if 8 + size + stored != total:
        raise FrameError(f"The body's header describes {8 + size + stored} bytes, the body has {total}.")
    return found
