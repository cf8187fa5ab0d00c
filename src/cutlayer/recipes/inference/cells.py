"""The cells of the recipe: one attack at one eta each, finished once and kept."""

from __future__ import annotations

import gzip
import json
import math
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict
from torch import Tensor

from cutlayer.attacks import (
    ATTACKS,
    AnnotatedText,
    Attack,
    AttributeClassifier,
    AttributeTruth,
    AutoencoderInversion,
    Control,
    ControlFailed,
    EntityTruth,
    Fitting,
    Knowledge,
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
from cutlayer.core import Cut, DataError, Spec, Tokens
from cutlayer.customer import Home, Progress
from cutlayer.data import Dataset, read_dataset, tokenise, tokenise_words
from cutlayer.models import (
    Bottom,
    Head,
    Template,
    candidate_tokens,
    fingerprint,
    load_model,
    load_tokenizer,
    max_length,
    split,
)
from cutlayer.privacy import PrivacySpec
from cutlayer.privacy.neighbours import NeighbourSearch
from cutlayer.recipes.experiment import Calibration, Stoppable
from cutlayer.recipes.inference.config import InferenceConfig, Scale
from cutlayer.recipes.recipe import Order
from cutlayer.recipes.releases import Released, identifier, release
from cutlayer.recipes.tasks import data_file
from cutlayer.reports.cells import CellStore
from cutlayer.reports.replaced_share import Calibrated, etas_for_shares

_CALIBRATION_SEED = 0
_SPLIT_SEED = 0
PARTS = ("figure-3-sap", "figure-3-rapt")
ATTACKED, INVERTED, NAMED = "attacked posts", "inverted posts", "named sentences"
INVERSIONS = ("nearest-neighbour", "mlp-inversion", "autoencoder-inversion")


class AttackCell(Spec):
    """One attack on what was released at one eta.

    Attributes:
        model: Fingerprint of the model's weights.
        attack: Its name.
        eta: Privacy parameter per token; infinite without noise.
        column: The attribute that is guessed; empty for other questions.
        labelled: N_l, posts whose attribute is known; 0 for other questions.
        scale: How much of everything.
        seed: Which customer: its secret draws the noise.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=True, ser_json_inf_nan="strings")

    model: str
    attack: str
    eta: float
    column: str = ""
    labelled: int = 0
    scale: Scale
    seed: int

    @property
    def name(self) -> str:
        """The cell in a few words, for its file."""
        about = f"-{self.column}-{self.labelled}" if self.column else ""
        return f"{self.attack}{about}-eta{self.eta:g}-s{self.seed}"


class Attacked(BaseModel):
    """What a finished cell tells.

    Attributes:
        outcome: The attack's number, or why there is none.
        replaced: Share of the attacked texts' tokens that noise replaced.
        seconds: How long the attack took; with its controls where they were run for it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    outcome: Measured | ControlFailed | NotApplicable
    replaced: float
    seconds: float


class CalibrationCell(Spec):
    """Which etas replace which shares of the attacked posts' tokens."""

    model: str
    posts: str
    attacked: int
    tokens: int
    shares: tuple[float, ...]
    seed: int = _CALIBRATION_SEED

    @property
    def name(self) -> str:
        """The cell in a few words, for its file."""
        return f"{self.posts}-calibration"


@dataclass(frozen=True)
class Results:
    """All cells' results.

    Attributes:
        calibrated: The etas, with the shares that they replace.
        cells: By cell.
        scale: How much of everything.
    """

    calibrated: tuple[Calibrated, ...]
    cells: Mapping[AttackCell, Attacked]
    scale: Scale

    @property
    def etas(self) -> tuple[float, ...]:
        """From the most noise to none."""
        return (*sorted(point.eta for point in self.calibrated), math.inf)

    def of(self, attack: str, *, column: str = "", labelled: int = 0) -> dict[float, list[Attacked]]:
        """The results of an attack, by eta, one for each seed."""
        found: dict[float, list[Attacked]] = {}
        for cell, result in self.cells.items():
            if (cell.attack, cell.column, cell.labelled) == (attack, column, labelled):
                found.setdefault(cell.eta, []).append(result)
        return found


@dataclass(frozen=True)
class _Posts:
    """Posts with what is known of their authors: `labels` by column `[n]`, authors as `groups` `[n]`."""

    tokens: Tokens
    labels: Mapping[str, Tensor]
    groups: Tensor

    def __len__(self) -> int:
        return len(self.tokens)

    def first(self, count: int) -> _Posts:
        """The first posts."""
        kept = torch.arange(min(count, len(self)))
        labels = {column: values[kept] for column, values in self.labels.items()}
        return _Posts(self.tokens.select(kept), labels, self.groups[kept])


class Experiment(Stoppable):
    """Where cells are run, and the store of what is finished.

    Args:
        config: The recipe's settings.
        scale: Its size.
        order: Model, data, seeds and folder.
        parts: Which figures.
        progress: Where to show progress.

    Attributes:
        folder: Everything is kept here; the same folder goes on with an unfinished experiment.
        model: Fingerprint of the model's weights.
    """

    def __init__(
        self, config: InferenceConfig, scale: Scale, order: Order, parts: Sequence[str], progress: Progress
    ) -> None:
        self._config = config
        self._scale = scale
        self._order = order
        self._parts = parts
        self._progress = progress
        self.folder = order.out
        self._whole = load_model(order.model, head=Head.CLASSIFICATION)
        self.model = fingerprint(self._whole)
        self._tokenizer = load_tokenizer(order.model)
        template = Template.from_tokenizer(self._tokenizer, max_length=max_length(self._whole.config))
        self._content = min(scale.tokens, template.max_content(1))
        self._sentence = template.max_content(1)
        self._finished: CellStore[AttackCell, Attacked] = CellStore(order.out / "cells", Attacked)
        self._calibrations: CellStore[CalibrationCell, Calibration] = CellStore(order.out / "cells", Calibration)
        self._controls: dict[tuple[str, str], tuple[Control, ...]] = {}

    def run(self) -> Results:
        """Results of all cells, those that are finished from the store.

        Raises:
            DataError: A data set is missing, or too small.
        """
        calibrated = self._calibrated()
        etas = [*sorted(point.eta for point in calibrated), math.inf]
        cells = [cell for seed in range(self._order.seeds) for eta in etas for cell in self._cells(eta, seed)]
        results: dict[AttackCell, Attacked] = {}
        for cell in cells:
            found = self._finished.get(cell)
            if found is not None:
                results[cell] = found
        for seed in range(self._order.seeds):
            for eta in etas:
                self._at(eta, seed, cells, results)
        return Results(calibrated, {cell: results[cell] for cell in cells}, self._scale)

    # ------------------------------------------------------------ which cells

    def _cells(self, eta: float, seed: int) -> Iterator[AttackCell]:
        most, posts, scale = max(self._scale.labelled), self._config.posts, self._scale
        found: dict[AttackCell, None] = {}

        def add(attack: str, column: str = "", labelled: int = 0) -> None:
            cell = AttackCell(
                model=self.model, attack=attack, eta=eta, column=column, labelled=labelled, scale=scale, seed=seed
            )
            found[cell] = None

        if "figure-3-sap" in self._parts:
            for column in posts.columns:
                for labelled in scale.labelled:
                    if column in scale.tuned:
                        add("attribute-classifier", column, labelled)
                    add("attribute-mlp", column, labelled)
                add("attribute-lengths", column, most)
        if "figure-3-rapt" in self._parts:
            for attack in INVERSIONS:
                add(attack)
            for column in posts.columns:
                add("attribute-mlp", column, most)
            add("ner")
        return iter(found)

    def _at(self, eta: float, seed: int, cells: Sequence[AttackCell], results: dict[AttackCell, Attacked]) -> None:
        """Runs what is not finished at one eta."""
        own = [cell for cell in cells if (cell.eta, cell.seed) == (eta, seed)]
        missing = [cell for cell in own if cell not in results]
        if not missing:
            return
        folder = self.folder / "transcripts" / f"eta{eta:g}-s{seed}"
        home = Home(self.folder / "customers" / str(seed))
        released = release(
            dict(self._texts()),
            PrivacySpec.no_privacy() if math.isinf(eta) else PrivacySpec(eta=eta),
            model=self._order.model,
            home=home,
            folder=folder,
            progress=self._progress,
        )
        for cell in missing:
            self._progress.update("cells", len(results), len(cells), cell.name)
            results[cell] = self._attack(cell, released)
            self._finished.put(cell, results[cell])
        self._progress.update("cells", len(results), len(cells))
        shutil.rmtree(folder)

    def _attack(self, cell: AttackCell, released: Released) -> Attacked:
        begun = time.monotonic()
        transcript, truth = self._target(cell, released)
        # what is checked on made-up texts does not depend on the noise of these
        checked = (cell.attack, cell.column)
        outcome = examine(
            cell.attack,
            transcript,
            knowledge=self._knowledge(released),
            truth=truth,
            run=self._strength(cell.attack),
            controls=self._controls.get(checked),
        ).outcome
        if cell.column and isinstance(outcome, Measured):
            self._controls[checked] = outcome.controls
        of = NAMED if cell.attack == "ner" else ATTACKED if cell.column else INVERTED
        return Attacked(outcome=outcome, replaced=released.replaced[of], seconds=time.monotonic() - begun)

    def _strength(self, attack: str) -> Attack:
        """The attack in this size's strength."""
        scale = self._scale
        runs: dict[str, Any] = {
            "attribute-classifier": lambda: AttributeClassifier(
                positions=self._content + 2, fitting=Fitting(passes=scale.passes, batch=16, learning_rate=1e-3)
            ),
            "mlp-inversion": lambda: MlpInversion(tokens=scale.pairs, queries=scale.queries),
            "autoencoder-inversion": lambda: AutoencoderInversion(tokens=scale.pairs, queries=scale.queries),
        }
        return replace(ATTACKS[attack], run=runs[attack]()) if attack in runs else ATTACKS[attack]

    def _target(self, cell: AttackCell, released: Released) -> tuple[Transcript, Truth]:
        if cell.column:
            return self._attribute(cell, released)
        if cell.attack == "ner":
            tokens, tags = self._named
            records = {identifier(NAMED): released.records[NAMED]}
            return released.only([NAMED]), EntityTruth(tokens, records=records, tags=tags, names=self._tag_names)
        records = {identifier(INVERTED): released.records[INVERTED]}
        return released.only([INVERTED]), TokenTruth(self._inverted, records=records, search=self._search)

    def _attribute(self, cell: AttackCell, released: Released) -> tuple[Transcript, AttributeTruth]:
        """Posts of known authors, N_l of them, and the attacked ones."""
        sets = [*(name for last, name in self._known_sets if last <= cell.labelled), ATTACKED]
        known, attacked = self._known.first(cell.labelled), self._attacked
        of_set = torch.cat([torch.full_like(released.records[name], place) for place, name in enumerate(sets)])
        record_of = torch.cat([released.records[name] for name in sets])
        truth = AttributeTruth(
            torch.cat([known.labels[cell.column], attacked.labels[cell.column]]),
            len(self._config.posts.columns[cell.column]),
            torch.arange(len(known) + len(attacked)) < len(known),
            records={
                identifier(name): torch.where(of_set == place, record_of, ELSEWHERE) for place, name in enumerate(sets)
            },
            groups=torch.cat([known.groups, attacked.groups]),
        )
        return released.only(sets), truth

    # ------------------------------------------------------------ data

    @cached_property
    def _known(self) -> _Posts:
        return self._posts(self._config.posts.known, max(self._scale.labelled))

    @cached_property
    def _attacked(self) -> _Posts:
        return self._posts(self._config.posts.attacked, self._scale.attacked)

    @property
    def _inverted(self) -> Tokens:
        return self._attacked.first(self._scale.inverted).tokens

    @property
    def _known_sets(self) -> list[tuple[int, str]]:
        """Known posts in sets that follow one another: with which set N_l posts are full."""
        return [(last, f"known posts to {last}") for last in sorted(self._scale.labelled)]

    def _texts(self) -> Iterator[tuple[str, Tokens]]:
        """All that is released, set by set."""
        first = 0
        for last, name in self._known_sets:
            yield name, self._known.tokens.select(torch.arange(first, last))
            first = last
        yield ATTACKED, self._attacked.tokens
        if "figure-3-rapt" in self._parts:
            # the same releases once more, by themselves: no further look
            yield INVERTED, self._inverted
            yield NAMED, self._named[0]

    @cached_property
    def _public(self) -> PublicText:
        posts = self._posts(self._config.posts.public, self._scale.public)
        return PublicText(posts.tokens, source=f"{self._config.posts.name}/{self._config.posts.public}")

    def _posts(self, part: str, count: int) -> _Posts:
        """So many posts of a file, at random, each author known by a number."""
        posts = self._config.posts
        dataset = read_dataset(
            data_file(self._order.data, posts.name, part),
            text_column="text",
            attribute_columns=[*posts.columns, posts.group],
        )
        order = torch.randperm(len(dataset), generator=torch.Generator().manual_seed(_SPLIT_SEED))[:count].tolist()
        if len(order) < count:
            raise DataError(
                f"{posts.name}/{part} has {len(dataset)} posts, not {count}.", remedy="Choose another size."
            )
        chosen = dataset.select(order)
        labels = {
            column: torch.tensor([names.index(value) for value in chosen.attributes[column]])
            for column, names in posts.columns.items()
        }
        authors = torch.tensor([int(author) for author in chosen.attributes[posts.group]])
        tokens = tokenise(Dataset(chosen.texts), self._tokenizer, max_content=self._content)
        return _Posts(tokens, labels, authors)

    @cached_property
    def _named(self) -> tuple[Tokens, Tokens]:
        return self._tagged(self._config.entities.attacked, self._scale.named)

    @cached_property
    def _annotated(self) -> AnnotatedText:
        entities = self._config.entities
        tokens, tags = self._tagged(entities.annotated, self._scale.annotated)
        return AnnotatedText(tokens, tags=tags, names=self._tag_names, source=f"{entities.name}/{entities.annotated}")

    @cached_property
    def _tag_names(self) -> tuple[str, ...]:
        """Of all entities that are annotated, and those that may follow inside of one."""
        kinds = {tag[2:] for row in self._rows(self._config.entities.annotated) for tag in row["tags"] if tag != "O"}
        return ("O", *(f"{place}-{kind}" for kind in sorted(kinds) for place in "BI"))

    def _tagged(self, part: str, count: int) -> tuple[Tokens, Tokens]:
        rows = self._rows(part)[:count]
        numbers = {name: number for number, name in enumerate(self._tag_names)}
        marks = [[numbers.get(tag, 0) for tag in row["tags"]] for row in rows]
        return tokenise_words([row["tokens"] for row in rows], marks, self._tokenizer, max_content=self._sentence)

    def _rows(self, part: str) -> list[dict[str, list[str]]]:
        with gzip.open(data_file(self._order.data, self._config.entities.name, part), "rt", encoding="utf-8") as file:
            return [json.loads(line) for line in file]

    # ------------------------------------------------------------ what the attacker is granted

    def _knowledge(self, released: Released) -> Knowledge:
        known = replace(released.knowledge, model=self._whole)
        if "figure-3-rapt" not in self._parts:
            return known
        return replace(known, public=self._public, annotated=self._annotated)

    @cached_property
    def _search(self) -> NeighbourSearch:
        """Of the whole table: a guessed row is no release."""
        bottom = split(self._whole, Cut(bottom=0)).bottom
        if not isinstance(bottom, Bottom):
            raise TypeError("a bottom of embeddings has a table")
        table = bottom.table.detach()
        return NeighbourSearch(table, candidate_tokens(self._tokenizer, vocab_size=len(table)))

    def _calibrated(self) -> tuple[Calibrated, ...]:
        cell = CalibrationCell(
            model=self.model,
            posts=self._config.posts.name,
            attacked=self._scale.attacked,
            tokens=self._scale.tokens,
            shares=self._config.replaced,
        )
        found = self._calibrations.get(cell)
        if found is None:
            points = etas_for_shares(self._attacked.tokens, self._search, cell.shares, seed=cell.seed)
            found = Calibration(points=tuple(points))
            self._calibrations.put(cell, found)
        return found.points
