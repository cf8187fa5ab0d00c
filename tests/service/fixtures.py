"""Vendors on a tiny model: in this process, and in processes of their own."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cutlayer import vendor
from tests.service.process import VendorProcess, Vendors, running
from tests.service.tiny import write_tiny_bert


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
def nursery() -> Iterator[Vendors]:
    forks = Vendors()
    yield forks
    forks.close()


@pytest.fixture
def process(nursery: Vendors, data_dir: Path, api_key: str) -> Iterator[VendorProcess]:
    with running(nursery, data_dir) as started:
        yield started


@pytest.fixture(scope="session")
def change_settings() -> Callable[..., None]:
    """Changes the settings in a data folder."""

    def change(data_dir: Path, **changes: object) -> None:
        settings = vendor.VendorSettings.load(data_dir)
        limits = settings.limits.model_copy(update=changes.pop("limits", {}))  # type: ignore[call-overload]
        settings.model_copy(update={"limits": limits, **changes}).save()

    return change
