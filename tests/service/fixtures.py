"""Vendors on tiny models: in this process, and in processes of their own; and runs beside them that are killed."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cutlayer import vendor
from tests.service.kills import Customers, Kills
from tests.service.process import VendorProcess, Vendors, running
from tests.service.tiny import write_tiny_bert, write_tiny_gpt2


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_bert(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(scope="session")
def blank_vendor(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Path:
    """A data folder that `init` made; copied, never used itself."""
    folder = tmp_path_factory.mktemp("vendor") / "data"
    vendor.init(folder, models=[str(tiny_model)], threads=1, max_bottom=2)
    return folder


@pytest.fixture
def data_dir(blank_vendor: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(blank_vendor, tmp_path / "data"))


@pytest.fixture
def api_key(data_dir: Path) -> str:
    return vendor.keys.create(data_dir, "clinic")


@pytest.fixture(scope="session")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_gpt2(tmp_path_factory.mktemp("decoder") / "tiny")


@pytest.fixture(scope="session")
def blank_decoder_vendor(tmp_path_factory: pytest.TempPathFactory, decoder: Path) -> Path:
    """The same of a vendor that offers a decoder."""
    folder = tmp_path_factory.mktemp("decoder-vendor") / "data"
    vendor.init(folder, models=[str(decoder)], threads=1, max_bottom=2, max_tail=1)
    return folder


@pytest.fixture
def decoder_dir(blank_decoder_vendor: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(blank_decoder_vendor, tmp_path / "data"))


@pytest.fixture(scope="session")
def customers() -> Iterator[Customers]:
    forks = Customers()
    yield forks
    forks.close()


@pytest.fixture(scope="module")
def references() -> dict[str, Any]:
    """What each mode of a module ends with when nobody disturbs it."""
    return {}


@pytest.fixture
def kills(
    customers: Customers, references: dict[str, Any], process: VendorProcess, api_key: str, tmp_path: Path
) -> Kills:
    return Kills(customers, references, process, api_key, tmp_path)


@pytest.fixture(scope="session")
def nursery() -> Iterator[Vendors]:
    forks = Vendors()
    yield forks
    forks.close()


@pytest.fixture
def process(nursery: Vendors, data_dir: Path, api_key: str) -> Iterator[VendorProcess]:
    with running(nursery, data_dir) as started:
        yield started


@pytest.fixture
def at_vendor(process: VendorProcess, api_key: str, monkeypatch: pytest.MonkeyPatch) -> VendorProcess:
    """A vendor that commands find by its variables."""
    monkeypatch.setenv("CUTLAYER_VENDOR", process.url)
    monkeypatch.setenv("CUTLAYER_API_KEY", api_key)
    return process


@pytest.fixture(scope="session")
def change_settings() -> Callable[..., None]:
    """Changes the settings in a data folder."""

    def change(data_dir: Path, **changes: object) -> None:
        settings = vendor.VendorSettings.load(data_dir)
        limits = settings.limits.model_copy(update=changes.pop("limits", {}))  # type: ignore[call-overload]
        settings.model_copy(update={"limits": limits, **changes}).save()

    return change
