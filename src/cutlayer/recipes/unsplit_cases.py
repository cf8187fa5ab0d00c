"""Settings of recipe `unsplit`, the cases that it attacks, and the tables and claims of parts that are attacks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from cutlayer.attacks import Traffic, UnSplitSpec
from cutlayer.attacks.inversion.inverter import InverterSpec
from cutlayer.attacks.inversion.inverter_refinement import RefineSpec
from cutlayer.core import ModelError, Spec
from cutlayer.customer import FullTuning, Lora, Objective, TrainSpec, TuningSpec
from cutlayer.models import Kind
from cutlayer.recipes.boundary_attacks import INVERTER, ROUGE, UNSPLIT, InverterCell, Start, UnsplitCell, examples
from cutlayer.recipes.claims import all_below, falls, shown
from cutlayer.recipes.figures import Figure, Reference
from cutlayer.recipes.lab import Lab
from cutlayer.recipes.layouts import Layout
from cutlayer.recipes.long_table import Level, Measure, Where
from cutlayer.recipes.measures.parameters import adapted
from cutlayer.recipes.options import RecipeConfig, Setting, read_yaml
from cutlayer.recipes.recordings import SplitRun
from cutlayer.recipes.study import Claim, Part, Results, Scenario, Stated, Verdict
from cutlayer.recipes.tables import SOURCES, Axis, Column, Pivot, Show, error, share
from cutlayer.recipes.tasks import TextFile
from cutlayer.recipes.training import settled
from cutlayer.reports import Table

PAPER = read_yaml("papers", "unsplit")
"""What the paper prints."""
LAYOUT = Layout("unsplit")
FAILS_BELOW = 0.10
"""Token accuracy below which the paper says that an attack fails: "around or above 10%, not able to reveal privacy"
(§3.3.4)."""
SETTING, ITERATION = Axis("setting"), Axis("iteration")
Method = Literal["full", "lora"]
HERE = "this model"
"""On the axis `model`, which also has those that the paper prints numbers of."""


class Corpus(Spec):
    """Texts of the folder of public data sets, and the paper's that they stand for, where it has some like them."""

    title: str
    stands_for: str = ""
    file: TextFile


class Scale(Spec):
    """What `--size` changes; `configs/unsplit.yaml` says what each field is for."""

    length: int = Field(ge=2)
    batch: int = Field(ge=1)
    iterations: int = Field(ge=1)
    lengths: tuple[int, ...] = Field(min_length=1)
    depths: tuple[int, ...] = Field(min_length=1)
    deepest: int = Field(ge=1)
    public_tokens: int = Field(ge=1)
    samples: int = Field(ge=1)
    shorter: Mapping[str, Setting] = {}
    public_iterations: tuple[int, ...] | None = None
    costs: bool = True
    tails: tuple[int, ...] = (0, 1, 2)
    tail_texts: int = Field(default=120, ge=1)
    tail_length: int = Field(default=128, ge=2)


class UnsplitConfig(RecipeConfig[Scale]):
    """`configs/unsplit.yaml`; that file says what each field is for."""

    corpora: Mapping[str, Corpus]
    public: Corpus
    lora_dropout: float = Field(ge=0, lt=1)
    tail_dev_share: float = Field(gt=0, lt=1)
    kept: tuple[int, ...] = Field(min_length=1)
    public_iterations: tuple[int, ...]
    attack: UnSplitSpec
    rows_attack: UnSplitSpec
    released_attack: UnSplitSpec
    fast_learning_rate: float = Field(gt=0)
    inverter: InverterSpec
    refine: RefineSpec
    vit: Path | None


@dataclass(frozen=True)
class Case:
    """An iteration of a run that is attacked: what is varied, the rest is Table 2's.

    Attributes:
        setting: What it is called.
        iteration: Which, from 1.
        spec: How it is attacked; `None` for the paper's settings. Against LoRA theta is the adapter.
        dropout: Whether the model's own dropout is on; `lora_dropout` whether LoRA's is.
        learning_rate: Another than §3.3.1's.
        length: Other than the size's tokens of a text.
        public: Iterations on public text before.
        two_iterations: A run of two, whose weights after the first are kept.
        traffic: The boundary, or a control.
        inverted: Whether the inverter reads it, too.
        further: Its place on further axes.
    """

    setting: str = ""
    iteration: int = 1
    spec: UnSplitSpec | None = None
    corpus: str = "wikitext"
    bottom: int = 1
    method: Method = "full"
    dropout: bool = True
    lora_dropout: bool = True
    learning_rate: float | None = None
    length: int | None = None
    public: int = 0
    two_iterations: bool = False
    start: Start = "pre-trained"
    traffic: Traffic = Traffic.UNPROTECTED
    inverted: bool = False
    further: Mapping[str, Level] = field(default_factory=dict)

    @property
    def axes(self) -> dict[str, Level]:
        axes: dict[str, Level] = {name: getattr(self, name) for name in ("setting", "iteration", "bottom", "public")}
        return {"model": HERE, **axes, **({"length": self.length} if self.length else {}), **self.further}


class Grid:
    """The cells of one run of the recipe.

    Attributes:
        paper: Algorithm 1 with the settings of §3.3.1.
        rows: x' alone.
        released: What the authors' code is configured to.

    Raises:
        ModelError: The model is no decoder.
    """

    def __init__(self, config: UnsplitConfig, lab: Lab) -> None:
        model = lab.model(head=None)
        if model.family.kind is not Kind.DECODER:
            raise ModelError(
                f"The study is of decoders, and {model.source} is none.", remedy="Choose a decoder with --model."
            )
        self.config, self.scale, self.seeds = config, config.at(lab.options.size), lab.options.seeds
        self.fingerprint, self.blocks = model.fingerprint, model.blocks
        self.targets = adapted(str(model.whole.config.model_type))
        deepest = self.blocks - 1  # the vendor keeps one
        self.depths = [depth for depth in self.scale.depths if depth <= deepest]
        self.figure_3_depths = range(1, min(self.scale.deepest, deepest) + 1)
        self.lengths = [each for each in self.scale.lengths if model.limit is None or each <= model.limit]
        self.kept = [each for each in config.kept if each <= self.scale.iterations]
        self.public_iterations = self.scale.public_iterations or config.public_iterations
        self.paper, self.rows, self.released = (
            UnSplitSpec.model_validate({**spec.model_dump(), **self.scale.shorter})
            for spec in (config.attack, config.rows_attack, config.released_attack)
        )

    def run(self, case: Case, seed: int) -> SplitRun:
        config, scale = self.config, self.scale
        tuning: TuningSpec = FullTuning()
        if case.method == "lora":
            dropout = config.lora_dropout if case.lora_dropout else 0.0
            tuning = Lora(lora_dropout=dropout, target_modules=self.targets)
        iterations = 2 if case.two_iterations else scale.iterations
        training = self.training(
            tuning, max_length=case.length or scale.length, batch_size=scale.batch, learning_rate=case.learning_rate,
            dropout=case.dropout, group_by_length=False, save_steps=1 if case.two_iterations else iterations,
        )  # fmt: skip
        return SplitRun(
            model=self.fingerprint, corpus=config.corpora[case.corpus].file, bottom=case.bottom, training=training,
            tuning=tuning, iterations=iterations, kept=tuple(each for each in config.kept if each <= iterations),
            public=config.public.file if case.public else None, public_iterations=case.public,
            keeps_weights=case.two_iterations, seed=seed,
        )  # fmt: skip

    def training(self, tuning: TuningSpec, **said: Any) -> TrainSpec:
        """One epoch, with §3.3.1's settings for what is not said."""
        return settled(Objective.LM, tuning, {"epochs": 1, **said})

    def attack(self, case: Case, seed: int = 0) -> UnsplitCell:
        spec = case.spec or self.paper
        if case.method == "lora" and spec.inner_weights:
            spec = spec.model_copy(update={"optimised": "adapter"})
        where: dict[str, Any] = {"split": self.run(case, seed), "iteration": case.iteration, "seed": seed}
        return UnsplitCell(**where, spec=spec, start=case.start, traffic=case.traffic)

    def invert(self, case: Case, seed: int = 0) -> InverterCell:
        config, public = self.config, self.config.public.file
        return InverterCell(
            split=self.run(case, seed), iteration=case.iteration, traffic=case.traffic, public=public, seed=seed,
            public_tokens=self.scale.public_tokens, inverter=config.inverter, refine=config.refine,
        )  # fmt: skip

    def scenarios(self, cases: Iterable[Case]) -> list[Scenario]:
        found = []
        for case in cases:
            for make in (self.attack, *([self.invert] if case.inverted else [])):
                found += [Scenario(make(case, seed), case.axes) for seed in range(self.seeds)]
        return found


# ---------------------------------------------------------------- what parts have in common


def printed(show: Show) -> Show:
    """A paper's share, which has no error, in its own digits."""
    return lambda n: f"{100 * n.value:g}" if n.value is not None and n.se is None else show(n)


READ = [
    Column("tokens read, %", "success", {"attack": UNSPLIT}, printed(error())),
    *(Column(metric, metric, {"attack": UNSPLIT}, printed(error())) for metric in ROUGE),
    Column("by chance, %", "chance", {"attack": UNSPLIT}, share(2)),
]


def scores(table: str, lines: Mapping[str, Where], *, model: str = "", **axes: Level) -> list[Stated]:
    """Accuracy and ROUGE as the paper prints them: lines of a table by name, of all models or one, where they stand."""
    return [
        Stated(metric, value / 100, {"model": name, **axes, **place}, UNSPLIT)
        for name, printed_lines in PAPER[table].items()
        if model in ("", name)
        for line, place in lines.items()
        for metric, value in zip(("success", *ROUGE), printed_lines[line].values(), strict=True)
    ]


def at(case: Case, along: str, attack: str = UNSPLIT) -> tuple[str, Where]:
    """A place, and how a sentence names it."""
    words = {"bottom": "{} blocks", "length": "{} tokens", "public": "{} public iterations"}
    words["iteration"] = "iteration {}"
    name = f"{case.setting}, {words.get(along, '{}').format(case.axes[along])}"
    return name, {**case.axes, "attack": attack}


def fails(claim: str, cases: Iterable[Case], along: str = "iteration", attack: str = UNSPLIT) -> Claim:
    """All of some attacks fail, by the paper's own bar."""
    return all_below(claim, "success", FAILS_BELOW, dict(at(case, along, attack) for case in cases))


def less(claim: str, before: Case, after: Case, along: str = "iteration", stated: str = "") -> Claim:
    """Less is read of the second case."""
    return falls(claim, "success", at(before, along), at(after, along), stated=stated)


def attacked(
    name: str,
    grid: Grid,
    scenarios: Sequence[Scenario],
    claims: Sequence[Claim],
    *,
    lines: tuple[Axis, Axis] = (SETTING, ITERATION),
    paper: Sequence[Stated] = (),
    levels: Sequence[Reference] = (),
) -> Part:
    """A part of attacks: what was read as table and figure, the paper's numbers among ours.

    Args:
        name: Of the part and its figure; title and notes: `layouts/unsplit.yaml`.
        grid: The cells' settings.
        scenarios: What is run.
        claims: What must hold.
        lines: The axis whose places are lines of the figure, and the one along; both make the lines of the table.
        paper: What the paper prints; its models are places on the axis `model`.
        levels: Drawn across the figure.
    """
    content = LAYOUT.content(name, dict(grid.config))
    title: str = content["title"]
    stages = next((each.cell.stages for each in scenarios if isinstance(each.cell, InverterCell)), ())
    inverted = [Column(f"inverter, {s}, %", "success", {"attack": f"{INVERTER}, {s}"}, error()) for s in stages]
    pivot = Pivot(
        title,
        lines=(Axis("model"), *lines) if paper else lines,
        columns=[*READ, *inverted],
        where={"source": SOURCES} if paper else {},
        notes=(_sizes, *content.get("notes", ()), _inverter_range),
    )
    figure = Figure(
        name=name,
        title=title,
        x=lines[1],
        y="tokens read, %",
        where={"metric": "success", "attack": (UNSPLIT, INVERTER), "model": (HERE, "GPT-2")},
        colour=lines[0],
        panel=Axis("attack", show={UNSPLIT: "UnSplit", INVERTER: "inverter, last stage"}) if stages else None,
        references=levels,
    )
    return Part(title, scenarios, paper, tables=[pivot], figures=[figure], claims=claims, same_texts=False)


def _sizes(results: Results) -> Iterable[str]:
    found = [(cell.seed, done.reading.counted) for cell, done in results.of(UnsplitCell)]
    seeds = len({seed for seed, _ in found})
    tokens, texts = (sorted({seeds * size(each) for _, each in found}) for size in (sum, len))
    yield (
        f"n: {' or '.join(map(str, tokens))} tokens of {' or '.join(map(str, texts))} texts; ± is one standard error "
        "over texts. Chance: what guesses with the same frequencies hit."
    )


def _inverter_range(results: Results) -> Iterable[str]:
    """What the inverter ends with, from its worst setting to its best."""
    places = {tuple(each.axes.items()): each.axes for each in results.scenarios}
    numbers = [results.number("success", attack=INVERTER, **axes) for axes in places.values()]
    ends = sorted((each for each in numbers if each.value is not None), key=lambda each: each.value or 0.0)
    if ends:
        yield f"The inverter's last stage reads {shown(ends[0])} at worst and {shown(ends[-1])} at best of these."


def no_more_than_chance(case: Case, attack: str) -> Claim:
    """What is read is within three standard errors, and one token, of what chance gives."""

    def judge(results: Results) -> Iterable[Verdict]:
        read, chance = (results.number(metric, **case.axes, attack=attack) for metric in ("success", "chance"))
        if read.value is None or chance.value is None or read.n is None:
            return
        margin = 3 * max(read.error, (chance.value / read.n) ** 0.5) + 1 / read.n
        yield Verdict(
            claim=f"Control, {case.setting}, {attack}: no more is read than chance gives.",
            held=read.value <= chance.value + margin,
            here=f"{shown(read, digits=2)} (n = {read.n:.0f}), chance {100 * chance.value:.2f} %",
        )

    return judge


# ---------------------------------------------------------------- Table 1


SHOWN = 128
"""Characters: "we display only the first 128 characters" (§3.3.1)."""
WANTED = [example["accuracy"] for example in PAPER["table_1"]["examples"]]


def examples_read(results: Results) -> Iterable[Measure]:
    """Numbers of the texts of Table 1."""
    for example in examples(results, WANTED):
        axes: dict[str, Level] = {"wanted": example.wanted, "steps": example.steps}
        yield Measure("accuracy of the example, %", example.accuracy, axes=axes)
        yield Measure("R-1 of the example, %", example.rouge_1, axes=axes)


def examples_table(results: Results) -> Iterable[Table]:
    """Table 1: texts beside their reconstructions, at about the paper's accuracies."""
    rows = []
    for example, paper in zip(examples(results, WANTED), PAPER["table_1"]["examples"], strict=False):
        texts = (" ".join(text.split())[:SHOWN] for text in (example.true, example.guessed))
        ours = (f"{example.accuracy:.1f}", f"{example.rouge_1:.1f}", example.steps, *texts)
        rows.append((*ours, f"{example.wanted:g}", f"{paper['text']} ({paper['run']})"))
    yield Table(
        title="Table 1: texts and their reconstructions",
        columns=("accuracy (%)", "R-1 (%)", "attack", "original", "reconstructed", "the paper's accuracy (%)",
                 "the paper's reconstruction"),
        rows=tuple(rows),
        notes=(
            f"The first {SHOWN} characters of the text whose accuracy is nearest to the paper's, of all texts read by "
            "these attacks on the first iteration; x' × n are n steps on x'. The paper's original: "
            f"{PAPER['table_1']['original']}",
        ),
    )  # fmt: skip


def hard_to_tell(results: Results) -> Iterable[Verdict]:
    """No number says what a reader can tell, so this one is left to them."""
    below = [each for each in examples(results, WANTED) if each.accuracy < 50]
    best = max(below, key=lambda each: each.accuracy, default=None)
    here = "no text was read so little"
    if best is not None:
        here = (
            f"of the text that was read to {best.accuracy:.1f} %, ROUGE-1 is {best.rouge_1:.1f} %; whether its words "
            "tell what it was about is for a reader of the table to say"
        )
    yield Verdict(
        claim="§4.2: where less than 50 % is read it is hard to tell what the text was.", here=here, held=None
    )
