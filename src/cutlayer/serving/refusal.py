"""Why a service does not do what a request asks: as a status, a code and a remedy, in RFC 9457's form by default."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Mapping

from starlette.responses import Response

from cutlayer.core import CutlayerError
from cutlayer.wire.problem import Problem

MEDIA_TYPE = "application/problem+json"
log = logging.getLogger("cutlayer.serving")


class Refusal(Exception):  # noqa: N818 - what it is; the error is the customer's
    """A service will not do what a request asks, and says why.

    Args:
        status: HTTP status.
        code: What is wrong, in a few words joined by hyphens; the same for the same fault.
        detail: What was given and what is allowed. Never tensor values, texts, keys or server paths.
        remedy: What the customer should do next.
        headers: Extra headers of the answer.
    """

    def __init__(
        self, status: int, code: str, detail: str, *, remedy: str, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(f"{code}: {detail}")
        self.status = status
        self.code = code
        self.detail = detail
        self.remedy = remedy
        self.headers = dict(headers or {})

    def response(self) -> Response:
        """The refusal as an HTTP answer."""
        problem = Problem(
            type=f"urn:cutlayer:{self.code}",
            title=self.code.replace("-", " ").capitalize(),
            status=self.status,
            detail=self.detail,
            remedy=self.remedy,
        )
        return Response(problem.model_dump_json(), status_code=self.status, media_type=MEDIA_TYPE, headers=self.headers)


def log_without_values(error: BaseException) -> None:
    """Logs where an error came from, without its message: that might quote a body.

    Errors of cutlayer itself carry no private values, so theirs is kept.
    """
    message = str(error) if isinstance(error, CutlayerError) else ""
    where = "".join(traceback.format_tb(error.__traceback__))
    log.error("%s %s\n%s", type(error).__name__, message, where)
