"""Recipe `unsplit`: the split fine-tuning study and its attack, at the scale of the model given.

Each attack is on the recorded boundary of a real split run. What the paper did not measure stands beside it: its
defence, why its second iteration fails, a stronger attacker, labels above the cut, controls. Settings:
`configs/unsplit.yaml`; what the paper prints: `papers/unsplit.yaml`; titles, tables and notes:
`layouts/unsplit.yaml`; parts that attack nothing: `unsplit_measures.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial

from cutlayer.attacks import Traffic
from cutlayer.models import STARTER_DECODER
from cutlayer.recipes import unsplit_measures as measured
from cutlayer.recipes.boundary_attacks import INVERTER, UNSPLIT, ProcessedCell, errors, steps
from cutlayer.recipes.claims import alike, both
from cutlayer.recipes.figures import Reference
from cutlayer.recipes.long_table import Level
from cutlayer.recipes.options import shipped
from cutlayer.recipes.recipe import Recipe
from cutlayer.recipes.study import Part, Results, Scenario, Stated, Verdict
from cutlayer.recipes.tables import Axis
from cutlayer.recipes.unsplit_cases import (
    ITERATION,
    LAYOUT,
    PAPER,
    SETTING,
    Case,
    Grid,
    Method,
    UnsplitConfig,
    at,
    attacked,
    examples_read,
    examples_table,
    fails,
    hard_to_tell,
    less,
    no_more_than_chance,
    scores,
)
from cutlayer.reports import Table

RELATED = 0.5
"""A correlation above which two errors are called related here; the paper says no number."""
FULL, LORA = "full fine-tuning", "LoRA, r 8"
METHODS: Mapping[Method, str] = {"full": FULL, "lora": LORA}
AS_PRINTED, ROWS_ONLY = "Algorithm 1", "x' alone, rate 0.01"
BLOCKS = Axis("bottom", "blocks at the customer")


ODDITIES = Table(
    title="Where the paper's parts disagree", columns=("what",), rows=tuple((each,) for each in PAPER["oddities"])
)
RECIPE = Recipe(
    "unsplit",
    shipped("unsplit", UnsplitConfig),
    default_model=STARTER_DECODER,
    paper=lambda _: {"paper": PAPER},
    closing=[lambda _: [ODDITIES]],
)
"""Is split learning privacy-preserving for fine-tuning? The paper's tables and figures, and what it did not try."""


def part(name: str, *also: str) -> Callable[[Callable[[Grid], Part]], Callable[[Grid], Part]]:
    """Adds a part that is made of the recipe's cells."""

    def add(declared: Callable[[Grid], Part]) -> Callable[[Grid], Part]:
        RECIPE.part(name, also=also)(lambda config, lab: declared(Grid(config, lab)))
        return declared

    return add


# ---------------------------------------------------------------- the paper's tables


@part("table-1")
def table_1(grid: Grid) -> Part:
    """Texts and their reconstructions, at about the paper's accuracies: attacks that are stopped early read a part."""
    early = [grid.rows.model_copy(update={"outer_iterations": 1, "inner_inputs": n}) for n in (1, 5, 20, 50)]
    cases = [Case(FULL, spec=spec, further={"steps": steps(spec)}) for spec in (*early, grid.rows, grid.paper)]
    shown = [Stated("accuracy", each["accuracy"] / 100, {"run": each["run"]}) for each in PAPER["table_1"]["examples"]]
    levels = [Reference(f"the paper: {s.axes['run']}", s.metric, {**s.axes, "source": "paper"}) for s in shown]
    lines = (SETTING, Axis("steps", "attack"))
    made = attacked("table-1", grid, grid.scenarios(cases), [hard_to_tell], lines=lines, levels=levels)
    return replace(made, stated=shown, tables=[*made.tables, examples_table], derived=examples_read)


@part("table-2")
def table_2(grid: Grid) -> Part:
    """The first and the second iteration, full fine-tuning, one block."""
    specs = {AS_PRINTED: grid.paper, ROWS_ONLY: grid.rows}
    cases = [Case(name, iteration, spec) for name, spec in specs.items() for iteration in (1, 2)]
    claim = "Table 2: the second iteration is read less than the first."
    claims = [
        fails("Takeaway 3.3: after iteration 1 the attack fails even against one block.", cases[1::2]),
        less(claim, cases[0], cases[1], stated="GPT-2: 82.57, 0.415 %"),
    ]
    paper = scores("table_2", {"first": {"iteration": 1}, "second": {"iteration": 2}}, setting=AS_PRINTED)
    return measured.with_parameters(attacked("table-2", grid, grid.scenarios(cases), claims, paper=paper))


@part("table-3")
def table_3(grid: Grid) -> Part:
    """The second iteration with LoRA."""
    lora, full = Case(LORA, 2, method="lora"), Case(FULL, 2)
    claims = [
        fails("§3.3.4: with LoRA the attack fails, too.", [lora]),
        less("Takeaway 3.2: more trainable parameters make it weaker.", lora, full),
    ]
    second = {"second": {"iteration": 2}}
    paper = scores("table_3", second, setting=LORA) + scores("table_2", second, model="GPT-2", setting=FULL)
    return measured.with_parameters(attacked("table-3", grid, grid.scenarios([lora, full]), claims, paper=paper))


@part("table-4")
def table_4(grid: Grid) -> Part:
    """The second iteration on other texts."""
    corpora = grid.config.corpora
    names = {each: f"{corpora[each].title} (for {corpora[each].stands_for})" for each in ("textgenerator", "enron")}
    cases = [Case(name, 2, corpus=corpus) for corpus, name in names.items()]
    paper = scores("table_4", {corpus: {"setting": name} for corpus, name in names.items()}, iteration=2)
    claims = [fails("§3.3.4: on simpler texts the second iteration is not read either.", cases)]
    return attacked("table-4", grid, grid.scenarios(cases), claims, paper=paper)


part("table-5", *(f"figure-{number}" for number in range(16, 22)))(measured.similarity)


# ---------------------------------------------------------------- the paper's figures


@part("figure-3")
def figure_3(grid: Grid) -> Part:
    """The first iteration over depth."""
    cases = [Case(AS_PRINTED, bottom=depth) for depth in grid.figure_3_depths]
    claim = "Takeaway 3.1: at iteration 1 the attack gets weaker with the customer's blocks."
    claims = [
        less(claim, cases[0], cases[-1], "bottom", stated="OPT: 43.55, 17.29, 3.83 %"),
        fails("§3.3.3: with four blocks of GPT-2 it no longer works.", cases[-1:], "bottom"),
    ]
    paper = scores("table_2", {"first": {"bottom": 1}}, model="GPT-2", setting=AS_PRINTED)
    return attacked("figure-3", grid, grid.scenarios(cases), claims, lines=(SETTING, BLOCKS), paper=paper)


@part("figure-4")
def figure_4(grid: Grid) -> Part:
    """Iterations and depths."""
    cases = [Case(f"{depth} blocks", n, bottom=depth) for depth in grid.depths for n in grid.kept]
    later = [case for case in cases if case.iteration > 1]
    claims = [fails("§3.3.4: from the second iteration on the attack is not effective.", later)]
    return attacked("figure-4", grid, grid.scenarios(cases), claims, lines=(BLOCKS, ITERATION))


part("figure-5")(measured.parameters_by_depth)


@part("figure-6")
def figure_6(grid: Grid) -> Part:
    """The second iteration at other rates."""
    cases = []
    for weights in (1e-3, 1e-4):
        for inputs in (0.1, 0.01):
            rates = {"learning_rate_inputs": inputs, "learning_rate_weights": weights}
            further: dict[str, Level] = {"rate": f"rate of x' {inputs:g}"}
            cases.append(Case(f"rate of θ {weights:g}", 2, grid.paper.model_copy(update=rates), further=further))
    claims = [fails("§3.3.5: at the second iteration the attack stays low at all rates.", cases, "rate")]
    lines = (SETTING, Axis("rate", "rate of x'"))
    return attacked("figure-6", grid, grid.scenarios(cases), claims, lines=lines)


@part("figure-7", "figure-8")
def figure_7(grid: Grid) -> Part:
    """Dropout off, first and second iteration (Figures 7 and 8)."""
    cases = [
        Case(f"iteration {iteration}, dropout {'on' if dropout else 'off'}", iteration, bottom=depth, dropout=dropout)
        for iteration in (1, 2)
        for dropout in (True, False)
        for depth in grid.depths
    ]
    on, off, later_on, later_off = (case for case in cases if case.bottom == 1)
    claim = "§4.1.1: dropout is what makes the second iteration fail, and without it more is read."
    parts = fails("", [later_on], "bottom"), less("", later_off, later_on, "bottom")
    same = "§4.1.1: at the first iteration dropout makes little difference."
    claims = [
        both(claim, *parts, stated="without dropout GPT-2: > 80 %, OPT: > 50 %"),
        alike(same, "success", at(off, "bottom"), at(on, "bottom")),
    ]
    return attacked("figure-7", grid, grid.scenarios(cases), claims, lines=(SETTING, BLOCKS))


@part("figure-9", "figure-10")
def figure_9(grid: Grid) -> Part:
    """LoRA's dropout and the model's own (Figures 9 and 10)."""
    lora = partial(Case, iteration=2, method="lora")
    states = [lora("both on"), lora("LoRA's off", lora_dropout=False), lora("the others off", dropout=False)]
    cases = [replace(state, bottom=depth) for state in states for depth in grid.depths]
    on, no_lora, no_other = (case for case in cases if case.bottom == 1)
    claims = [
        less("§4.1.1: without LoRA's dropout more is read.", no_lora, on, "bottom"),
        less("§4.1.1: without the model's own dropout more is read.", no_other, on, "bottom"),
    ]
    return attacked("figure-9", grid, grid.scenarios(cases), claims, lines=(SETTING, BLOCKS))


@part("figure-11", "figure-12")
def figure_11(grid: Grid) -> Part:
    """What knowing more of the customer's bottom brings (Figures 11 and 12, on normalisation)."""
    cases, claims = [], []
    for method, name in METHODS.items():
        second = partial(Case, iteration=2, spec=grid.rows, method=method, two_iterations=True)
        public, own = (f"{name}, guess from the {whose} weights" for whose in ("public", "customer's"))
        for depth in grid.depths:
            cases += [second(public, bottom=depth), second(own, bottom=depth, start="customer")]
        without, known = second(public), second(own, start="customer")
        claim = (
            f"§4.1.1, {name}: with the customer's normalisation statistics the second iteration is read, without them "
            "it is not."
        )
        claims.append(both(claim, fails("", [without], "bottom"), less("", known, without, "bottom")))
    processed = Scenario(ProcessedCell(split=grid.run(Case(), 0), iteration=1))
    scenarios, claims = [*grid.scenarios(cases), processed], [*claims, _nothing_is_learnt]
    return attacked("figure-11", grid, scenarios, claims, lines=(SETTING, BLOCKS))


def _nothing_is_learnt(results: Results) -> Iterable[Verdict]:
    """What the paper says that its Figures 11 and 12 do, done: the guess processes the private batch."""
    for _, found in results.of(ProcessedCell):
        same = "" if found.changed else ", so the attack that follows is the same, bit by bit"
        yield Verdict(
            claim="§4.1.1: by processing the private batch the guess comes to know the norms' mean and variance.",
            held=found.changed > 0,
            here=f"a forward pass in training mode over the private batch changed {found.changed} of the "
            f"{found.tensors} parameters and buffers of the guessed bottom{same}",
        )


@part("figure-13", "figure-14")
def figure_13(grid: Grid) -> Part:
    """The two errors over an attack, of what it can see and of what it wants (Figures 13 and 14)."""
    cases = [
        Case("Table 2, iteration 1"),
        Case("Table 2, iteration 2", 2),
        Case("Table 4, TextGenerator", 2, corpus="textgenerator"),
    ]
    scenarios = [Scenario(grid.attack(case), {"setting": case.setting}) for case in cases]
    return LAYOUT.part("figure-13", scenarios, derived=errors, claims=[_unrelated])


def _unrelated(results: Results) -> Iterable[Verdict]:
    """Whether an attack that matches outputs matches inputs."""
    found = {name: results.number("correlation", setting=name).value for name in results.levels("setting")}
    known = [value for value in found.values() if value is not None]
    told = ", ".join(f"{'–' if value is None else f'{value:.2f}'} ({name})" for name, value in found.items())
    yield Verdict(
        claim="§4.2: the error of outputs and the error of inputs do not go together.",
        held=max(known) < RELATED if known else None,
        here=f"correlation of their logarithms over outer iterations {told}; the bar is {RELATED}",
    )


@part("figure-15")
def figure_15(grid: Grid) -> Part:
    """The second iteration over the length of a text."""
    rows = [Case(ROWS_ONLY, 2, grid.rows, length=length) for length in grid.lengths]
    algorithm = [Case(AS_PRINTED, 2, length=length) for length in grid.lengths if length <= grid.scale.length]
    short, long = (chosen(rows, key=lambda case: case.length or 0) for chosen in (min, max))
    claims = [
        less("Figure 15: longer texts are read less.", short, long, "length", "> 80 % at 128 tokens, < 1 % at 256")
    ]
    if from_256 := [case for case in rows if (case.length or 0) >= 256]:
        claims.append(fails("Figure 15: from 256 tokens on nothing is read.", from_256, "length"))
    lines = (SETTING, Axis("length", "tokens of a text"))
    return attacked("figure-15", grid, grid.scenarios([*rows, *algorithm]), claims, lines=lines)


part("figure-22")(measured.client_cost)
part("model-scale")(measured.model_scale)
part("tail")(measured.labels_above)


# ---------------------------------------------------------------- beside the paper


@part("second-iteration")
def second_iteration(grid: Grid) -> Part:
    """What could have made the paper's second iteration fail: one change at a time."""
    train = grid.paper.model_copy(update={"guess_mode": "train"})
    changes = [
        Case("as in Table 2"),
        Case("customer's dropout off", dropout=False),
        Case("guess in training mode", spec=train),
        Case("released settings", spec=grid.released),
        Case("released settings, dropout off", spec=grid.released, dropout=False),
        Case("customer learns 200 times as fast", learning_rate=grid.config.fast_learning_rate),
    ]
    pairs = [(case, replace(case, iteration=2)) for case in changes]
    claims = [less(f"{first.setting}: the second iteration is read less.", first, second) for first, second in pairs]
    for on, off in ((0, 1), (3, 4)):
        claim = f"{changes[on].setting}: the first without dropout, the second with it."
        claims.append(less(claim, pairs[off][0], pairs[on][1]))
    return attacked("second-iteration", grid, grid.scenarios(case for pair in pairs for case in pair), claims)


@part("public-first")
def public_first(grid: Grid) -> Part:
    """The defence of §5: the first private batch after some iterations on public text."""
    cases = []
    for method, name in METHODS.items():
        for dropout in (True, False):
            for public in grid.public_iterations:
                state = f"{name}, dropout {'on' if dropout else 'off'}"
                for mode in ("eval", "train"):
                    spec = grid.rows.model_copy(update={"guess_mode": mode})
                    cases.append(
                        Case(f"{state}, guess {mode}", spec=spec, method=method, dropout=dropout, public=public,
                             inverted=mode == "eval")
                    )  # fmt: skip
    algorithm = f"{AS_PRINTED}, {FULL}, dropout on"
    cases += [Case(algorithm, public=public) for public in (0, 1)]
    claims = []
    for public in filter(None, grid.public_iterations):
        text = f"{public} iteration{'s' * (public > 1)} on public text"
        after = [case for case in cases if case.public == public]
        claims.append(fails(f"§5: private text is no longer read after {text}.", after, "public"))
    stand_ins = {"first": {"public": 0}, "second": {"public": 1}}
    paper = scores("table_2", stand_ins, model="GPT-2", setting=algorithm)
    lines = (SETTING, Axis("public", "iterations on public text"))
    return attacked("public-first", grid, grid.scenarios(cases), claims, lines=lines, paper=paper)


@part("inverter")
def inverter(grid: Grid) -> Part:
    """The attacker that the paper did not try, beside UnSplit."""
    read, config = partial(Case, spec=grid.rows, inverted=True), grid.config
    others = [name for name in config.corpora if name != Case().corpus]
    cases = [
        *(read(FULL, iteration) for iteration in grid.kept),
        read(LORA, 2, method="lora"),
        read(f"{FULL}, dropout off", 2, dropout=False),
        *(read(f"{FULL}, {depth} blocks", bottom=depth) for depth in grid.figure_3_depths if depth > 1),
        *(read(f"{FULL}, {config.corpora[name].title}", 2, corpus=name) for name in others),
    ]
    claim = "§3.2.2: without text like the private one no inverter can be learnt."
    return attacked("inverter", grid, grid.scenarios(cases), [fails(claim, cases, attack=INVERTER)])


@part("controls")
def controls(grid: Grid) -> Part:
    """What must not be read: noise, and texts dealt out anew."""
    read = partial(Case, spec=grid.rows, inverted=True)
    noise = read("noise instead", traffic=Traffic.NOISE)
    shuffled = read("its rows shuffled", traffic=Traffic.SHUFFLED)
    claims = [no_more_than_chance(case, attack) for attack in (UNSPLIT, INVERTER) for case in (noise, shuffled)]
    scenarios = grid.scenarios([read("the boundary"), noise, shuffled])
    return attacked("controls", grid, scenarios, claims)
