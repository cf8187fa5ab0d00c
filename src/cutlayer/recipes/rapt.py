"""Recipe `rapt`: text-to-text privatization within parts of speech, and what it keeps of texts.

Here: `grammar`, which the paper states without a measurement, Tables III to V, Figures 3 and 8, and what goes
beyond the paper. Tables I and II: `rapt_words.py`; VI to VIII and Figure 5: `rapt_intrinsic.py`; Figures 6 and 7:
`rapt_categories.py`; Figures 4 and 9: `comparison.py`. Settings, the paper's numbers, tables and figures: `rapt.yaml`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import groupby, pairwise, product
from typing import Any

from pydantic import Field

from cutlayer.core import Spec
from cutlayer.customer import TuningSpec
from cutlayer.models import STARTER
from cutlayer.recipes.claims import above, alike, both, falls
from cutlayer.recipes.comparison import Compared, ComparisonScale, ComparisonSpec, compare, compare_words
from cutlayer.recipes.fact_writing import ALL as BOTH
from cutlayer.recipes.fact_writing import GAINED as BLEU_GAINED
from cutlayer.recipes.fact_writing import FactLimits, WritingSpec, examples, gains
from cutlayer.recipes.grammar_cells import GrammarCell, category_minus_all
from cutlayer.recipes.lab import Lab
from cutlayer.recipes.layouts import Layout
from cutlayer.recipes.long_table import Level, Measure
from cutlayer.recipes.options import RecipeConfig, Setting, read_yaml, shipped
from cutlayer.recipes.rapt_categories import Categories, CategoriesSpec, figure_6, figure_7
from cutlayer.recipes.rapt_intrinsic import IntrinsicSpec, Varied, figure_5, table_6, table_7, table_8
from cutlayer.recipes.rapt_words import PlainWordsSpec, SharesSpec, table_1, table_2
from cutlayer.recipes.recipe import Declared, Recipe
from cutlayer.recipes.replacement import ALL, CATEGORY, Source
from cutlayer.recipes.representations import BEFORE, CLOSER, OWN, PLANE, WHOLE, GeometryCell
from cutlayer.recipes.stated import differing
from cutlayer.recipes.study import Part, Results, Scenario, Stated
from cutlayer.recipes.tables import Axis
from cutlayer.recipes.tasks import Limits, Task, TextFile
from cutlayer.recipes.word_training import GAINED, READ, Arm, EqualReading, Trainings, WordTrainingCell
from cutlayer.reports import Table, percent
from cutlayer.vendor.settings import WarmUpSpec


class Scale(Spec):
    """What `--size` changes: texts of a file, where `None` takes all; training; what reads releases; the warm-up."""

    sentences: int | None = Field(default=None, ge=1)
    posts: int | None = Field(default=None, ge=1)
    limits: Limits = Limits()
    training: Mapping[str, Setting] = {}
    attacks: tuple[str, ...] = ()
    attacked_words: int | None = Field(default=None, ge=1)
    comparison: ComparisonScale = ComparisonScale()
    warm_up: Mapping[str, Setting] = {}
    facts: FactLimits = FactLimits()
    writing: Mapping[str, Mapping[str, Setting]] = {}


class Choice(Spec):
    """Which words are replaced, as of `privacy.Words`, and which shares of all words the etas shall replace."""

    words: tuple[str, ...] = Field(min_length=1)
    replaced: tuple[float, ...] = Field(min_length=1)


class GrammarSpec(Spec):
    """What part `grammar` compares, and by what it measures.

    Attributes:
        choices: Of words.
        most_words: Of a text; longer ones lose their end.
        space: The model whose token embeddings give words their vectors.
        encoder: The model whose rows tell how much alike texts are.
        examples: Public sentences, which are shown as they become.
    """

    choices: tuple[Choice, ...] = Field(min_length=1)
    most_words: int = Field(ge=1)
    space: str
    encoder: str
    examples: tuple[str, ...]


class UtilitySpec(Spec):
    """What part `table-3` trains, and what reads its releases.

    Attributes:
        task: The data set.
        arms: Ways to protect its texts, by name; the first leaves them as they are.
        order: Of the arms, those of which the paper finds that each gains over the one before it.
        methods: Of tuning, by name.
        training: How all are trained.
        replaced: Shares of all words that the etas shall replace.
        space: As of part `grammar`.
        attacked: The method whose runs are attacked: a release is the same under each.
        public: What the attacker reads beforehand.
    """

    task: Task
    arms: Mapping[str, Arm]
    order: tuple[str, ...]
    methods: Mapping[str, TuningSpec]
    training: Mapping[str, Setting]
    replaced: tuple[float, ...] = Field(min_length=1)
    space: str
    attacked: str
    public: TextFile


class BeyondSpec(Spec):
    """What part `beyond` trains and attacks.

    Attributes:
        arms: Ways to replace the words of Table III's task, by name; the others are compared with the first.
        method: Of tuning, of Table III's.
        replaced: Shares of all words that the etas shall replace.
        read: Shares of the words that are drawn, read by the strongest attack, at which accuracies are compared.
        attacks: What reads them.
        attacked_words: On how many words those are measured that take long.
    """

    arms: Mapping[str, Arm]
    method: str
    replaced: tuple[float, ...] = Field(min_length=1)
    read: tuple[float, ...] = Field(min_length=1)
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
        method: Of tuning.
        arms: Of Table III, the unprotected one first.
    """

    model: str
    method: str
    arms: tuple[str, ...] = Field(min_length=2)


class RaptConfig(RecipeConfig[Scale]):
    """`configs/rapt.yaml`; that file says what each field is for."""

    sentences: TextFile
    posts: TextFile
    grammar: GrammarSpec
    utility: UtilitySpec
    beyond: BeyondSpec
    comparison: ComparisonSpec
    plain_words: PlainWordsSpec
    shares: SharesSpec
    intrinsic: IntrinsicSpec
    categories: CategoriesSpec
    geometry: GeometrySpec
    writing: WritingSpec
    larger: LargerSpec


PAPER = read_yaml("papers", "rapt")
RECIPE = Recipe(
    "rapt", shipped("rapt", RaptConfig), default_model=STARTER, paper=lambda _: {"paper": PAPER},
    closing=[differing(PAPER)],
)  # fmt: skip
LAYOUT = Layout("rapt")
WORDS, METHODS = LAYOUT.axis("words").text, LAYOUT.axis("method").text


def _trainings(c: RaptConfig, lab: Lab) -> Trainings:
    asked, scale, shown = c.utility, c.at(lab.options.size), c.geometry
    read = [
        (arm, tuning, shown.replaced if arm.words else None)
        for (method, tuning), (name, arm) in product(asked.methods.items(), asked.arms.items())
        if method == shown.method and name in shown.arms
    ]
    return Trainings(
        lab, asked.task, scale.limits, {**asked.training, **scale.training}, asked.space, asked.public,
        scale.attacked_words, read,
    )  # fmt: skip


def _of_table_3(c: RaptConfig, lab: Lab, method: str, name: str, share: float | None) -> WordTrainingCell:
    """A training of one arm by one method, at a share of all words; `None` of the arm that replaces none."""
    scale = c.at(lab.options.size)
    arm, attacks = _at(scale, c.utility.arms[name]), scale.attacks
    return _trainings(c, lab).cell(
        arm, c.utility.methods[method], share, attacks=attacks if arm.words and method == c.utility.attacked else ()
    )  # fmt: skip


def _trained(
    seeds: int,
    methods: Iterable[str],
    arms: Mapping[str, Arm],
    replaced: Iterable[float],
    cell: Callable[[str, str, float | None], WordTrainingCell],
) -> list[Scenario]:
    """Trainings of some arms by some methods, at each share."""
    return [
        scenario
        for method, (name, arm) in product(methods, arms.items())
        for share in (replaced if arm.words else (None,))
        for scenario in Scenario.each(seeds, cell(method, name, share), arm=name, method=method, replaced=share or 0.0)
    ]


def _at(scale: Scale, arm: Arm) -> Arm:
    """An arm at a size."""
    if arm.warm_up is None:
        return arm
    training = WarmUpSpec(**{**arm.warm_up.training.model_dump(), **scale.warm_up})
    return arm.model_copy(update={"warm_up": arm.warm_up.model_copy(update={"training": training})})


@RECIPE.part("table-3")
def table_3(c: RaptConfig, lab: Lab) -> Part:
    """Accuracy by arm and method of tuning, at shares of words replaced, and where attackers read as much."""
    asked, (clear, *_) = c.utility, c.utility.arms
    titles = {name: arm.title for name, arm in asked.arms.items()}
    warm = [name for name, arm in asked.arms.items() if arm.warm_up is not None]
    gains = [(pair, "Table III") for pair in pairwise(asked.order)]
    gains += [(pair, "ours") for pair in product(asked.order[-2:], warm)]
    claims = []
    for method, share in product(asked.methods, asked.replaced):
        place = {"method": method, "replaced": share}
        for (first, second), source in gains:
            claims.append(
                falls(
                    f"{METHODS(method)}, {100 * share:g} % replaced: {titles[second]} is more accurate than "
                    f"{titles[first]} ({source}).", "UA",
                    (titles[second], {**place, "arm": second}), (titles[first], {**place, "arm": first}),
                )
            )  # fmt: skip
    attacked, cell = {"method": asked.attacked}, partial(_of_table_3, c, lab)
    scenarios = _trained(lab.options.seeds, asked.methods, asked.arms, asked.replaced, cell)
    return LAYOUT.part(
        "table-3", scenarios, {"arms": Axis("arm", "arm", titles)},
        claims=claims, derived=EqualReading(list(pairwise(asked.order)), attacked), details={"clear": clear},
        stated=[
            each for each in Stated.lines(PAPER["table_3"], percent=("UA",))
            if each.axes["method"] in asked.methods and each.axes["replaced"] in (0.0, *asked.replaced)
        ],
    )  # fmt: skip


@RECIPE.part("figure-3")
def figure_3(c: RaptConfig, lab: Lab) -> Part:
    """What attacks read of the arms' words: the paper's, and stronger ones."""
    asked, attacks = c.utility, c.at(lab.options.size).attacks
    titles = {name: arm.title for name, arm in asked.arms.items()}
    protected = {name: arm for name, arm in asked.arms.items() if arm.words}
    claims = [
        alike(
            f"{attack}, {100 * share:g} % replaced: {titles[second]} is read as {titles[first]} is (Figure 3).", READ,
            (titles[first], {"arm": first, "replaced": share, "attack": attack}),
            (titles[second], {"arm": second, "replaced": share, "attack": attack}),
        )
        for share, attack, (first, second) in product(asked.replaced, attacks, pairwise(asked.order))
    ]  # fmt: skip
    scenarios = _trained(lab.options.seeds, [asked.attacked], protected, asked.replaced, partial(_of_table_3, c, lab))
    return LAYOUT.part("figure-3", scenarios, {"arms": Axis("arm", "arm", titles)}, claims=claims)


@RECIPE.part("beyond")
def beyond(c: RaptConfig, lab: Lab) -> Part:
    """Other draws and other distances than the paper's, where the strongest attack reads as many of the drawn words."""
    asked, (first, *others) = c.beyond, c.beyond.arms
    titles = {name: arm.title for name, arm in asked.arms.items()}
    trainings, tuning = (
        replace(_trainings(c, lab), attacked_words=asked.attacked_words),
        c.utility.methods[asked.method],
    )

    def cell(_: str, name: str, share: float | None) -> WordTrainingCell:
        return trainings.cell(asked.arms[name], tuning, share, attacks=asked.attacks)

    scenarios = _trained(lab.options.seeds, [asked.method], asked.arms, asked.replaced, cell)
    claims = [
        both(
            f"{titles[name]}: more accurate than {titles[first]} where as many of the drawn words are read, at two "
            "places of three.", *(above("", GAINED, {"arm": name, "read": read}) for read in asked.read), least=2,
        )
        for name in others
    ]  # fmt: skip
    pairs = [(first, name) for name in others]
    compared = EqualReading(pairs, {"method": asked.method}, metric="success", at=asked.read)
    said = {"arms": Axis("arm", "arm", titles), "first": titles[first]}
    return LAYOUT.part("beyond", scenarios, said, claims=claims, derived=compared)


@RECIPE.part("figure-4")
def figure_4(c: RaptConfig, lab: Lab) -> Part:
    """Accuracy and what is inferred of authors: CAPE, DPNR, Qu et al. and RAPT."""
    return compare(Compared(c.comparison, c.at(lab.options.size).comparison, c.utility, lab), PAPER["figure_4"])


@RECIPE.part("figure-9")
def figure_9(c: RaptConfig, lab: Lab) -> Part:
    """Accuracy over what attackers read of words: T2T, RAPT, and the arms between them."""
    asked, attacks = c.utility, c.at(lab.options.size).attacks
    trained = _trained(lab.options.seeds, [asked.attacked], asked.arms, asked.replaced, partial(_of_table_3, c, lab))
    return compare_words(trained, asked, attacks, PAPER["figure_9"])


@RECIPE.part("table-4")
def table_4(c: RaptConfig, lab: Lab) -> Part:
    """Accuracy of a larger model that learns from words drawn by a small one's vectors."""
    asked, arms = c.larger, {name: c.utility.arms[name] for name in c.larger.arms}
    titles = {name: arm.title for name, arm in arms.items()}
    of = {"source": asked.model, "model": lab.model(asked.model).fingerprint, "attacks": (), "kept": False}

    def cell(method: str, name: str, share: float | None) -> WordTrainingCell:
        return _of_table_3(c, lab, method, name, share).model_copy(update=of)

    scenarios = _trained(lab.options.seeds, [asked.method], arms, c.utility.replaced, cell)
    claims = [
        falls(
            f"{asked.model}, {100 * share:g} % replaced: {titles[second]} is more accurate than {titles[first]} "
            "(Table IV).", "UA",
            (titles[second], {"arm": second, "replaced": share}), (titles[first], {"arm": first, "replaced": share}),
        )
        for share, (first, second) in product(c.utility.replaced, pairwise(asked.arms[1:]))
    ]  # fmt: skip
    said = {"arms": Axis("arm", "arm", titles), "model": asked.model, "space": c.utility.space}
    printed = [{**line, "eta": PAPER["table_4"]["eta"]} for line in PAPER["table_4"]["lines"]]
    return LAYOUT.part("table-4", scenarios, said, stated=Stated.lines(printed, percent=("UA",)), claims=claims)


@RECIPE.part("figure-8")
def figure_8(c: RaptConfig, lab: Lab) -> Part:
    """How far words' representations are from those of the unprotected run, by layer."""
    asked, arms = c.geometry, c.utility.arms
    titles = {name: arms[name].title for name in asked.arms}
    cell = GeometryCell(
        arms={
            name: _of_table_3(c, lab, asked.method, name, asked.replaced if arms[name].words else None)
            for name in asked.arms
        },
        texts=asked.texts,
    )  # fmt: skip
    claims = []
    for space in (PLANE, WHOLE):
        place = {"space": space, "weights": OWN}
        claims.append(
            above(
                f"{titles[asked.closer]}: closer to the unprotected run at the last block than at the first ({space}).",
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
    return LAYOUT.part("figure-8", Scenario.each(lab.options.seeds, cell), said, claims=claims)


@RECIPE.part("table-5")
def table_5(c: RaptConfig, lab: Lab) -> Part:
    """BLEU of texts about facts whose entities left as drawn words."""
    asked, scale = c.writing, c.at(lab.options.size)
    stated = Stated.lines(PAPER["table_5"]["lines"], percent=("BLEU",))
    titles = {**PAPER["table_5"]["arms"], **{name: arm.title for name, arm in asked.arms.items()}}
    claims = [
        above(
            f"{METHODS(method)}: {titles[second]} writes better than {titles[first]} (Table V).", BLEU_GAINED,
            {"method": method, "arm": second, "of": BOTH}, stated=PAPER["table_5"]["gained"].get(second, ""),
        )
        for method, (first, second) in product(asked.methods, pairwise(asked.order))
    ]  # fmt: skip
    return LAYOUT.part(
        "table-5", list(asked.scenarios(lab, scale.facts, scale.writing)), {"arms": Axis("arm", "entities", titles)},
        stated=stated, claims=claims, derived=lambda results: gains(results, asked.order, asked.arms),
        further=[examples],
    )  # fmt: skip


@RECIPE.part("grammar")
def grammar(c: RaptConfig, lab: Lab) -> Part:
    """Tags that stay and sentence similarity, of words replaced within their part of speech and by any word."""
    asked, scale, scenarios, claims = c.grammar, c.at(lab.options.size), [], []
    corpora = [
        c.sentences.model_copy(update={"texts": scale.sentences}), c.posts.model_copy(update={"texts": scale.posts})
    ]  # fmt: skip
    space, encoder = Source.of(asked.space, lab), Source.of(asked.encoder, lab)
    places = [(choice.words, share) for choice in asked.choices for share in choice.replaced]
    for texts, (words, share) in product(corpora, places):
        place: dict[str, Level] = {"words": ",".join(words), "replaced": share, "corpus": texts.name}
        for candidates in (CATEGORY, ALL):
            cell = GrammarCell(
                texts=texts, words=words, candidates=candidates, share=share, most_words=asked.most_words,
                space=space, encoder=encoder, examples=asked.examples,
            )  # fmt: skip
            scenarios += Scenario.each(lab.options.seeds, cell, candidates=candidates, **place)
        at = f"{WORDS(place['words'])}, {100 * share:g} % replaced, {texts.name}"
        for metric, name in (("tags stay", "tags that stay"), ("similarity", "sentence similarity")):
            claims.append(
                above(
                    f"{name[0].upper()}{name[1:]}: more within the category than among all words ({at}).",
                    f"{metric}, category - all", place, stated=PAPER["grammar"][metric],
                )
            )  # fmt: skip
    return LAYOUT.part("grammar", scenarios, claims=claims, further=[_examples], derived=_differences)


def _differences(results: Results) -> Iterator[Measure]:
    """By how much more stays within the category, at each place and over all seeds."""

    def place(found: tuple[GrammarCell, Any]) -> tuple[str, tuple[str, ...], float]:
        return found[0].texts.name, found[0].words, found[0].share

    for _, group in groupby(sorted(results.of(GrammarCell), key=place), place):
        yield from category_minus_all(dict(group))


def _examples(results: Results) -> Iterable[Table]:
    """What public sentences become, by the draws of the first seed at the etas for the first corpus."""
    cells = [(cell, found) for cell, found in results.of(GrammarCell) if cell.seed == 0]
    first = [(cell, found) for cell, found in cells if cell.texts == cells[0][0].texts]
    rows = [
        (before, WORDS(",".join(cell.words)), cell.candidates, percent(cell.share, 0), f"{found.eta:g}", after)
        for cell, found in first
        for before, after in zip(cell.examples, found.examples, strict=True)
    ]
    yield Table(
        title="Made-up sentences, before and after",
        columns=("before", "words", "candidates", "replaced, %", "eta", "after"),
        rows=tuple(sorted(rows, key=lambda row: row[:3])),
        notes=("The share replaced is that of the corpus, and not of these sentences. Public text, drawn once.",),
    )


# ---------------------------------------------------------------- parts of other modules


def _sentences(c: RaptConfig, lab: Lab) -> TextFile:
    return c.sentences.model_copy(update={"texts": c.at(lab.options.size).sentences})


def _varied(c: RaptConfig, lab: Lab) -> Varied:
    return Varied(c.intrinsic, _trainings(c, lab), c.utility.arms, c.utility.methods[c.intrinsic.method])


def _of_varied(declared: Callable[[Varied], Part]) -> Declared[RaptConfig]:
    return lambda c, lab: declared(_varied(c, lab))


def _categories(c: RaptConfig, lab: Lab) -> Categories:
    return Categories(c.categories, _sentences(c, lab), c.grammar.most_words, c.grammar.space, lab)


@RECIPE.part("table-1")
def _(c: RaptConfig, lab: Lab) -> Part:
    return table_1(c.plain_words, c.grammar.space, lab)


@RECIPE.part("table-2")
def _(c: RaptConfig, lab: Lab) -> Part:
    return table_2(c.shares, _sentences(c, lab), c.grammar.most_words, c.grammar.space, lab)


for name, declared in {"table-6": table_6, "table-7": table_7, "table-8": table_8, "figure-5": figure_5}.items():
    RECIPE.part(name)(_of_varied(declared))


@RECIPE.part("figure-6")
def _(c: RaptConfig, lab: Lab) -> Part:
    asked, (clear, *_) = c.utility, c.utility.arms.values()
    tuning, attacks = asked.methods[c.categories.method], c.at(lab.options.size).attacks
    return figure_6(_categories(c, lab), _trainings(c, lab), tuning, clear, attacks=attacks)


@RECIPE.part("figure-7")
def _(c: RaptConfig, lab: Lab) -> Part:
    return figure_7(_categories(c, lab))
