"""Blocks that are no frame's."""

from __future__ import annotations

import pytest
import safetensors.torch
import torch

from cutlayer.wire import Frame, FrameError, Route, decode_tensors, encode_tensors, read_header, routes

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


@pytest.mark.parametrize("route", [each for each in routes.ROUTES.values() if each.placeholders], ids=lambda r: r.name)
@pytest.mark.parametrize("told", ["the patient was seen on Monday", "..", "", "a/b", "ward%207", -1])
def test_a_path_has_no_room_for_text(route: Route, told: str | int) -> None:
    """Paths are sent, recorded and logged by every proxy; what stands in them has a form."""
    forms = {"model": "house", "cut": "1-t0", "file": "config.json", "shard": 0, "step": 1}
    where = {name: forms.get(name, "a" * 32) for name in route.placeholders}
    for name in where:
        with pytest.raises(FrameError, match=name) as caught:
            Frame(route, where | {name: told})
        assert len(str(told)) < 6 or str(told) not in str(caught.value)
        with pytest.raises(FrameError, match="in its path"):
            Frame(route, {other: value for other, value in where.items() if other != name})
    with pytest.raises(FrameError, match="in its path"):
        Frame(route, where | {"note": told})
