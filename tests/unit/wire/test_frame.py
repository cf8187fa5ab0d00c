"""Blocks that are no frame's."""

from __future__ import annotations

import pytest
import safetensors.torch
import torch

from cutlayer.wire import FrameError, decode_tensors, encode_tensors, read_header, routes

RECORDS = {"records": torch.zeros(4, dtype=torch.uint8)}


@pytest.mark.parametrize("notes", [{"note": "the patient was seen on Monday"}, {"": ""}])
def test_a_block_has_no_room_for_metadata(notes: dict[str, str]) -> None:
    """safetensors lets a block carry free text beside its tensors; a frame has none, in either direction."""
    body = safetensors.torch.save(RECORDS, notes)
    with pytest.raises(FrameError, match="carries metadata; frames have none") as caught:
        decode_tensors(routes.STEP, body)
    assert "patient" not in str(caught.value)
    with pytest.raises(FrameError, match="metadata"):
        read_header(body[:200], total=len(body))
    reply = safetensors.torch.save({"output": torch.zeros(1, 2)}, notes)
    with pytest.raises(FrameError, match="metadata"):
        decode_tensors(routes.STEP, reply, reply=True)
    assert decode_tensors(routes.STEP, encode_tensors(RECORDS)).keys() == {"records"}
