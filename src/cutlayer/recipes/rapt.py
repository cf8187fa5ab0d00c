"""Recipe `rapt`: text-to-text privatization within parts of speech, and what it keeps of texts.

So far `grammar`, which the paper states without a measurement, Table III and Figure 3. Settings: `configs/rapt.yaml`;
the paper's numbers: `papers/rapt.yaml`; tables and figures: `layouts/rapt.yaml`. Ref: arXiv:2305.06212.
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
from cutlayer.recipes.grammar_cells import GrammarCell, category_minus_all
from cutlayer.recipes.lab import Lab
from cutlayer.recipes.layouts import Layout
from cutlayer.recipes.long_table import Level, Measure
from cutlayer.recipes.options import RecipeConfig, Setting, read_yaml, shipped
from cutlayer.recipes.recipe import Recipe
from cutlayer.recipes.replacement import ALL, CATEGORY, Source
from cutlayer.recipes.study import Part, Results, Scenario
from cutlayer.recipes.tables import Axis
from cutlayer.recipes.tasks import Limits, Task, TextFile
from cutlayer.recipes.training import settled
from cutlayer.recipes.word_training import READ, Arm, WordTrainingCell, at_equal_reading
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
    warm_up: Mapping[str, Setting] = {}


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


class RaptConfig(RecipeConfig[Scale]):
    """`configs/rapt.yaml`; that file says what each field is for."""

    sentences: TextFile
    posts: TextFile
    grammar: GrammarSpec
    utility: UtilitySpec


PAPER = read_yaml("papers", "rapt")
RECIPE = Recipe("rapt", shipped("rapt", RaptConfig), default_model=STARTER, paper=lambda _: {"paper": PAPER})
LAYOUT = Layout("rapt")
WORDS, METHODS = LAYOUT.axis("words").text, LAYOUT.axis("method").text


def _trained(c: RaptConfig, lab: Lab, methods: Iterable[str], names: Iterable[str]) -> Iterator[Scenario]:
    """Trainings of some arms by some methods, at each share."""
    asked, scale, space = c.utility, c.at(lab.options.size), Source.of(c.utility.space, lab)
    said = {**asked.training, **scale.training}
    for method, name in product(methods, names):
        arm, tuning = _at(scale, asked.arms[name]), asked.methods[method]
        attacks = scale.attacks if arm.words and method == asked.attacked else ()
        for share in asked.replaced if arm.words else (None,):
            cell = WordTrainingCell(
                task=asked.task, limits=scale.limits, model=lab.model().fingerprint, tuning=tuning,
                training=settled(Objective.CLASSIFICATION, tuning, said), arm=arm, share=share, space=space,
                attacks=attacks, attacked_words=scale.attacked_words, public=asked.public,
            )  # fmt: skip
            yield from Scenario.each(lab.options.seeds, cell, arm=name, method=method, replaced=share or 0.0)


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
