"""RAPT's Tables I and II: which plain words stand before texts, and which etas replace which shares of words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from pydantic import Field

from cutlayer.core import Spec
from cutlayer.customer.reconstruction import Reconstruction
from cutlayer.data import load_word_counts
from cutlayer.recipes.lab import Lab
from cutlayer.recipes.layouts import Layout
from cutlayer.recipes.long_table import Measure
from cutlayer.recipes.options import read_yaml
from cutlayer.recipes.replacement import Candidates, Replacement, Source
from cutlayer.recipes.study import Claim, Part, Results, Scenario, Stated, Verdict
from cutlayer.recipes.tasks import TextFile
from cutlayer.recipes.word_cells import CATEGORY_OF, EtasCell, PlainWordsCell
from cutlayer.reports import Table, percent

PAPER = read_yaml("papers", "rapt")
LAYOUT = Layout("rapt")


class PlainWordsSpec(Spec):
    """What Table I lists.

    Attributes:
        words: The categories that plain words are of.
        plain_tokens: Of a sequence.
        tasks: Data sets as the paper calls them, and the `plain_seed` of each.
    """

    words: tuple[str, ...] = Field(min_length=1)
    plain_tokens: int = Field(ge=1)
    tasks: Mapping[str, int]


class ShareOf(Spec):
    """Of which words shares are.

    Attributes:
        title: For readers.
        words: Those that are replaced.
        candidates: Among which others.
        of_chosen: Whether shares are of these alone, else of all words.
    """

    title: str
    words: tuple[str, ...] = Field(min_length=1)
    candidates: Candidates
    of_chosen: bool = False


class SharesSpec(Spec):
    """What Table II asks for: shares, and the words that they may be of, by name."""

    replaced: tuple[float, ...] = Field(min_length=1)
    of: Mapping[str, ShareOf]


def table_1(asked: PlainWordsSpec, space: str, lab: Lab) -> Part:
    """Plain words for each data set."""
    replacement = Replacement(words=asked.words, candidates="category", space=Source.of(space, lab))
    scenarios = [
        Scenario(
            PlainWordsCell(
                replacement=replacement,
                reconstruction=Reconstruction(plain_tokens=asked.plain_tokens, plain_seed=seed),
            ),
            {"task": task},
        )
        for task, seed in asked.tasks.items()
    ]
    printed = {task: words.split() for task, words in PAPER["table_1"].items()}
    return LAYOUT.part(
        "table-1", scenarios, further=[lambda results: [_listed(results, printed)]],
        derived=lambda _: _known(printed, asked.words),
    )  # fmt: skip


def _listed(results: Results, printed: Mapping[str, list[str]]) -> Table:
    rows: list[tuple[str, str, str]] = []
    for scenario in results.scenarios:
        task = str(scenario.axes["task"])
        if scenario.cell in results.cells:
            rows.append((task, "here", " ".join(results.cells[scenario.cell].words)))
            rows.append((task, "the paper", " ".join(printed.get(task, ()))))
    return Table(
        title="Table I: plain words", columns=("data set", "whose", "words"), rows=tuple(rows),
        notes=("Public words, drawn uniformly from those of the categories; the vendor is told them.",),
    )  # fmt: skip


def _known(printed: Mapping[str, list[str]], categories: Iterable[str]) -> Iterator[Measure]:
    """How many of the paper's words the public list has, and how many of these with a category that is drawn from."""
    counts = load_word_counts()
    of_word: dict[str, set[str]] = {}
    for word, tag in zip(counts.words, counts.tags, strict=True):
        of_word.setdefault(word, set()).add(CATEGORY_OF[tag])
    for task, words in printed.items():
        known = [of_word[word] for word in words if word in of_word]
        drawn = sum(bool(found & set(categories)) for found in known)
        yield Measure("printed", len(words), axes={"task": task})
        yield Measure("known", len(known), axes={"task": task})
        yield Measure("of the categories", drawn, axes={"task": task})


def table_2(asked: SharesSpec, texts: TextFile, most_words: int, space: str, lab: Lab) -> Part:
    """Etas that replace the paper's shares: of chosen words, of all words, and by any word."""
    source = Source.of(space, lab)
    scenarios = [
        Scenario(
            EtasCell(
                texts=texts,
                replacement=Replacement(words=of.words, candidates=of.candidates, space=source),
                of_chosen=of.of_chosen,
                shares=asked.replaced,
                most_words=most_words,
            ),
            {"of": name},
        )
        for name, of in asked.of.items()
    ]
    said = {
        "of": [{"name": name, "title": of.title} for name, of in asked.of.items()],
        "texts": texts,
        "shares": asked.replaced,
    }
    return LAYOUT.part(
        "table-2", scenarios, said, claims=[_all_shares(name, of, asked.replaced) for name, of in asked.of.items()],
        stated=Stated.lines(PAPER["table_2"], percent=(), plain=["eta"]),
    )  # fmt: skip


def _all_shares(name: str, of: ShareOf, shares: Iterable[float]) -> Claim:
    def judge(results: Results) -> Iterable[Verdict]:
        found = {share: results.number("eta", of=name, replaced=share) for share in shares}
        missing = {share: number.note for share, number in found.items() if number.value is None}
        told = "; ".join(f"{percent(share, 0)} %: none ({why})" for share, why in missing.items())
        yield Verdict(
            claim=f"Table II's shares can be {of.title}.", here=told or "each has an eta", held=not missing,
            stated=PAPER["table_2_says"],
        )  # fmt: skip

    return judge
