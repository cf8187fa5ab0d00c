"""Recorded transcripts: continued after a crash, refused when they were changed."""

from __future__ import annotations

import errno
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


class Echo:
    def __init__(self) -> None:
        self.sent = 0

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
