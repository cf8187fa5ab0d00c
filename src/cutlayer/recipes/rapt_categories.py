"""RAPT's analyses of parts of speech (§VI-A, §VI-B), one category at a time at one eta: Figures 6 and 7."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pydantic import Field

from cutlayer.core import ConfigError, Spec
from cutlayer.customer import TuningSpec
from cutlayer.recipes import inference
from cutlayer.recipes.claims import falls, named
from cutlayer.recipes.lab import Cell, Lab
from cutlayer.recipes.layouts import Layout
from cutlayer.recipes.long_table import Level, Where
from cutlayer.recipes.options import read_yaml
from cutlayer.recipes.replaced_readings import ReplacedCell
from cutlayer.recipes.replacement import CATEGORY, Replacement, Source
from cutlayer.recipes.study import Claim, Part, Results, Scenario, Verdict
from cutlayer.recipes.tasks import TextFile
from cutlayer.recipes.word_cells import CategoryCell, EtasCell
from cutlayer.recipes.word_training import READ, Arm, Trainings, WordTrainingCell
from cutlayer.reports import percent

PAPER = read_yaml("papers", "rapt")
LAYOUT = Layout("rapt")
CATEGORIES = LAYOUT.axis("category").text
SPREADS = ("mean distance", "variance of distances")


class CategoriesSpec(Spec):
    """What Figures 6 and 7 compare.

    Attributes:
        categories: One at a time, as of `privacy.Words`; `all` is all of them, each word within its own.
        replaced: The share of all words that the eta replaces where all are chosen; the others have the same eta.
        method: Of tuning.
        inversion: The attack whose readings Figure 6 is about; stronger ones stand beside it.
        column: The attribute that is inferred.
        attribute: The attack that infers it; `entities` is the one that finds entities.
        protects: Categories of which the paper says that they protect well; `weak` are those that protect weakly.
        alike: Categories whose distances it calls similar.
    """

    categories: tuple[str, ...] = Field(min_length=1)
    replaced: float = Field(gt=0, lt=1)
    method: str
    inversion: str
    column: str
    attribute: str
    entities: str
    protects: tuple[str, ...]
    weak: tuple[str, ...]
    alike: tuple[str, ...]


class EtaTrainingCell(WordTrainingCell):
    """A classifier at an eta, whatever share that replaces."""

    at: float

    def _eta(self, lab: Lab, share: float) -> float:
        return self.at


@dataclass(frozen=True)
class Categories:
    """What the two figures have in common.

    Attributes:
        asked: Their settings.
        texts: Whose words are drawn, and by which the eta is found.
        most_words: Of a text.
        space: Gives words their vectors.
        lab: Where they are run.
    """

    asked: CategoriesSpec
    texts: TextFile
    most_words: int
    space: str
    lab: Lab

    def replacement(self, category: str) -> Replacement:
        return Replacement(words=(category,), candidates=CATEGORY, space=Source.of(self.space, self.lab))

    @cached_property
    def eta(self) -> float:
        """The one eta of all categories.

        Raises:
            ConfigError: None replaces the share.
        """
        cell = EtasCell(
            texts=self.texts, replacement=self.replacement("all"), shares=(self.asked.replaced,),
            most_words=self.most_words,
        )  # fmt: skip
        (found, *_) = self.lab.result(cell).rows
        if found.value is None:
            raise ConfigError(
                f"No eta replaces {percent(self.asked.replaced, 0)} % of all words: {found.note}",
                remedy="Set categories.replaced to another share.",
            )
        return float(found.value)

    def each(self, cell: Any, category: str, **axes: Level) -> list[Scenario]:
        return Scenario.each(self.lab.options.seeds, cell, category=category, **axes)

    @property
    def said(self) -> Mapping[str, Any]:
        return {"eta": f"{self.eta:g}", "texts": self.texts, "share": percent(self.asked.replaced, 0)}

    def less_read(self, metric: str, attack: str, stated: str) -> Claim:
        """Whether an attack reads less with each category that is said to protect well than with each weak one."""
        weak, good = (
            {CATEGORIES(each): {"category": each, "attack": attack} for each in some}
            for some in (self.asked.weak, self.asked.protects)
        )
        claim = f"{attack}: less is read where {_listed(good)} are replaced than where {_listed(weak)} are (Figure 6)."
        return _apart(claim, metric, weak, good, stated=stated)


def figure_6(
    these: Categories, trainings: Trainings, tuning: TuningSpec, clear: Arm, *, attacks: tuple[str, ...]
) -> Part:
    """Accuracy, and what three attacks read, where words of one category alone are replaced.

    Args:
        these: The categories.
        trainings: What trainings of part `table-3` have in common.
        tuning: How these are tuned.
        clear: The arm of unprotected text.
        attacks: What reads the words of the recorded traffic.
    """
    asked, size, config = these.asked, these.lab.options.size, inference.RECIPE.config
    scenarios: list[Scenario] = []
    unprotected: dict[Cell, Scenario] = {}
    readings: dict[str, dict[str, Any]] = {
        asked.attribute: {"column": asked.column, "labelled": max(config.at(size).labelled)},
        asked.entities: {},
    }  # fmt: skip
    for category in asked.categories:
        replacement, own = these.replacement(category), CATEGORIES(category)
        arm = Arm(title=f"{own} alone", words=replacement.words)
        base = trainings.cell(arm, tuning, asked.replaced, attacks=attacks)
        scenarios += these.each(EtaTrainingCell(**dict(base), at=these.eta), category)
        for attack, told in readings.items():
            cell = ReplacedCell(
                model=these.lab.model().fingerprint, posts=config.posts, entities=config.entities, attack=attack,
                eta=these.eta, scale=config.at(size), replacement=replacement, **told,
            )  # fmt: skip
            scenarios += these.each(cell, category)
            unprotected[cell.unprotected] = Scenario(cell.unprotected, {"category": "none"})
    scenarios += these.each(trainings.cell(clear, tuning, None), "none")
    read = {**dict.fromkeys(attacks, READ), **dict.fromkeys(readings, "success")}
    claims = [these.less_read(metric, attack, PAPER["figure_6_says"]) for attack, metric in read.items()]
    said = {**these.said, **asked.model_dump(), "attacks": attacks}
    return LAYOUT.part("figure-6", [*scenarios, *unprotected.values()], said, claims=claims)


def figure_7(these: Categories) -> Part:
    """Distances within each category, and how many of its words a draw replaces."""
    asked = these.asked
    scenarios = [
        each
        for category in asked.categories
        for each in these.each(
            CategoryCell(
                texts=these.texts, replacement=these.replacement(category), eta=these.eta, most_words=these.most_words
            ),
            category,
        )
    ]
    good, others = (
        {CATEGORIES(each): {"category": each} for each in asked.categories if (each in asked.protects) is protects}
        for protects in (True, False)
    )
    others.pop(CATEGORIES("all"), None)
    claim, says = f"{_listed(good)} are protected better than each other category (Figure 7)", PAPER["figure_7_says"]
    claims = [
        _apart(f"{claim}.", "EP", good, others, stated=says["protects"]),
        _apart(f"{claim}, of words that the vocabulary has.", "EP, known words", good, others, stated=says["protects"]),
    ]
    claims += [_similar(asked, metric) for metric in SPREADS]
    return LAYOUT.part("figure-7", scenarios, these.said, claims=claims)


def _listed(names: Iterable[str]) -> str:
    return " and ".join(names)


def _apart(claim: str, metric: str, high: Mapping[str, Where], low: Mapping[str, Where], *, stated: str) -> Claim:
    """The lowest of some shares is higher than the highest of others, by two standard errors."""

    def judge(results: Results) -> Iterable[Verdict]:
        above, below = (named(results, metric, places) for places in (high, low))
        if not above or not below:
            yield Verdict(claim=claim, here="not measured", held=None, stated=stated)
            return
        least = min(above, key=lambda name: above[name].value or 0.0)
        most = max(below, key=lambda name: below[name].value or 0.0)
        yield from falls(claim, metric, (least, high[least]), (most, low[most]), stated=stated)(results)

    return judge


def _similar(asked: CategoriesSpec, metric: str) -> Claim:
    """Numbers that are called similar must be each other's neighbours among those of all categories."""
    names = ", ".join(map(CATEGORIES, asked.alike))

    def judge(results: Results) -> Iterable[Verdict]:
        found = {each: results.number(metric, category=each).value for each in asked.categories if each != "all"}
        known = {category: value for category, value in found.items() if value is not None}
        own = [known[each] for each in asked.alike if each in known]
        between = [each for each, value in known.items() if each not in asked.alike and min(own) < value < max(own)]
        here = ", ".join(f"{known[each]:.3f} ({CATEGORIES(each)})" for each in asked.alike if each in known)
        told = "none lies between" if not between else f"between them: {', '.join(map(CATEGORIES, between))}"
        yield Verdict(
            claim=f"The {metric} of {names} are similar: no other category's lies between (Figure 7).",
            here=f"{here}; {told}", held=not between if len(own) == len(asked.alike) else None,
            stated=PAPER["figure_7_says"]["similar"],
        )  # fmt: skip

    return judge
