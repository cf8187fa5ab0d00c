"""Vendors in processes of their own."""

from tests.service.fixtures import (  # noqa: F401 - fixtures are used by name
    api_key,
    blank_vendor,
    change_settings,
    data_dir,
    nursery,
    process,
    tiny_model,
)
from tests.unit.cli.conftest import run  # noqa: F401 - the same
