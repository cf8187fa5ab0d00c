"""The write-ahead log: what a crash may leave, and what it must not hide."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cutlayer.core import StorageError
from cutlayer.vendor.log import GRADIENT, STEP, Entry, FrameLog

ENTRIES = [Entry(STEP, 1, b"one"), Entry(GRADIENT, 1, b""), Entry(STEP, 2, b"x" * 5000)]


def filled(folder: Path) -> Path:
    log = FrameLog(folder)
    assert list(log.read()) == []
    for entry in ENTRIES:
        log.append(entry)
    log.close()
    [segment] = folder.glob("*.log")
    return segment


def read(folder: Path) -> list[Entry]:
    log = FrameLog(folder)
    try:
        return list(log.read())
    finally:
        log.close()


@settings(max_examples=60, deadline=None)
@given(cut=st.integers(0, 5200))
def test_cut_anywhere_it_holds_the_whole_entries_before(tmp_path_factory: pytest.TempPathFactory, cut: int) -> None:
    folder = tmp_path_factory.mktemp("log")
    segment = filled(folder)
    ends = [0]
    for entry in ENTRIES:
        ends.append(ends[-1] + len(entry.encode()))
    content = segment.read_bytes()
    assert len(content) == ends[-1]
    segment.write_bytes(content[:cut])
    whole = sum(end <= cut for end in ends[1:])
    assert read(folder) == ENTRIES[:whole]
    assert segment.stat().st_size == ends[whole]
    log = FrameLog(folder)
    list(log.read())
    log.append(Entry(STEP, 9, b"after"))
    log.close()
    assert read(folder) == [*ENTRIES[:whole], Entry(STEP, 9, b"after")]


def test_damage_before_the_end_is_an_error_not_a_shorter_log(tmp_path: Path) -> None:
    segment = filled(tmp_path)
    content = bytearray(segment.read_bytes())
    content[56] ^= 1  # the first entry's body
    segment.write_bytes(content)
    with pytest.raises(StorageError, match="damaged at byte 0"):
        read(tmp_path)


def test_a_torn_segment_before_the_last_is_an_error(tmp_path: Path) -> None:
    segment = filled(tmp_path)
    log = FrameLog(tmp_path)
    list(log.read())
    log.begin_segment(5, ENTRIES[2])
    log.close()
    assert read(tmp_path) == [*ENTRIES, ENTRIES[2]]
    with segment.open("r+b") as file:
        file.truncate(segment.stat().st_size - 1)
    with pytest.raises(StorageError, match="damaged"):
        read(tmp_path)


def test_segments_before_a_checkpoint_can_go(tmp_path: Path) -> None:
    filled(tmp_path)
    log = FrameLog(tmp_path)
    list(log.read())
    log.begin_segment(5, ENTRIES[2])
    log.forget_before(5)
    log.close()
    assert read(tmp_path) == [ENTRIES[2]]


def test_an_entry_that_could_not_be_written_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(tmp_path)
    log = FrameLog(tmp_path)
    list(log.read())
    write = os.write

    def full(file: int, content: memoryview) -> int:
        if len(content) > 60:
            return write(file, content[:60])
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(OSError, match="No space"):
            log.append(Entry(STEP, 3, b"y" * 100))
    log.append(Entry(STEP, 3, b"z"))
    log.close()
    assert read(tmp_path) == [*ENTRIES, Entry(STEP, 3, b"z")]


def test_what_was_taken_back_is_gone(tmp_path: Path) -> None:
    filled(tmp_path)
    log = FrameLog(tmp_path)
    list(log.read())
    log.append(Entry(STEP, 3, b"y"))
    log.take_back()
    log.close()
    assert read(tmp_path) == ENTRIES
