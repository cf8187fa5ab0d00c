"""Private generation: adapters that learn to write about facts whose entities left as drawn words, and what they write.

Ref: RAPT §V-A1, §V-C, Table V.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import pairwise, product
from typing import Annotated, Any, Final, NamedTuple, Self

import torch
from pydantic import BaseModel, Field

from cutlayer.core import Cut, CutlayerWarning, DataError, Spec
from cutlayer.customer import Client, EntityMap, Objective, Reconstruction, Sampling, TrainSpec, TuningSpec
from cutlayer.data import UNCUT, Dataset, Facts, read_webnlg
from cutlayer.privacy import NoPrivacy, PrivacySpec
from cutlayer.recipes.lab import Cell, Lab
from cutlayer.recipes.long_table import Level, Measure
from cutlayer.recipes.measures.bleu import Counts, bleu_counts, bleu_gain, corpus_bleu
from cutlayer.recipes.options import Named, Setting, named
from cutlayer.recipes.replacement import Candidates, Replacement, Source
from cutlayer.recipes.study import Results, Scenario
from cutlayer.recipes.tasks import SPLIT_SEED, data_file
from cutlayer.recipes.training import discard, settled
from cutlayer.reports import Table

SEEN, UNSEEN, ALL = "seen", "unseen", "all"
GAINED: Final = "BLEU gained"
_EXAMPLES = 2


class FactFiles(Spec):
    """Files of facts and of texts that state them.

    Attributes:
        name: Their folder.
        train: To train on; `dev` to stop on.
        seen: To measure on, of categories that training has seen; `unseen` of others.
    """

    name: str
    train: str
    dev: str
    seen: str
    unseen: str


class FactLimits(Spec):
    """Most rows of each file, of test of each of both; `None` takes all.

    Attributes:
        new_tokens: Tokens of a written text at most; `None` for as many as the paper's.
    """

    train: int | None = Field(default=None, ge=1)
    dev: int | None = Field(default=None, ge=1)
    test: int | None = Field(default=None, ge=1)
    new_tokens: int | None = Field(default=None, ge=1)


class EntityArm(Spec):
    """A way to protect facts.

    Attributes:
        title: For readers.
        candidates: Among which words each word of an entity is replaced; `None` where all leave as they are.
        reconstruction: Public words before facts to train on, which are drawn as entities' words are.
    """

    title: str
    candidates: Candidates | None = None
    reconstruction: Reconstruction = Reconstruction()


class Wrote(Spec):
    """What an adapter wrote about test facts.

    Attributes:
        eta: At which entities' words were drawn; `None` where they left as they are.
        replaced: Share of the drawn words that became others.
        clear: Share of all words of training texts that left as they are.
        before: Perplexity on dev before training; `dev` after each epoch.
        seconds: How long training took.
        counts: By test file, row by row, what BLEU adds up.
        examples: Facts, and what was written about them, entities back in their places.
    """

    eta: float | None = None
    replaced: float = 0.0
    clear: float = 1.0
    before: float | None
    dev: tuple[float, ...]
    seconds: float
    counts: Mapping[str, tuple[Counts, ...]]
    examples: tuple[tuple[str, str], ...]

    def of(self, place: str) -> tuple[Counts, ...]:
        """Of one test file, or of both together."""
        return self.counts[SEEN] + self.counts[UNSEEN] if place == ALL else self.counts[place]


class Left(NamedTuple):
    """Rows of texts as they leave, and what puts entities back."""

    rows: Sequence[Sequence[str]]
    map: EntityMap | None


class FactCell(Cell):
    """An adapter that learns to write about facts, and what it writes about others.

    Each word of an entity is drawn once for a customer, the same in facts and texts. Everything else leaves as it is,
    so that the run itself protects nothing.

    Attributes:
        model: Which learns.
        space: Gives words their vectors.
        share: Of words of entities, which the eta shall replace.
        num_beams: Continuations that are followed.
        max_new_tokens: Tokens of a text at most.
    """

    files: FactFiles
    limits: FactLimits
    model: Source
    space: Source
    arm: EntityArm
    share: float | None
    tuning: TuningSpec
    training: TrainSpec
    num_beams: int
    max_new_tokens: int

    @property
    def name(self) -> str:
        return f"{self.files.name}-{self.arm.title.lower()}-{self.tuning.method}-s{self.seed}"

    @classmethod
    def result_type(cls) -> type[BaseModel]:
        return Wrote

    def check(self, lab: Lab) -> None:
        for part in (self.files.train, self.files.dev, self.files.seen, self.files.unseen):
            data_file(lab.options.data, self.files.name, part)

    def run(self, lab: Lab) -> Wrote:
        train, dev, seen, unseen = self._facts(lab)
        eta = None if self.share is None else self._eta(lab, train, self.share)
        privacy = None if eta is None else self._replacement().privacy(eta, lab)
        with closing(self._client(lab)) as client:
            rows = [(each.source, *each.references) for each in (*train, *dev)]
            learnt = _protected(client, rows, train + dev, privacy)
            result = client.finetune(
                _pairs(learnt.rows[: len(train)]), dev=_pairs(learnt.rows[len(train) :]), objective=Objective.LM,
                privacy=NoPrivacy(), cut=Cut(bottom=None, tail=0), tuning=self.tuning,
                training=self.training, reconstruction=self._reconstruction(learnt.map), seed=self.seed,
                out=lab.scratch(self), progress=lab.progress,
            )  # fmt: skip
            asked = _protected(client, [(each.source,) for each in (*seen, *unseen)], seen + unseen, privacy)
            sampling = Sampling(max_new_tokens=self.max_new_tokens, num_beams=self.num_beams)
            told = client.generate(
                result.adapter_id, [row[0] for row in asked.rows], sampling=sampling, progress=lab.progress
            )
        texts = [each.text.strip() for each in told]
        if asked.map is not None:
            texts = [asked.map.restore(text, row=row) for row, text in enumerate(texts)]
        counts = bleu_counts(texts, [each.references for each in seen + unseen])
        examples = [(each.source, text) for each, text in zip(seen + unseen, texts, strict=True)]
        drawn: dict[str, Any] = {}
        if learnt.map is not None:
            replaced = learnt.map.replaced / learnt.map.drawn
            drawn = {"eta": eta, "replaced": replaced, "clear": learnt.map.clear_share}
        return Wrote(
            before=result.dev_before, dev=result.dev, seconds=result.seconds,
            counts={SEEN: counts[: len(seen)], UNSEEN: counts[len(seen) :]},
            examples=(*examples[:_EXAMPLES], *examples[-_EXAMPLES:]), **drawn,
        )  # fmt: skip

    def clear(self, lab: Lab) -> None:
        discard(self, self._client(lab), lab)

    def measures(self, result: Wrote) -> Iterator[Measure]:
        for place in (SEEN, UNSEEN, ALL):
            counts = result.of(place)
            value, low, high = corpus_bleu(counts)
            yield Measure("BLEU", value, n=len(counts), lower=low, upper=high, axes={"of": place})
        if result.eta is not None:
            yield Measure("eta", result.eta)
            yield Measure("replaced", result.replaced)
        yield Measure("in clear", result.clear)
        yield Measure("perplexity", min(result.dev))
        yield Measure("seconds", result.seconds)

    def _client(self, lab: Lab) -> Client:
        return lab.client(str(self.seed), source=self.model.name, max_tail=0)

    def _facts(self, lab: Lab) -> tuple[tuple[Facts, ...], ...]:
        """Train, dev, and both of test: the same rows for all arms and seeds."""

        def read() -> tuple[tuple[Facts, ...], ...]:
            files, limits = self.files, self.limits
            asked = ((files.train, limits.train), (files.dev, limits.dev), (files.seen, limits.test))
            return tuple(
                _chosen(read_webnlg(data_file(lab.options.data, files.name, part)), most)
                for part, most in (*asked, (files.unseen, limits.test))
            )

        return lab.once((type(self), self.files, self.limits), read)

    def _eta(self, lab: Lab, train: Sequence[Facts], share: float) -> float:
        """That of the share, for the different entities of training facts; the same for all seeds and methods."""
        replacement = self._replacement()

        def found() -> float:
            entities = sorted({entity.replace("_", " ") for each in train for entity in each.entities})
            tokens = replacement.reading(lab).read(Dataset(tuple((entity,) for entity in entities)), max_content=UNCUT)
            return replacement.eta(lab, tokens, share)

        return lab.once((type(self), replacement, self.files, self.limits, share), found)

    def _reconstruction(self, made: EntityMap | None) -> Reconstruction:
        """Public words before texts, drawn as entities' words were."""
        asked = self.arm.reconstruction
        return asked.model_copy(update={"plain_as": made.job}) if made is not None and asked.plain_tokens else asked

    def _replacement(self) -> Replacement:
        if self.arm.candidates is None:
            raise TypeError("nothing is replaced")
        return Replacement(words=("all",), candidates=self.arm.candidates, space=self.space)


def _protected(
    client: Client, rows: Sequence[tuple[str, ...]], facts: Sequence[Facts], privacy: PrivacySpec | None
) -> Left:
    """Rows about some facts as they leave."""
    if privacy is None:
        return Left([(_spaced(each), *row[1:]) for each, row in zip(facts, rows, strict=True)], None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CutlayerWarning)  # of names outside entities: told in "in clear"
        texts, made = client.protect(rows, [each.entities for each in facts], privacy=privacy)
    return Left([tuple(row) for row in texts], made)


def _chosen(facts: Sequence[Facts], most: int | None) -> tuple[Facts, ...]:
    order = torch.randperm(len(facts), generator=torch.Generator().manual_seed(SPLIT_SEED)).tolist()
    return tuple(facts[row] for row in sorted(order[:most]))


def _pairs(rows: Sequence[Sequence[str]]) -> Dataset:
    """The facts of each row, with each text that states them."""
    pairs = tuple((source, reference) for source, *references in rows for reference in references)
    if not pairs:
        raise DataError("There are no facts.", remedy="Choose another size.")
    return Dataset(pairs)


def _spaced(facts: Facts) -> str:
    """Facts as one text with blanks in entities' names, as those have that are protected."""
    named = tuple((one.replace("_", " "), what, other.replace("_", " ")) for one, what, other in facts.triples)
    return Facts(named, facts.references, facts.category).source


class WritingSpec(Spec):
    """What part `table-5` trains, and what is asked of it.

    Attributes:
        files: The data set.
        model: Which learns.
        space: The model whose token embeddings give words their vectors.
        arms: Ways to protect entities, by name; the first leaves them as they are.
        order: Of the arms, those of which the paper finds that each gains over the one before it.
        methods: Of tuning, by name.
        training: How each is trained.
        replaced: Share of entities' words that the etas shall replace.
        num_beams: Continuations that are followed.
        max_new_tokens: Tokens of a text at most.
    """

    files: FactFiles
    model: str
    space: str
    arms: Annotated[Mapping[str, EntityArm], named("arm")]
    order: tuple[str, ...]
    methods: Mapping[str, TuningSpec]
    training: Mapping[str, Mapping[str, Setting]]
    replaced: float = Field(gt=0, lt=1)
    num_beams: int = Field(ge=2)
    max_new_tokens: int = Field(ge=1)

    @property
    def ordered(self) -> Mapping[str, EntityArm]:
        """The arms of `order`."""
        return {name: self.arms[name] for name in self.order}

    def weighed(self, weigh: Callable[[Reconstruction], Reconstruction]) -> Self:
        """The same with another weight of what is reconstructed."""
        arms = Named("arm", self.arms)
        for name, arm in self.arms.items():
            arms[name] = arm.model_copy(update={"reconstruction": weigh(arm.reconstruction)})
        return self.model_copy(update={"arms": arms})

    def scenarios(self, lab: Lab, limits: FactLimits, said: Mapping[str, Mapping[str, Setting]]) -> Iterator[Scenario]:
        """All arms by all methods.

        Args:
            lab: Where models are.
            limits: How much of the data.
            said: What a size changes of each method's training.
        """
        for (method, tuning), (name, arm) in product(self.methods.items(), self.arms.items()):
            training = {**self.training[method], **said.get(method, {}), "packing": False}
            cell = FactCell(
                files=self.files, limits=limits, model=Source.of(self.model, lab), space=Source.of(self.space, lab),
                arm=arm, share=None if arm.candidates is None else self.replaced, tuning=tuning,
                training=settled(Objective.LM, tuning, training), num_beams=self.num_beams,
                max_new_tokens=limits.new_tokens or self.max_new_tokens,
            )  # fmt: skip
            yield from Scenario.each(lab.options.seeds, cell, arm=name, method=method)


def gains(results: Results, arms: Mapping[str, EntityArm]) -> Iterator[Measure]:
    """By how much each arm's BLEU is above that of the one before it, by method and test file, over all seeds."""
    found = results.of(FactCell)
    for method in dict.fromkeys(cell.tuning.method for cell, _ in found):
        own = [(cell, wrote) for cell, wrote in found if cell.tuning.method == method]
        for before, (name, arm) in pairwise(arms.items()):
            pair = [[wrote for cell, wrote in own if cell.arm == each] for each in (before[1], arm)]
            if not all(pair) or len(pair[0]) != len(pair[1]):
                continue
            for place in (SEEN, UNSEEN, ALL):
                value, low, high = bleu_gain(*(_over_seeds(runs, place) for runs in pair))
                axes: dict[str, Level] = {"method": method, "arm": name, "of": place}
                n = len(pair[0][0].of(place))
                yield Measure(GAINED, value, n=n, lower=low, upper=high, axes=axes)


def _over_seeds(runs: Sequence[Wrote], place: str) -> tuple[Counts, ...]:
    """Counts of each row, added up over runs: their facts are the same."""
    return tuple(tuple(map(sum, zip(*own, strict=True))) for own in zip(*(run.of(place) for run in runs), strict=True))


def examples(results: Results) -> Iterable[Table]:
    """What was written about some facts of each test file, by the first seed."""
    rows = [
        (facts, cell.tuning.method, cell.arm.title, text)
        for cell, wrote in results.of(FactCell)
        if cell.seed == 0
        for facts, text in wrote.examples
    ]
    yield Table(
        title="Table V: what was written",
        columns=("facts", "tuning", "entities", "text"),
        rows=tuple(sorted(rows, key=lambda row: row[0])),
        notes=("Entities are back in their places. The first facts of both test files; public text.",),
    )
