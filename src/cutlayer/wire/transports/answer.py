"""What a frame is as an HTTP request, and what an HTTP answer is as a reply: the same for every transport."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

import pydantic

from cutlayer.core import AuthError, Cut, VendorError
from cutlayer.printable import quoted
from cutlayer.wire.frame import Frame, Reply
from cutlayer.wire.header import FrameError
from cutlayer.wire.messages import MAX_ANSWER_BYTES, Message
from cutlayer.wire.problem import Problem
from cutlayer.wire.routes import SHARD_PUT

if TYPE_CHECKING:
    from torch import Tensor

TENSOR_MEDIA_TYPE = "application/octet-stream"
DIGEST_HEADER = "X-Content-SHA256"
"""The body's SHA-256, sent with what the vendor keeps: bytes that arrive changed are refused."""


_NO_VENDOR = "Check that the address is a cutlayer vendor's, and that both sides run the same version."
_FAULTS_TOLD = 8


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


def check_size(frame: Frame, status: int, size: int) -> None:
    """Checks an answer's size, as announced or as received, before anything is made of it.

    Raises:
        VendorError: It is larger than any answer to this frame.
    """
    largest = MAX_ANSWER_BYTES if status >= 300 else frame.reply_bytes
    if size > largest:
        raise VendorError(
            f"The vendor's answer to {frame.route.name} has {size} bytes or more; at most {largest} are read.",
            status=status,
            remedy=f"{_NO_VENDOR} If they do, ask the vendor: no right answer is as large.",
        )


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
    check_size(frame, status, len(content))
    if status >= 300:
        raise refusal(status, content)
    route = frame.route
    tensors: Mapping[str, Tensor] = {}
    control = None
    wrong = ""
    try:
        if route.reply_tensors:
            from cutlayer.wire.tensors import decode_tensors

            tensors = decode_tensors(route, content, reply=True)
            wrong = _other_shape(frame, tensors)
        elif route.reply is not None:
            control = route.reply.model_validate_json(_event_data(content) if route.is_event else content)
            wrong = _other_thing(frame, control)
    except (ValueError, pydantic.ValidationError) as error:
        # not chained: the error quotes what the vendor wrote, and Python prints causes as they are
        raise _no_answer(frame, status, _shape_of(error)) from None
    except FrameError as error:
        raise _no_answer(frame, status, error.message) from error
    if wrong:
        raise _no_answer(frame, status, wrong)
    return Reply(
        control=control,
        tensors=tensors,
        raw=content if route.raw_reply else b"",
        uplink_bytes=uplink_bytes,
        downlink_bytes=downlink_bytes,
        request_digest=hashlib.sha256(request).digest(),
    )


def event(number: int, data: Message) -> bytes:
    """A message as a server-sent event, whose number a browser gives back when it asks again."""
    return b"id: %d\ndata: %s\n\n" % (number, data.model_dump_json().encode())


def _event_data(content: bytes) -> bytes:
    """The data of the one event in an answer.

    Ref: WHATWG HTML, §9.2.6, "Interpreting an event stream".
    """
    lines = [line for line in content.splitlines() if line.startswith(b"data:")]
    return b"\n".join(line.removeprefix(b"data:").removeprefix(b" ") for line in lines)


def _no_answer(frame: Frame, status: int, why: str) -> VendorError:
    return VendorError(
        f"The vendor's answer to {frame.route.name} is not of this protocol: {why.rstrip('.')}.",
        status=status,
        remedy=_NO_VENDOR,
    )


def _shape_of(error: Exception) -> str:
    """An error without the values it met."""
    if not isinstance(error, pydantic.ValidationError):
        return quoted(str(error))
    count = error.error_count()
    if count > 1000:  # each takes memory of its own to be told
        return f"{count} faults"
    told = [
        f"{'.'.join(map(str, fault['loc'])) or 'body'}: {fault['msg']}"
        for fault in error.errors(include_input=False, include_url=False, include_context=False)[:_FAULTS_TOLD]
    ]
    return quoted("; ".join(told + [f"{count - len(told)} more"] * (count > len(told))))


def _other_shape(frame: Frame, tensors: Mapping[str, Tensor]) -> str:
    """What is wrong with the shapes of an answer's tensors, compared to what was asked; empty if nothing."""
    for role, expected in frame.shapes.items():
        shape = tuple(tensors[role].shape)
        fits = len(shape) == len(expected) and all(
            side in (found, None) for found, side in zip(shape, expected, strict=True)
        )
        # a boundary that needs no gradient gets none
        if not fits and not (role == "boundary_gradient" and shape[0] == 0):
            told = ", ".join("any" if side is None else str(side) for side in expected)
            return f"tensor {role} is {list(shape)}, and the request asks for [{told}]"
    return ""


def _other_thing(frame: Frame, control: Message) -> str:
    """What an answer says to be of that differs from what was asked; empty if nothing."""
    said = {name: value.slug if isinstance(value, Cut) else value for name, value in control}
    asked: dict[str, object] = {name: value for name, value in frame.where.items() if name != "step"}
    if type(frame.control) is type(said.get("spec")):
        asked["spec"] = frame.control
    others = sorted(name for name in asked.keys() & said.keys() if asked[name] != said[name])
    return f"its {', '.join(others)} is not what was asked for" if others else ""


def refusal(status: int, content: bytes) -> VendorError:
    """The error in an answer that is no success: problem details (RFC 9457) where the vendor sent them."""
    try:
        problem = Problem.model_validate_json(content)
    except pydantic.ValidationError:
        problem = Problem(title=f"The vendor answered with HTTP status {status} and no explanation", status=status)
    message = quoted(f"{problem.title}: {problem.detail}" if problem.detail else problem.title, longest=1000)
    # 403 is a quota's: the key is fine, and another one of the tenant's would change nothing.
    if status == 401:
        remedy = "Give the key that this vendor made for you, as --api-key or in CUTLAYER_API_KEY."
        return AuthError(message, status=status, remedy=remedy)
    return VendorError(message, status=status, remedy=quoted(problem.remedy))
