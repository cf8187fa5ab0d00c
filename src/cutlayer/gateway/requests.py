"""What applications ask: OpenAI's request for embeddings, read strictly."""

from __future__ import annotations

import json
import math
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from cutlayer.gateway.answers import ApiError
from cutlayer.gateway.settings import GatewaySettings

MOST_INPUTS = 2048
"""Of one request, as at OpenAI."""
ETA_HEADER = "X-Cutlayer-Eta"
_NOT_TAKEN = (
    "Arrays of token ids are not accepted: they come from the client's own tokenizer, and mean other words to the "
    "vendor's model. Send strings (langchain-openai: check_embedding_ctx_length=False). Started with --token-ids, "
    "the gateway accepts ids of the vendor's model."
)


class EmbeddingsRequest(BaseModel):
    """A request for embeddings.

    Attributes:
        input: A text, texts, token ids of a text, or token ids of texts.
        model: By the name that the application has for it.
        encoding_format: Numbers, or little-endian float32 in base64.
        dimensions: Numbers of an embedding.
        user: Stays here: it is not sent to the vendor, nor written down.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    input: Any
    model: str
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = None
    user: str | None = None


def read_request(body: bytes) -> EmbeddingsRequest:
    """The request that stands in a body.

    Raises:
        ApiError: None does.
    """
    try:
        content = json.loads(body)
    except (ValueError, RecursionError):  # its text might quote the body
        raise ApiError(400, "invalid_json", "The body is not valid UTF-8 JSON. Send one object.") from None
    if not isinstance(content, dict):
        raise ApiError(400, "invalid_value", "The body must be a JSON object.")
    try:
        return EmbeddingsRequest.model_validate(content)
    except ValidationError as error:
        fault = error.errors(include_input=False, include_url=False, include_context=False)[0]
        place = ".".join(str(step) for step in fault["loc"])
        if fault["type"] == "extra_forbidden":
            allowed = ", ".join(EmbeddingsRequest.model_fields)
            # what stands in a field that is not ours, and its name, might be anything
            raise ApiError(
                400, "unknown_field", f"The request has an unknown field. Allowed fields: {allowed}."
            ) from None
        raise ApiError(400, "invalid_value", f"{place}: {fault['msg']}.", param=place) from None


def inputs_of(request: EmbeddingsRequest, settings: GatewaySettings) -> list[str] | list[list[int]]:
    """The texts of a request, or the token ids of each.

    Raises:
        ApiError: There are none, too many, or something else among them; an empty text; ids where none are taken.
    """
    given = request.input
    items: Any = [given] if isinstance(given, str) else given
    if isinstance(items, list) and items and all(type(each) is int for each in items):
        items = [items]
    if not isinstance(items, list) or not items:
        raise _invalid("input must be a string or a non-empty list of strings.")
    if len(items) > MOST_INPUTS:
        raise _invalid(f"input has {len(items)} texts; {MOST_INPUTS} are taken at most. Send them in several requests.")
    if all(isinstance(each, str) for each in items):
        for row, text in enumerate(items):
            if not text:
                raise _invalid(f"input[{row}] is empty. Leave it out.")
        return items
    if all(isinstance(each, list) and all(type(token) is int for token in each) for each in items):
        if not settings.token_ids:
            raise ApiError(400, "token_ids_not_taken", _NOT_TAKEN, param="input")
        for row, ids in enumerate(items):
            if not ids:
                raise _invalid(f"input[{row}] has no token. Leave it out.")
        return items
    raise _invalid("input must hold only strings, or only lists of token ids.")


def width_of(request: EmbeddingsRequest, settings: GatewaySettings, *, width: int) -> int:
    """How many numbers of an embedding are answered.

    Args:
        request: The request.
        settings: The gateway's.
        width: Of the model's embeddings.

    Raises:
        ApiError: More than there are, or fewer where that is not allowed.
    """
    wanted = width if request.dimensions is None else request.dimensions
    if not 0 < wanted <= width:
        raise ApiError(400, "invalid_dimensions", f"dimensions must lie between 1 and {width}.", param="dimensions")
    if wanted < width and not settings.allow_truncation:
        raise ApiError(
            400,
            "invalid_dimensions",
            f"This model's embeddings have {width} dimensions, and this gateway cuts none off. Leave dimensions out, "
            "or start it with --allow-truncation.",
            param="dimensions",
        )
    return wanted


def eta_of(header: str | None, *, most: float) -> float:
    """The eta of a request, which may be lower than the gateway's.

    It is the gateway's, halved until it is no higher than what the request says: each eta is another look at the same
    text, and all looks together cost at most twice the gateway's eta, whatever applications ask for.

    Args:
        header: What the request says, if it says anything.
        most: The gateway's.

    Raises:
        ApiError: It is no number above 0, or higher.
    """
    if header is None:
        return most
    try:
        eta = float(header) if len(header) <= 40 else math.nan
    except ValueError:
        eta = math.nan
    if not eta > 0:
        raise ApiError(400, "invalid_eta", f"{ETA_HEADER} must be a number above 0.", param=ETA_HEADER)
    if eta > most:
        raise ApiError(
            400,
            "eta_too_high",
            f"{ETA_HEADER} may lower this gateway's eta of {most:g}, and not raise it.",
            param=ETA_HEADER,
        )
    if math.isinf(most):  # texts leave as they are anyway
        return eta
    while most > eta:
        most /= 2
    return most


def _invalid(message: str) -> ApiError:
    return ApiError(400, "invalid_input", message, param="input")
