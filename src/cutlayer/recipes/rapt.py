"""Recipe `rapt`: text-to-text privatization within parts of speech, and what it keeps of texts.

Here: `grammar`, which the paper states without a measurement, and Table V. Tables III and IV, Figures 3, 8 and 9, and
what goes beyond the paper: `rapt_utility.py`; Tables I and II: `rapt_words.py`; VI to VIII and Figure 5:
`rapt_intrinsic.py`; Figures 6 and 7: `rapt_categories.py`; Figure 4: `comparison.py`. Settings, the paper's numbers,
tables and figures: `rapt.yaml`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import groupby, pairwise, product
from typing import Any, TypeVar

from pydantic import Field

from cutlayer.core import Spec
from cutlayer.models import STARTER
from cutlayer.recipes.claims import above
from cutlayer.recipes.comparison import Compared, ComparisonScale, ComparisonSpec, compare
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
from cutlayer.recipes.rapt_utility import (
    BeyondSpec,
    GeometrySpec,
    LargerSpec,
    Utility,
    UtilityScale,
    UtilitySpec,
    beyond,
    figure_3,
    figure_8,
    figure_9,
    rates,
    table_3,
    table_4,
)
from cutlayer.recipes.rapt_words import PlainWordsSpec, SharesSpec, table_1, table_2
from cutlayer.recipes.recipe import Declared, Recipe
from cutlayer.recipes.replacement import ALL, CATEGORY, Source
from cutlayer.recipes.stated import differing
from cutlayer.recipes.study import Part, Results, Scenario, Stated
from cutlayer.recipes.tables import Axis
from cutlayer.recipes.tasks import TextFile
from cutlayer.reports import Table, percent


class Scale(UtilityScale):
    """What `--size` changes beside it: texts of a file, where `None` takes all; what is compared, and written."""

    sentences: int | None = Field(default=None, ge=1)
    posts: int | None = Field(default=None, ge=1)
    comparison: ComparisonScale = ComparisonScale()
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
    closing=[differing(PAPER)], encoder_decoders=True,
)  # fmt: skip
LAYOUT = Layout("rapt")
_Of = TypeVar("_Of")
WORDS, METHODS = LAYOUT.axis("words").text, LAYOUT.axis("method").text


@RECIPE.part("figure-4")
def figure_4(c: RaptConfig, lab: Lab) -> Part:
    """Accuracy and what is inferred of authors: CAPE, DPNR, Qu et al. and RAPT."""
    scale = c.at(lab.options.size)
    compared = Compared(c.comparison, scale.comparison, _utility(c, lab).asked, scale.rates, lab)
    return compare(compared, PAPER["figure_4"])


@RECIPE.part("table-5")
def table_5(c: RaptConfig, lab: Lab) -> Part:
    """BLEU of texts about facts whose entities left as drawn words."""
    scale = c.at(lab.options.size)
    asked = c.writing.weighed(scale.weighed)
    stated = Stated.lines(PAPER["table_5"]["lines"], percent=("BLEU",))
    titles = {**PAPER["table_5"]["arms"], **{name: arm.title for name, arm in asked.arms.items()}}
    claims = [
        above(
            f"{METHODS(method)}: {titles[second]} writes better than {titles[first]} (Table V).", BLEU_GAINED,
            {"method": method, "arm": second, "of": BOTH}, stated=PAPER["table_5"]["gained"].get(second, ""),
        )
        for method, (first, second) in product(asked.methods, pairwise(asked.ordered))
    ]  # fmt: skip
    return LAYOUT.part(
        "table-5", list(asked.scenarios(lab, scale.facts, scale.writing)), {"arms": Axis("arm", "entities", titles)},
        stated=stated, claims=claims, derived=lambda results: gains(results, asked.ordered),
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


def _utility(c: RaptConfig, lab: Lab) -> Utility:
    scale = c.at(lab.options.size)
    utility = c.utility.model_copy(update={"arms": scale.of(c.utility.arms)})
    beyond = c.beyond.model_copy(update={"arms": scale.of(c.beyond.arms)})
    return Utility(utility, beyond, c.geometry, c.larger, scale, lab)


def _varied(c: RaptConfig, lab: Lab) -> Varied:
    of = _utility(c, lab)
    return Varied(c.intrinsic, of.trainings(), of.asked.arms, of.asked.methods[c.intrinsic.method])


def _declared(part: Callable[[_Of], Part], of: Callable[[RaptConfig, Lab], _Of]) -> Declared[RaptConfig]:
    """A part of another module, which is declared over what that module needs of the settings."""
    return lambda c, lab: part(of(c, lab))


def _categories(c: RaptConfig, lab: Lab) -> Categories:
    return Categories(c.categories, _sentences(c, lab), c.grammar.most_words, c.grammar.space, lab)


@RECIPE.part("table-1")
def _(c: RaptConfig, lab: Lab) -> Part:
    return table_1(c.plain_words, c.grammar.space, lab)


@RECIPE.part("table-2")
def _(c: RaptConfig, lab: Lab) -> Part:
    return table_2(c.shares, _sentences(c, lab), c.grammar.most_words, c.grammar.space, lab)


_OF_UTILITY: Mapping[str, Callable[[Utility], Part]] = {
    "rates": rates, "table-3": table_3, "figure-3": figure_3, "beyond": beyond, "figure-9": figure_9,
    "table-4": table_4, "figure-8": figure_8,
}  # fmt: skip
_OF_VARIED: Mapping[str, Callable[[Varied], Part]] = {
    "table-6": table_6, "table-7": table_7, "table-8": table_8, "figure-5": figure_5,
}  # fmt: skip
for name, of_utility in _OF_UTILITY.items():
    RECIPE.part(name)(_declared(of_utility, _utility))
for name, of_varied in _OF_VARIED.items():
    RECIPE.part(name)(_declared(of_varied, _varied))


@RECIPE.part("figure-6")
def _(c: RaptConfig, lab: Lab) -> Part:
    asked, (clear, *_) = c.utility, c.utility.arms.values()
    tuning, attacks = asked.methods[c.categories.method], c.at(lab.options.size).attacks
    return figure_6(_categories(c, lab), _utility(c, lab).trainings(), tuning, clear, attacks=attacks)


@RECIPE.part("figure-7")
def _(c: RaptConfig, lab: Lab) -> Part:
    return figure_7(_categories(c, lab))
