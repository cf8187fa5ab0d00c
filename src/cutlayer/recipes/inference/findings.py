"""What the cells say about the papers' claims."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from pydantic import BaseModel, ConfigDict

from cutlayer.attacks import Further, Measured
from cutlayer.recipes.inference.cells import INVERSIONS, Attacked, Results
from cutlayer.recipes.inference.config import InferenceConfig
from cutlayer.reports import Estimate

TITLES = {
    "nearest-neighbour": "white-box: nearest row",
    "mlp-inversion": "black-box: perceptron",
    "autoencoder-inversion": "black-box: autoencoder",
    "attribute-classifier": "tuned model (SAP)",
    "attribute-mlp": "perceptron on mean rows (RAPT, SnD)",
    "attribute-lengths": "lengths alone",
    "ner": "entities: tagger",
}
"""The attacks as tables and plots name them."""
_EASY = 0.9
"""Share of tokens from which on reading them is called easy."""


class Finding(BaseModel):
    """A claim of a paper beside what was found here.

    Attributes:
        paper: Whose, and which figure.
        claim: In the paper's words.
        here: What was found, in numbers.
        verdict: Whether that agrees.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    paper: str
    claim: str
    here: str
    verdict: str


def estimate(found: Sequence[Attacked]) -> Estimate | None:
    """The attack's success over seeds; `None` where it has no number."""
    shares = [each.outcome.success for each in found if isinstance(each.outcome, Measured)]
    return Estimate.of(shares) if shares else None


def further(found: Sequence[Attacked], name: str) -> Further | None:
    """A further number of the first seed's attack."""
    for each in found:
        if isinstance(each.outcome, Measured):
            return next((number for number in each.outcome.further if number.name == name), None)
    return None


def findings(results: Results, config: InferenceConfig, parts: Sequence[str]) -> list[Finding]:
    """All claims that these parts are about."""
    return [
        *(_sap(results, config) if "figure-3-sap" in parts else ()),
        *(_rapt(results, config) if "figure-3-rapt" in parts else ()),
    ]


def _sap(results: Results, config: InferenceConfig) -> Iterator[Finding]:
    paper, scale = config.paper.sap_figure_3, results.scale
    few, many = min(scale.labelled), max(scale.labelled)
    for column in config.posts.columns:
        for attack in ("attribute-classifier", "attribute-mlp"):
            least, most = (results.of(attack, column=column, labelled=labelled) for labelled in (few, many))
            if not most:
                continue
            name = f"{column}, {TITLES[attack]}"
            yield Finding(
                paper="SAP, Figure 3",
                claim=paper.claims["more_labels"],
                **_compared(
                    name, f"N_l {few}", estimate(least[math.inf]), f"N_l {many}", estimate(most[math.inf]), "no noise"
                ),
            )
            noisiest = results.etas[0]
            yield Finding(
                paper="SAP, Figure 3",
                claim=paper.claims["less_eta"],
                **_compared(
                    name,
                    f"eta {noisiest:g}",
                    estimate(most[noisiest]),
                    "no noise",
                    estimate(most[math.inf]),
                    f"N_l {many}",
                ),
            )


def _rapt(results: Results, config: InferenceConfig) -> Iterator[Finding]:
    claims, noisiest = config.paper.rapt_figure_3.claims, results.etas[0]
    for attack in INVERSIONS:
        clear = estimate(results.of(attack)[math.inf])
        if clear is not None:
            verdict = "agrees" if clear.value > _EASY else "does not agree"
            here = f"{TITLES[attack]}: {100 * clear.value:.1f} % of tokens without noise"
            yield Finding(paper="RAPT, Figure 3", claim=claims["unprotected"], here=here, verdict=verdict)
    attacks = [(attack, "", 0) for attack in (*INVERSIONS, "ner")]
    attacks += [("attribute-mlp", column, max(results.scale.labelled)) for column in config.posts.columns]
    for attack, column, labelled in attacks:
        found = results.of(attack, column=column, labelled=labelled)
        name = f"{column}, {TITLES[attack]}" if column else TITLES[attack]
        yield Finding(
            paper="RAPT, Figure 3",
            claim=claims["less_eta"],
            **_compared(
                name, f"eta {noisiest:g}", estimate(found[noisiest]), "no noise", estimate(found[math.inf]), "success"
            ),
        )


def _compared(
    name: str,
    low_name: str,
    low: Estimate | None,
    high_name: str,
    high: Estimate | None,
    at: str,
) -> dict[str, str]:
    """Whether success is higher at one end than at the other, by two standard errors of the difference."""
    if low is None or high is None:
        return {"here": f"{name}: no number", "verdict": "not measured"}
    rise = high.value - low.value
    error = math.hypot(low.standard_error, high.standard_error)
    verdict = "agrees" if rise > 2 * error else "does not agree" if rise < -2 * error else "no clear difference"
    here = (
        f"{name} ({at}): {100 * low.value:.1f} % at {low_name}, {100 * high.value:.1f} % at {high_name} "
        f"({100 * rise:+.1f} ± {100 * error:.1f})"
    )
    return {"here": here, "verdict": verdict}
