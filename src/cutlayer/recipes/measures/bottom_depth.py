"""What blocks at the customer hide by their number, and what they cost: EP against several attacks, UA, weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from transformers import RobertaConfig, RobertaForSequenceClassification

from cutlayer.attacks import ATTACKS
from cutlayer.core import ConfigError, Cut, Fault, Place
from cutlayer.models import share_handed_out
from cutlayer.recipes.lab import Lab
from cutlayer.recipes.long_table import Measure
from cutlayer.recipes.study import Results
from cutlayer.recipes.tables import DASH, Axis, estimate
from cutlayer.reports import Table, percent

STRONGEST = "strongest"
"""Whichever of a place's attacks left the least EP."""
LOSS = 0.01
"""The accuracy that section 6 of SAP gives up: one point."""


def by_depth(lab: Lab, bottoms: Sequence[int], name: str) -> Callable[[Results], Iterable[Measure]]:
    """Makes the share of weights handed out at each depth, and the EP against the strongest attack.

    Raises:
        ConfigError: The model has too few blocks.
    """
    blocks, whole = lab.model().blocks, lab.model().whole
    deep, allowed = [bottom for bottom in bottoms if bottom >= blocks], f"must be below the model's {blocks} blocks"
    if deep:
        remedy = f"Choose others with --set depths.{name}=[1]."
        raise ConfigError([Fault(f"depths.{name}", each, allowed) for each in deep], remedy=remedy)
    shares = {bottom: share_handed_out(whole, Cut(bottom=bottom)) for bottom in bottoms}
    counted = [Measure("handed out", share, axes={"bottom": bottom}) for bottom, share in shares.items()]
    return lambda results: [*counted, *strongest(results)]


def strongest(results: Results) -> Iterable[Measure]:
    """The EP of each place against its strongest attack."""
    for axes in {tuple(scenario.axes.items()): scenario.axes for scenario in results.scenarios}.values():
        read = results.rows(metric="EP", **axes, attack=list(ATTACKS))
        found = [results.pooled(rows) for _, rows in read.groupby("attack", sort=False)]
        known = [each for each in found if each.value is not None]
        if known:
            least = min(known, key=lambda each: each.value or 0.0)
            trials = least.independent
            yield Measure("EP", least.value, least.se, least.n, attack=STRONGEST, independent=trials, axes=axes)


def best_within(results: Results, centralised: float, *, loss: float, **where: Any) -> float | None:
    """The eta of the most EP, against the strongest attack, whose accuracy is at most `loss` below the centralised."""
    found = {
        eta: ep
        for eta in _noisy(results, **where)
        if (ep := results.number("EP", **where, eta=eta, attack=STRONGEST).value) is not None
        and (results.number("UA", **where, eta=eta).value or 0.0) >= centralised - loss
    }
    return max(found, key=lambda eta: found[eta]) if found else None


def _noisy(results: Results, **where: Any) -> list[float]:
    return [eta for eta in results.levels("eta", **where) if math.isfinite(eta)]


def conclusion(results: Results, *, paper: Mapping[str, Any], places: Axis) -> Iterable[Table]:
    """What a deeper bottom hides for one point of accuracy (section 6); nothing where Table 2 was not run."""
    etas = _noisy(results, part="table-2")
    attacks = [each for each in results.levels("attack", part="table-2", eta=etas) if each in ATTACKS]
    said, architecture = paper["conclusion"], paper["architecture"]
    with torch.device("meta"):  # shapes alone
        model = RobertaForSequenceClassification(RobertaConfig.from_dict(dict(architecture)))
    rows: list[tuple[str, ...]] = []
    for bottom in sorted(results.levels("bottom", part=("figure-4", "table-2"))):
        part = "table-2" if bottom in results.levels("bottom", part="table-2") else "figure-4"
        name = f"here, {bottom:g} block{'' if bottom == 1 else 's'}"
        handed_out = percent(results.number("handed out", part=part, bottom=bottom).value)
        centralised = results.number("UA", part=part, trained="whole").value or 0.0
        for place, eta, noise in _choices(results, places, centralised, part=part, bottom=bottom):
            where = {"part": part, "bottom": bottom, "place": place, "eta": eta}
            ua = results.number("UA", **where).value
            eps = (estimate(results.number("EP", **where, attack=attack)) for attack in attacks)
            rows.append((name, handed_out, noise, *eps, DASH if ua is None else f"{100 * (ua - centralised):+.1f}"))
    theirs = (
        f"{paper['model']}, {said['blocks']} of {architecture['num_hidden_layers']} blocks",
        percent(share_handed_out(model, Cut(bottom=said["blocks"]))), "not stated; Table 2 has such a cell at eta0 65",
        f"{said['ep']:g}", *(DASH for _ in attacks[1:]), f"{-said['ua_loss']:+.1f}",
    )  # fmt: skip
    yield Table(
        title="Section 6: what a deeper bottom hides for one point of accuracy (%)",
        columns=("bottom", "weights handed out", "noise", *(f"EP, {each}" for each in attacks), "UA, to centralised"),
        rows=(theirs, *rows) if attacks else (),
        notes=(
            "word-selection is the paper's attack, optimised text by text; linear-inversion is a ridge map.",
            "With noise: the eta0 of the most EP, against the stronger of both attacks, at which UA falls by no more "
            f"than {100 * LOSS:g} point.",
        ),
    )


def _choices(
    results: Results, places: Axis, centralised: float, **where: Any
) -> Iterable[tuple[str, float | None, str]]:
    """Place, eta0 and words of a depth's lines: without noise, and the best of each place with noise."""
    yield Place.TOKENS.value, math.inf, "none"
    for place in results.levels("place", **where, eta=_noisy(results)):
        eta = best_within(results, centralised, loss=LOSS, **where, place=place)
        yield place, eta, places.text(place) + (f", eta0 {eta:g}" if eta else ": no eta0 costs so little")
