"""RAPT's intrinsic evaluation (§V-E): one thing of a training is varied. Tables VI to VIII, Figure 5."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import Field

from cutlayer.core import Spec
from cutlayer.customer import TuningSpec
from cutlayer.customer.reconstruction import Reconstruction
from cutlayer.recipes.claims import alike, falls
from cutlayer.recipes.cooccurrence import Cooccurrence, make_space
from cutlayer.recipes.layouts import Layout
from cutlayer.recipes.long_table import Level
from cutlayer.recipes.measures.virtual_parameters import VirtualParametersCell
from cutlayer.recipes.options import read_yaml
from cutlayer.recipes.study import Claim, Part, Scenario, Stated
from cutlayer.recipes.word_training import Arm, Trainings, WordTrainingCell

PAPER = read_yaml("papers", "rapt")
LAYOUT = Layout("rapt")


class IntrinsicSpec(Spec):
    """What these parts vary, one thing at a time.

    Attributes:
        arm: The arm of part `table-3` that is varied; `without` is the same without plain words.
        method: Its method of tuning.
        replaced: The share of all words that is replaced.
        spaces: Models that give words their vectors (Table VI), some of which are `made` here.
        made: From what, by name.
        plain_seeds: Of five sequences of plain words (Table VII).
        virtual: Methods with virtual positions, by name, and `lengths`, how many these have (Table VIII).
        varied: Settings of plain words and their reconstruction, and the values of each (Figure 5).
    """

    arm: str
    without: str
    method: str
    replaced: float = Field(gt=0, lt=1)
    spaces: tuple[str, ...] = Field(min_length=1)
    made: Mapping[str, Cooccurrence] = {}
    plain_seeds: tuple[int, ...] = Field(min_length=1)
    virtual: Mapping[str, TuningSpec]
    lengths: tuple[int, ...] = Field(min_length=1)
    varied: Mapping[str, tuple[float, ...]]


@dataclass(frozen=True)
class Varied:
    """What is varied, and of which trainings.

    Attributes:
        asked: The settings of these parts.
        trainings: What all trainings have in common.
        arms: Those of part `table-3`, by name; a variation that is one of them is computed once.
        tuning: How what is varied is tuned.
    """

    asked: IntrinsicSpec
    trainings: Trainings
    arms: Mapping[str, Arm]
    tuning: TuningSpec

    @property
    def arm(self) -> Arm:
        return self.arms[self.asked.arm]

    def with_plain_words(self, **changes: Any) -> Arm:
        """The arm with other settings of plain words."""
        settings = Reconstruction(**{**self.arm.reconstruction.model_dump(), **changes})
        found = self.arm.model_copy(update={"reconstruction": settings})
        same = (arm for arm in self.arms.values() if _but_title(arm) == _but_title(found))
        return next(same, found)

    def cell(self, arm: Arm, tuning: TuningSpec | None = None, **changes: Any) -> WordTrainingCell:
        return self.trainings.cell(arm, tuning or self.tuning, self.asked.replaced, **changes)

    def each(self, cell: WordTrainingCell, **axes: Level) -> Iterator[Scenario]:
        yield from Scenario.each(self.trainings.lab.options.seeds, cell, **axes)


def _but_title(arm: Arm) -> object:
    return arm.words, arm.candidates, arm.reconstruction


def table_6(these: Varied) -> Part:
    """Accuracy where words' vectors are of other models, at equal shares replaced."""
    first, *others = these.asked.spaces
    made = {name: make_space(name, asked, these.trainings.lab) for name, asked in these.asked.made.items()}
    scenarios = [
        each
        for space in these.asked.spaces
        for each in these.each(these.cell(these.arm, space=made.get(space, space)), space=space)
    ]  # fmt: skip
    claims = [
        alike(
            f"Vectors of {other} instead of {first} do not significantly affect accuracy (Table VI).", "UA",
            (first, {"space": first}), (other, {"space": other}), stated=PAPER["table_6_says"],
        )
        for other in others
    ]  # fmt: skip
    stated = Stated.lines(PAPER["table_6"], percent=["UA"], plain=["eta", "replaced"])
    return LAYOUT.part("table-6", scenarios, claims=claims, stated=stated)


def table_7(these: Varied) -> Part:
    """Accuracy with each of five sequences of plain words, and without any."""
    choices = dict(enumerate(these.asked.plain_seeds, start=1))
    scenarios = [
        each
        for number, seed in choices.items()
        for each in these.each(these.cell(these.with_plain_words(plain_seed=seed)), choice=str(number))
    ]
    scenarios += these.each(these.cell(these.arms[these.asked.without]), choice="none")
    claims = [
        alike(
            f"Plain words of choice {number} and of choice 1 are comparable (Table VII).", "UA",
            ("choice 1", {"choice": "1"}), (f"choice {number}", {"choice": str(number)}),
            stated=PAPER["table_7_says"],
        )
        for number in choices if number != 1
    ]  # fmt: skip
    stated = Stated.lines(PAPER["table_7"], percent=["UA"])
    return LAYOUT.part("table-7", scenarios, claims=claims, stated=stated)


def table_8(these: Varied) -> Part:
    """Accuracy and trained parameters, over the number of virtual positions."""
    scenarios: list[Scenario] = []
    claims: list[Claim] = []
    model = these.trainings.lab.model().fingerprint
    lengths = these.asked.lengths
    for method, tuning in these.asked.virtual.items():
        for length in lengths:
            tuned = tuning.model_copy(update={f"{method}_length": length})
            axes: dict[str, Level] = {"method": method, "length": length}
            scenarios += these.each(these.cell(these.arm, tuned), **axes)
            scenarios.append(Scenario(VirtualParametersCell(model=model, tuning=tuned), axes))
        most, least = (
            (f"{length} positions", {"method": method, "length": length}) for length in (lengths[-1], lengths[0])
        )
        claim = f"A longer {method} is more accurate: {most[0]} than {least[0]} (Table VIII)."
        claims.append(falls(claim, "UA", most, least, stated=PAPER["table_8_says"]))
    stated = Stated.lines(PAPER["table_8"], percent=["UA"], plain=["parameters"])
    return LAYOUT.part("table-8", scenarios, claims=claims, stated=stated)


def figure_5(these: Varied) -> Part:
    """Accuracy over each setting of plain words and their reconstruction."""
    scenarios: list[Scenario] = []
    claims: list[Claim] = []
    titles, says = LAYOUT.axis("varied").text, PAPER["figure_5_says"]
    for name, values in these.asked.varied.items():
        for value in values:
            scenarios += these.each(these.cell(these.with_plain_words(**{name: value})), varied=name, setting=value)
        most, least = ((f"{value:g}", {"varied": name, "setting": value}) for value in (values[-1], values[0]))
        claim = f"{titles(name)}: {most[0]} is more accurate than {least[0]} (Figure 5)."
        claims.append(falls(claim, "UA", most, least, stated=says.get(name, "")))
    scenarios += these.each(these.cell(these.arms[these.asked.without]), varied="none", setting=0)
    scenarios += these.each(these.cell(these.arm), varied="as in Table III", setting=0)
    claim = "One sequence of plain words and its reconstruction improve accuracy (Figure 5)."
    with_them, without = ("with", {"varied": "as in Table III"}), ("without", {"varied": "none"})
    claims.append(falls(claim, "UA", with_them, without, stated=says["one"]))
    return LAYOUT.part("figure-5", scenarios, claims=claims)
