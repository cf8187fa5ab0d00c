"""A database belongs to one data folder, and is not waited for for ever."""

from __future__ import annotations

import errno
import shutil
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from cutlayer import vendor
from cutlayer.core import ConfigError, StorageError
from cutlayer.vendor import database as databases
from cutlayer.vendor.database import Folder, open_database

Use = Callable[[Path], object]
USES: dict[str, Use] = {
    "init": vendor.init,
    "serve": lambda folder: vendor.create_app(vendor.VendorSettings.load(folder)),
    "create": lambda folder: vendor.keys.create(folder, "rival"),
    "list": vendor.keys.list,
    "revoke": lambda folder: vendor.keys.revoke(folder, "clinic"),
}


def owner(folder: Path) -> str | None:
    database = open_database(vendor.VendorSettings.load(folder))
    found = database.owner()
    database.close()
    return found


def forget(folder: Path) -> None:
    """Makes the folder and its database what they were before databases belonged to folders."""
    database = open_database(vendor.VendorSettings.load(folder))
    with database.session() as session:
        Folder.__table__.drop(session.connection())
    database.close()
    (folder / "vendor.id").unlink()


@pytest.fixture
def shared(data_dir: Path, tmp_path: Path) -> str:
    """The URL of a database that is `data_dir`'s."""
    url = f"sqlite:///{tmp_path / 'shared.sqlite'}"
    vendor.init(data_dir, database_url=url)
    vendor.keys.create(data_dir, "clinic")
    return url


def test_a_new_folder_is_not_set_up_on_the_database_of_another(tmp_path: Path, tiny_model: Path, shared: str) -> None:
    with pytest.raises(ConfigError, match=rf"{tmp_path}/b is set to belongs to another data folder") as caught:
        vendor.init(tmp_path / "b", models=[str(tiny_model)], database_url=shared)
    assert "its own (cutlayer vendor init --db-url" in caught.value.remedy
    assert [path.name for path in (tmp_path / "b").iterdir()] == [".lock"]
    vendor.init(tmp_path / "b", models=[str(tiny_model)], database_url=f"sqlite:///{tmp_path / 'b.sqlite'}", threads=1)
    assert vendor.keys.list(tmp_path / "b") == ()


@pytest.mark.parametrize("use", ["init", "serve"])
def test_an_identifier_that_cannot_be_written_claims_nothing(
    use: str, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forget(data_dir)

    def full(path: Path, content: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as broken:
        broken.setattr("cutlayer.vendor.settings.write_whole", full)
        with pytest.raises(StorageError, match=r"vendor\.id cannot be written: No space left"):
            USES[use](data_dir)
    assert owner(data_dir) is None
    vendor.create_app(vendor.VendorSettings.load(data_dir))
    assert owner(data_dir) is not None


@pytest.mark.parametrize("use", USES.values(), ids=USES.keys())
def test_a_folder_that_is_set_to_the_database_of_another_is_refused(
    use: Use, data_dir: Path, tmp_path: Path, tiny_model: Path, shared: str, change_settings: Callable[..., None]
) -> None:
    other = tmp_path / "b"
    vendor.init(other, models=[str(tiny_model)], threads=1)
    change_settings(other, database_url=shared)
    before = (other / "models/tiny/card.json").stat().st_ino
    with pytest.raises(ConfigError, match=rf"{other} is set to belongs to another data folder"):
        use(other)
    assert (other / "models/tiny/card.json").stat().st_ino == before
    assert [(key.tenant, key.revoked) for key in vendor.keys.list(data_dir)] == [("clinic", None)]


@pytest.mark.parametrize("move", [shutil.copytree, shutil.move])
def test_a_folder_that_is_moved_or_copied_keeps_its_database(
    move: Callable[[Path, Path], object], data_dir: Path, tmp_path: Path, shared: str
) -> None:
    move(data_dir, tmp_path / "elsewhere")
    assert vendor.init(tmp_path / "elsewhere").url == shared
    vendor.create_app(vendor.VendorSettings.load(tmp_path / "elsewhere")).state.vendor.close()
    assert [key.tenant for key in vendor.keys.list(tmp_path / "elsewhere")] == ["clinic"]


@pytest.mark.parametrize("use", ["init", "serve"])
def test_a_database_of_before_belongs_to_the_first_folder_that_uses_it(
    use: str, data_dir: Path, tmp_path: Path, tiny_model: Path, shared: str
) -> None:
    forget(data_dir)
    vendor.keys.create(data_dir, "hospital")
    assert owner(data_dir) is None
    if use == "init":
        vendor.init(data_dir)
    else:
        vendor.create_app(vendor.VendorSettings.load(data_dir)).state.vendor.close()
    assert owner(data_dir) == (data_dir / "vendor.id").read_text().strip()
    with pytest.raises(ConfigError, match="belongs to another data folder"):
        vendor.init(tmp_path / "b", models=[str(tiny_model)], database_url=shared)
    assert {key.tenant for key in vendor.keys.list(data_dir)} == {"clinic", "hospital"}


def test_of_two_folders_that_claim_a_database_at_once_one_gets_it(
    data_dir: Path, blank_vendor: Path, tmp_path: Path, shared: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    faster, slower = data_dir, Path(shutil.copytree(blank_vendor, tmp_path / "b"))
    forget(faster)
    forget(slower)
    identify = vendor.VendorSettings.identify

    def overtaken(settings: vendor.VendorSettings) -> str:
        if settings.data_dir == slower:
            vendor.init(faster)
        return identify(settings)

    monkeypatch.setattr(vendor.VendorSettings, "identify", overtaken)
    with pytest.raises(ConfigError, match=rf"{slower} is set to belongs to another data folder"):
        vendor.init(slower, database_url=shared)
    assert owner(faster) == (faster / "vendor.id").read_text().strip()
    vendor.init(slower)  # its own database is its own still


@pytest.mark.parametrize("use", USES.values(), ids=USES.keys())
def test_a_folder_without_its_identifier_is_told_to_restore_it(use: Use, data_dir: Path) -> None:
    vendor.keys.create(data_dir, "clinic")
    path = data_dir / "vendor.id"
    identifier = path.read_bytes()
    path.unlink()
    with pytest.raises(ConfigError, match="belongs to another data folder") as caught:
        use(data_dir)
    assert "restore its file vendor.id" in caught.value.remedy
    for content in (b"", b"a text\n", identifier[:-2]):
        path.write_bytes(content)
        with pytest.raises(ConfigError, match=r"vendor.id holds no identifier: 32 hexadecimal digits"):
            use(data_dir)
    path.unlink()
    path.mkdir()
    with pytest.raises(StorageError, match=r"vendor.id cannot be read: Is a directory"):
        use(data_dir)
    path.rmdir()
    path.write_bytes(identifier)
    assert [key.tenant for key in vendor.keys.list(data_dir)] == ["clinic"]


@pytest.mark.parametrize(("limit", "query"), [(2, ""), (60, "?connect_timeout=2")], ids=["default", "in the URL"])
def test_a_database_that_takes_a_connection_and_says_nothing(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch, limit: int, query: str
) -> None:
    pytest.importorskip("psycopg")
    monkeypatch.setattr(databases, "CONNECT_SECONDS", limit)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        began = time.monotonic()
        with pytest.raises(StorageError, match=f"{address}/x cannot be used: .*timeout") as caught:
            vendor.init(data_dir, database_url=f"postgresql://cutlayer:secret@{address}/x{query}")
        assert time.monotonic() - began < 20
    assert "Check that it is running" in caught.value.remedy
    assert "secret" not in str(caught.value)
