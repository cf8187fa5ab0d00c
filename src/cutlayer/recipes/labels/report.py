"""Options side by side: tables, findings, JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from cutlayer.core import Claim, Proportion
from cutlayer.recipes.labels.cells import Attacked, Cell, LanguageCell
from cutlayer.recipes.labels.config import LabelsConfig
from cutlayer.recipes.labels.readings import ON_LABELS, ON_TOKENS, SOLVED, Option, Reading
from cutlayer.recipes.unsplit.findings import Verdict
from cutlayer.reports import Table, percent

TITLES = {
    "gradient-sign": "sign",
    "output-gradient": "argmax(p − B·g)",
    "gradient-direction": "directions in groups",
    "activation-clusters": "activations in groups",
    ON_TOKENS: "tail gradient",
    SOLVED: "combination solved",
}
"""The attacks as tables and plots name them."""
_GRADIENTS = ("gradient-sign", "output-gradient", "gradient-direction")
_ERRORS = 4.0
"""Standard errors beyond the bound that a draw hardly ever takes, all options and attacks together."""
_ALL = 0.99
"""Share of labels from which on they are called readable."""


class Results:
    """Finished cells, options by part and seed.

    Args:
        cells: By cell.
    """

    def __init__(self, cells: Mapping[Cell, Attacked]) -> None:
        self.cells = cells
        self.classifier = [
            (cell.seed, option)
            for cell, found in cells.items()
            if not isinstance(cell, LanguageCell)
            for option in found.options
        ]
        self.language = [
            (cell.seed, option)
            for cell, found in cells.items()
            if isinstance(cell, LanguageCell)
            for option in found.options
        ]


def title(option: Option) -> str:
    """An option in a few words."""
    if option.epsilon is not None:
        return f"{option.name}, ε = {option.epsilon:g}"
    return f"{option.name}, {option.passes} passes" if option.passes > 1 else option.name


def reading(option: Option, attack: str) -> Reading | None:
    """What an attack read of an option, if it was asked."""
    return next((each for each in option.readings if each.attack == attack), None)


def tables(results: Results, config: LabelsConfig) -> tuple[Table, ...]:
    """All tables of the report."""
    found = []
    if results.classifier:
        found.append(_classifier(results.classifier, config))
    if results.language:
        found.append(_language(results.language, config))
    return (*found, _findings(results))


def content(results: Results) -> dict[str, Any]:
    """The same for machines, and more."""
    return {
        "cells": [
            {"cell": cell.model_dump(mode="json"), "result": found.model_dump(mode="json")}
            for cell, found in results.cells.items()
        ],
        "findings": [each.model_dump() for each in findings(results)],
    }


def _classifier(options: Sequence[tuple[int, Option]], config: LabelsConfig) -> Table:
    attacks = (*ON_LABELS, SOLVED)
    return Table(
        title=f"Labels of {config.task.title} that the vendor reads, in per cent, and what each option costs",
        columns=("option", "seed", *(TITLES[name] for name in attacks), "bound", *_COSTS, "accuracy", "guarantee"),
        rows=tuple(
            (
                title(option),
                str(seed),
                *(_share(reading(option, name)) for name in attacks),
                percent(option.bound),
                *_costs(option),
                _accuracy(option.accuracy),
                _guarantee(option),
            )
            for seed, option in options
        ),
        notes=(
            "In brackets: 95 % over resampled texts. Every look of every epoch counts, activations those of the last "
            "quarter of the steps. Groups are matched with labels at their best. A dash: the attack does not apply.",
            "Bound: of the best guess from reports alone, with labels as frequent as they are. Activations may lie "
            "above it: a model that has learnt from reports tells true labels by the texts, which no draw of labels "
            "hides.",
            "Recombined passes are attacked on the first pass of each step; the last column but the bound is the "
            "attack on what was solved for: for logits from passes and the vendor's own softmax, for hidden states "
            "from the update of the bias in front.",
            "The head at the customer is no option of a run; it is trained in one process, and its gradients are of "
            "the head's input. Bytes are of steps alone, without releases.",
        ),
    )


def _language(options: Sequence[tuple[int, Option]], config: LabelsConfig) -> Table:
    attacks = (ON_TOKENS, SOLVED)
    return Table(
        title=f"Next tokens of {config.language.corpus.name} that the vendor reads above the cut, in per cent",
        columns=("option", "seed", *(TITLES[name] for name in attacks), "bound", *_COSTS, "perplexity", "guarantee"),
        rows=tuple(
            (
                title(option),
                str(seed),
                *(_share(reading(option, name)) for name in attacks),
                percent(option.bound),
                *_costs(option),
                "–" if option.perplexity is None else f"{option.perplexity:.1f}",
                _guarantee(option),
            )
            for seed, option in options
        ),
        notes=(
            f"{config.language.model}, final norm and head at the customer, all weights trained on each text once.",
            "A token is a label with as many classes as the vocabulary has entries, so ε has to be near its logarithm "
            "before any token is kept. The same token also goes up from below the cut, as eta says: a draw of labels "
            "protects one of two copies, and is no option of a run.",
            "Signs and argmax(p − B·g) have no meaning for gradients of hidden states; the tail gradient is what they "
            "are there. Groups have none either: there are as many as tokens of the vocabulary, most of them empty. "
            "The head is at the customer in every language model's run: that is the ordinary line.",
            "Combinations are solved from the update of the last bias in front of the boundary, which the vendor "
            "applies.",
        ),
    )


_COSTS = ("backward passes", "round trips", "gradients up (kB)", "outputs down (kB)")


def _costs(option: Option) -> tuple[str, ...]:
    size = (option.gradient_bytes / 1000, option.output_bytes / 1000)
    return (str(option.passes), str(option.rounds), *(f"{kilobytes:,.0f}" for kilobytes in size))


def _share(found: Reading | None) -> str:
    if found is None or found.success is None:
        return "–"
    low, high = found.interval or (math.nan, math.nan)
    return f"{percent(found.success.value)} [{percent(low)}, {percent(high)}]"


def _accuracy(found: Proportion | None) -> str:
    return "–" if found is None else f"{percent(found.value)} ± {percent(found.standard_error)}"


def _guarantee(option: Option) -> str:
    claim = option.guarantee
    return f"ε = {claim.budget:g} per {claim.per}" if claim.claim is Claim.LABEL else "none"


# ---------------------------------------------------------------- findings


def findings(results: Results) -> tuple[Verdict, ...]:
    """What the numbers say."""
    found = []
    for part in (results.classifier, results.language):
        options = [option for _, option in part]
        if options:
            what = "labels" if part is results.classifier else "next tokens"
            found += [_ordinary(options, what), *_response(options, what), *_solved(options, what)]
    found += _head([option for _, option in results.classifier])
    return tuple(found)


def _values(options: Sequence[Option], attacks: Sequence[str]) -> list[float]:
    readings = [reading(option, name) for option in options for name in attacks]
    return [each.success.value for each in readings if each is not None and each.success is not None]


def _ordinary(options: Sequence[Option], what: str) -> Verdict:
    values = _values([option for option in options if option.name == "ordinary"], ("output-gradient", ON_TOKENS))
    return Verdict(
        claim=f"An ordinary run shows its {what}: 99 % or more are read from gradients.",
        held=min(values) >= _ALL if values else None,
        because=f"{_range(values)} were read." if values else "no attack has a number.",
    )


def _response(options: Sequence[Option], what: str) -> list[Verdict]:
    drawn = [option for option in options if option.epsilon is not None]
    if not drawn:
        return []
    beyond = [
        (each.success.value - option.bound) / math.sqrt(option.bound * (1 - option.bound) / option.draws)
        for option in drawn
        for name in (*_GRADIENTS, ON_TOKENS)
        if (each := reading(option, name)) is not None and each.success is not None and option.bound is not None
    ]
    claims = [
        Verdict(
            claim=f"Randomised response of {what}: no attack on gradients reads more than the reports' bound.",
            held=max(beyond) <= _ERRORS if beyond else None,
            because=f"of {len(beyond)} readings the highest lies {max(beyond):+.1f} standard errors of the draw from "
            f"it (yes up to {_ERRORS:g})."
            if beyond
            else "no attack has a number.",
        )
    ]
    groups = [
        (each.success.value, option.bound)
        for option in drawn
        if (each := reading(option, "activation-clusters")) is not None
        and each.success is not None
        and option.bound is not None
    ]
    if groups:
        claims.append(
            Verdict(
                claim="Nor does the attack on activations, in which gradients have no part.",
                held=all(value <= bound for value, bound in groups),
                because="; ".join(f"{percent(value)} % at a bound of {percent(bound)} %" for value, bound in groups)
                + ". What lies above is told by the texts.",
            )
        )
    return claims


def _solved(options: Sequence[Option], what: str) -> list[Verdict]:
    several = [option for option in options if option.passes > 1]
    found = [each for option in several if (each := reading(option, SOLVED)) is not None and each.success is not None]
    if not found:
        return []
    values = [each.success.value for each in found if each.success is not None]
    return [
        Verdict(
            claim=f"Recombined passes hide {what} from a vendor that holds the adapter.",
            held=max(values) < _ALL,
            because=f"{_range(values)} were read of what was solved for.",
        )
    ]


def _head(options: Sequence[Option]) -> list[Verdict]:
    values = _values([option for option in options if option.name == "head at the customer"], ("gradient-direction",))
    if not values:
        return []
    return [
        Verdict(
            claim="A head at the customer hides which texts share a label.",
            held=max(values) < _ALL,
            because=f"directions of gradients put {_range(values)} of looks into the right group.",
        )
    ]


def _range(values: Sequence[float]) -> str:
    low, high = percent(min(values)), percent(max(values))
    return f"{low} %" if low == high else f"{low} to {high} %"


def _findings(results: Results) -> Table:
    return Table(
        title="Findings",
        columns=("claim", "held", "because"),
        rows=tuple(
            (each.claim, "not tested" if each.held is None else "yes" if each.held else "no", each.because)
            for each in findings(results)
        ),
    )
