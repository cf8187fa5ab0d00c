"""The same identity gives the same bytes, and only with the right secret."""

from __future__ import annotations

import sqlite3
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cutlayer.core import StorageError
from cutlayer.privacy import CustomerSecret, Vault

SECRET = CustomerSecret.unsafe(1)


def test_what_was_put_comes_back(tmp_path: Path) -> None:
    vault = Vault(tmp_path / "vault.db", SECRET)
    bodies = {i.to_bytes(16, "big"): bytes([i % 256]) * i for i in range(1200)}
    assert vault.put_many(bodies) == bodies
    vault.close()
    again = Vault(tmp_path / "vault.db", SECRET)
    assert again.get_many([*bodies, b"unknown"]) == [*bodies.values(), None]


def test_the_first_bytes_stay(tmp_path: Path) -> None:
    vault = Vault(tmp_path / "vault.db", SECRET)
    assert vault.put_many({b"a": b"first"}) == {b"a": b"first"}
    assert vault.put_many({b"a": b"second", b"b": b"new"}) == {b"a": b"first", b"b": b"new"}
    assert vault.get_many([b"a"]) == [b"first"]


def test_many_writers_agree(tmp_path: Path) -> None:
    vaults = [Vault(tmp_path / "vault.db", SECRET) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        kept = list(pool.map(lambda i: vaults[i % 4].put_many({b"x": b"%d" % i})[b"x"], range(40)))
    assert len(set(kept)) == 1


def test_sealed(tmp_path: Path) -> None:
    path = tmp_path / "vault.db"
    vault = Vault(path, SECRET)
    vault.put_many({b"a": b"noisy rows" * 9, b"b": b"others"})
    vault.close()
    assert path.stat().st_mode & 0o077 == 0
    assert all(b"noisy rows" not in file.read_bytes() for file in tmp_path.iterdir())
    with pytest.raises(StorageError, match="another secret"):
        Vault(path, CustomerSecret.unsafe(2)).get_many([b"a"])
    with sqlite3.connect(path) as connection:  # one release under the name of another
        connection.execute("UPDATE sealed SET body = (SELECT body FROM sealed WHERE identity = ?)", (b"b",))
    assert Vault(path, SECRET).get_many([b"b"]) == [b"others"]
    with pytest.raises(StorageError, match="was changed"):
        Vault(path, SECRET).get_many([b"a"])
