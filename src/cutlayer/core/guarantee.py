"""What a mechanism promises, in a form that cannot be added up wrongly.

The noise and the claim about the noise travel together (design, promise 3). A claim names its
metric, its unit and what it is per; claims of unlike units refuse to be composed, and a mechanism
without a claim says so instead of being left out.
"""

from __future__ import annotations

import math
from enum import StrEnum

from pydantic import BaseModel, ConfigDict, Field

from cutlayer.core.errors import PrivacyError


class Claim(StrEnum):
    """The kind of a guarantee."""

    METRIC = "metric-dp"
    """eta * d-privacy: Pr[M(x)=y] <= exp(eta * d(x, x')) Pr[M(x')=y]. Ref: SAP §2.2, eq. (1)."""
    LABEL = "label-dp"
    """Pr[R(y)=z] <= exp(epsilon) Pr[R(y')=z] for all labels y, y' of a record. Ref: Ghazi et al., arXiv:2102.06062."""
    NONE = "none"
    """Nothing is promised: no noise, or noise whose ratio no constant bounds."""


class Guarantee(BaseModel):
    """A promise about a release.

    Attributes:
        claim: The kind of promise.
        budget: For `METRIC`, eta; for `LABEL`, epsilon; infinite where nothing is promised.
        unit: What the budget is counted in, for example `1/distance in table sha256:ab12…`. Only
            budgets of the same unit are ever added.
        per: What one budget covers, for example `token`.
        caveats: What the promise does not cover, one sentence each.
        claimed_by: The installed package that makes the promise, where it is not cutlayer's own. Nobody
            here has verified it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")

    claim: Claim
    budget: float = Field(gt=0)
    unit: str
    per: str
    caveats: tuple[str, ...] = ()
    claimed_by: str | None = None

    @property
    def verified(self) -> bool:
        """Whether something is promised, by cutlayer itself."""
        return self.claim is not Claim.NONE and self.claimed_by is None

    def __str__(self) -> str:
        if self.claim is Claim.NONE:
            return "none"
        whose = f", claimed by {self.claimed_by} and not verified by cutlayer" if self.claimed_by else ""
        return f"{self.claim}, eta {self.budget:g} per {self.per}{whose}"

    @classmethod
    def nothing(cls, *reasons: str) -> Guarantee:
        """The explicit absence of a promise, with the reasons."""
        return cls(claim=Claim.NONE, budget=math.inf, unit="none", per="text", caveats=reasons)

    def compose(self, other: Guarantee) -> Guarantee:
        """The promise of both releases together (sequential composition: budgets add).

        Raises:
            PrivacyError: The two budgets have unlike units.
        """
        if Claim.NONE in (self.claim, other.claim):
            return Guarantee.nothing(*dict.fromkeys(self.caveats + other.caveats))
        if (self.unit, self.per) != (other.unit, other.per):
            raise PrivacyError(
                f"Budgets of unlike units cannot be added: {self.unit} per {self.per} "
                f"and {other.unit} per {other.per}.",
                remedy="Report them apart.",
            )
        return self.model_copy(
            update={
                "budget": self.budget + other.budget,
                "caveats": tuple(dict.fromkeys(self.caveats + other.caveats)),
                # one part that nobody has verified leaves the whole unverified
                "claimed_by": ", ".join(dict.fromkeys(filter(None, (self.claimed_by, other.claimed_by)))) or None,
            }
        )
