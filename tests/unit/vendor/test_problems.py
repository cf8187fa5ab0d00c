"""Errors that are nobody's fault have an answer of their own, and others say nothing."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy
from sqlalchemy import exc

from cutlayer import vendor
from cutlayer.core import VendorError
from cutlayer.vendor.problems import refusal_for
from cutlayer.wire import routes
from cutlayer.wire.transports import LocalTransport
from tests.service.customer import ask
from tests.unit.vendor.test_store import IDS, NAME

PRIVATE = "the patient was seen on Monday"


def wrapped(kind: type[exc.DBAPIError], message: str, **options: Any) -> exc.DBAPIError:
    return kind(f"INSERT {PRIVATE}", {"spec": PRIVATE}, sqlite3.OperationalError(message), **options)


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (wrapped(exc.OperationalError, "database is locked"), 503, "database-unavailable"),
        (wrapped(exc.OperationalError, "connection refused"), 503, "database-unavailable"),
        (wrapped(exc.InterfaceError, "connection already closed"), 503, "database-unavailable"),
        (wrapped(exc.InternalError, "gone", connection_invalidated=True), 503, "database-unavailable"),
        (exc.TimeoutError("QueuePool limit of size 5 overflow 10 reached"), 503, "database-unavailable"),
        (wrapped(exc.OperationalError, "database or disk is full"), 507, "disk-full"),
        (wrapped(exc.IntegrityError, "UNIQUE constraint failed"), 500, "internal-error"),
        (wrapped(exc.ProgrammingError, "no such column"), 500, "internal-error"),
        (ValueError(PRIVATE), 500, "internal-error"),
    ],
)
def test_errors_become_refusals(error: Exception, status: int, code: str, caplog: pytest.LogCaptureFixture) -> None:
    refusal = refusal_for(error)
    assert (refusal.status, refusal.code) == (status, code)
    assert refusal.remedy
    assert (refusal.headers.get("Retry-After") == "1") == (status == 503)
    assert caplog.records
    assert PRIVATE not in caplog.text + str(refusal.response().body)


def test_a_locked_database_is_waited_for(
    open_vendor: Callable[[], LocalTransport], data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def impatient(url: str, **_: Any) -> sqlalchemy.Engine:
        return sqlalchemy.create_engine(url, connect_args={"timeout": 0.05})

    monkeypatch.setattr("cutlayer.vendor.database.create_engine", impatient)
    transport = open_vendor()
    ask(transport, routes.SERVICE)
    other = sqlite3.connect(vendor.VendorSettings.load(data_dir).url.removeprefix("sqlite:///"))
    other.execute("BEGIN EXCLUSIVE")
    with pytest.raises(VendorError, match="database does not answer") as caught:
        ask(transport, routes.RECORD_SET_PUT, IDS, record_set=NAME)
    assert caught.value.status == 503
    other.close()
    ask(transport, routes.RECORD_SET_PUT, IDS, record_set=NAME)
