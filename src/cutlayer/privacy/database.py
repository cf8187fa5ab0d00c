"""One way to open the customer's SQLite files, and one way for them to fail."""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from cutlayer.core import StorageError

BUSY_SECONDS: Final = 30.0
"""How long one process waits for another's transaction."""

_KEYS_AT_A_TIME: Final = 500

_REMEDIES: Final = {
    sqlite3.SQLITE_FULL: "Free disk space and run the same command again.",
    sqlite3.SQLITE_READONLY: "Make the file and its folder writable.",
    sqlite3.SQLITE_CANTOPEN: "Give a folder that exists and may be written to.",
    sqlite3.SQLITE_NOTADB: "Restore it from a backup, or give another path.",
    sqlite3.SQLITE_CORRUPT: "Restore it from a backup.",
    sqlite3.SQLITE_BUSY: "Wait for the other run to end.",
}


class Database:
    """A SQLite file that several threads and processes may use at once.

    Write-ahead journal. A forked child opens its
    own connection, because SQLite's may not be carried over.

    Args:
        path: The file; made if it is missing, readable by its owner only.
        kind: What it is, for messages: `ledger`.
        schema: SQL that makes the tables.
        version: Of the schema; a file of a version that cannot be brought there is refused.
        upgrades: SQL that makes the next version of a file, by the version that it has.
    """

    def __init__(
        self, path: Path, *, kind: str, schema: str, version: int, upgrades: Mapping[int, str] | None = None
    ) -> None:
        self.path = path
        self._kind = kind
        self._schema = schema
        self._version = version
        self._upgrades = upgrades or {}
        self._lock = threading.Lock()
        self._owner = os.getpid()
        self._connection = self._open()

    @contextmanager
    def write(self, *, durable: bool = True) -> Iterator[sqlite3.Connection]:
        """One transaction, alone among all processes: all of it is stored, or nothing.

        Args:
            durable: Whether it must outlive a power cut that follows at once. Otherwise it is safe
                from crashes of the program, and from power cuts after the next durable one.

        Raises:
            StorageError: It could not be stored.
        """
        with self._lock, self._errors():
            connection = self._own()
            connection.execute(f"PRAGMA synchronous={'FULL' if durable else 'NORMAL'}")
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                # a full disk may have ended the transaction already
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise

    @contextmanager
    def read(self) -> Iterator[sqlite3.Connection]:
        """One consistent view.

        Raises:
            StorageError: It could not be read.
        """
        with self._lock, self._errors():
            connection = self._own()
            connection.execute("BEGIN")
            try:
                yield connection
            finally:
                connection.execute("ROLLBACK")

    def close(self) -> None:
        """Gives the file back."""
        with self._lock:
            if self._owner == os.getpid():
                self._connection.close()

    def _own(self) -> sqlite3.Connection:
        if self._owner != os.getpid():
            self._owner = os.getpid()
            self._connection = self._open()
        return self._connection

    def _open(self) -> sqlite3.Connection:
        with self._errors():
            if not self.path.exists():
                try:
                    os.close(os.open(self.path, os.O_CREAT | os.O_WRONLY, 0o600))
                except OSError as error:
                    raise self._error(f"cannot be created: {error.strerror}", sqlite3.SQLITE_CANTOPEN) from error
            connection = sqlite3.connect(self.path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
            try:
                connection.execute("PRAGMA temp_store=MEMORY")
                _write_ahead(connection)
                self._bring_up(connection)
            except BaseException:
                connection.close()  # its transaction would keep others out for as long as the error is looked at
                raise
            return connection

    def _bring_up(self, connection: sqlite3.Connection) -> None:
        """Makes the tables of a new file, and those of an older one what they are now: all of it or nothing."""
        connection.execute("BEGIN IMMEDIATE")
        (found,) = connection.execute("PRAGMA user_version").fetchone()
        if found == 0:
            _run(connection, self._schema)
            found = self._version
        while found in self._upgrades:
            _run(connection, self._upgrades[found])
            found += 1
        if found != self._version:
            raise self._error(f"has version {found}; this program reads {self._version}", sqlite3.SQLITE_NOTADB)
        connection.execute(f"PRAGMA user_version={self._version:d}")
        connection.execute("COMMIT")

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise self._error(f"cannot be used: {error}", getattr(error, "sqlite_errorcode", 0) & 0xFF) from error

    def _error(self, what: str, code: int) -> StorageError:
        return StorageError(f"The {self._kind} {self.path} {what}.", remedy=_REMEDIES.get(code, ""))


def select_by_key(
    connection: sqlite3.Connection, query: str, keys: Sequence[bytes], *before: object, suffix: str = ""
) -> list[tuple[Any, ...]]:
    """Rows of many keys, some at a time, because a statement takes a limited number.

    Args:
        connection: Inside a transaction.
        query: A constant that ends with the column that the keys are of.
        keys: Which rows.
        before: Values of the query's own placeholders.
        suffix: What follows the keys.
    """
    found = []
    for start in range(0, len(keys), _KEYS_AT_A_TIME):
        some = keys[start : start + _KEYS_AT_A_TIME]
        marks = ",".join("?" * len(some))
        found += connection.execute(f"{query} IN ({marks}) {suffix}", (*before, *some)).fetchall()
    return found


def _run(connection: sqlite3.Connection, statements: str) -> None:
    # not executescript, which would end the transaction
    for statement in statements.split(";"):
        connection.execute(statement)


def _write_ahead(connection: sqlite3.Connection) -> None:
    """Switches to the write-ahead journal; a new file's switch is refused at once while another makes it."""
    deadline = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
        time.sleep(0.01)
