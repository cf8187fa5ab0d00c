"""The customer's secret: made once, read by its owner only, shown to nobody."""

from __future__ import annotations

import copy
import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cutlayer.core import PrivacyError, StorageError
from cutlayer.privacy import CustomerSecret


def test_made_once_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "new" / "secret"
    secret = CustomerSecret.load_or_create(path)
    assert not secret.is_unsafe
    assert path.stat().st_mode & 0o777 == 0o600
    assert len(path.read_bytes()) == 32
    assert CustomerSecret.load_or_create(path).derive("noise") == secret.derive("noise")
    assert CustomerSecret.load_or_create(tmp_path / "other").derive("noise") != secret.derive("noise")
    assert [entry.name for entry in path.parent.iterdir()] == ["secret"]


def test_made_once_by_many(tmp_path: Path) -> None:
    with ThreadPoolExecutor(16) as pool:
        keys = set(pool.map(lambda _: CustomerSecret.load_or_create(tmp_path / "secret").derive("x"), range(64)))
    assert len(keys) == 1


def test_purposes_are_apart() -> None:
    secret = CustomerSecret.unsafe(1)
    assert len({secret.derive("noise"), secret.derive("vault"), CustomerSecret.unsafe(2).derive("noise")}) == 3
    assert all(len(secret.derive(purpose)) == 32 for purpose in ("", "noise"))


@pytest.mark.skipif(os.name != "posix", reason="only POSIX files have a mode")
def test_a_secret_that_others_can_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    CustomerSecret.load_or_create(path)
    path.chmod(0o644)
    with pytest.raises(PrivacyError, match="chmod 600"):
        CustomerSecret.load_or_create(path)


def test_files_that_are_no_secret(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_bytes(b"short")
    path.chmod(0o600)
    with pytest.raises(StorageError, match="5 bytes instead of 32"):
        CustomerSecret.load_or_create(path)
    with pytest.raises(StorageError, match="cannot be read or created"):
        CustomerSecret.load_or_create(path / "below a file")
    with pytest.raises(PrivacyError, match="32 bytes, not 3"):
        CustomerSecret(b"abc")


def test_it_is_not_shown_or_copied() -> None:
    secret = CustomerSecret(bytes(range(32)))
    assert repr(secret) == "CustomerSecret(…)"
    assert repr(CustomerSecret.unsafe(3)) == "CustomerSecret(unsafe)"
    assert CustomerSecret.unsafe(3).is_unsafe
    with pytest.raises(PrivacyError):
        copy.copy(secret)
    with pytest.raises(TypeError):
        json.dumps(secret)
