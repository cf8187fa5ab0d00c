"""A vendor in this process on a tiny model, and runs against it."""

from tests.service.fixtures import api_key, blank_vendor, data_dir, tiny_model  # noqa: F401 - used by name
