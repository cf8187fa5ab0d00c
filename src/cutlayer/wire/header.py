"""The header of a tensor body: names, element types and shapes, checked before any tensor is made."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping

from cutlayer.core import ConfigError
from cutlayer.wire.routes import ROLES, Route

DTYPE_SIZES = {"U8": 1, "U16": 2, "U32": 4, "F32": 4, "BF16": 2}
_OTHER_DTYPES = frozenset({"BOOL", "I8", "I16", "I32", "I64", "U64", "F16", "F64"})
"""Told in an error. What else a header calls an element type may be anything, a text for example."""
MAX_HEADER_BYTES = 4096
"""A safetensors header here names at most a handful of tensors."""


_LARGEST_SIDE = 2**48
_HIGHEST_RANK = 8
"""Beyond all that travels; within them the number of bytes that a header claims can be told."""


class FrameError(ConfigError):
    """Bytes or tensors that are no frame of their route."""


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
        if dtype not in DTYPE_SIZES:
            told = dtype if dtype in _OTHER_DTYPES else "of another name"
            raise FrameError(f"Element type {told} is not one that travels: {', '.join(DTYPE_SIZES)}.")
    stored = sum(math.prod(shape) * DTYPE_SIZES[dtype] for dtype, shape in found.values())
    if 8 + size + stored != total:
        raise FrameError(f"The body's header describes {8 + size + stored} bytes, the body has {total}.")
    return found
