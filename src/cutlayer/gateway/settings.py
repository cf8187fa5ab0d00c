"""Settings of a gateway, beside how texts are privatized."""

from __future__ import annotations

from typing import Final

from cutlayer.core.setting import Shown, setting
from cutlayer.core.spec import SettingsSpec

GATEWAY: Final = "Gateway"
"""The topic of these settings."""


class GatewaySettings(SettingsSpec):
    """What applications may ask of a gateway."""

    alias: tuple[str, ...] = setting(
        (),
        help="A name that applications have for one of the vendor's models, such as "
        "text-embedding-3-small=starter; may be repeated.",
        shown=Shown(GATEWAY, common=True, metavar="NAME=MODEL"),
    )
    truncate: bool = setting(
        False,
        help="Truncate texts longer than the model's limit; otherwise they are refused.",
        shown=Shown(GATEWAY),
    )
    allow_truncation: bool = setting(
        False,
        help="Let applications ask for fewer dimensions than the model has: the first ones, scaled to length 1. Models "
        "that were not trained for it lose disproportionately much by it.",
        shown=Shown(GATEWAY),
    )
    token_ids: bool = setting(
        False,
        help="Take arrays of token ids, which must be the vendor's model's. Most clients that send ids send another "
        "tokenizer's, which mean other words.",
        shown=Shown(GATEWAY),
    )
    vendor_seconds: float = setting(
        60.0,
        help="How long the vendor may take to start answering, retries included; after that requests get 503 with "
        "Retry-After. A vendor may load a model for its first answer.",
        shown=Shown(GATEWAY, unit="s"),
        gt=0,
    )
    requests_at_once: int = setting(
        256,
        help="Maximum concurrent requests; others get 429.",
        shown=Shown(GATEWAY, unit="requests"),
        ge=1,
    )
    max_body_bytes: int = setting(8 * 2**20, help="Maximum request body.", shown=Shown(GATEWAY, unit="bytes"), ge=1024)
    body_seconds: float = setting(
        60.0, help="How long the body of a request may take to arrive.", shown=Shown(GATEWAY, unit="s"), gt=0
    )
