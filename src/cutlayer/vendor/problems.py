"""Refusals, and how they travel: RFC 9457 problem details with a remedy."""

from __future__ import annotations

import errno
import logging
from collections.abc import Mapping

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as NoConnection
from starlette.exceptions import HTTPException

from cutlayer.core import CutlayerError, DataError, ModelError, StorageError
from cutlayer.serving.refusal import Refusal, log_without_values
from cutlayer.wire import FrameError

_MOST_FAULTS = 20
log = logging.getLogger("cutlayer.vendor")


def not_found(kind: str, name: str) -> Refusal:
    """There is no such thing in the tenant's namespace, whether or not another tenant has one."""
    return Refusal(404, "not-found", f"There is no {kind} {name}.", remedy="Check the identifier and the API key.")


def conflict(code: str, detail: str, *, remedy: str) -> Refusal:
    """The request does not fit the state of what it names."""
    return Refusal(409, code, detail, remedy=remedy)


def unacceptable(code: str, detail: str, *, remedy: str) -> Refusal:
    """The request's content cannot be used."""
    return Refusal(422, code, detail, remedy=remedy)


def disk_is_full(error: BaseException) -> bool:
    """Whether an error says that there is no room left to write."""
    if isinstance(error, OSError):
        # EFBIG: a limit on file size (ulimit -f) feels the same and has the same remedy.
        return error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    if isinstance(error, DBAPIError):
        return "disk is full" in str(error.orig) or "No space left" in str(error.orig)
    return False


def database_is_away(error: BaseException) -> bool:
    """Whether an error says that the database cannot be asked just now: gone, starting, locked, or too busy."""
    if isinstance(error, DBAPIError) and error.connection_invalidated:
        return True
    return isinstance(error, OperationalError | InterfaceError | NoConnection)


def refusal_for(error: Exception) -> Refusal:
    """The refusal that an error amounts to; errors that should not happen become a bare 500."""
    if isinstance(error, Refusal):
        return error
    if disk_is_full(error):
        log.error("the disk is full (%s)", type(error).__name__)
        return Refusal(
            507,
            "disk-full",
            "The vendor has no room to store this; nothing was lost.",
            remedy="Try again later, or ask the vendor to make room.",
        )
    if database_is_away(error):
        reason = error.orig if isinstance(error, DBAPIError) else error
        log.error("the database does not answer (%s)", type(reason).__name__)
        return Refusal(
            503,
            "database-unavailable",
            "The vendor's database does not answer; nothing was lost.",
            remedy="Try again in a moment; if it stays, ask the vendor.",
            headers={"Retry-After": "1"},
        )
    if isinstance(error, FrameError):
        return unacceptable("not-a-frame", error.message, remedy=error.remedy or "Send what the route describes.")
    if isinstance(error, ModelError | DataError):
        return unacceptable("not-usable", error.message, remedy=error.remedy or "Choose another model or setting.")
    log_without_values(error)
    if isinstance(error, StorageError):
        return Refusal(
            500, "damaged", "A file of the vendor does not hold what it should.", remedy="Ask the vendor to look."
        )
    return Refusal(
        500, "internal-error", "The vendor made a mistake.", remedy="Try again; if it stays, ask the vendor."
    )


def install(app: FastAPI) -> None:
    """Makes every error of the application a problem."""

    async def refuse(_: Request, error: Exception) -> Response:
        return refusal_for(error).response()

    async def refuse_http(_: Request, error: Exception) -> Response:
        if not isinstance(error, HTTPException):
            raise error
        code = {404: "not-found", 405: "method-not-allowed"}.get(error.status_code, "bad-request")
        return Refusal(
            error.status_code,
            code,
            str(error.detail),
            remedy="See /openapi.json for what the vendor offers.",
            headers=error.headers,
        ).response()

    async def refuse_schema(_: Request, error: Exception) -> Response:
        if not isinstance(error, RequestValidationError):
            raise error
        found = error.errors()
        told = dict.fromkeys(_fault(fault) for fault in found[:_MOST_FAULTS])
        more = [f"and {len(found) - _MOST_FAULTS} more"] if len(found) > _MOST_FAULTS else []
        return unacceptable(
            "not-valid",
            "; ".join([*told, *more]),
            remedy="Correct the values named; /openapi.json describes them.",
        ).response()

    app.add_exception_handler(Refusal, refuse)
    app.add_exception_handler(HTTPException, refuse_http)
    app.add_exception_handler(RequestValidationError, refuse_schema)
    for kind in (CutlayerError, OSError, DBAPIError, NoConnection):
        app.add_exception_handler(kind, refuse)


def _fault(fault: Mapping[str, object]) -> str:
    """One fault with its path, and its value where that is a number: strings might be anything."""
    place = fault.get("loc")
    steps = place if isinstance(place, tuple) else ()
    value = fault.get("input")
    if fault.get("type") == "extra_forbidden":
        steps, value = steps[:-1], None  # what stands in a field that is not ours, and its name, might be anything
    path = ".".join(str(step) for step in steps if step not in ("body", "path"))
    given = f" = {value}" if isinstance(value, bool | int | float) and len(str(value)) <= 40 else ""
    return f"{path or 'body'}{given}: {fault.get('msg', 'not valid')}"
