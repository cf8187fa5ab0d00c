"""Trainings on privatized words in `rapt`: Tables III and IV, Figures 3, 8 and 9, and what goes beyond the paper."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, pairwise, product
from typing import Annotated, Any, Literal

import torch
from pydantic import Field

from cutlayer.core import Spec
from cutlayer.customer import TuningSpec
from cutlayer.customer.reconstruction import Reconstruction
from cutlayer.models import Kind, Quantization
from cutlayer.recipes.author_attacks import STRONGEST, strongest
from cutlayer.recipes.claims import above, alike, at_least, both
from cutlayer.recipes.comparison import compare_words
from cutlayer.recipes.lab import Lab
from cutlayer.recipes.layouts import Layout
from cutlayer.recipes.long_table import Level
from cutlayer.recipes.options import Named, Setting, named, read_yaml
from cutlayer.recipes.paired import ACCURACY, EQUAL, EqualReading, Gains
from cutlayer.recipes.representations import BEFORE, CLOSER, OWN, PLANE, WHOLE, GeometryCell
from cutlayer.recipes.study import Claim, Derived, Part, Results, Scenario, Stated
from cutlayer.recipes.tables import Axis
from cutlayer.recipes.tasks import Limits, Task, TextFile
from cutlayer.recipes.word_training import READ, Arm, Trainings, WordTrainingCell
from cutlayer.reports import Table, percent
from cutlayer.vendor.settings import WarmUpSpec

PAPER = read_yaml("papers", "rapt")
LAYOUT = Layout("rapt")
METHODS = LAYOUT.axis("method").text


class UtilityScale(Spec):
    """What `--size` changes: rows and training, of a task too; what reads releases, of how many words; the warm-up.

    Attributes:
        files: The file that a task trains on, where it is another.
        reduced: Methods of tuning that train only `core` arms, on the first task, at the last share.
        rates: The learning rate of methods that do not take their default.
        reconstruction_weight: Of arms that learn to reconstruct, where it is another.
    """

    files: Mapping[str, str] = {}
    reduced: tuple[str, ...] = ()
    rates: Mapping[str, float] = {}
    limits: Limits = Limits()
    training: Mapping[str, Setting] = {}
    task_training: Mapping[str, Mapping[str, Setting]] = {}
    attacks: tuple[str, ...] = ()
    attacked_words: int | None = Field(default=None, ge=1)
    warm_up: Mapping[str, Setting] = {}
    reconstruction_weight: float | None = Field(default=None, gt=0)

    def of(self, arms: Mapping[str, Arm]) -> Mapping[str, Arm]:
        """Arms with the warm-up and the weight of reconstruction that this size has."""
        return Named("arm", {name: self._of(arm) for name, arm in arms.items()})

    def _of(self, arm: Arm) -> Arm:
        changes: dict[str, Any] = {}
        if arm.warm_up is not None:
            training = WarmUpSpec(**{**arm.warm_up.training.model_dump(), **self.warm_up})
            changes["warm_up"] = arm.warm_up.model_copy(update={"training": training})
        changes["reconstruction"] = self.weighed(arm.reconstruction)
        return arm.model_copy(update=changes)

    def weighed(self, reconstruction: Reconstruction) -> Reconstruction:
        """The same with the weight that this size has, where anything is reconstructed."""
        learns = reconstruction.plain_tokens and reconstruction.weight
        weight = self.reconstruction_weight if learns else None
        return reconstruction if weight is None else reconstruction.model_copy(update={"reconstruction_weight": weight})


class UtilitySpec(Spec):
    """What part `table-3` trains, and what reads its releases.

    Attributes:
        tasks: Data sets, by name. Every arm is trained on the first, which other parts of the recipe take, too.
        core: The arms that are trained on the others, too, and by every method at every size.
        arms: Ways to protect its texts, by name; the first leaves them as they are.
        order: Of the arms, those of which the paper finds that each gains over the one before it.
        controls: Pairs of arms that differ in one thing; what either lacks is left out.
        methods: Of tuning, by name.
        rates: Learning rates that part `rates` tries of each.
        training: How all are trained.
        replaced: Shares of all words that the etas shall replace.
        space: As of part `grammar`.
        attacked: The method whose runs are attacked: a release is the same under each.
        public: What the attacker reads beforehand.
        label_words: By task, what an encoder-decoder writes for a label, where not the label itself.
    """

    tasks: Annotated[Mapping[str, Task], named("task")] = Field(min_length=1)
    core: tuple[str, ...] = ()
    arms: Annotated[Mapping[str, Arm], named("arm")]
    order: tuple[str, ...]
    controls: tuple[tuple[str, str], ...] = ()
    methods: Annotated[Mapping[str, TuningSpec], named("method of tuning")]
    rates: Mapping[str, tuple[float, ...]] = {}
    training: Mapping[str, Setting]
    replaced: tuple[float, ...] = Field(min_length=1)
    space: str
    attacked: str
    public: TextFile
    label_words: Mapping[str, Mapping[str, str]] = {}

    @property
    def task(self) -> str:
        """The first one's name."""
        return next(iter(self.tasks))

    @property
    def ordered(self) -> Mapping[str, Arm]:
        """The arms of `order`."""
        return {name: self.arms[name] for name in self.order}


class Aim(Spec):
    """How accurate which arms shall be where the strongest attack reads a share of the drawn words."""

    arms: tuple[str, ...] = Field(min_length=1)
    read: float
    accuracy: float


class BeyondSpec(Spec):
    """What part `beyond` trains and attacks.

    Attributes:
        tasks: Of Table III's.
        arms: Ways to replace their words, by name; the others are compared with the first.
        method: Of tuning, of Table III's.
        replaced: Shares of all words that the etas shall replace.
        dear: Arms that are run at some of these shares alone, as each takes a warm-up.
        read: Shares of the words that are drawn, read by the strongest attack, at which accuracies are compared.
        aim: What a privatization shall reach; its share is among `read`.
        attacks: What reads them.
        attacked_words: On how many words those are measured that take long.
    """

    tasks: tuple[str, ...] = Field(min_length=1)
    arms: Annotated[Mapping[str, Arm], named("arm")]
    method: str
    replaced: tuple[float, ...] = Field(min_length=1)
    dear: Mapping[str, tuple[float, ...]] = {}
    read: tuple[float, ...] = Field(min_length=1)
    aim: Aim
    attacks: tuple[str, ...]
    attacked_words: int | None


class GeometrySpec(Spec):
    """Whose representations of words part `figure-8` compares.

    Attributes:
        arms: Of Table III, the unprotected one first.
        method: Of tuning.
        replaced: Share of all words that the etas shall replace.
        texts: How many test texts.
        closer: The arm of which the paper says that it comes closer to the unprotected run as layers go up.
    """

    arms: tuple[str, ...] = Field(min_length=2)
    method: str
    replaced: float
    texts: int = Field(ge=1)
    closer: str


class LargerSpec(Spec):
    """Which larger model part `table-4` trains, on which arms of Table III.

    Attributes:
        model: An embedded model's name, a local folder or a hub id; words have their vectors from `utility.space`.
        quantize: How the vendor keeps the weights of its blocks, where not in fp32; the paper does in NF4 (QLoRA).
            auto: in NF4 where there is a GPU, on which it is fast.
        method: Of tuning.
        arms: Of Table III, the unprotected one first.
    """

    model: str
    quantize: Quantization | Literal["auto"] | None = "auto"
    method: str
    arms: tuple[str, ...] = Field(min_length=2)

    @property
    def quantization(self) -> Quantization | None:
        """See `quantize`."""
        if self.quantize != "auto":
            return self.quantize
        return "nf4" if torch.cuda.is_available() else None


@dataclass(frozen=True)
class Utility:
    """Trainings of these parts, at a size.

    Attributes:
        asked: What part `table-3` trains, its arms as of the size; what the others do is said in its terms.
        beyond: The same of `beyond`; and so `geometry` of `figure-8`, `larger` of `table-4`.
        scale: The size.
        lab: Where they are run.
    """

    asked: UtilitySpec
    beyond: BeyondSpec
    geometry: GeometrySpec
    larger: LargerSpec
    scale: UtilityScale
    lab: Lab

    def trainings(self, task: str = "") -> Trainings:
        """What those of a task have in common, of the first by default."""
        asked, scale, shown = self.asked, self.scale, self.geometry
        name = task or asked.task
        about = asked.tasks[name]
        about = about.model_copy(update={"train": scale.files.get(name, about.train)})
        said = {**asked.training, **scale.training, **scale.task_training.get(name, {})}
        read = [
            (arm, tuning, shown.replaced if arm.words else None)
            for (method, tuning), (arm_name, arm) in product(asked.methods.items(), asked.arms.items())
            if name == asked.task and method == shown.method and arm_name in shown.arms
        ]
        return Trainings(
            self.lab, about, scale.limits, said, asked.space, asked.public, scale.attacked_words, kept=read,
            rates=scale.rates, label_words=asked.label_words.get(name, {}),
        )  # fmt: skip

    def cell(self, method: str, name: str, share: float | None, task: str = "") -> WordTrainingCell:
        """A training of one arm by one method, at a share of all words; `None` of the arm that replaces none."""
        arm = self.asked.arms[name]
        attacks = self.scale.attacks if arm.words and method == self.asked.attacked else ()
        return self.trainings(task).cell(arm, self.asked.methods[method], share, attacks=attacks)

    def trained(
        self,
        methods: Iterable[str],
        arms: Mapping[str, Arm],
        replaced: Iterable[float],
        cell: Callable[[str, str, float | None, str], WordTrainingCell] | None = None,
        task: str = "",
    ) -> list[Scenario]:
        """Trainings of some arms by some methods, at each share; those of `table-3` by default."""
        seeds, made, on = self.lab.options.seeds, cell or self.cell, task or self.asked.task
        return [
            scenario
            for method, (name, arm) in product(methods, arms.items())
            for share in (replaced if arm.words else (None,))
            for scenario in Scenario.each(
                seeds, made(method, name, share, on), task=on, arm=name, method=method, replaced=share or 0.0
            )
        ]

    def asked_of(self, task: str, method: str) -> tuple[Mapping[str, Arm], tuple[float, ...]]:
        """The arms and shares that part `table-3` trains on a task by a method; no share where it trains none."""
        asked, reduced = self.asked, method in self.scale.reduced
        if reduced and task != asked.task:
            return {}, ()
        whole = task == asked.task and not reduced
        arms = asked.arms if whole else {name: asked.arms[name] for name in asked.core}
        return self.possible(arms), asked.replaced[-1:] if reduced else asked.replaced

    @property
    def tasks(self) -> Axis:
        """Data sets as readers see them."""
        return Axis("task", "data set", {name: task.title for name, task in self.asked.tasks.items()})

    @property
    def writes(self) -> bool:
        """Whether the model writes labels: an encoder-decoder, as the paper's T5."""
        return self.lab.model().family.kind is Kind.ENCODER_DECODER

    def possible(self, arms: Mapping[str, Arm]) -> Mapping[str, Arm]:
        """The arms that are run: a vendor warms up no encoder-decoder."""
        return {name: arm for name, arm in arms.items() if arm.warm_up is None or not self.writes}

    def left_out(self, arms: Mapping[str, Arm], _: Results) -> Iterator[Table]:
        """The others, and why they are not run."""
        others = [arm.title for name, arm in arms.items() if name not in self.possible(arms)]
        rows = tuple((title, "an encoder-decoder is not warmed up") for title in others)
        yield Table(title="Arms that are not run", columns=("arm", "why"), rows=rows)


def rates(of: Utility) -> Part:
    """Accuracy on dev of unprotected text by learning rate, from which Table III's rates are chosen."""
    asked, trainings = of.asked, of.trainings()
    scenarios = [
        scenario
        for method, tried in asked.rates.items() for rate in tried
        for scenario in Scenario.each(
            of.lab.options.seeds, trainings.unprotected(asked.methods[method], rate), method=method, rate=rate
        )
    ]  # fmt: skip
    taken = {method: trainings.training(tuning).learning_rate for method, tuning in asked.methods.items()}
    told = ", ".join(f"{METHODS(method)} {rate:g}" for method, rate in taken.items())
    return LAYOUT.part("rates", scenarios, {"taken": told, "title": asked.tasks[asked.task].title})


def table_3(of: Utility) -> Part:
    """Accuracy by task, arm and method of tuning, at shares of words replaced, and where attackers read as much."""
    asked, titles = of.asked, {name: arm.title for name, arm in of.asked.arms.items()}
    warm = [name for name, arm in asked.arms.items() if arm.warm_up is not None]
    order = list(asked.ordered)
    ours = [pair for pair in product(order[-2:], warm) if len(set(pair)) == 2]
    told = dict.fromkeys(ours, "ours") | dict.fromkeys(pairwise(order), "Table III")
    scenarios: list[Scenario] = []
    claims: list[Claim] = []
    derived: list[Derived] = []
    for (task, about), method in product(asked.tasks.items(), asked.methods):
        arms, shares = of.asked_of(task, method)
        here = {pair: source for pair, source in told.items() if set(pair) <= arms.keys()}
        controls = [pair for pair in asked.controls if pair not in told and set(pair) <= arms.keys()]
        line: dict[str, Level] = {"task": task, "method": method}
        gains = Gains([*here, *controls], [{**line, "replaced": share} for share in shares])
        scenarios += of.trained([method], arms, shares, task=task)
        said = [f"{about.title}, {METHODS(method)}, {100 * share:g} % replaced" for share in shares]
        claims += gains.claims(here, titles, said)
        derived += [gains, EqualReading(list(here), [line], {"method": asked.attacked})]
    base = "T5" if of.writes else "BERT"
    paper = [{"replaced": PAPER["table_3"][base]["replaced"], **line} for line in PAPER["table_3"][base]["lines"]]
    shown = {
        "arms": Axis("arm", "arm", titles), "over": Axis("over", "than", titles), "tasks": of.tasks, "base": base,
        "exceptions": list(exceptions(asked.ordered)),
    }  # fmt: skip
    return LAYOUT.part(
        "table-3", scenarios, shown, claims=claims,
        derived=lambda results: chain.from_iterable(each(results) for each in derived),
        details={"clear": next(iter(asked.arms))}, further=[partial(of.left_out, asked.arms)],
        stated=[
            each for each in Stated.lines(paper, percent=("UA",))
            if any(each.axes.items() <= scenario.axes.items() for scenario in scenarios)
        ],
    )  # fmt: skip


def exceptions(ordered: Mapping[str, Arm]) -> Iterator[str]:
    """In how many of the paper's own cells with noise a step of its order improves nothing, by model and method."""
    for before, after in pairwise(ordered):
        found: list[str] = []
        for base, table in PAPER["table_3"].items():
            lines = {(each["method"], each["task"], each["arm"]): each for each in table["lines"]}
            improved: dict[str, list[bool]] = {}
            for (method, task, arm), line in lines.items():
                if arm == after and isinstance(first := lines.get((method, task, before), {}).get("UA"), list):
                    own = improved.setdefault(method, [])
                    own += [other > one for one, other in zip(first, line["UA"], strict=True)]
            found += [
                f"{own.count(False)} of {len(own)} ({base}, {METHODS(method)})"
                for method, own in improved.items() if not all(own)
            ]  # fmt: skip
        if found:
            said = f"{ordered[after].title} is not above {ordered[before].title}"
            yield f"The paper's own cells with noise: {said} in {', '.join(found)}."


def figure_3(of: Utility) -> Part:
    """What attacks read of the arms' words: the paper's, and stronger ones."""
    asked, attacks = of.asked, of.scale.attacks
    titles = {name: arm.title for name, arm in asked.arms.items()}
    protected = of.possible({name: arm for name, arm in asked.arms.items() if arm.words})
    claims = [
        alike(
            f"{attack}, {100 * share:g} % replaced: {titles[second]} is read as {titles[first]} is (Figure 3).", READ,
            (titles[first], {"arm": first, "replaced": share, "attack": attack}),
            (titles[second], {"arm": second, "replaced": share, "attack": attack}),
        )
        for share, attack, (first, second) in product(
            asked.replaced, [*attacks, *[STRONGEST] * (len(attacks) > 1)], pairwise(asked.ordered)
        )
    ]  # fmt: skip
    scenarios = of.trained([asked.attacked], protected, asked.replaced)
    said = {"arms": Axis("arm", "arm", titles)}
    most = partial(strongest, metric=READ, axes=("task", "method", "arm", "replaced"), highest=True)
    further = [partial(of.left_out, asked.arms)]
    return LAYOUT.part("figure-3", scenarios, said, claims=claims, derived=most, further=further)


def beyond(of: Utility) -> Part:
    """Other draws and other distances than the paper's, where the strongest attack reads as many of the drawn words."""
    asked, arms = of.beyond, of.possible(of.beyond.arms)
    first, *others = arms
    titles = {name: arm.title for name, arm in asked.arms.items()}
    tuning = of.asked.methods[asked.method]

    def cell(_: str, name: str, share: float | None, task: str) -> WordTrainingCell:
        trainings = replace(of.trainings(task), attacked_words=asked.attacked_words)
        return trainings.cell(asked.arms[name], tuning, share, attacks=asked.attacks)

    scenarios: list[Scenario] = []
    claims: list[Claim] = []
    for task in asked.tasks:
        about = of.asked.tasks[task].title
        for name, arm in arms.items():
            shares = asked.dear.get(name, asked.replaced)
            scenarios += of.trained([asked.method], {name: arm}, shares, cell, task)
        claims += [
            both(
                f"{about}, {titles[name]}: more accurate than {titles[first]} where as many of the drawn words are "
                "read, at two places of three.",
                *(above("", EQUAL, {"task": task, "arm": name, "read": read}) for read in asked.read), least=2,
            )
            for name in others
        ]  # fmt: skip
        claims += [
            at_least(
                f"{about}, {asked.arms[name].title}: at least {percent(asked.aim.accuracy, 0)} % accurate where "
                f"{percent(asked.aim.read, 0)} % of the drawn words are read.", ACCURACY, asked.aim.accuracy,
                {"task": task, "arm": name, "read": asked.aim.read},
            )
            for name in asked.aim.arms if name in arms
        ]  # fmt: skip
    lines = [{"task": task, "method": asked.method} for task in asked.tasks]
    compared = EqualReading([(first, name) for name in others], lines, metric="success", at=asked.read)
    said = {"arms": Axis("arm", "arm", titles), "first": titles[first], "tasks": of.tasks}
    further = [partial(of.left_out, asked.arms)]
    return LAYOUT.part("beyond", scenarios, said, claims=claims, derived=compared, further=further)


def figure_9(of: Utility) -> Part:
    """Accuracy over what attackers read of words: T2T, RAPT, and the arms between them."""
    asked, arms = of.asked, of.possible(of.asked.arms)
    trained, left_out = of.trained([asked.attacked], arms, asked.replaced), partial(of.left_out, asked.arms)
    return compare_words(trained, asked, of.scale.attacks, PAPER["figure_9"], further=[left_out])


def table_4(of: Utility) -> Part:
    """Accuracy of a larger model that learns from words drawn by a small one's vectors."""
    asked, arms, lab = of.larger, {name: of.asked.arms[name] for name in of.larger.arms}, of.lab
    titles = {name: arm.title for name, arm in arms.items()}
    trainings, tuning = of.trainings(), of.asked.methods[asked.method]
    larger = {
        "source": asked.model, "model": lab.model(asked.model).fingerprint, "quantize": asked.quantization,
        "attacks": (), "kept": False, "training": trainings.training(tuning, asked.model),
        **trainings.told(tuning, asked.model),
    }  # fmt: skip

    def cell(method: str, name: str, share: float | None, task: str) -> WordTrainingCell:
        return of.cell(method, name, share, task).model_copy(update=larger)

    scenarios = of.trained([asked.method], arms, of.asked.replaced, cell)
    told = dict.fromkeys(pairwise(asked.arms[1:]), "Table IV")
    gains = Gains(list(told), [{"replaced": share} for share in of.asked.replaced])
    claims = gains.claims(told, titles, [f"{asked.model}, {100 * share:g} % replaced" for share in of.asked.replaced])
    said = {
        "arms": Axis("arm", "arm", titles), "over": Axis("over", "than", titles),
        "model": f"{asked.model} in {(asked.quantization or 'fp32').upper()}", "space": of.asked.space,
    }  # fmt: skip
    printed = [{**line, "eta": PAPER["table_4"]["eta"]} for line in PAPER["table_4"]["lines"]]
    stated = Stated.lines(printed, percent=("UA",))
    return LAYOUT.part("table-4", scenarios, said, stated=stated, claims=claims, derived=gains)


def figure_8(of: Utility) -> Part:
    """How far words' representations are from those of the unprotected run, by layer."""
    asked, arms = of.geometry, of.asked.arms
    titles = {name: arms[name].title for name in asked.arms}
    cell = GeometryCell(
        arms={
            name: of.cell(asked.method, name, asked.replaced if arms[name].words else None)
            for name in asked.arms
        },
        texts=asked.texts,
    )  # fmt: skip
    claims, closer = [], arms[asked.closer].title
    for space in (PLANE, WHOLE):
        place = {"space": space, "weights": OWN}
        claims.append(
            above(
                f"{closer}: closer to the unprotected run at the last block than at the first ({space}).",
                CLOSER, {**place, "arm": asked.closer}, stated=PAPER["figure_8"]["closer"],
            )
        )  # fmt: skip
        for first, second in pairwise(asked.arms[1:]):
            claims.append(
                above(
                    f"{titles[second]}: closer to the unprotected run's last block than {titles[first]} ({space}).",
                    BEFORE, {**place, "arm": second},
                )
            )  # fmt: skip
    said = {"arms": Axis("arm", "arm", titles), "before": BEFORE, "closer": CLOSER}
    return LAYOUT.part("figure-8", Scenario.each(of.lab.options.seeds, cell), said, claims=claims)
