"""Vendors in processes of their own."""

from tests.service.fixtures import (  # noqa: F401 - fixtures are used by name
    api_key,
    at_vendor,
    blank_decoder_vendor,
    blank_vendor,
    change_settings,
    customers,
    data_dir,
    decoder,
    decoder_dir,
    kills,
    nursery,
    process,
    references,
    tiny_model,
)
from tests.unit.cli.conftest import run  # noqa: F401 - the same
