"""Recipe `sap`: Tables 1 to 3, Figures 2 and 4 of Split-and-Privatize, at the scale of the model given.

Figure 3 is recipe `inference`, with RAPT's. Settings: `configs/sap.yaml`; the paper's numbers: `papers/sap.yaml`.
Ref: arXiv:2312.15603.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from pydantic import Field

from cutlayer.attacks import ATTACKS
from cutlayer.core import Place, Spec
from cutlayer.customer import Lora, Objective, TrainBottom, TrainSpec
from cutlayer.models import STARTER
from cutlayer.recipes.claims import alike
from cutlayer.recipes.figures import Figure, Reference
from cutlayer.recipes.lab import Lab
from cutlayer.recipes.long_table import Measure
from cutlayer.recipes.measures.bottom_depth import PLACE, STRONGEST, by_depth, conclusion
from cutlayer.recipes.measures.trade_off import gain, place_of
from cutlayer.recipes.options import RecipeConfig, Setting, read_yaml, shipped
from cutlayer.recipes.recipe import Recipe
from cutlayer.recipes.study import Claim, Part, Results, Scenario, Stated, Verdict
from cutlayer.recipes.tables import Axis, Column, Pivot, count, eta_text, note, points, share, trials
from cutlayer.recipes.tasks import Limits, Task, TextFile
from cutlayer.recipes.training import (
    CentralisedCell,
    SplitCell,
    Steering,
    TrainingCell,
    calibrated,
    counted,
    differing,
    estimate,
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
        """A task by name."""
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


# ---------------------------------------------------------------- what parts have in common

ETA = Axis("eta", "eta0", eta_text)
STEERING = Axis("steering", "CTI", {"plain": "SAP", "cti": "SAP-CTI", "cti_class_free": "SAP-CTI class-free"})
STEERED = (Steering.BY_CLASS, Steering.CLASS_FREE)
BLOCKS = Axis("bottom", "blocks at the customer")
HANDED_OUT = Column("weights handed out, %", "handed out")
HOW = Axis("how", "bottom", {
    "frozen": "frozen embedding layer",
    "resample": "unfrozen embedding layer, fresh release each epoch",
    "cached": "trained blocks above one cached release",
})  # fmt: skip
IN_THE_PAPER = f"in the paper ({PAPER['model']}, %)"


EP, UA = (Column(metric, metric, show=estimate) for metric in ("EP", "UA"))


def _each(
    kind: type[TrainingCell], c: SapConfig, lab: Lab, task: Task, axes: Mapping[str, Any], **settings: Any
) -> list[Scenario]:
    """A setting with all seeds."""
    scale = c.at(lab.options.size)
    training, model = c.training_of(task, scale), lab.model().fingerprint
    cell = kind(task=task, limits=scale.limits, training=training, tuning=c.tuning, model=model, **settings)
    return Scenario.each(lab.options.seeds, cell, task=task.name, **axes)


def _whole(c: SapConfig, lab: Lab, task: Task) -> list[Scenario]:
    return _each(CentralisedCell, c, lab, task, {"trained": "whole"})


def _titles(c: SapConfig) -> Axis:
    return Axis("task", "data set", {task.name: task.title for task in c.tasks})


CLOSING = (partial(conclusion, paper=PAPER), differing)
RECIPE = Recipe(
    "sap", shipped("sap", SapConfig), default_model=STARTER, paper=lambda _: {"paper": PAPER}, closing=CLOSING
)

# ---------------------------------------------------------------- Table 1 and Figure 2


@RECIPE.part("figure-2", also=["table-1"])
def figure_2(c: SapConfig, lab: Lab) -> Part:
    """UA and EP over eta0 with and without CTI, on four data sets; with Table 1's rows and accuracies."""
    scenarios = [scenario for task in c.tasks for scenario in _whole(c, lab, task)]
    for task in c.tasks:
        etas = c.etas(task, lab)
        # without noise there is nothing for CTI to steer
        for steering, eta in [*((how, eta) for how in Steering for eta in etas), (Steering.NONE, math.inf)]:
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
    figure = Figure(
        name="figure-2", title="SAP, Figure 2: accuracy and empirical privacy", x=ETA, y="%",
        where={**split, "metric": ("UA", "EP")}, colour=STEERING, panel=Axis("metric"), row=_titles(c), stands=_stands,
        below=Column("tokens replaced, %", "replaced", {**split, "steering": "plain"}, share(0)),
        references=[
            Reference(f"centralised accuracy, {whose}", "UA", {**whole, "source": source})
            for whose, source in (("here", "here"), (f"the paper ({PAPER['model']})", "paper"))
        ],
    )  # fmt: skip
    return Part(
        "Accuracy and empirical privacy over eta0",
        scenarios,
        stated=[
            *Stated.lines(theirs, percent=["UA"], plain=["train rows", "dev rows", "test rows"]),
            *Stated.lines(stated, percent=["EP", "UA", "UA lost"]),
        ],
        derived=lambda results: [*_allowed(c, lab), *_gains(results)],
        tables=[_table_1(c, lab), *map(_curves, c.tasks), _gained(c, lab), _stated(c)],
        figures=[figure],
        claims=[
            *(
                alike(
                    f"{task.title}: without privatization the split loses no accuracy (§5.2).", "UA",
                    ("centralised", {**whole, "task": task.name}),
                    ("split", {**split, "task": task.name, "eta": math.inf}),
                )
                for task in c.tasks
            ),
            *(_cti_helps(task, how) for task in c.tasks for how in STEERED),
        ],
    )  # fmt: skip


def _allowed(c: SapConfig, lab: Lab) -> Iterable[Measure]:
    """What the size allows each data set's trainings."""
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
    """How the figure names a point of the paper's."""
    return f"eta0 {point['eta']:g}" + {"plain": "", "cti": ", CTI"}.get(point["steering"], ", CTI not stated")


def _stands(results: Results, row: Mapping[str, Any]) -> float | None:
    """The paper's eta0 are of another table: its points stand where plain SAP's EP here is the paper's."""
    theirs = results.number("EP", task=row["task"], steering=row["steering"], source="paper").value
    plain = {"task": row["task"], "steering": "plain"}
    ours = [results.number("EP", **plain, eta=eta).value for eta in results.levels("eta", **plain)]
    return None if theirs is None else place_of(theirs, ours)


def _table_1(c: SapConfig, lab: Lab) -> Pivot:
    limits, whole = c.at(lab.options.size).limits, {"trained": "whole"}
    most = [str(rows or "all") for rows in (limits.train, limits.dev, limits.test)]
    cut = (
        f"At this size {' / '.join(most)} rows of train / dev / test are taken at most, drawn at random within each "
        "label; where there are fewer, these are all."
    )
    return Pivot(
        "Table 1: rows and centralised accuracy (%)",
        lines=(Axis("source", "whose", {"here": "here", "paper": f"the paper ({PAPER['model']})"}), _titles(c)),
        columns=(
            *(Column(name, f"{name} rows", whole, count) for name in ("train", "dev", "test")),
            Column("tokens of a text, at most", "most tokens", whole, count),
            Column("epochs, at most", "most epochs", whole, count),
            Column("centralised", "UA", whole, share(2)),
            Column("split, no privacy", "UA", {"trained": "split", "eta": math.inf}, estimate),
        ),
        where={"source": ("here", "paper")},
        notes=(
            *((cut,) if set(most) != {"all"} else ()),
            "Centralised is ordinary PEFT in one process; ± is one standard error, over texts and seeds. The paper "
            "states no standard errors.",
        ),
    )


def _curves(task: Task) -> Pivot:
    where = {"task": task.name}
    return Pivot(
        f"Figure 2: {task.title} (%)",
        lines=(Axis("eta", "eta0", lambda eta: "∞ (no privacy)" if math.isinf(eta) else f"{eta:g}"),),
        columns=[
            Column(f"{metric}, {STEERING.text(how.value)}", metric, {"steering": how.value}, estimate)
            for how in Steering
            for metric in ("replaced", "UA", "EP")
        ],
        where={**where, "trained": "split"},
        notes=(
            lambda results: [f"Centralised accuracy: {estimate(results.number('UA', trained='whole', **where))}."],
            counted(**where, trained="split"),
            "EP is 1 - the share of tokens that nearest-neighbour inversion recovers; stronger attacks exist.",
            "CTI scores a training text by its own class and a test text by the largest score over classes; CTI "
            "class-free scores both by the largest.",
        ),
    )


def _gained(c: SapConfig, lab: Lab) -> Pivot:
    another = "another draw of the noise may move a point by more. --seeds runs several."
    return Pivot(
        "Figure 2: does CTI help?",
        lines=(_titles(c), STEERING),
        columns=[
            Column(title, "UA gained", show=show)
            for title, show in (
                ("UA gained at equal EP, points", points(1)),
                ("n (CTI points)", trials),
                ("here", note),
            )
        ],
        where={"metric": "UA gained"},
        notes=(
            "Mean over the CTI points that lie within the plain curve, which is read along straight lines; a verdict "
            "needs two standard errors.",
            *([f"One seed: the errors are over test texts alone, and {another}"] if lab.options.seeds == 1 else ()),
        ),
    )


def _stated(c: SapConfig) -> Pivot:
    return Pivot(
        f"Figure 2 {IN_THE_PAPER}: what the text states",
        lines=(_titles(c), ETA, STEERING),
        columns=(EP, Column("UA lost against centralised", "UA lost")),
        where={"source": "paper", "metric": ("EP", "UA lost")},
        notes=(
            *PAPER["figure_2_claims"],
            "In the plot these points stand where plain SAP's EP here is the paper's: eta0 of different tables do not "
            "compare.",
        ),
    )


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
    seen = "EP of the unfrozen layer counts a token as recovered if the attack on any epoch's release recovers it."
    return Part(
        "Frozen and trained bottoms",
        scenarios,
        stated=Stated.lines(PAPER["table_3"], percent=["EP", "UA"]),
        tables=[
            Pivot(
                f"Table 3: {task.title}, frozen and trained bottoms (%)",
                lines=(HOW,), across=ETA,
                columns=(EP, UA, Column("tokens replaced by one draw", "replaced", {"how": "frozen"})),
                notes=(counted(), seen, _missing, _unfreezing),
            ),
            Pivot(f"Table 3 {IN_THE_PAPER}", lines=(HOW,), columns=(EP, UA), across=ETA, where={"source": "paper"}),
        ],
    )  # fmt: skip


def _missing(results: Results) -> Iterable[str]:
    """Why a bottom has no EP."""
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
    """By how much a fresh release each epoch lowers a number, at each eta0."""
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
    attacks = [Column(each, "EP", {"attack": each}, estimate) for each in (*depths.without_noise, STRONGEST)]
    figure = Figure(
        name="figure-4", title=f"SAP, Figure 4, {task.title}, without noise", x=BLOCKS, y="EP, %",
        where={"metric": "EP", "attack": depths.without_noise}, colour=Axis("attack", "EP against"), below=HANDED_OUT,
    )  # fmt: skip
    attacked = [each for bottom in depths.figure_4 for each in _attacked(c, lab, bottom, Place.TOKENS, math.inf)]
    return Part(
        "EP by depth of the bottom, without noise",
        [*_whole(c, lab, task), *attacked],
        derived=by_depth(lab, depths.figure_4, "figure_4"),
        tables=[
            Pivot(
                f"Figure 4: EP by depth of the bottom, without noise ({task.title}, %)",
                lines=(BLOCKS,), columns=(HANDED_OUT, *attacks, UA), where={"bottom": depths.figure_4},
                notes=(
                    *(f"The paper ({PAPER['model']}): {claim}" for claim in PAPER["figure_4_claims"]),
                    *(f"{attack}: {ATTACKS[attack].title}." for attack in depths.without_noise),
                    counted(trained="split"),
                    f"What the attacker read beforehand: {depths.text.name}, no text of this data set.",
                    reasons,
                ),
            )
        ],
        figures=[figure],
    )  # fmt: skip


@RECIPE.part("table-2")
def table_2(c: SapConfig, lab: Lab) -> Part:
    """What is read behind blocks with noise on tokens and on rows, and what that costs; without noise Figure 4's."""
    depths, task = c.depths, c.task(c.depths.task)
    derived = by_depth(lab, depths.table_2, "table_2")
    etas = [*c.etas(task, lab), math.inf]
    places = [(bottom, place, eta) for bottom in depths.table_2 for place in Place for eta in etas]
    attacks = [Column(f"EP, {each}", "EP", {"attack": each}, estimate) for each in depths.with_noise]
    theirs = Axis("bottom", "blocks", lambda bottom: f"{bottom} of {PAPER['architecture']['num_hidden_layers']}")
    return Part(
        "EP and UA by depth and eta0",
        [*_whole(c, lab, task), *(each for point in places for each in _attacked(c, lab, *point))],
        stated=Stated.lines(PAPER["table_2"], percent=["EP", "UA"]),
        derived=derived,
        tables=[
            Pivot(
                f"Table 2: EP and UA by depth and eta0 ({task.title}, %)",
                lines=(Axis("bottom", "blocks"), PLACE), across=ETA, where={"trained": "split"},
                columns=(Column("tokens replaced", "replaced", {"place": "tokens"}), *attacks, UA),
                notes=(
                    counted(trained="split"),
                    "EP of both attacks counts the true tokens: of noise on tokens it is at least the share replaced, "
                    "however well the blocks are inverted. Etas of noise on rows and tokens do not compare: rows are "
                    "longer.",
                    reasons,
                ),
            ),
            Pivot(f"Table 2 {IN_THE_PAPER}", lines=(theirs,), columns=(EP, UA), across=ETA, where={"source": "paper"}),
        ],
    )  # fmt: skip
