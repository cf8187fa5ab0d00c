"""Recipe `sap`: Tables 1 to 3, Figures 2 and 4 of Split-and-Privatize, at the scale of the model given.

Figure 3 is recipe `inference`, with RAPT's. Settings: `configs/sap.yaml`; the paper's numbers: `papers/sap.yaml`;
tables and figures: `layouts/sap.yaml`.
Ref: arXiv:2312.15603.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import product
from typing import Any

from pydantic import Field

from cutlayer.attacks import ATTACKS
from cutlayer.core import Place, Spec
from cutlayer.customer import Lora, Objective, TrainBottom, TrainSpec
from cutlayer.models import STARTER
from cutlayer.recipes.claims import alike
from cutlayer.recipes.lab import Lab
from cutlayer.recipes.layouts import Layout
from cutlayer.recipes.long_table import Measure
from cutlayer.recipes.measures.bottom_depth import by_depth, conclusion
from cutlayer.recipes.measures.trade_off import gain, place_of
from cutlayer.recipes.options import RecipeConfig, Setting, read_yaml, shipped
from cutlayer.recipes.recipe import Recipe
from cutlayer.recipes.stated import differing
from cutlayer.recipes.study import Claim, Part, Results, Scenario, Stated, Verdict
from cutlayer.recipes.tables import Axis, estimate, points
from cutlayer.recipes.tasks import Limits, Task, TextFile
from cutlayer.recipes.training import (
    CentralisedCell,
    SplitCell,
    Steering,
    TrainingCell,
    calibrated,
    counted,
    reasons,
    settled,
)

PAPER = read_yaml("papers", "sap")


class Scale(Spec):
    """What `--size` changes: rows, training (of all tasks, of one), and what attacks read and are measured on."""

    limits: Limits
    training: Mapping[str, Setting] = {}
    task_training: Mapping[str, Mapping[str, Setting]] = {}
    attacked_tokens: int = Field(ge=1)
    public_texts: int | None = Field(default=None, ge=1)


class Depths(Spec):
    """Figure 4 and Table 2: blocks at the customer, attacks, and what the attacker reads beforehand."""

    task: str
    figure_4: tuple[int, ...] = Field(min_length=1)
    table_2: tuple[int, ...] = Field(min_length=1)
    without_noise: tuple[str, ...] = Field(min_length=1)
    with_noise: tuple[str, ...] = Field(min_length=1)
    text: TextFile


class SapConfig(RecipeConfig[Scale]):
    """`configs/sap.yaml`; that file says what each field is for."""

    tasks: tuple[Task, ...]
    replaced: tuple[float, ...] = Field(min_length=1)
    tuning: Lora
    training: Mapping[str, Setting]
    task_training: Mapping[str, Mapping[str, Setting]]
    table_3: str
    cached_bottom: int = Field(ge=1)
    depths: Depths

    def task(self, name: str) -> Task:
        return next(task for task in self.tasks if task.name == name)

    def training_of(self, task: Task, scale: Scale) -> TrainSpec:
        """How a task's cells are trained: settings of the task over those of all, and of the size over both."""
        own, smaller = (each.get(task.name, {}) for each in (self.task_training, scale.task_training))
        said = {**self.training, **own, **scale.training, **smaller}
        return settled(Objective.CLASSIFICATION, self.tuning, said)

    def etas(self, task: Task, lab: Lab) -> list[float]:
        """The eta0 that replace the shares asked for of a task's tokens."""
        scale = self.at(lab.options.size)
        longest = self.training_of(task, scale).max_length
        return [point.eta for point in calibrated(lab, task, scale.limits, self.replaced, max_length=longest)]


LAYOUT = Layout("sap")
STEERING, HOW = LAYOUT.axis("steering"), LAYOUT.axis("how")
STEERED = (Steering.BY_CLASS, Steering.CLASS_FREE)
RECIPE = Recipe(
    "sap", shipped("sap", SapConfig), default_model=STARTER, paper=lambda _: {"paper": PAPER},
    closing=[partial(conclusion, paper=PAPER, places=LAYOUT.axis("place")), differing(PAPER)],
)  # fmt: skip


def _each(
    kind: type[TrainingCell], c: SapConfig, lab: Lab, task: Task, axes: Mapping[str, Any], **settings: Any
) -> list[Scenario]:
    scale = c.at(lab.options.size)
    training, model = c.training_of(task, scale), lab.model().fingerprint
    cell = kind(task=task, limits=scale.limits, training=training, tuning=c.tuning, model=model, **settings)
    return Scenario.each(lab.options.seeds, cell, task=task.name, **axes)


def _whole(c: SapConfig, lab: Lab, task: Task) -> list[Scenario]:
    return _each(CentralisedCell, c, lab, task, {"trained": "whole"})


# ---------------------------------------------------------------- Table 1 and Figure 2


@RECIPE.part("figure-2", also=["table-1"])
def figure_2(c: SapConfig, lab: Lab) -> Part:
    """UA and EP over eta0 with and without CTI, on four data sets; with Table 1's rows and accuracies."""
    scenarios = [scenario for task in c.tasks for scenario in _whole(c, lab, task)]
    for task in c.tasks:
        etas = c.etas(task, lab)
        # without noise there is nothing for CTI to steer
        for steering, eta in [*product(Steering, etas), (Steering.NONE, math.inf)]:
            axes = {"trained": "split", "steering": steering.value, "eta": eta}
            scenarios += _each(SplitCell, c, lab, task, axes, eta=eta, steering=steering)
    names, whole, split = [task.name for task in c.tasks], {"trained": "whole"}, {"trained": "split"}
    theirs = [{**line, **whole} for line in PAPER["table_1"] if line["task"] in names]
    accuracy = {line["task"]: line["UA"] for line in theirs}
    stated = [
        {**point, **split, "UA": accuracy[point["task"]] - point["UA lost"], "note": _named(point)}
        for point in PAPER["figure_2"]
        if point["task"] in names
    ]
    losses = [
        alike(
            f"{task.title}: without privatization the split loses no accuracy (§5.2).", "UA",
            ("centralised", {**whole, "task": task.name}),
            ("split", {**split, "task": task.name, "eta": math.inf}),
        )
        for task in c.tasks
    ]  # fmt: skip
    return LAYOUT.part(
        "figure-2",
        scenarios,
        {
            "titles": Axis("task", "data set", {task.name: task.title for task in c.tasks}),
            "steerings": [{"name": how.value, "title": STEERING.text(how.value)} for how in Steering],
            "curves": [{"task": task.name, "title": task.title, "notes": _curve(task)} for task in c.tasks],
            "no_privacy": lambda eta: "∞ (no privacy)" if math.isinf(eta) else f"{eta:g}",
            "paper": PAPER, "cut": _cut(c.at(lab.options.size).limits), "stands": _stands,
            "one_seed": ONE_SEED if lab.options.seeds == 1 else [],
        },
        stated=[
            *Stated.lines(theirs, percent=["UA"], plain=["train rows", "dev rows", "test rows"]),
            *Stated.lines(stated, percent=["EP", "UA", "UA lost"]),
        ],
        derived=lambda results: [*_allowed(c, lab), *_gains(results)],
        claims=[*losses, *(_cti_helps(task, how) for task in c.tasks for how in STEERED)],
    )  # fmt: skip


ONE_SEED = [
    "One seed: the errors are over test texts alone, and another draw of the noise may move a point by more. --seeds "
    "runs several."
]


def _cut(limits: Limits) -> list[str]:
    most = [str(rows or "all") for rows in (limits.train, limits.dev, limits.test)]
    cut = (
        f"At this size {' / '.join(most)} rows of train / dev / test are taken at most, drawn at random within each "
        "label; where there are fewer, these are all."
    )
    return [cut] if set(most) != {"all"} else []


def _curve(task: Task) -> list[Callable[[Results], Iterable[str]]]:
    def centralised(results: Results) -> Iterable[str]:
        yield f"Centralised accuracy: {estimate(results.number('UA', trained='whole', task=task.name))}."

    return [centralised, counted(task=task.name, trained="split")]


def _allowed(c: SapConfig, lab: Lab) -> Iterable[Measure]:
    for task in c.tasks:
        training = c.training_of(task, c.at(lab.options.size))
        axes = {"task": task.name, "trained": "whole"}
        yield Measure("most tokens", training.max_length, note="the model's limit", axes=axes)
        yield Measure("most epochs", training.epochs, axes=axes)


def _gains(results: Results) -> Iterable[Measure]:
    for task in results.levels("task"):
        plain, *steered = ({"task": task, "steering": how.value} for how in (Steering.NONE, *STEERED))
        yield from (gain(results, ours, plain) for ours in steered)


def _cti_helps(task: Task, how: Steering) -> Claim:
    """What the paper says of CTI on a data set; it prints no number."""
    helps = PAPER["cti_helps"][task.name]
    raises = "raises" if helps else "does not significantly raise"
    held = {"helps": helps, "hurts": not helps, "no clear difference": None if helps else True}

    def judge(results: Results) -> Iterable[Verdict]:
        gained = results.number("UA gained", task=task.name, steering=how.value)
        yield Verdict(
            claim=f"{task.title}: {STEERING.text(how.value)} {raises} UA at equal EP (Figure 2).",
            here=gained.note if gained.value is None else f"{points(1)(gained)} points: {gained.note}",
            held=held.get(gained.note),
            stated="helps" if helps else "no significant improvement",
        )

    return judge


def _named(point: Mapping[str, Any]) -> str:
    return f"eta0 {point['eta']:g}" + {"plain": "", "cti": ", CTI"}.get(point["steering"], ", CTI not stated")


def _stands(results: Results, row: Mapping[str, Any]) -> float | None:
    """The paper's eta0 are of another table: its points stand where plain SAP's EP here is the paper's."""
    theirs = results.number("EP", task=row["task"], steering=row["steering"], source="paper").value
    plain = {"task": row["task"], "steering": "plain"}
    ours = [results.number("EP", **plain, eta=eta).value for eta in results.levels("eta", **plain)]
    return None if theirs is None else place_of(theirs, ours)


# ---------------------------------------------------------------- Table 3


@RECIPE.part("table-3")
def table_3(c: SapConfig, lab: Lab) -> Part:
    """Frozen and trained bottoms, and the third: trained blocks above one cached release."""
    task = c.task(c.table_3)
    bottoms = {TrainBottom.FROZEN: 0, TrainBottom.RESAMPLE: 0, TrainBottom.CACHED: c.cached_bottom}
    scenarios: list[Scenario] = []
    for how, bottom in bottoms.items():
        for eta in c.etas(task, lab):
            axes = {"how": how.value, "eta": eta}
            scenarios += _each(SplitCell, c, lab, task, axes, eta=eta, bottom=bottom, train_bottom=how)
    said = {"task": task, "paper": PAPER, "counted": counted(), "missing": _missing, "unfreezing": _unfreezing}
    stated = Stated.lines(PAPER["table_3"], percent=["EP", "UA"])
    return LAYOUT.part("table-3", scenarios, said, stated=stated)


def _missing(results: Results) -> Iterable[str]:
    rows = results.rows(metric="EP")
    for how, why in rows[rows["value"].isna()].drop_duplicates("how")[["how", "note"]].itertuples(index=False):
        yield f"No EP for {HOW.text(how)}: {why}"
        yield (
            "Whoever inverts those blocks exactly has the released tokens and no more: EP is then the share of tokens "
            "replaced, at every epoch."
        )


def _unfreezing(results: Results) -> Iterable[str]:
    """The paper's finding on unfreezing (Appendix A), counted in the paper's table and in ours."""
    told = []
    for source in ("paper", "here"):
        falls, ua = (_lowered(results, metric, source) for metric in ("EP", "UA"))
        most = f" (by {100 * max(falls):.1f} points at most)" if falls else ""
        fallen, risen = sum(fall > 0 for fall in falls), sum(fall < 0 for fall in ua)
        told.append(f"EP falls at {fallen} of {len(falls)} eta0{most} and UA rises at {risen} of {len(ua)}")
    yield f"Unfreezing the embedding layer. In the paper {told[0]}. Here {told[1]}."


def _lowered(results: Results, metric: str, source: str) -> list[float]:
    etas = results.levels("eta", source=source)
    pairs = (
        [results.number(metric, source=source, how=how, eta=eta).value for how in ("frozen", "resample")]
        for eta in etas
    )
    return [before - after for before, after in pairs if before is not None and after is not None]


# ---------------------------------------------------------------- Figure 4 and Table 2


def _attacked(c: SapConfig, lab: Lab, bottom: int, place: Place, eta: float) -> list[Scenario]:
    """A point by depth: CTI where noise acts on tokens; without noise there is one place."""
    depths, scale, plain = c.depths, c.at(lab.options.size), math.isinf(eta)
    return _each(
        SplitCell, c, lab, c.task(depths.task),
        {"bottom": bottom, "place": place.value, "eta": eta, "trained": "split"},
        eta=eta, bottom=bottom, place=Place.TOKENS if plain else place,
        steering=Steering.NONE if plain or place is Place.ACTIVATIONS else Steering.BY_CLASS,
        attacks=depths.without_noise if plain else depths.with_noise, attacked_tokens=scale.attacked_tokens,
        public=depths.text.model_copy(update={"texts": scale.public_texts or depths.text.texts}),
    )  # fmt: skip


@RECIPE.part("figure-4")
def figure_4(c: SapConfig, lab: Lab) -> Part:
    """What is read behind blocks without noise."""
    depths, task = c.depths, c.task(c.depths.task)
    attacked = [each for bottom in depths.figure_4 for each in _attacked(c, lab, bottom, Place.TOKENS, math.inf)]
    said = {
        "task": task, "paper": PAPER, "paper_says": PAPER["figure_4_claims"], "attacks": depths.without_noise,
        "depths": depths.figure_4, "attacks_are": [f"{each}: {ATTACKS[each].title}." for each in depths.without_noise],
        "text": depths.text, "counted": counted(trained="split"), "reasons": reasons,
    }  # fmt: skip
    derived = by_depth(lab, depths.figure_4, "figure_4")
    return LAYOUT.part("figure-4", [*_whole(c, lab, task), *attacked], said, derived=derived)


@RECIPE.part("table-2")
def table_2(c: SapConfig, lab: Lab) -> Part:
    """What is read behind blocks with noise on tokens and on rows, and what that costs; without noise Figure 4's."""
    depths, task = c.depths, c.task(c.depths.task)
    derived = by_depth(lab, depths.table_2, "table_2")
    points = product(depths.table_2, Place, [*c.etas(task, lab), math.inf])
    scenarios = [*_whole(c, lab, task), *(each for point in points for each in _attacked(c, lab, *point))]
    said = {
        "task": task, "paper": PAPER, "attacks": depths.with_noise, "counted": counted(trained="split"),
        "reasons": reasons, "of_all": lambda bottom: f"{bottom} of {PAPER['architecture']['num_hidden_layers']}",
    }  # fmt: skip
    stated = Stated.lines(PAPER["table_2"], percent=["EP", "UA"])
    return LAYOUT.part("table-2", scenarios, said, stated=stated, derived=derived)
