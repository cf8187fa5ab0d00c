"""The vendor on a PostgreSQL that the test starts."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from cutlayer import vendor
from cutlayer.core import ConfigError, StorageError
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


@pytest.fixture(scope="module")
def database_url() -> Iterator[str]:
    programs, as_user = _programs(), _unprivileged()
    folder = Path(tempfile.mkdtemp(prefix="cutlayer-pg-"))
    folder.chmod(0o755)
    data = folder / "data"
    if as_user:
        shutil.chown(folder, "postgres")
    port = free_port()
    subprocess.run(
        [*as_user, programs / "initdb", "-D", data, "-U", "cutlayer", "--auth=trust", "--no-sync", "-E", "UTF8"],
        check=True,
        capture_output=True,
        cwd=folder,
    )
    options = f"-c listen_addresses=127.0.0.1 -p {port} -k {folder} -c fsync=off"
    start = [*as_user, programs / "pg_ctl", "-D", data, "-l", folder / "log", "-w", "-t", "60", "-o", options, "start"]
    subprocess.run(start, check=True, stdout=subprocess.DEVNULL, cwd=folder)
    try:
        yield f"postgresql://cutlayer@127.0.0.1:{port}/postgres"
    finally:
        stop = [*as_user, programs / "pg_ctl", "-D", data, "-m", "immediate", "stop"]
        subprocess.run(stop, check=True, stdout=subprocess.DEVNULL, cwd=folder)
        shutil.rmtree(folder, ignore_errors=True)


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


def test_a_database_that_is_not_there(tmp_path: Path, tiny_model: Path) -> None:
    with pytest.raises(StorageError, match="cannot be used") as caught:
        vendor.init(tmp_path / "a", models=[str(tiny_model)], db_url=f"postgresql://u:secret@127.0.0.1:{free_port()}/x")
    assert "secret" not in str(caught.value)
    for url in ("nonsense", "oracle://x/y"):
        with pytest.raises(ConfigError, match="database URL"):
            vendor.init(tmp_path / "b", models=[str(tiny_model)], db_url=url)
