"""What a start clears away, and what is on disk before it is promised."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from cutlayer import vendor
from cutlayer.core import VendorError
from cutlayer.core.files import (
    TEMPORARY,
    remove_leftovers,
)
from cutlayer.wire.transports import LocalTransport
from tests.service.customer import Customer
from tests.unit.vendor.test_store import GOOD, IDS, NAME, put


def crash(*_: object, **__: object) -> None:
    raise OSError("power failed")


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
