"""A customer of a vendor in this process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cutlayer.customer import Client
from tests.promises.runs import customer
from tests.service.fixtures import (  # noqa: F401 - fixtures are used by name
    api_key,
    blank_vendor,
    change_settings,
    data_dir,
    tiny_model,
)


@pytest.fixture
def client(data_dir: Path, api_key: str, tmp_path: Path) -> Iterator[Client]:  # noqa: F811
    with customer(data_dir, api_key, tmp_path / "home") as found:
        yield found
