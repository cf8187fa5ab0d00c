"""A vendor in this process, on a tiny model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from cutlayer import vendor
from cutlayer.wire.transports import LocalTransport
from tests.service.fixtures import (  # noqa: F401 - fixtures are used by name
    api_key,
    blank_vendor,
    change_settings,
    data_dir,
    tiny_model,
)


@pytest.fixture
def open_vendor(data_dir: Path, api_key: str) -> Iterator[Callable[[], LocalTransport]]:  # noqa: F811
    """Opens the vendor of `data_dir`; a later call must follow `close`."""
    with ExitStack() as stack:

        def start() -> LocalTransport:
            app = vendor.create_app(vendor.VendorSettings.load(data_dir))
            return stack.enter_context(closing(LocalTransport(app, api_key)))

        yield start


@pytest.fixture
def transport(open_vendor: Callable[[], LocalTransport]) -> LocalTransport:
    return open_vendor()
