"""Sealed bytes by identity: what was released once is released again, bit by bit."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from cutlayer.core import StorageError
from cutlayer.privacy.database import Database, select_by_key
from cutlayer.privacy.seal import BrokenSeal, Seal
from cutlayer.privacy.secret import CustomerSecret

_COUNTER: Final = "CREATE TABLE counter (one INTEGER PRIMARY KEY CHECK (one = 1), entry INTEGER NOT NULL)"
_SCHEMA: Final = f"CREATE TABLE sealed (identity BLOB PRIMARY KEY, body BLOB NOT NULL); {_COUNTER}"


class Vault:
    """Keeps releases whose bits cannot be derived again.

    Token ids and noisy table rows follow from the customer's secret. Rows that went through blocks
    do not: their last bits depend on the shape of the batch, and a text that comes in another batch
    would leave with other bytes under the same identity. So what left first is kept and used again.

    Bodies are sealed under a key derived from the secret, each bound to its identity.

    Args:
        path: The SQLite file.
        secret: The customer's secret.

    Raises:
        StorageError: The file cannot be opened.
    """

    def __init__(self, path: Path, secret: CustomerSecret) -> None:
        self._database = Database(path, kind="vault", schema=_SCHEMA, version=3, upgrades={2: _COUNTER})
        self._seal = Seal(secret.derive("vault"))

    def get_many(self, identities: Sequence[bytes]) -> list[bytes | None]:
        """The bytes kept under each identity, `None` where there are none.

        Raises:
            StorageError: They cannot be read, were changed, or were sealed with another secret.
        """
        with self._database.read() as connection:
            sealed = _select(connection, identities)
        return [
            None if body is None else self._open(identity, body)
            for identity, body in zip(identities, sealed, strict=True)
        ]

    def put_many(self, bodies: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
        """Keeps bytes under identities that have none yet.

        Returns:
            What is kept under each identity now: what was given, or what another process kept
            first. Release this.

        Raises:
            StorageError: They cannot be stored.
        """
        rows = [(identity, self._seal.close(body, name=identity)) for identity, body in bodies.items()]
        identities = list(bodies)
        with self._database.write() as connection:
            connection.executemany("INSERT OR IGNORE INTO sealed VALUES (?, ?)", rows)
            kept = _select(connection, identities)
        mine = dict(rows)
        return {
            identity: bodies[identity] if body == mine[identity] else self._open(identity, body)
            for identity, body in zip(identities, kept, strict=True)
            if body is not None
        }

    def note(self, entry: int) -> None:
        """Remembers a ledger's newest entry: a ledger that ends before it is an older copy.

        Args:
            entry: Its number; a smaller one changes nothing.

        Raises:
            StorageError: It cannot be stored.
        """
        # a power cut that takes this back leaves the vault behind its ledger, which is no error
        with self._database.write(durable=False) as connection:
            connection.execute(
                "INSERT INTO counter VALUES (1, ?) ON CONFLICT (one) DO UPDATE SET entry = MAX(entry, excluded.entry)",
                (entry,),
            )

    def noted(self) -> int:
        """The newest ledger entry that `note` was told; 0 if none."""
        with self._database.read() as connection:
            found = connection.execute("SELECT entry FROM counter").fetchone()
        return 0 if found is None else int(found[0])

    def close(self) -> None:
        """Gives the file back."""
        self._database.close()

    def _open(self, identity: bytes, sealed: bytes) -> bytes:
        try:
            return self._seal.open(sealed, name=identity)
        except BrokenSeal:
            raise StorageError(
                f"The vault {self._database.path} holds a release that was changed, or sealed with another secret.",
                remedy="Restore the vault together with the secret it belongs to.",
            ) from None


def _select(connection: sqlite3.Connection, identities: Sequence[bytes]) -> list[bytes | None]:
    found = dict(select_by_key(connection, "SELECT identity, body FROM sealed WHERE identity", identities))
    return [found.get(identity) for identity in identities]
