"""API keys: made, listed, revoked, and never stored."""

from __future__ import annotations

from pathlib import Path

import pytest

from cutlayer.core import ConfigError
from cutlayer.vendor import VendorSettings, keys
from cutlayer.vendor.database import Database
from cutlayer.vendor.keys import Doorkeeper


def test_a_key_opens_one_tenant_until_it_is_revoked(data_dir: Path) -> None:
    first, second, other = (keys.create(data_dir, name) for name in ("clinic", "clinic", "rival"))
    assert len({first, second, other}) == 3
    database = Database(VendorSettings.load(data_dir).url)
    door = Doorkeeper(database)
    assert [door.tenant(key) for key in (first, second, other)] == ["clinic", "clinic", "rival"]
    assert door.remembered(first) == "clinic"
    assert door.remembered("x") is None
    [revoked] = keys.revoke(data_dir, first.split("_")[1])
    assert revoked.tenant == "clinic"
    assert door.tenant(first) is None
    assert door.remembered(first) is None
    assert door.tenant(second) == "clinic"
    keys.revoke(data_dir, "clinic")
    assert door.tenant(second) is None
    assert door.tenant(other) == "rival"
    assert [info.revoked is None for info in keys.list(data_dir)].count(True) == 1
    database.close()


def test_only_a_digest_is_stored(data_dir: Path) -> None:
    key = keys.create(data_dir, "clinic")
    secret = key.split("_", 2)[2].encode()
    assert not any(secret in path.read_bytes() for path in data_dir.rglob("*") if path.is_file())


@pytest.mark.parametrize("wrong", ["", "cl_", "Bearer x", "cl_000000000000_" + "a" * 43, "cl_%_" + "b" * 43])
def test_what_is_no_key_opens_nothing(data_dir: Path, wrong: str) -> None:
    database = Database(VendorSettings.load(data_dir).url)
    assert Doorkeeper(database).tenant(wrong) is None
    database.close()


def test_a_key_with_another_secret_opens_nothing(data_dir: Path) -> None:
    key = keys.create(data_dir, "clinic")
    database = Database(VendorSettings.load(data_dir).url)
    flipped = key[:-1] + ("A" if key[-1] != "A" else "B")
    assert Doorkeeper(database).tenant(flipped) is None
    database.close()


@pytest.mark.parametrize("name", ["", "Clinic", "a b", "../x", "-a", "a-", "a" * 64, "klinik_1", "ä"])
def test_names_that_no_tenant_can_have(data_dir: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="name ="):
        keys.create(data_dir, name)


def test_revoking_what_is_not_there(data_dir: Path) -> None:
    with pytest.raises(ConfigError, match="nobody"):
        keys.revoke(data_dir, "nobody")
