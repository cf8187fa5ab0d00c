"""Tensors as they travel: one safetensors block, so that reading it never runs code."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from cutlayer.core import Payload, PrecededTokens, Ragged, Rows, Tokens
from cutlayer.wire.header import FrameError, check_roles, read_header
from cutlayer.wire.messages import Form, WireType
from cutlayer.wire.routes import Route

_DTYPES = {torch.float32: "F32", torch.uint32: "U32", torch.bfloat16: "BF16", torch.uint16: "U16", torch.uint8: "U8"}
"""Element types that travel, in the order in which a block has them."""
_ORDER = {dtype: place for place, dtype in enumerate(_DTYPES)}


def encode_tensors(tensors: Mapping[str, Tensor]) -> bytes:
    """One safetensors block.

    The same bytes as `safetensors.torch.save` writes, which takes longer than all else that a frame of one token needs.
    """
    if any(tensor.dtype not in _DTYPES or tensor.device.type != "cpu" for tensor in tensors.values()):
        return safetensors.torch.save({role: tensor.contiguous() for role, tensor in tensors.items()})
    entries: dict[str, dict[str, object]] = {}
    blocks, end = [], 0
    for role, tensor in sorted(tensors.items(), key=lambda item: (_ORDER[item[1].dtype], item[0])):
        blocks.append(tensor.detach().contiguous().flatten().view(torch.uint8).numpy().tobytes())
        start, end = end, end + len(blocks[-1])
        entries[role] = {"dtype": _DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
    header = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    header += b" " * (-len(header) % 8)
    return b"".join((struct.pack("<Q", len(header)), header, *blocks))


def decode_tensors(route: Route, body: bytes, *, reply: bool = False) -> dict[str, Tensor]:
    """Reads and checks a tensor body.

    Raises:
        FrameError: Not a block, or not one of this route, or with values that are not finite.
    """
    check_roles(route, read_header(body, total=len(body)), reply=reply)
    try:
        tensors = safetensors.torch.load(body)
    except safetensors.SafetensorError as error:
        raise FrameError("The body is no safetensors block.") from error
    for role, tensor in tensors.items():
        if tensor.is_floating_point() and not torch.isfinite(tensor).all():
            raise FrameError(f"{route.name}: tensor {role} holds values that are not finite.")
    return tensors


def smallest_index(largest: int) -> torch.dtype:
    """The smallest unsigned type that holds `largest`."""
    return torch.uint8 if largest < 2**8 else torch.uint16 if largest < 2**16 else torch.uint32


def id_type(vocab_size: int) -> torch.dtype:
    """The element type of token ids: two bytes up to 65,536 entries, else four."""
    return torch.uint16 if vocab_size <= 2**16 else torch.uint32


def pack(payload: Payload, *, vocab_size: int, wire_type: WireType) -> dict[str, Tensor]:
    """A release's tensors, by role.

    Returns:
        `ids` and `lengths` for tokens (a text's segments one behind the other), with `preceding` and `sequences` where
        public words stand before them; `rows` and `lengths` for boundary rows.
    """
    if isinstance(payload, Rows):
        dtype = torch.bfloat16 if wire_type is WireType.BF16 else torch.float32
        return {"rows": payload.packed.values.to(dtype), "lengths": _pack_lengths(payload.segment_lengths)}
    lengths = torch.stack([segment.lengths for segment in payload.segments], dim=1)
    if len(payload.segments) == 1:
        flat = payload.segments[0].values
    else:
        parts = [segment.values.split(segment.lengths.tolist()) for segment in payload.segments]
        flat = torch.cat([piece for pair in zip(*parts, strict=True) for piece in pair])
    packed = {"ids": flat.to(id_type(vocab_size)), "lengths": _pack_lengths(lengths)}
    if isinstance(payload, PrecededTokens):
        packed |= {"preceding": payload.preceding.to(torch.uint8), "sequences": payload.sequences.to(torch.uint8)}
    return packed


def _pack_lengths(lengths: Tensor) -> Tensor:
    largest = int(lengths.max()) if lengths.numel() else 0
    return lengths.to(smallest_index(largest))


def unpack(tensors: Mapping[str, Tensor]) -> Payload:
    """The release in a frame's tensors.

    Raises:
        FrameError: Lengths that do not add up.
    """
    lengths = tensors["lengths"].to(torch.int64)
    form = Form.ROWS if "rows" in tensors else Form.IDS
    values = tensors[form.value]
    if int(lengths.sum()) != len(values) or lengths.shape[1] not in (1, 2):
        raise FrameError(
            f"lengths {list(lengths.shape)} add up to {int(lengths.sum())}, {form} has {len(values)} items."
        )
    if form is Form.ROWS:
        return Rows(Ragged(values, lengths.sum(1)), lengths)
    segments = _segments(values.to(torch.int64), lengths)
    if "preceding" in tensors:
        return PrecededTokens(segments, tensors["preceding"].to(torch.int64), tensors["sequences"].to(torch.int64))
    return Tokens(segments)


def _segments(ids: Tensor, lengths: Tensor) -> tuple[Ragged, ...]:
    """Ids `[tokens]` of texts, by segment, for lengths `[texts, segments]`."""
    if lengths.shape[1] == 1:
        return (Ragged(ids, lengths[:, 0]),)
    pieces = ids.split(lengths.flatten().tolist())
    return tuple(
        Ragged(torch.cat(pieces[side::2]) if len(lengths) else ids, lengths[:, side].contiguous()) for side in range(2)
    )
