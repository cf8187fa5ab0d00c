"""Stored records: read as plain numpy reads them, and in far less memory than their lengths would take."""

from __future__ import annotations

import json
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from cutlayer import vendor
from cutlayer.core import Cut
from cutlayer.serving.refusal import Refusal
from cutlayer.vendor import records
from cutlayer.vendor.catalogue import Catalogue, ModelCard
from cutlayer.vendor.checks import check_lengths
from cutlayer.vendor.records import MappedShard, Records
from cutlayer.wire import Form, unpack
from cutlayer.wire.messages import JobSpec, OptimiserSpec
from tests.service.tiny import MAX_LENGTH

MANY = 2**20


@pytest.fixture
def card(data_dir: Path) -> ModelCard:
    return Catalogue(vendor.VendorSettings.load(data_dir), torch.device("cpu")).card("tiny")


def job(card: ModelCard, segments: int) -> JobSpec:
    return JobSpec(
        model="tiny",
        fingerprint=card.info.fingerprint,
        cut=Cut(bottom=None),
        form=Form.IDS,
        segments=segments,
        num_labels=2,
        optimiser=OptimiserSpec(total_steps=1),
        seed=0,
    )


def write(path: Path, lengths: NDArray[Any], values: NDArray[np.uint16], *, gap: int = 0) -> MappedShard:
    """A shard as a customer might have sent it; `gap` spaces in its header move what follows."""
    kind = {"uint8": "U8", "uint16": "U16"}[lengths.dtype.name]
    header = json.dumps(
        {
            "lengths": {"dtype": kind, "shape": lengths.shape, "data_offsets": [0, lengths.nbytes]},
            "ids": {
                "dtype": "U16",
                "shape": values.shape,
                "data_offsets": [lengths.nbytes, lengths.nbytes + values.nbytes],
            },
        }
    ).encode()
    header += b" " * gap
    path.write_bytes(struct.pack("<Q", len(header)) + header + lengths.tobytes() + values.tobytes())
    return MappedShard.open(path)


def peak(call: Callable[[], object]) -> tuple[object, int]:
    """What a call returns, and the most bytes that numpy and Python held for it."""
    tracemalloc.start()
    try:
        return call(), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def is_mapped(address: int, path: Path) -> bool:
    """Whether a place in memory is a place in a file."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        if line.endswith(str(path)):
            first, last = (int(end, 16) for end in line.split()[0].split("-"))
            if first <= address < last:
                return True
    return False


# Both sides of a block's edge and of a pass's; 8 records a block and 32 a pass for `small`.
COUNTS = [1, 7, 8, 9, 31, 32, 33, 64, 100]


@pytest.mark.parametrize("segments", [1, 2])
@pytest.mark.parametrize("small", [True, False])
def test_records_equal_plain_numpy(
    tmp_path: Path, card: ModelCard, monkeypatch: pytest.MonkeyPatch, segments: int, small: bool
) -> None:
    if small:
        monkeypatch.setattr(records, "_BLOCK", 8)
        monkeypatch.setattr(records, "_PASS", 32)
    rng = np.random.default_rng(segments)
    counts = COUNTS if small else [records._PASS + 300, 255, 256, 257]
    shards, texts = [], []
    for number, count in enumerate(counts):
        kind, most = ((np.uint8, 20), (np.uint16, 300))[number % 2]
        lengths = rng.integers(0, most, (count, segments)).astype(kind)
        lengths[rng.random(count) < 0.3] = 0
        lengths[::16] = 0
        values = rng.integers(0, 300, int(lengths.sum(dtype=np.int64))).astype(np.uint16)
        shards.append(write(tmp_path / str(number), lengths, values, gap=number))
        ends = lengths.sum(1, dtype=np.int64).cumsum()
        texts += list(zip(np.split(values, ends[:-1]), lengths.astype(np.int64), strict=True))
    stored = Records(shards, card, job(card, segments))
    assert len(stored) == len(texts)
    everything = np.arange(len(texts))
    for chosen in [
        rng.permutation(everything)[:2000],
        rng.integers(0, len(texts), 50),
        np.array([0, len(texts) - 1, 0]),
        *([number] for number in range(0, len(texts), 1 if small else 997)),
    ]:
        numbers = np.asarray(chosen, dtype=np.int64)
        found = stored.gather(numbers)
        expected = unpack(
            {
                "ids": torch.from_numpy(np.concatenate([texts[number][0] for number in numbers])),
                "lengths": torch.from_numpy(np.stack([texts[number][1] for number in numbers])),
            }
        )
        for mine, theirs in zip(found.segments, expected.segments, strict=True):
            assert torch.equal(mine.values, theirs.values)
            assert torch.equal(mine.lengths, theirs.lengths)
        longest = max(int(texts[number][1].sum()) for number in numbers)
        assert stored.longest(numbers) == longest + card.template.special_count(segments)


@pytest.mark.parametrize("kind", [np.uint8, np.uint16])
def test_records_take_less_memory_than_their_file(tmp_path: Path, card: ModelCard, kind: type) -> None:
    """A text of one token is three bytes of a shard; with eight in memory for each, sets would have to fit into RAM."""
    path = tmp_path / "shard"
    write(path, np.ones((MANY, 1), kind), np.full(MANY, 7, np.uint16))
    shard, held = peak(lambda: MappedShard.open(path))
    assert isinstance(shard, MappedShard)
    assert held < MANY, "less than one byte a record, even while it is opened"
    assert shard.lengths.dtype == kind
    assert is_mapped(shard.lengths.ctypes.data, path), "a copy by torch is none that tracemalloc sees"
    assert is_mapped(shard.values.data_ptr(), path)
    assert shard.starts.nbytes <= MANY // 16
    stored, held = peak(lambda: Records([shard], card, job(card, 1)))
    assert isinstance(stored, Records)
    assert held < MANY // 16
    assert stored.longest(np.array([MANY - 1])) == 3
    _, held = peak(lambda: check_lengths(card, job(card, 1), shard.lengths, MANY))
    assert held < MANY, "lengths are checked some at a time"


def test_lengths_are_checked_to_the_last(card: ModelCard) -> None:
    """Also those of the last texts of many."""
    lengths = np.ones((3 * 2**16 + 5, 1), np.uint8)
    lengths[-1] = MAX_LENGTH
    spec = job(card, 1)
    with pytest.raises(Refusal, match=f"takes {MAX_LENGTH + 2} positions"):
        check_lengths(card, spec, lengths, int(lengths.sum()))
    rows = spec.model_copy(update={"cut": Cut(bottom=1), "form": Form.ROWS})
    lengths[:] = 2
    check_lengths(card, rows, lengths, int(lengths.sum()))
    lengths[-1] = 1
    with pytest.raises(Refusal, match="fewer rows"):
        check_lengths(card, rows, lengths, int(lengths.sum()))
