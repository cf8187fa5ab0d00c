"""Files that are whole or absent, and what a start clears away."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path

import pytest

from cutlayer import vendor
from cutlayer.core import VendorError
from cutlayer.vendor.files import (
    TEMPORARY,
    bytes_below,
    remove_folder,
    remove_leftovers,
    removed,
    whole_folder,
    write_whole,
)
from cutlayer.wire.transports import LocalTransport
from tests.service.customer import Customer
from tests.unit.vendor.test_store import GOOD, IDS, NAME, put


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


def test_an_upload_that_a_crash_cut_short_goes(
    transport: LocalTransport, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = data_dir / "tenants/clinic/record-sets" / NAME
    left: list[Path] = []

    def note(path: Path, **_: object) -> None:
        left.append(path)

    with monkeypatch.context() as crashing:
        crashing.setattr(os, "replace", crash)
        crashing.setattr(Path, "unlink", note)
        with pytest.raises(VendorError):
            put(transport, IDS, GOOD)
    [torn] = left
    assert list(folder.iterdir()) == [torn]
    remove_leftovers(data_dir)
    assert not list(folder.iterdir())


def test_a_start_leaves_files_that_are_not_its_own(data_dir: Path) -> None:
    foreign = [data_dir / ".pre-commit-config.yaml", data_dir / "sub/.env.local", data_dir / "sub/.a.b/c"]
    for path in foreign:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("mine")
    vendor.create_app(vendor.VendorSettings.load(data_dir)).state.vendor.close()
    assert [path.read_text() for path in foreign] == ["mine"] * 3


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


def test_new_folders_are_on_disk_before_what_is_in_them_is_promised(
    tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a power cut a file is gone if the name of any folder above it is."""
    made: list[Path] = []
    pending: set[Path] = set()  # folders that hold a new name which is not on disk
    mkdir, fsync = os.mkdir, os.fsync

    def note(path: str | Path, *rest: int) -> None:
        mkdir(path, *rest)
        if not Path(path).name.startswith(TEMPORARY):  # renamed once they are whole
            made.append(Path(path))
            pending.add(Path(path).parent)

    def settle(handle: int) -> None:
        fsync(handle)
        pending.discard(Path(os.readlink(f"/proc/self/fd/{handle}")))

    monkeypatch.setattr(os, "mkdir", note)
    monkeypatch.setattr(os, "fsync", settle)
    folder = tmp_path / "srv/cutlayer"
    vendor.init(folder, models=[f"tiny={tiny_model}"], threads=1, max_bottom=2)
    assert not pending
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    key = vendor.keys.create(folder, "clinic")
    transport = LocalTransport(vendor.create_app(vendor.VendorSettings.load(folder)), key)
    put(transport, IDS, GOOD)
    assert not pending
    customer = Customer(transport)
    customer.upload()
    customer.train(customer.start(), until=1)
    assert not pending
    customer.run()
    assert not pending
    transport.close()
    tenant = folder / "tenants/clinic"
    assert {folder.parent, folder, folder / "models/tiny", tenant, tenant / "record-sets" / NAME} <= set(made)
    assert {path.relative_to(tenant).parts[0] for path in made if path.is_relative_to(tenant) and path != tenant} == {
        "record-sets",
        "jobs",
        "adapters",
    }


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
