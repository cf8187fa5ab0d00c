"""The vendor on a PostgreSQL that the test starts."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.exc import OperationalError

from cutlayer import vendor
from cutlayer.core import ConfigError, StorageError, VendorError
from cutlayer.vendor import database as databases
from cutlayer.vendor.database import Database
from cutlayer.vendor.problems import refusal_for
from cutlayer.wire import routes
from cutlayer.wire.messages import AdapterList
from cutlayer.wire.transports import HttpTransport
from tests.service.customer import Customer, ask
from tests.service.process import Vendors, free_port, running


def _programs() -> Path:
    on_path = shutil.which("initdb")
    found = [Path(on_path).parent] if on_path else sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    for folder in found:
        if (folder / "initdb").exists() and (folder / "postgres").exists():
            return folder
    pytest.skip("PostgreSQL's server programs are not installed: apt-get install postgresql")


def _unprivileged() -> list[str]:
    """Words to run a command as another user than root, whom PostgreSQL refuses to serve."""
    if os.geteuid() != 0:
        return []
    has_user = subprocess.run(["id", "postgres"], check=False, capture_output=True).returncode == 0
    if not has_user or shutil.which("runuser") is None:
        pytest.skip("PostgreSQL does not run as root, and there is no user `postgres` to run it as")
    return ["runuser", "-u", "postgres", "--"]


class PostgreSql:
    """A server of its own, which tests may stop and start."""

    def __init__(self) -> None:
        self._programs, self._as_user = _programs(), _unprivileged()
        self._folder = Path(tempfile.mkdtemp(prefix="cutlayer-pg-"))
        self._folder.chmod(0o755)
        if self._as_user:
            shutil.chown(self._folder, "postgres")
        self._port = free_port()
        self._databases = 0
        self._run("initdb", "-U", "cutlayer", "--auth=trust", "--no-sync", "-E", "UTF8")

    def start(self) -> None:
        options = f"-c listen_addresses=127.0.0.1 -p {self._port} -k {self._folder} -c fsync=off"
        self._run("pg_ctl", "-l", str(self._folder / "log"), "-w", "-t", "60", "-o", options, "start")

    def stop(self) -> None:
        self._run("pg_ctl", "-m", "immediate", "stop")

    def database(self) -> str:
        """The URL of a new database. No password is asked for, so any is right."""
        self._databases += 1
        url = f"postgresql+psycopg://cutlayer:secret@127.0.0.1:{self._port}"
        engine = create_engine(f"{url}/postgres", isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            connection.execute(text(f"CREATE DATABASE test_{self._databases}"))
        engine.dispose()
        return f"{url.replace('+psycopg', '')}/test_{self._databases}"

    def remove(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)

    def _run(self, program: str, *arguments: str) -> None:
        command = [*self._as_user, self._programs / program, "-D", self._folder / "data", *arguments]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=self._folder)


@pytest.fixture(scope="module")
def server() -> Iterator[PostgreSql]:
    server = PostgreSql()
    server.start()
    try:
        yield server
    finally:
        server.stop()
        server.remove()


@pytest.fixture
def database_url(server: PostgreSql) -> str:
    return server.database()


def test_a_whole_job_on_postgresql(nursery: Vendors, tmp_path: Path, tiny_model: Path, database_url: str) -> None:
    data_dir = tmp_path / "data"
    vendor.init(data_dir, models=[str(tiny_model)], threads=1, database_url=database_url)
    key = vendor.keys.create(data_dir, "clinic")
    with running(nursery, data_dir) as process:
        transport = HttpTransport(process.url, key, retries=30)
        customer = Customer(transport)
        customer.upload()
        customer.train(customer.start(), until=5)
        process.kill()
        process.start()
        adapter = customer.run()
        assert ask(transport, routes.ADAPTERS).expect(AdapterList).adapters == (adapter,)
        transport.close()
    assert not (data_dir / "vendor.sqlite").exists()
    [info] = vendor.keys.revoke(data_dir, "clinic")
    assert info.revoked is not None
    engine = create_engine(database_url.replace("postgresql://", "postgresql+psycopg://"))
    with engine.connect() as connection:
        stored = " ".join(str(row) for row in connection.execute(text("SELECT * FROM keys")))
    engine.dispose()
    assert "clinic" in stored
    assert key.split("_", 2)[2] not in stored  # the secret may hold underscores itself


def get(port: int, path: str, key: str) -> tuple[int, str | None, dict[str, str]]:
    """Status, `Retry-After` and content of an answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", path, headers={"Authorization": f"Bearer {key}"})
    response = connection.getresponse()
    content = json.loads(response.read())
    connection.close()
    return response.status, response.getheader("Retry-After"), content


def test_a_database_that_goes_away_and_comes_back(
    nursery: Vendors, tmp_path: Path, tiny_model: Path, server: PostgreSql, database_url: str
) -> None:
    """The vendor says so and stays up; a customer who waits goes on as if nothing had been."""
    data_dir = tmp_path / "data"
    vendor.init(data_dir, models=[str(tiny_model)], threads=1, database_url=database_url)
    key = vendor.keys.create(data_dir, "hospital")
    with running(nursery, data_dir) as process:
        transport = HttpTransport(process.url, key, retries=30)
        customer = Customer(transport)
        customer.upload()
        pending = customer.take(1, None) if customer.start() else None
        server.stop()
        try:
            for seconds in (0.0, 2.5):  # with the key remembered, and with the key to be looked up
                time.sleep(seconds)
                for path in ("/healthz", "/v1/adapters", f"/v1/record-sets/{customer.job}"):
                    status, retry_after, problem = get(process.port, path, key)
                    assert (status, retry_after) == (503, "1"), path
                    assert problem["type"] == "urn:cutlayer:database-unavailable"
                    assert problem["remedy"]
            impatient = HttpTransport(process.url, key, retries=0)
            with pytest.raises(VendorError, match="database does not answer") as caught:
                ask(impatient, routes.ADAPTERS)
            assert (type(caught.value), caught.value.status) == (VendorError, 503)
            impatient.close()
        finally:
            server.start()
        assert get(process.port, "/healthz", key)[0] == 200
        customer.take(2, pending)
        adapter = customer.run()
        assert ask(transport, routes.ADAPTERS).expect(AdapterList).adapters == (adapter,)
        server.stop()
        server.start()  # between two requests: connections that broke meanwhile are not used
        assert get(process.port, "/v1/adapters", key)[0] == 200
        transport.close()
    assert "Traceback" not in process.log.read_text()
    vendor.keys.revoke(data_dir, "hospital")


def test_a_database_belongs_to_one_data_folder(
    data_dir: Path, blank_vendor: Path, tmp_path: Path, database_url: str
) -> None:
    vendor.init(data_dir, database_url=database_url)
    other = Path(shutil.copytree(blank_vendor, tmp_path / "b"))
    (other / "vendor.id").unlink()
    with pytest.raises(ConfigError, match=rf"{other} is set to belongs to another data folder") as caught:
        vendor.init(other, database_url=database_url)
    assert "secret" not in str(caught.value)
    folders = [f"{number:032x}" for number in range(8)]
    engine = create_engine(database_url.replace("postgresql://", "postgresql+psycopg://"))
    with engine.begin() as connection:
        connection.execute(text("DELETE FROM cutlayer_folder"))
    engine.dispose()

    def claim(folder: str) -> str | None:
        database = Database(vendor.VendorSettings.load(data_dir).url)
        database.claim(folder)
        owner = database.owner()
        database.close()
        return owner

    with ThreadPoolExecutor(len(folders)) as at_once:
        [owner] = set(at_once.map(claim, folders))
    assert owner in folders


def shown(url: str, name: str = "statement_timeout") -> str:
    """A setting of a connection that has seen a transaction undone."""
    database = Database(url.replace("postgresql://", "postgresql+psycopg://"))
    with contextlib.suppress(ZeroDivisionError), database.session() as session:
        raise ZeroDivisionError
    with database.session() as session:
        value = str(session.scalar(text(f"SHOW {name}")))
    database.close()
    return value


def test_statements_have_a_limit_unless_it_is_set_elsewhere(database_url: str) -> None:
    assert shown(database_url) == "30s"
    assert shown(f"{database_url}?options=-c%20statement_timeout%3D1234") == "1234ms"
    assert shown(f"{database_url}?options=-c%20statement_timeout%3D0") == "0"
    assert shown(f"{database_url}?options=-c%20lock_timeout%3D1234") == "30s"
    engine = create_engine(database_url.replace("postgresql://", "postgresql+psycopg://"))
    with engine.begin() as connection:
        connection.execute(text(f"ALTER DATABASE {engine.url.database} SET statement_timeout = '7s'"))
    engine.dispose()
    assert shown(database_url) == "7s"


def test_silence_has_a_limit_unless_the_url_sets_it(database_url: str) -> None:
    def kept_alive(url: str) -> tuple[str, ...]:
        database = Database(url.replace("postgresql://", "postgresql+psycopg://"))
        with database.session() as session:
            info = session.connection().connection.dbapi_connection.info  # type: ignore[union-attr]
            given = info.get_parameters()
        database.close()
        return tuple(given[name] for name in ("keepalives_idle", "keepalives_interval", "tcp_user_timeout"))

    assert kept_alive(database_url) == ("10", "5", "30000")
    assert kept_alive(f"{database_url}?keepalives_idle=99&tcp_user_timeout=1") == ("99", "5", "1")


def test_a_database_that_hangs_is_given_up(data_dir: Path, database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    vendor.init(data_dir, database_url=database_url)
    monkeypatch.setattr(databases, "STATEMENT_SECONDS", 0.3)
    url = vendor.VendorSettings.load(data_dir).url
    database = Database(url)
    with pytest.raises(OperationalError, match="statement timeout") as caught, database.session() as session:
        session.execute(text("SELECT pg_sleep(60)"))
    assert refusal_for(caught.value).status == 503
    database.check()
    with database.session() as session:
        session.execute(text("LOCK TABLE keys"))
        with pytest.raises(StorageError, match="statement timeout") as refused:
            vendor.keys.create(data_dir, "clinic")
    database.close()
    assert "Check that it is running" in refused.value.remedy
    assert vendor.keys.list(data_dir) == ()


def test_a_database_that_is_not_there(tmp_path: Path, tiny_model: Path) -> None:
    for url in ("u:secret@{address}/x", "u@{address}/x?password=secret"):
        with pytest.raises(StorageError, match="cannot be used") as caught:
            vendor.init(
                tmp_path / "a",
                models=[str(tiny_model)],
                database_url=f"postgresql://{url.format(address=f'127.0.0.1:{free_port()}')}",
            )
        assert "secret" not in str(caught.value)
    for url in ("nonsense", "oracle://x/y"):
        with pytest.raises(ConfigError, match="database URL"):
            vendor.init(tmp_path / "b", models=[str(tiny_model)], database_url=url)
