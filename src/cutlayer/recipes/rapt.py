"""Recipe `rapt`: text-to-text privatization within parts of speech, and what it keeps of texts.

So far `grammar`, which the paper states without a measurement, Tables III to V, Figures 3 and 8. Settings:
`configs/rapt.yaml`; the paper's numbers: `papers/rapt.yaml`; tables and figures: `layouts/rapt.yaml`.
Ref: arXiv:2305.06212.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby, pairwise, product
from typing import Any

from pydantic import Field

from cutlayer.core import Spec
from cutlayer.customer import Objective, TuningSpec
from cutlayer.models import STARTER
from cutlayer.recipes.claims import above, alike, falls
from cutlayer.recipes.fact_writing import ALL as BOTH
from cutlayer.recipes.fact_writing import GAINED, FactLimits, WritingSpec, examples, gains
from cutlayer.recipes.grammar_cells import GrammarCell, category_minus_all
from cutlayer.recipes.lab import Lab
from cutlayer.recipes.layouts import Layout
from cutlayer.recipes.long_table import Level, Measure
from cutlayer.recipes.options import RecipeConfig, Setting, read_yaml, shipped
from cutlayer.recipes.recipe import Recipe
from cutlayer.recipes.replacement import ALL, CATEGORY, Source
from cutlayer.recipes.representations import BEFORE, CLOSER, OWN, PLANE, WHOLE, GeometryCell
from cutlayer.recipes.study import Part, Results, Scenario, Stated
from cutlayer.recipes.tables import Axis
from cutlayer.recipes.tasks import Limits, Task, TextFile
from cutlayer.recipes.training import settled
from cutlayer.recipes.word_training import READ, Arm, WordTrainingCell, at_equal_reading
from cutlayer.reports import Table, percent


class Scale(Spec):
    """What `--size` changes: texts of a file, where `None` takes all; training; attacks; rows of Table V."""

    sentences: int | None = Field(default=None, ge=1)
    posts: int | None = Field(default=None, ge=1)
    limits: Limits = Limits()
    training: Mapping[str, Setting] = {}
    attacks: tuple[str, ...] = ()
    attacked_words: int | None = Field(default=None, ge=1)
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

    def shows(self, method: str, name: str, share: float | None) -> bool:
        """Whether a training of Table III is one of these."""
        return method == self.method and name in self.arms and share in (None, self.replaced)


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
    geometry: GeometrySpec
    writing: WritingSpec
    larger: LargerSpec


PAPER = read_yaml("papers", "rapt")
RECIPE = Recipe("rapt", shipped("rapt", RaptConfig), default_model=STARTER, paper=lambda _: {"paper": PAPER})
LAYOUT = Layout("rapt")
WORDS, METHODS = LAYOUT.axis("words").text, LAYOUT.axis("method").text


def _trained(c: RaptConfig, lab: Lab, methods: Iterable[str], names: Iterable[str]) -> Iterator[Scenario]:
    """Trainings of some arms by some methods, at each share."""
    for method, name in product(methods, names):
        for share in c.utility.replaced if c.utility.arms[name].words else (None,):
            cell = _training(c, lab, method, name, share)
            yield from Scenario.each(lab.options.seeds, cell, arm=name, method=method, replaced=share or 0.0)


def _training(c: RaptConfig, lab: Lab, method: str, name: str, share: float | None) -> WordTrainingCell:
    """A training of one arm by one method, at a share of all words; `None` of the arm that replaces none."""
    asked, scale = c.utility, c.at(lab.options.size)
    arm, tuning = asked.arms[name], asked.methods[method]
    return WordTrainingCell(
        task=asked.task, limits=scale.limits, model=lab.model().fingerprint, tuning=tuning,
        training=settled(Objective.CLASSIFICATION, tuning, {**asked.training, **scale.training}),
        arm=arm, share=share, space=Source.of(asked.space, lab),
        attacks=scale.attacks if arm.words and method == asked.attacked else (),
        attacked_words=scale.attacked_words, public=asked.public, kept=c.geometry.shows(method, name, share),
    )  # fmt: skip


@RECIPE.part("table-3")
def table_3(c: RaptConfig, lab: Lab) -> Part:
    """Accuracy by arm and method of tuning, at shares of words replaced, and where attackers read as much."""
    asked, (clear, *_) = c.utility, c.utility.arms
    titles = {name: arm.title for name, arm in asked.arms.items()}
    claims = []
    for method, share in product(asked.methods, asked.replaced):
        place = {"method": method, "replaced": share}
        for first, second in pairwise(asked.order):
            claims.append(
                falls(
                    f"{METHODS(method)}, {100 * share:g} % replaced: {titles[second]} is more accurate than "
                    f"{titles[first]} (Table III).", "UA",
                    (titles[second], {**place, "arm": second}), (titles[first], {**place, "arm": first}),
                )
            )  # fmt: skip
    attacked = {"method": asked.attacked}
    return LAYOUT.part(
        "table-3", list(_trained(c, lab, asked.methods, asked.arms)), {"arms": Axis("arm", "arm", titles)},
        claims=claims, derived=lambda results: at_equal_reading(results, asked.order, attacked=attacked),
        details={"clear": clear},
    )  # fmt: skip


@RECIPE.part("figure-3")
def figure_3(c: RaptConfig, lab: Lab) -> Part:
    """What attacks read of the arms' words: the paper's, and stronger ones."""
    asked, attacks = c.utility, c.at(lab.options.size).attacks
    titles = {name: arm.title for name, arm in asked.arms.items()}
    protected = [name for name, arm in asked.arms.items() if arm.words]
    claims = [
        alike(
            f"{attack}, {100 * share:g} % replaced: {titles[second]} is read as {titles[first]} is (Figure 3).", READ,
            (titles[first], {"arm": first, "replaced": share, "attack": attack}),
            (titles[second], {"arm": second, "replaced": share, "attack": attack}),
        )
        for share, attack, (first, second) in product(asked.replaced, attacks, pairwise(asked.order))
    ]  # fmt: skip
    scenarios = list(_trained(c, lab, [asked.attacked], protected))
    return LAYOUT.part("figure-3", scenarios, {"arms": Axis("arm", "arm", titles)}, claims=claims)


@RECIPE.part("table-4")
def table_4(c: RaptConfig, lab: Lab) -> Part:
    """Accuracy of a larger model that learns from words drawn by a small one's vectors."""
    asked, arms, scenarios = c.larger, c.utility.arms, []
    titles = {name: arms[name].title for name in asked.arms}
    of = {"source": asked.model, "model": lab.model(asked.model).fingerprint, "attacks": (), "kept": False}
    for name in asked.arms:
        for share in c.utility.replaced if arms[name].words else (None,):
            cell = _training(c, lab, asked.method, name, share).model_copy(update=of)
            scenarios += Scenario.each(lab.options.seeds, cell, arm=name, replaced=share or 0.0)
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
    return LAYOUT.part(
        "table-4", scenarios, said, stated=Stated.lines(printed, percent=("UA",)), claims=claims
    )  # fmt: skip


@RECIPE.part("figure-8")
def figure_8(c: RaptConfig, lab: Lab) -> Part:
    """How far words' representations are from those of the unprotected run, by layer."""
    asked, arms = c.geometry, c.utility.arms
    titles = {name: arms[name].title for name in asked.arms}
    cell = GeometryCell(
        arms={
            name: _training(c, lab, asked.method, name, asked.replaced if arms[name].words else None)
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
            f"{METHODS(method)}: {titles[second]} writes better than {titles[first]} (Table V).", GAINED,
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
