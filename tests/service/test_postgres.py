"""The vendor on a PostgreSQL that the test starts."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from cutlayer import vendor
from cutlayer.core import ConfigError, StorageError, VendorError
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
    """A server with a database of its own, which tests may stop and start."""

    def __init__(self) -> None:
        self._programs, self._as_user = _programs(), _unprivileged()
        self._folder = Path(tempfile.mkdtemp(prefix="cutlayer-pg-"))
        self._folder.chmod(0o755)
        if self._as_user:
            shutil.chown(self._folder, "postgres")
        self._port = free_port()
        self.url = f"postgresql://cutlayer@127.0.0.1:{self._port}/postgres"
        self._run("initdb", "-U", "cutlayer", "--auth=trust", "--no-sync", "-E", "UTF8")

    def start(self) -> None:
        options = f"-c listen_addresses=127.0.0.1 -p {self._port} -k {self._folder} -c fsync=off"
        self._run("pg_ctl", "-l", str(self._folder / "log"), "-w", "-t", "60", "-o", options, "start")

    def stop(self) -> None:
        self._run("pg_ctl", "-m", "immediate", "stop")

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


@pytest.fixture(scope="module")
def database_url(server: PostgreSql) -> str:
    return server.url


def test_a_whole_job_on_postgresql(nursery: Vendors, tmp_path: Path, tiny_model: Path, database_url: str) -> None:
    data_dir = tmp_path / "data"
    vendor.init(data_dir, models=[str(tiny_model)], threads=1, db_url=database_url)
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
    nursery: Vendors, tmp_path: Path, tiny_model: Path, server: PostgreSql
) -> None:
    """The vendor says so and stays up; a customer who waits goes on as if nothing had been."""
    data_dir = tmp_path / "data"
    vendor.init(data_dir, models=[str(tiny_model)], threads=1, db_url=server.url)
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


def test_a_database_that_is_not_there(tmp_path: Path, tiny_model: Path) -> None:
    with pytest.raises(StorageError, match="cannot be used") as caught:
        vendor.init(tmp_path / "a", models=[str(tiny_model)], db_url=f"postgresql://u:secret@127.0.0.1:{free_port()}/x")
    assert "secret" not in str(caught.value)
    for url in ("nonsense", "oracle://x/y"):
        with pytest.raises(ConfigError, match="database URL"):
            vendor.init(tmp_path / "b", models=[str(tiny_model)], db_url=url)
