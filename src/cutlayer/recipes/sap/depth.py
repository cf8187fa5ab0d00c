"""Figure 4 and Table 2: runs by depth of the bottom, attacked, as points of their tables."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import torch
from pydantic import ConfigDict
from transformers import RobertaConfig, RobertaForSequenceClassification

from cutlayer.attacks import Measured, Outcome
from cutlayer.core import Cut, Place, Spec
from cutlayer.models import share_handed_out
from cutlayer.recipes.cells import CellResult
from cutlayer.reports import Estimate

LEAST_LOSS = 0.01
"""The accuracy that section 6 gives up: one point."""


class DepthPoint(Spec):
    """Runs of one setting, over seeds, each attacked.

    Attributes:
        bottom: Blocks at the customer.
        place: Where noise acts.
        eta: eta0 of CTI on tokens, eta of noise on rows; infinite without noise.
        ua: Utility accuracy on test.
        replaced: Share of tokens that noise replaced; `None` where rows are noised.
        ep: Empirical privacy, by attack; `None` where it has no number.
        reasons: Why it has none.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=True, ser_json_inf_nan="strings")

    bottom: int
    place: Place
    eta: float
    ua: Estimate
    replaced: float | None
    ep: Mapping[str, Estimate | None]
    reasons: Mapping[str, str]

    @classmethod
    def of(cls, bottom: int, place: Place, eta: float, results: Sequence[CellResult]) -> DepthPoint:
        """The mean of a setting's runs."""
        found: dict[str, list[Outcome]] = {}
        for result in results:
            for outcome in result.attacks:
                found.setdefault(outcome.attack, []).append(outcome)
        replaced = [result.replaced for result in results if result.replaced is not None]
        return cls(
            bottom=bottom,
            place=place,
            eta=eta,
            ua=Estimate.of([result.ua for result in results]),
            replaced=math.fsum(replaced) / len(replaced) if replaced else None,
            ep={attack: _privacy(outcomes) for attack, outcomes in found.items()},
            reasons={
                attack: outcome.reason
                for attack, outcomes in found.items()
                for outcome in outcomes
                if not isinstance(outcome, Measured)
            },
        )

    @property
    def least(self) -> Estimate | None:
        """EP against the strongest of its attacks."""
        known = [each for each in self.ep.values() if each is not None]
        return min(known, key=lambda each: each.value) if known else None


def _privacy(outcomes: Iterable[Outcome]) -> Estimate | None:
    """EP over runs; one run without a number leaves the setting without one."""
    shares = []
    for outcome in outcomes:
        if not isinstance(outcome, Measured):
            return None
        shares.append(outcome.privacy)
    return Estimate.of(shares)


def best_within(points: Iterable[DepthPoint], centralised: float, *, loss: float = LEAST_LOSS) -> DepthPoint | None:
    """The point of the most EP, against its strongest attack, whose accuracy is no more than `loss` below."""
    found = [(point.least.value, point) for point in points if point.least and point.ua.value >= centralised - loss]
    return max(found, key=lambda each: each[0])[1] if found else None


def papers_share(architecture: Mapping[str, int], bottom: int) -> float:
    """The share of the weights of the paper's model that such a bottom has, counted on shapes alone."""
    with torch.device("meta"):
        model = RobertaForSequenceClassification(RobertaConfig.from_dict(dict(architecture)))
    return share_handed_out(model, Cut(bottom=bottom))
