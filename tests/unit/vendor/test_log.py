"""The write-ahead log: what a crash may leave, and what it must not hide."""

from __future__ import annotations

import errno
import os
import shutil
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
    write = os.pwrite

    def full(file: int, content: memoryview, at: int) -> int:
        if len(content) > 60:
            return write(file, content[:60], at)
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
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


def reopened(folder: Path) -> FrameLog:
    """A log that has been read to its end."""
    log = FrameLog(folder)
    list(log.read())
    return log


def last(folder: Path) -> Entry:
    return read(folder)[-1]


def test_an_entry_says_whether_it_was_applied(tmp_path: Path) -> None:
    filled(tmp_path)
    assert [entry.applied for entry in read(tmp_path)] == [True, True, False], "one is begun after the one before"
    log = reopened(tmp_path)
    log.append(Entry(STEP, 3, b"y"))
    log.note_applied()
    log.close()
    assert [entry.applied for entry in read(tmp_path)] == [True, True, True, True]
    log = reopened(tmp_path)
    log.begin_segment(2, ENTRIES[2])
    log.close()
    assert last(tmp_path).applied, "what is carried into a segment was applied before"


def test_deaths_in_a_replay_are_counted_until_one_is_survived(tmp_path: Path) -> None:
    folder = tmp_path / "0"
    filled(folder)
    for deaths in range(3):
        assert (last(folder).applied, last(folder).deaths) == (False, deaths)
        log = reopened(folder)
        with log.replaying(last(folder)):  # and the process is gone: this is what is there then
            folder = Path(shutil.copytree(folder, tmp_path / str(deaths + 1)))
        log.close()
    log = reopened(folder)
    with pytest.raises(RuntimeError, match="an error is no death"), log.replaying(last(folder)):
        raise RuntimeError("an error is no death")
    assert last(folder).deaths == 3
    with log.replaying(last(folder)):
        pass
    log.close()
    assert last(folder).applied
    assert read(folder) == ENTRIES


@pytest.mark.parametrize("failing", ["open", "sync_folder"])
def test_a_segment_that_cannot_be_begun_leaves_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    segment = filled(tmp_path)
    log = reopened(tmp_path)

    def full(*_: object) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as patch:
        patch.setattr(*(("os.open", full) if failing == "open" else ("cutlayer.vendor.log.sync_folder", full)))
        with pytest.raises(OSError, match="Too many open files"):
            log.begin_segment(5, ENTRIES[2])
    assert not log.in_doubt
    assert list(tmp_path.iterdir()) == [segment], "an entry may be torn in the newest segment alone"
    log.append(Entry(STEP, 3, b"y"))
    log.begin_segment(6, None)
    log.append(Entry(STEP, 4, b"z"))
    log.close()
    assert read(tmp_path) == [*ENTRIES, Entry(STEP, 3, b"y"), Entry(STEP, 4, b"z")]


def test_a_log_that_cannot_be_put_right_is_in_doubt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(tmp_path)

    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    log = reopened(tmp_path)
    log.append(Entry(STEP, 3, b"y"))
    with monkeypatch.context() as patch:
        patch.setattr(os, "ftruncate", fail)
        with pytest.raises(OSError, match="error"):
            log.take_back()
    log.close()
    assert log.in_doubt
    log = reopened(tmp_path)
    assert not log.in_doubt
    with monkeypatch.context() as patch:
        patch.setattr("cutlayer.vendor.log.sync_folder", fail)
        patch.setattr(Path, "unlink", fail)
        with pytest.raises(OSError, match="error"):
            log.begin_segment(5, None)
    log.close()
    assert log.in_doubt


def test_a_segment_that_reaches_beyond_a_checkpoint_stays(tmp_path: Path) -> None:
    """As when none could be begun at the checkpoint."""
    segment = filled(tmp_path)
    log = reopened(tmp_path)
    log.begin_segment(8, None)
    log.forget_before(4)
    assert segment.exists()
    log.forget_before(8)
    log.close()
    assert not segment.exists()
