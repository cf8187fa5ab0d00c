"""Posts and annotated sentences that left over the road, and what one attack infers of them."""

from __future__ import annotations

import gzip
import itertools
import json
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from pydantic import Field
from torch import Tensor

from cutlayer.attacks import (
    ATTACKS,
    AnnotatedText,
    Attack,
    AttributeClassifier,
    AttributeTruth,
    AutoencoderInversion,
    ControlFailed,
    EntityTruth,
    Fitting,
    Measured,
    MlpInversion,
    NotApplicable,
    PublicText,
    TokenTruth,
    Transcript,
    Truth,
    examine,
)
from cutlayer.attacks.evaluation.places import ELSEWHERE
from cutlayer.core import DataError, Spec, Tokens
from cutlayer.customer.releases import Released, identifier, release
from cutlayer.data import Dataset, read_dataset, tokenise, tokenise_words
from cutlayer.data.bins import equal_bins
from cutlayer.recipes.lab import Cell, Lab
from cutlayer.recipes.long_table import Measure
from cutlayer.recipes.read_releases import Form, of_mechanism
from cutlayer.recipes.tasks import data_file
from cutlayer.reports.cells import digest

_ORDER_SEED = 0
"""All runs of the recipe see the same posts."""
ATTACKED, INVERTED, NAMED = "attacked posts", "inverted posts", "named sentences"
ENTITIES = ("ner", "ner-clear")
"""The attacks that find entities: one that learnt from releases, and the paper's, which learnt from clear text."""


class PostsSpec(Spec):
    """Posts by authors of known attributes; the settings' file says what each field is for.

    Attributes:
        group: Column of the author; empty where nobody knows which posts are one author's.
    """

    name: str
    known: str
    attacked: str
    public: str
    group: str = ""
    columns: Mapping[str, tuple[str, ...]]
    bins: Mapping[str, int] = {}


class EntitiesSpec(Spec):
    """Texts with entities marked."""

    name: str
    annotated: str
    attacked: str


class Scale(Spec):
    """What `--size` changes; the settings' file says what each field is for."""

    labelled: tuple[int, ...] = Field(min_length=1)
    attacked: int = Field(ge=1)
    tuned: tuple[str, ...]
    passes: int = Field(ge=1)
    tokens: int = Field(ge=1)
    inverted: int = Field(ge=1)
    public: int = Field(ge=1)
    named: int = Field(ge=1)
    annotated: int = Field(ge=1)
    pairs: int = Field(ge=1)
    queries: int = Field(ge=0)


class AttackCell(Cell):
    """One attack on what was released of posts, or of sentences that name entities.

    Attributes:
        column: The attribute that is inferred; empty for other questions.
        labelled: N_l, posts whose attribute is known; 0 for other questions.
    """

    model: str
    posts: PostsSpec
    entities: EntitiesSpec
    attack: str
    column: str = ""
    labelled: int = 0
    scale: Scale

    @property
    def about(self) -> str:
        """The attack in a few words, for the cell's name."""
        return f"{self.attack}-{self.column}-{self.labelled}" if self.column else self.attack

    def alike(self, **told: Any) -> Self:
        """The same cell without its attack: what releases, and texts that are made up for controls, depend on."""
        return self.model_copy(update={"attack": "", "column": "", "labelled": 0, **told})

    def check(self, lab: Lab) -> None:
        for part in (self.posts.known, self.posts.attacked, self.posts.public):
            data_file(lab.options.data, self.posts.name, part)
        for part in (self.entities.annotated, self.entities.attacked):
            data_file(lab.options.data, self.entities.name, part)

    def measures(self, result: Inferred) -> Iterator[Measure]:
        yield from Measure.outcome(result.outcome, attack=self.attack)
        yield Measure("replaced", result.replaced, attack=self.attack)
        yield Measure("seconds", result.seconds, attack=self.attack)

    def strength(self, content: int) -> Attack:
        """The attack as it is run at this size, on posts of so many tokens."""
        scale, attack = self.scale, ATTACKS[self.attack]
        fitting = Fitting(passes=scale.passes, batch=16, learning_rate=1e-3)
        if self.attack == "attribute-classifier":
            return replace(attack, run=AttributeClassifier(positions=content + 2, fitting=fitting))
        inversions = {"mlp-inversion": MlpInversion, "autoencoder-inversion": AutoencoderInversion}
        if self.attack in inversions:
            return replace(attack, run=inversions[self.attack](tokens=scale.pairs, queries=scale.queries))
        return attack


class InferenceCell(AttackCell):
    """One attack on what was released of tokens at one eta.

    Attributes:
        form: How texts left.
        eta: Privacy parameter per token; infinite without noise.
        noise: Whose noise is drawn, by the mechanism's name.
    """

    form: Form = Form.ROAD
    eta: float
    noise: str = of_mechanism()

    @property
    def name(self) -> str:
        how = "" if self.form is Form.ROAD else f"-{self.form.slug}"
        return f"{self.about}{how}-eta{self.eta:g}-s{self.seed}"

    def run(self, lab: Lab) -> Inferred:
        """Attacks the release at this eta, which cells of one process share."""
        corpus = corpus_of(self, lab)

        def made() -> Released:
            folder = lab.workspace / f"releases-{digest(self.alike())}"
            return release(
                corpus.sets(), self.form.privacy(self.eta, self.noise), model=lab.options.model,
                home=lab.home(str(self.seed)), folder=folder, progress=lab.progress,
            )  # fmt: skip

        released: Released = lab.once(("released", self.alike()), made)
        begun = time.monotonic()
        transcript, truth = target_of(self, corpus, released)
        # what is checked on made-up texts does not depend on the noise of these
        checked = ("controls", self.alike(attack=self.attack, column=self.column, eta=0.0, seed=0))
        known: dict[str, Any] = {"model": corpus.model.whole, "public": corpus.public, "annotated": corpus.annotated}
        outcome = examine(
            self.attack, transcript, knowledge=replace(released.knowledge, **known), truth=truth,
            run=self.strength(corpus.content), controls=lab.shared.get(checked),
        ).outcome  # fmt: skip
        if self.column and isinstance(outcome, Measured):
            lab.shared[checked] = outcome.controls
        of = NAMED if self.attack in ENTITIES else ATTACKED if self.column else INVERTED
        return Inferred(outcome=outcome, replaced=released.replaced[of], seconds=time.monotonic() - begun)


class Inferred(Spec):
    """What came of an attack.

    Attributes:
        replaced: Share of the attacked texts' tokens that noise replaced.
        seconds: How long the attack took; with its controls where they were run for it.
    """

    outcome: Measured | ControlFailed | NotApplicable
    replaced: float
    seconds: float


# ---------------------------------------------------------------- texts


@dataclass(frozen=True)
class Posts:
    """Posts with what is known of their authors: `labels` by column `[n]`, authors as `groups` `[n]`."""

    texts: Dataset
    tokens: Tokens
    labels: Mapping[str, Tensor]
    groups: Tensor

    def __len__(self) -> int:
        return len(self.tokens)

    def first(self, count: int) -> Posts:
        kept = torch.arange(min(count, len(self)))
        labels = {column: values[kept] for column, values in self.labels.items()}
        return Posts(self.texts.select(kept.tolist()), self.tokens.select(kept), labels, self.groups[kept])


class Corpus:
    """All texts of a size, tokenised.

    Attributes:
        content: Tokens of a post, at most.
        known: Posts of authors whose attribute the attacker knows.
        attacked: Posts that attributes are inferred of.
        inverted: The first of them, whose words are read.
        named: Sentences whose entities are found, and their tags.
        tags: What the tags' numbers mean.
        classes: By column, what attributes' numbers mean.
        public: The attacker's own posts, and as they read.
        annotated: The attacker's annotated sentences.
    """

    def __init__(self, cell: AttackCell, lab: Lab) -> None:
        self._spec, self._entities, self._lab = cell.posts, cell.entities, lab
        scale, self.model, self._new = cell.scale, lab.model(), itertools.count()
        most = self.model.template.max_content(1)
        self.content = min(scale.tokens, most)
        asked = {"known": max(scale.labelled), "attacked": scale.attacked, "public": scale.public}
        read = {of: self._read(getattr(cell.posts, of), count) for of, count in asked.items()}
        bins = {column: self._bins(read.values(), column, count) for column, count in cell.posts.bins.items()}
        self.classes = dict(cell.posts.columns)
        for column, names in bins.items():
            self.classes[column] = tuple(dict.fromkeys(names[value] for value in sorted(names)))
        self.known, self.attacked, public = (
            self._posts(getattr(cell.posts, of), posts, bins) for of, posts in read.items()
        )
        self.first = self.attacked.first(scale.inverted)
        self.inverted = self.first.tokens
        self.public_texts = public.texts
        self.public = PublicText(public.tokens, source=f"{cell.posts.name}/{cell.posts.public}")
        kinds = {tag[2:] for row in self._rows(cell.entities.annotated) for tag in row["tags"] if tag != "O"}
        self.tags = ("O", *(f"{place}-{kind}" for kind in sorted(kinds) for place in "BI"))
        self.named = self._tagged(cell.entities.attacked, scale.named, most)
        tokens, tags = self._tagged(cell.entities.annotated, scale.annotated, most)
        source = f"{cell.entities.name}/{cell.entities.annotated}"
        self.annotated = AnnotatedText(tokens, tags=tags, names=self.tags, source=source)
        self.known_sets = [(last, f"known posts to {last}") for last in sorted(scale.labelled)]

    def sets(self) -> dict[str, Tokens]:
        """All that is released, set by set: known posts in sets that follow one another, then what is attacked."""
        found, first = {}, 0
        for last, name in self.known_sets:
            found[name] = self.known.tokens.select(torch.arange(first, last))
            first = last
        # the inverted ones are the same releases once more, by themselves: no further draw
        return {**found, ATTACKED: self.attacked.tokens, INVERTED: self.inverted, NAMED: self.named[0]}

    def posts(self) -> dict[str, Dataset]:
        """The posts among them as they read, for who reads something else in them than tokens."""
        found, first = {}, 0
        for last, name in self.known_sets:
            found[name] = self.known.texts.select(range(first, last))
            first = last
        return {**found, ATTACKED: self.attacked.texts, INVERTED: self.first.texts}

    def _read(self, part: str, count: int) -> Dataset:
        posts = self._spec
        path = data_file(self._lab.options.data, posts.name, part)
        needed = [*posts.bins, *filter(None, [posts.group])]
        read = read_dataset(path, text_column="text", attribute_columns=needed, copied_columns=[*posts.columns])
        values = {column: read.attributes[column] for column in posts.columns}
        told = [
            all(values[column][row] in names for column, names in posts.columns.items()) for row in range(len(read))
        ]
        dataset = read.select([row for row, known in enumerate(told) if known])
        order = torch.randperm(len(dataset), generator=torch.Generator().manual_seed(_ORDER_SEED))[:count].tolist()
        if len(order) < count:
            raise DataError(
                f"{posts.name}/{part} has {len(dataset)} posts, not {count}.", remedy="Choose another size."
            )
        return dataset.select(order)

    @staticmethod
    def _bins(parts: Iterable[Dataset], column: str, count: int) -> dict[float, str]:
        """The bin of each number that a column has in any part."""
        values = [float(value) for part in parts for value in part.attributes[column]]
        return dict(zip(values, equal_bins(values, count, column=column), strict=True))

    def _posts(self, part: str, chosen: Dataset, bins: Mapping[str, Mapping[float, str]]) -> Posts:
        labels = {}
        for column, names in self.classes.items():
            values = chosen.attributes[column]
            told = [bins[column][float(value)] for value in values] if column in bins else values
            labels[column] = torch.tensor([names.index(value) for value in told])
        group = self._spec.group
        # where nobody knows better, each post is another author's
        authors = map(int, chosen.attributes[group]) if group else itertools.islice(self._new, len(chosen))
        texts = Dataset(chosen.texts)
        tokens = tokenise(self._left(part, texts), self.model.tokenizer, max_content=self.content)
        return Posts(texts, tokens, labels, torch.tensor([*authors]))

    def _tagged(self, part: str, count: int, content: int) -> tuple[Tokens, Tokens]:
        rows = self._rows(part)[:count]
        numbers = {name: number for number, name in enumerate(self.tags)}
        marks = [[numbers.get(tag, 0) for tag in row["tags"]] for row in rows]
        words = self._words_left(part, [row["tokens"] for row in rows])
        return tokenise_words(words, marks, self.model.tokenizer, max_content=content)

    def _left(self, part: str, texts: Dataset) -> Dataset:
        """A part's texts as they come to the road."""
        return texts

    def _words_left(self, part: str, texts: list[list[str]]) -> list[list[str]]:
        """The same of texts whose words are marked: as many words as before."""
        return texts

    def _rows(self, part: str) -> list[dict[str, list[str]]]:
        path = data_file(self._lab.options.data, self._entities.name, part)
        with gzip.open(path, "rt", encoding="utf-8") as file:
            return [json.loads(line) for line in file]


def corpus_of(cell: AttackCell, lab: Lab) -> Corpus:
    """The texts of a cell, read once for all cells of a process."""
    texts = cell.posts.model_dump_json(), cell.entities.model_dump_json(), cell.scale
    return lab.once(("corpus", *texts), lambda: Corpus(cell, lab))


# ---------------------------------------------------------------- what is attacked of releases


def target_of(cell: InferenceCell, corpus: Corpus, released: Released) -> tuple[Transcript, Truth]:
    """What a cell's attack reads of what left, and what it is scored on."""
    if cell.column:
        return attribute_target(cell, corpus, released)
    if cell.attack in ENTITIES:
        tokens, tags = corpus.named
        records = {identifier(NAMED): released.records[NAMED]}
        return released.only([NAMED]), EntityTruth(tokens, records=records, tags=tags, names=corpus.tags)
    records = {identifier(INVERTED): released.records[INVERTED]}
    # of the whole table: a guessed row is no release
    return released.only([INVERTED]), TokenTruth(corpus.inverted, records=records, search=corpus.model.search)


def attribute_target(cell: AttackCell, corpus: Corpus, released: Released) -> tuple[Transcript, AttributeTruth]:
    """What an attack on a column reads, and the column."""
    sets = [*(name for last, name in corpus.known_sets if last <= cell.labelled), ATTACKED]
    known, attacked = corpus.known.first(cell.labelled), corpus.attacked
    of_set = torch.cat([torch.full_like(released.records[name], place) for place, name in enumerate(sets)])
    record_of = torch.cat([released.records[name] for name in sets])
    truth = AttributeTruth(
        torch.cat([known.labels[cell.column], attacked.labels[cell.column]]),
        len(corpus.classes[cell.column]),
        torch.arange(len(known) + len(attacked)) < len(known),
        records={
            identifier(name): torch.where(of_set == place, record_of, ELSEWHERE) for place, name in enumerate(sets)
        },
        groups=torch.cat([known.groups, attacked.groups]),
    )
    return released.only(sets), truth
