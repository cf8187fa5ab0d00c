"""What the vendor keeps in its database: keys, and which record sets, jobs and adapters there are."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import BigInteger, ForeignKeyConstraint, String, Text, create_engine, event, inspect, select, text
from sqlalchemy.engine import URL, Engine, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, IntegrityError, NoSuchModuleError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

from cutlayer.core import ConfigError, StorageError
from cutlayer.vendor.settings import VendorSettings

SCHEMA = 1
"""Version of these tables; a database of another version is refused, not guessed at."""
CONNECT_SECONDS = 10
"""Longest time that PostgreSQL may take to let the vendor in."""
STATEMENT_SECONDS = 30
"""Longest time that PostgreSQL may take for a statement, waiting for locks included. They touch a few rows each."""
SILENT_SECONDS = 30
"""Longest time that PostgreSQL's machine may be out of reach before a connection is given up."""


class Table(DeclarativeBase):
    """Base of the tables."""


class Schema(Table):
    """One row: the version of the tables."""

    __tablename__ = "cutlayer_schema"

    version: Mapped[int] = mapped_column(primary_key=True)


class Folder(Table):
    """One row once the database belongs to a data folder: the other tables name files in that one.

    Attributes:
        slot: Always 1: of two folders that claim the database at once, one gets it.
        id: What the folder's file `vendor.id` says. A folder may be moved, so its path is not what tells it.
    """

    __tablename__ = "cutlayer_folder"

    slot: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    id: Mapped[str] = mapped_column(String(32))


class Key(Table):
    """An API key, by its digest; the key itself is nowhere.

    Attributes:
        id: The key's public part.
        tenant: Whose it is; a tenant may have several, to change them without a gap.
        digest: Hex SHA-256 of the whole key.
        created: When, ISO 8601.
        revoked: When, or None.
    """

    __tablename__ = "keys"

    id: Mapped[str] = mapped_column(String(16), primary_key=True)
    tenant: Mapped[str] = mapped_column(String(64), index=True)
    digest: Mapped[str] = mapped_column(String(64))
    created: Mapped[str] = mapped_column(String(32))
    revoked: Mapped[str | None] = mapped_column(String(32))


class RecordSet(Table):
    """A record set. Identifiers are a tenant's own: another tenant's cannot even be guessed at."""

    __tablename__ = "record_sets"

    tenant: Mapped[str] = mapped_column(String(64), primary_key=True)
    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    spec: Mapped[str] = mapped_column(Text)
    sealed: Mapped[bool] = mapped_column(default=False)


class Shard(Table):
    """A shard that arrived whole."""

    __tablename__ = "shards"
    __table_args__ = (ForeignKeyConstraint(["tenant", "record_set"], ["record_sets.tenant", "record_sets.id"]),)

    tenant: Mapped[str] = mapped_column(String(64), primary_key=True)
    record_set: Mapped[str] = mapped_column(String(32), primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True)
    sha256: Mapped[str] = mapped_column(String(64))
    size: Mapped[int] = mapped_column(BigInteger)
    records: Mapped[int] = mapped_column(BigInteger)


class Labels(Table):
    """Labels beside a record set, which arrived whole.

    Attributes:
        records: How many records they are of, each of which they name.
    """

    __tablename__ = "labels"
    __table_args__ = (ForeignKeyConstraint(["tenant", "record_set"], ["record_sets.tenant", "record_sets.id"]),)

    tenant: Mapped[str] = mapped_column(String(64), primary_key=True)
    record_set: Mapped[str] = mapped_column(String(32), primary_key=True)
    sha256: Mapped[str] = mapped_column(String(64))
    size: Mapped[int] = mapped_column(BigInteger)
    records: Mapped[int] = mapped_column(BigInteger)


class Job(Table):
    """A job; where it stands is in its folder until it is finished.

    Attributes:
        threads: Compute threads that it started with and keeps.
        final: Its `JobInfo` as JSON once it is over.
    """

    __tablename__ = "jobs"

    tenant: Mapped[str] = mapped_column(String(64), primary_key=True)
    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    spec: Mapped[str] = mapped_column(Text)
    threads: Mapped[int]
    final: Mapped[str | None] = mapped_column(Text)


class Adapter(Table):
    """A published adapter.

    Attributes:
        info: Its `AdapterInfo` as JSON.
        size: Bytes of its files, for the quota.
    """

    __tablename__ = "adapters"

    tenant: Mapped[str] = mapped_column(String(64), primary_key=True)
    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    info: Mapped[str] = mapped_column(Text)
    size: Mapped[int] = mapped_column(BigInteger)


class Database:
    """Sessions on one database.

    Args:
        url: SQLAlchemy URL.

    Raises:
        ConfigError: The URL is none, or its driver is not installed.
        StorageError: The database cannot be reached, or its tables are of another version.
    """

    def __init__(self, url: str) -> None:
        try:
            self._engine = _engine(url)
        except (ArgumentError, NoSuchModuleError, ImportError) as error:
            raise ConfigError(
                f"The database URL cannot be used: {_reason(error)}.",
                remedy="Give postgresql://user@host/name (and install cutlayer[postgres]), or leave it out for SQLite.",
            ) from error
        with used(url):
            self._prepare()
        self._sessions = sessionmaker(self._engine, expire_on_commit=False)

    def _prepare(self) -> None:
        is_new = not inspect(self._engine).has_table(Schema.__tablename__)
        Table.metadata.create_all(self._engine)
        with Session(self._engine) as session:
            if is_new:
                session.add(Schema(version=SCHEMA))
                session.commit()
            version = session.scalar(select(Schema.version))
        if version != SCHEMA:
            raise StorageError(
                f"The database has tables of version {version}; this version of cutlayer has {SCHEMA}.",
                remedy="Use the version of cutlayer that made it, or another database.",
            )

    @contextmanager
    def session(self) -> Iterator[Session]:
        """A transaction: committed if the block ends well, else undone."""
        with self._sessions() as session, session.begin():
            yield session

    def owner(self) -> str | None:
        """The identifier of the data folder that the database belongs to, if it belongs to one."""
        with self.session() as session:
            return session.scalar(select(Folder.id))

    def claim(self, folder: str) -> None:
        """Makes the database a data folder's, unless it is one's already."""
        with suppress(IntegrityError), self.session() as session:
            session.add(Folder(slot=1, id=folder))

    def check(self) -> None:
        """Asks the database for an answer.

        Raises:
            DBAPIError: It gives none.
        """
        with self.session() as session:
            session.execute(text("SELECT 1"))

    def close(self) -> None:
        """Gives connections back."""
        self._engine.dispose()


def open_database(settings: VendorSettings, *, claim: bool = False) -> Database:
    """The database of a data folder.

    Args:
        settings: What the folder is set to.
        claim: Whether a database that belongs to no folder is this one's from now on. The folder is locked.

    Raises:
        ConfigError: The URL is none, or the database belongs to another data folder.
        StorageError: The folder or the database cannot be used.
    """
    database = Database(settings.url)
    try:
        with used(settings.url):
            identifier, owner = settings.identifier(), database.owner()
            if owner is None and claim:
                identifier = identifier or settings.identify()
                database.claim(identifier)
                owner = database.owner()  # another folder may have been faster
        if owner not in (None, identifier):
            raise ConfigError(
                f"The database that {settings.data_dir} is set to belongs to another data folder.",
                remedy="Give this one its own (cutlayer vendor init --db-url URL), or restore its file vendor.id.",
            )
    except BaseException:
        database.close()
        raise
    return database


def now() -> str:
    """This moment, UTC, ISO 8601 to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


@contextmanager
def used(url: str) -> Iterator[None]:
    """Says what goes wrong with a database.

    Raises:
        StorageError: Something did.
    """
    try:
        yield
    except DBAPIError as error:
        # The query may hold a password as well.
        shown = make_url(url).set(query={}).render_as_string(hide_password=True)
        raise StorageError(
            f"The database {shown} cannot be used: {_reason(error.orig or error)}.",
            remedy="Check that it is running and that the user may create tables.",
        ) from error


def _engine(url: str) -> Engine:
    parsed = make_url(url)
    if parsed.drivername == "postgresql+psycopg":
        return _postgresql(parsed)
    if parsed.get_backend_name() != "sqlite":
        return create_engine(parsed, pool_pre_ping=True)
    _keep_to_owner(parsed)
    engine = create_engine(parsed, connect_args={"timeout": 30})

    @event.listens_for(engine, "connect")
    def configure(connection: Any, _: Any) -> None:
        # Readers do not wait for writers, and a commit that was acknowledged is on disk.
        for pragma in ("journal_mode = WAL", "synchronous = FULL", "foreign_keys = ON"):
            connection.execute(f"PRAGMA {pragma}")

    return engine


def _keep_to_owner(url: URL) -> None:
    """Makes a SQLite file, and what stands beside it, readable by its owner only: it lists tenants and digests of keys.

    SQLite makes the files beside it with the permissions of the file itself.
    """
    if not url.database or url.database == ":memory:" or url.database.startswith("file:"):
        return
    # Of what cannot be made, or is another user's, SQLite itself says whether that matters. A file that is there is
    # not opened: to close it again would take this process's locks on it away from SQLite.
    with suppress(OSError):
        os.close(os.open(url.database, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    for suffix in ("", "-wal", "-shm", "-journal"):
        with suppress(OSError):
            os.chmod(url.database + suffix, 0o600)


def _postgresql(url: URL) -> Engine:
    """PostgreSQL that is given up on where it does not answer; what the URL's query says holds instead."""
    limits = {
        "connect_timeout": CONNECT_SECONDS,
        "keepalives_idle": SILENT_SECONDS // 3,
        "keepalives_interval": SILENT_SECONDS // 6,
        "keepalives_count": 4,
        "tcp_user_timeout": 1000 * SILENT_SECONDS,
    }
    given = {name: value for name, value in limits.items() if name not in url.query}
    engine = create_engine(url, pool_pre_ping=True, connect_args=given)

    @event.listens_for(engine, "connect")
    def configure(connection: Any, _: Any) -> None:
        # Not in `options` as the connection is made: poolers refuse those. Whoever set it to anything knew why,
        # and so did who set it to nothing in the URL.
        connection.execute(
            "SELECT set_config(name, %s, false) FROM pg_settings"
            " WHERE name = 'statement_timeout' AND setting = '0' AND source <> 'client'",
            [f"{1000 * STATEMENT_SECONDS:.0f}"],
        )
        connection.commit()

    return engine


def _reason(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__
