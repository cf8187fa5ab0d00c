"""Files that are whole or absent, and what is cleared away."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
from pathlib import Path

import pytest

from cutlayer.core.files import (
    bytes_below,
    remove_folder,
    remove_leftovers,
    removed,
    whole_folder,
    write_whole,
)


def crash(*_: object, **__: object) -> None:
    raise OSError("power failed")


def test_what_a_crash_left_half_written_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sub").mkdir()
    with monkeypatch.context() as crashing:
        for where, name in ((os, "replace"), (os, "rename"), (Path, "unlink"), (shutil, "rmtree")):
            crashing.setattr(where, name, crash)
        with pytest.raises(OSError, match="power failed"):
            write_whole(tmp_path / "sub/file.json", b"content")
        with pytest.raises(OSError, match="power failed"), whole_folder(tmp_path / "sub/folder") as folder:
            (folder / "a").write_bytes(b"a")
    assert len(list((tmp_path / "sub").iterdir())) == 2
    remove_leftovers(tmp_path)
    assert not list((tmp_path / "sub").iterdir())


def test_who_may_read_a_file_is_said_or_left_to_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        for mode, expected in ((0o600, 0o600), (0o644, 0o644), (None, 0o640)):
            write_whole(tmp_path / "file", b"content", mode=mode)
            assert (tmp_path / "file").stat().st_mode & 0o777 == expected
    finally:
        os.umask(before)


def test_bytes_below_a_folder_are_counted_whatever_goes_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert bytes_below(tmp_path / "nothing") == 0
    (tmp_path / "a/b").mkdir(parents=True)
    for path, size in (("one", 1), ("a/ten", 10), ("a/b/hundred", 100)):
        (tmp_path / path).write_bytes(b"x" * size)
    assert bytes_below(tmp_path) == 111
    stat = os.stat

    def gone(path: str) -> os.stat_result:
        if path.endswith("ten"):
            raise FileNotFoundError(path)
        return stat(path)

    monkeypatch.setattr(os, "stat", gone)
    assert bytes_below(tmp_path) == 101


def doomed(tmp_path: Path) -> Path:
    folder = tmp_path / "tenants/clinic/jobs/0001"
    (folder / "log").mkdir(parents=True)
    (folder / "log/0.log").write_bytes(b"a release")
    return folder


def test_a_folder_goes_with_what_lists_it(tmp_path: Path) -> None:
    folder = doomed(tmp_path)
    with pytest.raises(OSError, match="power failed"), removed(folder):
        crash()
    assert (folder / "log/0.log").read_bytes() == b"a release"
    with removed(folder):
        assert not folder.exists()
    assert not list(folder.parent.iterdir())
    with removed(folder):
        pass  # there is none, and that is no error


def test_a_folder_whose_deletion_was_cut_short_is_swept_at_the_next_start(tmp_path: Path) -> None:
    folder = doomed(tmp_path)
    with removed(folder):  # and the process is gone: this is what is there then
        dead = Path(shutil.copytree(folder.parent, tmp_path / "dead"))
    assert [path.read_bytes() for path in dead.rglob("0.log")] == [b"a release"]
    remove_leftovers(dead)
    assert not list(dead.iterdir())


def test_a_folder_that_two_remove_at_once_goes_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One sees it there, and before it moves it, another has removed it."""
    folder = tmp_path / "folder"
    folder.mkdir()
    rename = os.rename

    def second(source: Path, target: Path) -> None:
        monkeypatch.setattr(os, "rename", rename)
        remove_folder(folder)
        rename(source, target)

    monkeypatch.setattr(os, "rename", second)
    remove_folder(folder)
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_removed_is_not_there_any_more_and_is_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    folder = doomed(tmp_path)
    with monkeypatch.context() as stuck:
        stuck.setattr(shutil, "rmtree", lambda *_, **__: None)
        remove_folder(folder)
        assert not folder.exists()
        assert "could not be removed" in caplog.text
        assert "clinic" not in caplog.text
    remove_leftovers(tmp_path)
    assert not list(folder.parent.iterdir())


@pytest.mark.parametrize(("number", "told"), [(errno.EINVAL, False), (errno.EACCES, False), (errno.EIO, True)])
def test_a_file_system_that_syncs_no_folders_still_writes(
    number: int, told: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = os.fsync

    def fsync(handle: int) -> None:
        if stat.S_ISDIR(os.fstat(handle).st_mode):
            raise OSError(number, "of a folder")
        honest(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(OSError, match="of a folder") if told else contextlib.nullcontext():
        write_whole(tmp_path / "file", b"new")
    assert (tmp_path / "file").read_bytes() == b"new"
