"""Recorded transcripts: continued after a crash, refused when they were changed."""

from __future__ import annotations

import errno
import json
import os
import stat
from pathlib import Path

import pytest

from cutlayer.core import StorageError, VendorError
from cutlayer.wire import Frame, Reply, routes
from cutlayer.wire.messages import SealRequest
from cutlayer.wire.recording import read_recording
from cutlayer.wire.transports import RecordingTransport

FRAME = Frame(routes.SEAL, {"record_set": "a" * 32}, SealRequest(shards=1, records=1))
UNREADABLE = Path("/proc/self/mem")
"""Its first page is nobody's."""


class Echo:
    def __init__(self) -> None:
        self.sent = 0

    @property
    def peer(self) -> str:
        return "echo"

    def send(self, frame: Frame) -> Reply:
        self.sent += 1
        return Reply()

    def close(self) -> None:
        pass


def record(folder: Path, count: int) -> None:
    transport = RecordingTransport(Echo(), folder)
    for _ in range(count):
        transport.send(FRAME)
    transport.close()


def test_a_recording_is_continued(tmp_path: Path) -> None:
    record(tmp_path / "t", 2)
    record(tmp_path / "t", 1)
    frames = list(read_recording(tmp_path / "t"))
    assert [frame.control() for frame in frames] == [FRAME.control, None] * 3
    assert stat.S_IMODE((tmp_path / "t/frames.bin").stat().st_mode) == 0o600


@pytest.mark.parametrize("cut", [1, 20, 60])
def test_a_half_written_message_is_cut_off(tmp_path: Path, cut: int) -> None:
    record(tmp_path, 2)
    index = tmp_path / "frames.jsonl"
    index.write_bytes(index.read_bytes()[:-cut])
    with (tmp_path / "frames.bin").open("ab") as bodies:
        bodies.write(b"half a bo")
    record(tmp_path, 1)
    assert len(list(read_recording(tmp_path))) == 5


def sizes(folder: Path) -> list[int]:
    return [len(frame.body) for frame in read_recording(folder)]


@pytest.mark.parametrize("left", [0, 1, 0.5, 0.99])
def test_bodies_that_a_power_cut_took_are_cut_from_the_index(tmp_path: Path, left: float) -> None:
    record(tmp_path, 3)
    before, bodies = sizes(tmp_path), tmp_path / "frames.bin"
    held = left if isinstance(left, int) else int(left * bodies.stat().st_size)
    os.truncate(bodies, held)
    record(tmp_path, 0)
    kept = sizes(tmp_path)
    assert bodies.stat().st_size == sum(kept) <= held, "it grew by nothing"
    assert kept == before[: len(kept)]
    assert sum(before[: len(kept) + 1]) > held, "the next one's body was not there"
    record(tmp_path, 1)
    assert sizes(tmp_path) == [*kept, *before[:2]]


LINE = json.dumps(
    {"direction": "down", "route": "record-set.seal", "where": {}, "offset": None, "size": 3, "sha256": "0" * 64}
)


def line(**changes: object) -> bytes:
    return json.dumps({**json.loads(LINE), **changes}).encode() + b"\n"


DAMAGED = {
    "zeros": b"\x00" * 80 + b"\n",
    "half a line": line()[:40] + b"\n",
    "no UTF-8": b"\xff\xfe\n",
    "empty": b"\n",
    "no object": b"[]\n",
    "a number": b"7\n",
    "deep": b"[" * 100_000 + b"\n",
    "nothing": b"{}\n",
    "an unknown route": line(route="record-set.leak"),
    "a route that is no name": line(route=["record-set.seal"]),
    "an unknown direction": line(direction="sideways"),
    "a place that is none": line(where=[1]),
    "a negative offset": line(offset=-1),
    "an offset that is no number": line(offset="0"),
    "an offset of half a byte": line(offset=0.5),
    "a negative size": line(offset=0, size=-1),
    "no digest": line(sha256=None),
    "beyond the end": line(offset=10**30),
    "longer than any file": line(offset=0, size=10**30),
}


@pytest.mark.parametrize("damaged", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_line_is_refused_when_read_and_the_end_when_continued(tmp_path: Path, damaged: bytes) -> None:
    record(tmp_path, 3)
    index = tmp_path / "frames.jsonl"
    lines = index.read_bytes().splitlines(keepends=True)
    index.write_bytes(b"".join([*lines[:3], damaged, *lines[3:]]))
    with pytest.raises(StorageError, match=r"Line 4 .* describes no message|Message 4 .* does not match"):
        list(read_recording(tmp_path))
    record(tmp_path, 1)
    assert index.read_bytes().splitlines(keepends=True)[:3] == lines[:3]
    up = FRAME.control
    assert [frame.control() for frame in read_recording(tmp_path)] == [up, None, up, up, None]


def test_a_body_that_is_not_behind_the_one_before_is_the_end(tmp_path: Path) -> None:
    record(tmp_path, 2)
    index = tmp_path / "frames.jsonl"
    lines = index.read_bytes().splitlines(keepends=True)
    index.write_bytes(b"".join([*lines, lines[0]]))
    record(tmp_path, 0)
    assert index.read_bytes().splitlines(keepends=True) == lines


@pytest.mark.skipif(not UNREADABLE.exists(), reason="no file here opens and cannot be read")
def test_a_disk_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    record(tmp_path, 1)
    (tmp_path / "frames.jsonl").unlink()
    (tmp_path / "frames.jsonl").symlink_to(UNREADABLE)
    with pytest.raises(StorageError, match="Input/output error"):
        list(read_recording(tmp_path))


def test_a_frame_that_cannot_be_recorded_is_not_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    echo = Echo()
    transport = RecordingTransport(echo, tmp_path)
    transport.send(FRAME)
    write = os.write

    def full(file: int, content: memoryview) -> int:
        if len(content) > 5:
            return write(file, content[:5])
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(StorageError, match="No space left"):
            transport.send(FRAME)
    assert echo.sent == 1
    transport.send(FRAME)
    transport.close()
    assert len(list(read_recording(tmp_path))) == 4


def test_a_refused_frame_is_recorded_all_the_same(tmp_path: Path) -> None:
    class Refuses(Echo):
        def send(self, frame: Frame) -> Reply:
            raise VendorError("no", status=409)

    transport = RecordingTransport(Refuses(), tmp_path)
    with pytest.raises(VendorError):
        transport.send(FRAME)
    transport.close()
    [frame] = read_recording(tmp_path)
    assert frame.body == FRAME.encode()


@pytest.mark.parametrize(
    ("name", "change", "match"),
    [
        ("frames.bin", lambda content: b"X" + content[1:], "does not match its digest"),
        ("frames.bin", lambda content: content[:-1], "does not match its digest"),
        ("frames.jsonl", lambda content: b"{}\n" + content, "Line 1"),
        ("frames.jsonl", lambda content: content.replace(b"record-set.seal", b"record-set.leak"), "Line 1"),
    ],
)
def test_a_changed_recording_is_refused(tmp_path: Path, name: str, change: object, match: str) -> None:
    record(tmp_path, 2)
    path = tmp_path / name
    path.write_bytes(change(path.read_bytes()))  # type: ignore[operator]
    with pytest.raises(StorageError, match=match):
        list(read_recording(tmp_path))


def test_a_folder_without_a_recording(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="no recorded transcript"):
        list(read_recording(tmp_path))
