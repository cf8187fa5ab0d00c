"""What the vendor says where it refuses: RFC 9457 problem details."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Problem(BaseModel):
    """An error as RFC 9457 problem details."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    type: str = "about:blank"
    title: str
    status: int
    detail: str = ""
    remedy: str = ""
