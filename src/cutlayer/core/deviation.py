"""Where cutlayer differs from a paper, or fills in what the paper leaves open."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Deviation(BaseModel):
    """One difference between a paper and a run of its recipe; printed in every report.

    Attributes:
        what: The setting.
        value_in_paper: What the paper states, or `not stated`.
        ours: What was used.
        why: The reason.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    what: str
    value_in_paper: str
    ours: str
    why: str
