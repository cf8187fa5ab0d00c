"""Answers in OpenAI's shape: embeddings, models, and errors that its clients understand."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from starlette.responses import Response

from cutlayer.core import (
    AuthError,
    BudgetError,
    ConfigError,
    CutlayerError,
    DataError,
    ModelError,
    PrivacyError,
    StorageError,
    VendorError,
)
from cutlayer.serving.refusal import Refusal, log_without_values

_MEDIA_TYPE = "application/json"
_STAY = {"x-should-retry": "false"}
"""The client would try again what fails again, and charge nothing but time."""
_LATER = {"Retry-After": "2"}
_TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}
_TOO_MANY, _SERVER = 429, 500


class ApiError(Exception):
    """What an application asked cannot be done.

    Args:
        status: HTTP status.
        code: What is wrong, in OpenAI's word for it where it has one.
        message: What was given, what is allowed and what to do. Never a text.
        param: The field of the request.
        headers: Of the answer.
    """

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(f"{code}: {message}")
        self.status = status
        self.code = code
        self.message = message
        self.param = param
        self.headers = dict(headers or {})

    def response(self) -> Response:
        """The error as an HTTP answer."""
        kind = _TYPES.get(self.status, "server_error" if self.status >= _SERVER else "invalid_request_error")
        told = {"message": self.message, "type": kind, "param": self.param, "code": self.code}
        return _json({"error": told}, status=self.status, headers=self.headers)


def error_for(error: Exception) -> ApiError:
    """What an error means to an application; those that should not happen become a bare 500."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, Refusal):
        code = "invalid_api_key" if error.code == "wrong-key" else error.code.replace("-", "_")
        return ApiError(error.status, code, f"{error.detail} {error.remedy}", headers=error.headers)
    if isinstance(error, StorageError):
        log_without_values(error)  # where they are is told to whoever runs the gateway, and to no application
        said = "The gateway cannot read or write its own files; see its log."
        return ApiError(507, "storage_unusable", said, headers=_STAY)
    if isinstance(error, CutlayerError):
        for kind, status, code, headers in _MEANINGS:
            if isinstance(error, kind):
                if kind is VendorError and isinstance(error, VendorError) and not is_away(error):
                    status, code, headers = 502, "vendor_refused", _STAY  # noqa: PLW2901 - its further case
                return ApiError(status, code, str(error), headers=headers)
    log_without_values(error)
    return ApiError(500, "internal_error", "Internal error in the gateway; see its log.", headers=_STAY)


_MEANINGS: tuple[tuple[type[CutlayerError], int, str, dict[str, str]], ...] = (
    (BudgetError, 403, "privacy_budget_exceeded", _STAY),
    (PrivacyError, 403, "privacy_refused", _STAY),
    (DataError, 400, "invalid_input", {}),
    (ConfigError, 400, "invalid_settings", {}),
    (AuthError, 502, "vendor_refused_key", _STAY),
    (VendorError, 503, "vendor_unavailable", _LATER),
    (ModelError, 502, "vendor_model_unusable", _STAY),
)
"""The first that fits. What is left has no place in an answer."""


def is_away(error: VendorError) -> bool:
    """Whether the vendor may answer the same later: it gave no answer, or could not just now."""
    return error.status in (0, _TOO_MANY) or error.status >= _SERVER


def embeddings(
    values: NDArray[np.float32],
    *,
    model: str,
    tokens: int,
    form: Literal["float", "base64"],
    headers: Mapping[str, str],
) -> Response:
    """Embeddings as an HTTP answer.

    Args:
        values: `[n, width]`.
        model: The name that the application has for the model.
        tokens: Of all texts, by the model's tokenizer.
        form: Numbers, or little-endian float32 in base64.
        headers: Of the answer.
    """
    numbers = np.ascontiguousarray(values, dtype="<f4")
    told: Sequence[Any] = (
        [base64.b64encode(row.tobytes()).decode("ascii") for row in numbers] if form == "base64" else numbers.tolist()
    )
    data = [{"object": "embedding", "index": number, "embedding": row} for number, row in enumerate(told)]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return _json({"object": "list", "data": data, "model": model, "usage": usage}, headers=headers)


def models(names: Sequence[str], *, created: int) -> Response:
    """A list of models."""
    return _json({"object": "list", "data": [_model(name, created) for name in names]})


def model(name: str, *, created: int) -> Response:
    """One model."""
    return _json(_model(name, created))


def plain(content: Mapping[str, Any]) -> Response:
    """An answer that is none of OpenAI's."""
    return _json(content)


def _model(name: str, created: int) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": created, "owned_by": "cutlayer"}


def _json(content: Mapping[str, Any], *, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    body = json.dumps(content, allow_nan=False, separators=(",", ":"))
    return Response(body, status_code=status, media_type=_MEDIA_TYPE, headers=headers)
