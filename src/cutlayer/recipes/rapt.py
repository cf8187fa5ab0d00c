"""Recipe `rapt`: text-to-text privatization within parts of speech, and what it keeps of texts.

So far its part `grammar`: what the paper says of it without a measurement. Ref: arXiv:2305.06212. Settings:
`configs/rapt.yaml`; the paper's numbers: `papers/rapt.yaml`; tables and figures: `layouts/rapt.yaml`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby, product
from typing import Any

from pydantic import Field

from cutlayer.core import Spec
from cutlayer.models import STARTER
from cutlayer.recipes.claims import above
from cutlayer.recipes.grammar_cells import GrammarCell, category_minus_all
from cutlayer.recipes.lab import Lab
from cutlayer.recipes.layouts import Layout
from cutlayer.recipes.long_table import Level, Measure
from cutlayer.recipes.options import RecipeConfig, read_yaml, shipped
from cutlayer.recipes.recipe import Recipe
from cutlayer.recipes.replacement import ALL, CATEGORY, Source
from cutlayer.recipes.study import Part, Results, Scenario
from cutlayer.recipes.tasks import TextFile
from cutlayer.reports import Table, percent


class Scale(Spec):
    """What `--size` changes: how many texts of a file; `None` takes all."""

    sentences: int | None = Field(default=None, ge=1)
    posts: int | None = Field(default=None, ge=1)


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


PAPER = read_yaml("papers", "rapt")
RECIPE = Recipe("rapt", shipped("rapt", RaptConfig), default_model=STARTER, paper=lambda _: {"paper": PAPER})
LAYOUT = Layout("rapt")
WORDS = LAYOUT.axis("words").text


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
