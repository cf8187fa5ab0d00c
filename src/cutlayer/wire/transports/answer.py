"""What a frame is as an HTTP request, and what an HTTP answer is as a reply: the same for every transport."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import pydantic

from cutlayer.core import AuthError, VendorError
from cutlayer.wire.frame import Frame, Reply, decode_tensors
from cutlayer.wire.messages import Problem
from cutlayer.wire.routes import SHARD_PUT

TENSOR_MEDIA_TYPE = "application/octet-stream"
DIGEST_HEADER = "X-Content-SHA256"
"""The body's SHA-256, sent with what the vendor keeps: bytes that arrive changed are refused."""


def request_headers(frame: Frame, body: bytes, api_key: str) -> dict[str, str]:
    """The headers of a frame's request."""
    headers = {"Authorization": f"Bearer {api_key}", "User-Agent": "cutlayer"}
    if frame.route.tensors:
        headers["Content-Type"] = TENSOR_MEDIA_TYPE
    elif frame.route.control is not None:
        headers["Content-Type"] = "application/json"
    if frame.route is SHARD_PUT:
        headers[DIGEST_HEADER] = hashlib.sha256(body).hexdigest()
    return headers


def read_answer(
    frame: Frame, *, status: int, content: bytes, request: bytes, uplink_bytes: int, downlink_bytes: int
) -> Reply:
    """The reply in an answer.

    Args:
        frame: The frame that was sent.
        status: The answer's HTTP status.
        content: The answer's body.
        request: The request's body.
        uplink_bytes: Bytes of the request on the wire, all tries together.
        downlink_bytes: Bytes of the answer on the wire.

    Raises:
        VendorError: The vendor refused, or answered with what is no answer to this frame.
        AuthError: The vendor does not accept the key.
    """
    if status >= 300:
        raise refusal(status, content)
    route = frame.route
    tensors: Mapping[str, object] = {}
    control = None
    try:
        if route.reply_tensors:
            tensors = decode_tensors(route, content, reply=True)
        elif route.reply is not None:
            control = route.reply.model_validate_json(content)
    except (ValueError, pydantic.ValidationError) as error:
        raise VendorError(
            f"The vendor's answer to {route.name} is not of this protocol: {_shape_of(error)}.",
            status=status,
            remedy="Check that the address is a cutlayer vendor's, and that both sides run the same version.",
        ) from error
    return Reply(
        control=control,
        tensors=tensors,  # type: ignore[arg-type]
        raw=content if route.raw_reply else b"",
        uplink_bytes=uplink_bytes,
        downlink_bytes=downlink_bytes,
        request_digest=hashlib.sha256(request).digest(),
    )


def _shape_of(error: Exception) -> str:
    """An error without the values it met."""
    if isinstance(error, pydantic.ValidationError):
        return "; ".join(
            f"{'.'.join(map(str, fault['loc'])) or 'body'}: {fault['msg']}"
            for fault in error.errors(include_input=False, include_url=False)
        )
    return str(error)


def refusal(status: int, content: bytes) -> VendorError:
    """The error in an answer that is no success: problem details (RFC 9457) where the vendor sent them."""
    try:
        problem = Problem.model_validate_json(content)
    except pydantic.ValidationError:
        problem = Problem(title=f"The vendor answered with HTTP status {status} and no explanation", status=status)
    message = f"{problem.title}: {problem.detail}" if problem.detail else problem.title
    # 403 is a quota's: the key is fine, and another one of the tenant's would change nothing.
    if status == 401:
        remedy = "Give the key that this vendor made for you, as --api-key or in CUTLAYER_API_KEY."
        return AuthError(message, status=status, remedy=remedy)
    return VendorError(message, status=status, remedy=problem.remedy)
