"""Blocks that are no frame's."""

from __future__ import annotations

import struct
import traceback

import pytest
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st

from cutlayer.core import PrecededTokens, Ragged, Tokens
from cutlayer.wire import (
    ROLES,
    Frame,
    FrameError,
    Route,
    decode_tensors,
    encode_tensors,
    id_type,
    pack,
    read_header,
    routes,
    unpack,
)
from cutlayer.wire.messages import WireType

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


TEXT = "the patient was seen on Monday"


@pytest.mark.parametrize("reply", [False, True], ids=["request", "reply"])
@pytest.mark.parametrize(
    ("names", "told"),
    [
        ([TEXT], "1 of another name"),
        ([TEXT, f"{TEXT} again"], "2 of another name"),
        (["records", TEXT], r"records\+1 of another name"),
        (["lengths", "gradient"], r"gradient\+lengths"),
    ],
)
def test_tensors_are_not_called_what_the_protocol_does_not_call_them(names: list[str], told: str, reply: bool) -> None:
    """Errors are printed and logged, on either side."""
    tensors = {name: torch.zeros(4, dtype=torch.uint8) for name in names}
    body = encode_tensors(tensors)
    with pytest.raises(FrameError, match=rf"^job.step takes tensors .*, not {told}\.$") as caught:
        decode_tensors(routes.STEP, body, reply=reply)
    assert "patient" not in "".join(traceback.format_exception(caught.value))
    with pytest.raises(FrameError, match=rf"^job.step takes tensors .*, not {told}\.$"):
        Frame(routes.STEP, {"job": "a" * 32, "step": 1}, tensors=tensors)


@pytest.mark.parametrize(
    ("dtype", "told"),
    [("I64", "I64"), ("F64", "F64"), (TEXT, "of another name"), ("", "of another name")],
)
def test_an_element_type_that_does_not_travel(dtype: str, told: str) -> None:
    header = f'{{"records":{{"dtype":"{dtype}","shape":[4],"data_offsets":[0,4]}}}}'.encode()
    body = struct.pack("<Q", len(header)) + header + bytes(4)
    with pytest.raises(
        FrameError, match=f"^Element type {told} is not one that travels: U8, U16, U32, F32, BF16"
    ) as caught:
        read_header(body, total=len(body))
    assert "patient" not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize(
    "sides",
    [
        ",".join(["1e308"] * 400),
        ",".join(["281474976710656"] * 250),
        "281474976710657",
        "1" + "0" * 400,
        "-1",
        "4.0",
        "true",
        "null",
        '"4"',
        "[4]",
        "Infinity",
        "NaN",
    ],
    ids=lambda sides: sides[:20],
)
@pytest.mark.parametrize("reply", [False, True], ids=["request", "reply"])
def test_sides_are_whole_numbers_of_some_size(sides: str, reply: bool) -> None:
    """Their product is told in an error, and Python does not write whole numbers of more than 4,300 digits."""
    header = f'{{"records":{{"dtype":"U8","shape":[{sides}],"data_offsets":[0,4]}}}}'.encode()
    body = struct.pack("<Q", len(header)) + header + bytes(4)
    with pytest.raises(FrameError, match="at most 8 whole numbers from 0 to 281474976710656"):
        read_header(body, total=len(body))
    for route in routes.ROUTES.values():
        with pytest.raises(FrameError, match="whole numbers"):
            decode_tensors(route, body, reply=reply)


def test_the_largest_header_is_told() -> None:
    header = (
        f'{{"records":{{"dtype":"U8","shape":[{",".join(["281474976710656"] * 8)}],"data_offsets":[0,4]}}}}'.encode()
    )
    body = struct.pack("<Q", len(header)) + header + bytes(4)
    with pytest.raises(FrameError, match=f"describes {8 + len(header) + 2**384} bytes, the body has {len(body)}"):
        read_header(body, total=len(body))


@pytest.mark.parametrize(
    ("vocab_size", "dtype", "most"),
    [
        (30_522, torch.uint16, 2.2),
        (65_536, torch.uint16, 2.2),
        (65_537, torch.uint32, 4.2),
        (100_000, torch.uint32, 4.2),
    ],
)
def test_ids_take_two_bytes_up_to_65536_entries_and_four_above(
    vocab_size: int, dtype: torch.dtype, most: float
) -> None:
    """The last id of all arrives, and a release of short texts costs little more than its ids, header included."""
    assert id_type(vocab_size) is dtype
    texts, length = 2000, 11
    release = Tokens((Ragged(torch.full((texts * length,), vocab_size - 1), torch.full((texts,), length)),))
    packed = pack(release, vocab_size=vocab_size, wire_type=WireType.BF16)
    body = encode_tensors(packed)
    arrived = unpack(decode_tensors(routes.SHARD_PUT, body))
    assert packed["ids"].dtype is dtype
    assert isinstance(arrived, Tokens)
    assert torch.equal(arrived.segments[0].values, release.segments[0].values)
    assert dtype.itemsize < len(body) / (texts * length) <= most


@pytest.mark.parametrize("segments", [1, 2])
def test_words_before_texts_come_back(segments: int) -> None:
    """Of a pair they are of its first text."""
    texts = tuple(Ragged(torch.arange(7) + 10 * side, torch.tensor([4, 3])) for side in range(segments))
    release = PrecededTokens(texts, torch.tensor([[1, 0, 2], [1, 1, 1]]), torch.tensor([63, 0]))
    packed = pack(release, vocab_size=100, wire_type=WireType.BF16)
    assert {role: tensor.dtype for role, tensor in packed.items()} == {
        "ids": torch.uint16, "lengths": torch.uint8, "preceding": torch.uint8, "sequences": torch.uint8
    }  # fmt: skip
    arrived = unpack(decode_tensors(routes.SHARD_PUT, encode_tensors(packed)))
    assert isinstance(arrived, PrecededTokens)
    assert torch.equal(arrived.preceding, release.preceding)
    assert torch.equal(arrived.sequences, release.sequences)
    assert torch.equal(arrived.values, release.values)
    # no query has a field for them
    with pytest.raises(FrameError, match="takes tensors"):
        decode_tensors(routes.ADAPTER_INFER, encode_tensors(packed))


TYPES = (torch.uint8, torch.uint16, torch.uint32, torch.bfloat16, torch.float32)
tensors = st.tuples(st.sampled_from(TYPES), st.lists(st.integers(0, 4), max_size=3), st.booleans())


@given(st.dictionaries(st.sampled_from([*ROLES, "ü", ""]), tensors, min_size=1, max_size=4))
def test_a_block_has_the_bytes_that_the_library_writes(
    drawn: dict[str, tuple[torch.dtype, list[int], bool]],
) -> None:
    """Transcripts and ledgers of before name bodies by their digest: the same tensors are the same bytes for ever."""
    given = {}
    for role, (dtype, shape, turned) in drawn.items():
        values = (torch.arange(torch.Size(shape).numel()) % 251).reshape(shape).to(dtype)
        given[role] = values.mT if turned and len(shape) > 1 else values
    whole = {role: tensor.contiguous() for role, tensor in given.items()}
    assert encode_tensors(given) == safetensors.torch.save(whole)
