"""API keys: made here, shown once, kept as digests."""

from __future__ import annotations

import hmac
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import or_, select
from sqlalchemy.orm import Session

from cutlayer.core import ConfigError, Fault
from cutlayer.vendor.database import Database, Key, now, open_database, used
from cutlayer.vendor.settings import VendorSettings
from cutlayer.wire.keys import API_KEY, key_digest, new_key

METRICS = "_metrics"
"""Whose a key is that reads metrics, and nothing else; no tenant can have this name."""
_TENANT = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_REMEMBERED_SECONDS = 2.0
"""How long a revoked key may go on working: what a database look-up per step would cost otherwise."""


@dataclass(frozen=True)
class KeyInfo:
    """A key without its secret.

    Attributes:
        id: Its public part, by which it is revoked.
        tenant: Whose it is.
        created: When it was made.
        revoked: When it was revoked, or None.
    """

    id: str
    tenant: str
    created: str
    revoked: str | None


def create(data_dir: Path | str, name: str) -> str:
    """Makes a key for a tenant, who exists from the first key on.

    Args:
        data_dir: The vendor's data folder.
        name: The tenant's name, or `METRICS`. A second key for the same name opens the same namespace.

    Returns:
        The key. It is shown this once; the vendor keeps its SHA-256 only.

    Raises:
        ConfigError: The name is not usable, or the database belongs to another data folder.
        StorageError: The database cannot be used.
    """
    if name != METRICS and not _TENANT.fullmatch(name):
        raise ConfigError([Fault("name", name, "must be 1 to 63 lower-case letters, digits and inner hyphens")])
    identifier, key = new_key()
    with _session(data_dir) as session:
        session.add(Key(id=identifier, tenant=name, digest=key_digest(key), created=now()))
    return key


def list(data_dir: Path | str) -> tuple[KeyInfo, ...]:  # noqa: A001 - read as `keys.list`
    """All keys, revoked ones included, oldest first.

    Raises:
        ConfigError: The database belongs to another data folder.
        StorageError: The database cannot be used.
    """
    with _session(data_dir) as session:
        rows = session.scalars(select(Key).order_by(Key.created, Key.id)).all()
    return tuple(KeyInfo(row.id, row.tenant, row.created, row.revoked) for row in rows)


def revoke(data_dir: Path | str, name: str) -> tuple[KeyInfo, ...]:
    """Revokes a key by its identifier, or all keys of a tenant by the tenant's name.

    A running vendor stops accepting them within two seconds.

    Returns:
        The keys that were revoked by this call.

    Raises:
        ConfigError: There is no such key in use, or the database belongs to another data folder.
        StorageError: The database cannot be used.
    """
    with _session(data_dir) as session:
        chosen = select(Key).where(or_(Key.id == name, Key.tenant == name), Key.revoked.is_(None))
        rows = session.scalars(chosen).all()
        for row in rows:
            row.revoked = now()
    if not rows:
        raise ConfigError(
            [Fault("name", name, "must be the identifier of a key in use or the name of a tenant who has one")],
            remedy="See: cutlayer vendor key list.",
        )
    return tuple(KeyInfo(row.id, row.tenant, row.created, row.revoked) for row in rows)


class Doorkeeper:
    """Tells whose a key is, from memory where it was asked a moment ago.

    Args:
        database: Where the keys are.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._lock = threading.Lock()
        self._known: dict[str, tuple[str, float]] = {}

    def remembered(self, key: str) -> str | None:
        """The tenant of a key that was accepted a moment ago; never waits for the database."""
        with self._lock:
            tenant, until = self._known.get(key_digest(key), ("", 0.0))
        return tenant if time.monotonic() < until else None

    def tenant(self, key: str) -> str | None:
        """The tenant of a key, `METRICS` where it is none's, or None where no key in use is this one."""
        match = API_KEY.fullmatch(key)
        if match is None:
            return None
        digest = key_digest(key)
        with self._database.session() as session:
            row = session.get(Key, match[1])
        if row is None or row.revoked is not None or not hmac.compare_digest(row.digest, digest):
            with self._lock:
                self._known.pop(digest, None)
            return None
        with self._lock:
            self._known[digest] = (row.tenant, time.monotonic() + _REMEMBERED_SECONDS)
        return row.tenant


@contextmanager
def _session(data_dir: Path | str) -> Iterator[Session]:
    """A transaction on the database of a data folder."""
    settings = VendorSettings.load(data_dir)
    database = open_database(settings)
    try:
        with used(settings.url), database.session() as session:
            yield session
    finally:
        database.close()
