"""What the vendor keeps in its database: keys, and which record sets, jobs and adapters there are."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import BigInteger, ForeignKeyConstraint, String, Text, create_engine, event, inspect, select, text
from sqlalchemy.engine import Engine, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

from cutlayer.core import ConfigError, StorageError

SCHEMA = 1
"""Version of these tables; a database of another version is refused, not guessed at."""


class Table(DeclarativeBase):
    """Base of the tables."""


class Schema(Table):
    """One row: the version of the tables."""

    __tablename__ = "cutlayer_schema"

    version: Mapped[int] = mapped_column(primary_key=True)


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


class Job(Table):
    """A job; where it stands is in its folder until it is finished.

    Attributes:
        threads: Compute threads that it started with and keeps.
        final: Its `JobInfo` as JSON once it is finished.
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
        try:
            self._prepare()
        except DBAPIError as error:
            raise StorageError(
                f"The database {make_url(url).render_as_string(hide_password=True)} cannot be used: "
                f"{_reason(error.orig or error)}.",
                remedy="Check that it is running and that the user may create tables.",
            ) from error
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


def now() -> str:
    """This moment, UTC, ISO 8601 to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def _engine(url: str) -> Engine:
    if make_url(url).get_backend_name() != "sqlite":
        return create_engine(url, pool_pre_ping=True)
    engine = create_engine(url, connect_args={"timeout": 30})

    @event.listens_for(engine, "connect")
    def configure(connection: Any, _: Any) -> None:
        # Readers do not wait for writers, and a commit that was acknowledged is on disk.
        for pragma in ("journal_mode = WAL", "synchronous = FULL", "foreign_keys = ON"):
            connection.execute(f"PRAGMA {pragma}")

    return engine


def _reason(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__
