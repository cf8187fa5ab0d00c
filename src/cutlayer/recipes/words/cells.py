"""The cells of the recipe: texts as they left in one way, and all that is read of them; finished once and kept."""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum
from functools import cache
from typing import Any

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict
from torch import Tensor

from cutlayer.attacks import (
    ATTACKS,
    Attack,
    ControlFailed,
    Examined,
    Further,
    Knowledge,
    LinearInversion,
    LinearInversionSpec,
    MaximumPosterior,
    Measured,
    Noise,
    NotApplicable,
    PublicText,
    Reading,
    SeenFrame,
    TokenTruth,
    Transcript,
    bootstrap,
    clustered,
    examine,
)
from cutlayer.attacks.inversion.linear import PublicInputs
from cutlayer.attacks.simulate import boundary, simulate
from cutlayer.core import ConfigError, Cut, Fault, Payload, Proportion, Rows, Spec, Tokens
from cutlayer.customer import Home, Progress
from cutlayer.customer.handout import local_archive
from cutlayer.data import tokenise
from cutlayer.models import Archive, block_list, family_of, fingerprint, load_model
from cutlayer.privacy import PrivacySpec
from cutlayer.privacy.mechanisms import DChi
from cutlayer.recipes.experiment import Calibration, Stoppable, finish
from cutlayer.recipes.recipe import Order
from cutlayer.recipes.releases import identifier, release
from cutlayer.recipes.tasks import TextFile
from cutlayer.recipes.words.config import Scale, WordsConfig
from cutlayer.reports import Calibrated, CellStore, etas_for_shares
from cutlayer.wire import WireType, pack, routes
from cutlayer.wire.recording import Direction

PARTS = ("unprotected", "clipped", "token-ids", "floats")
"""What can be run by itself."""
NEAREST, LINEAR, ADAPTIVE, BITS = "nearest-neighbour", "linear-inversion", "maximum-posterior", "float-support"
INFILLING = "masked-infill"
_CALIBRATION_SEED = 0
_SET = "texts"


class Leaving(StrEnum):
    """How texts left."""

    ROAD = "road"
    """Over a customer's own road, through its gate."""
    TABLE = "table rows"
    """As rows of the table, without noise."""
    CLIPPED = "clipped rows"
    """As noisy rows shortened to the table's largest norm. The road does not shorten yet: made by the arithmetic that
    an attacker simulates it with."""
    SINGLE = "single precision"
    """As rows with noise that was drawn and added in single precision, as others do."""


class WordsCell(Spec):
    """Texts that left in one way, and who reads them.

    Attributes:
        model: Fingerprint of the model's weights.
        private: The texts.
        leaving: How they left.
        bottom: Blocks at the customer.
        eta: Privacy parameter; infinite without noise.
        attacks: Who reads.
        public: The attacker's own text; `None` for attacks that need none.
        map_tokens: Of it, what a linear map is fitted on.
        seed: Which customer: its secret draws the noise.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=True, ser_json_inf_nan="strings")

    model: str
    private: TextFile
    leaving: Leaving = Leaving.ROAD
    bottom: int = 0
    eta: float = math.inf
    attacks: tuple[str, ...]
    public: TextFile | None = None
    map_tokens: int | None = None
    seed: int

    @property
    def name(self) -> str:
        """The cell in a few words, for its file."""
        known = "" if self.public is None else f"-{self.public.name}"
        how = self.leaving.value.replace(" ", "-")
        return f"{self.private.name}{known}-{how}-b{self.bottom}-eta{self.eta:g}-s{self.seed}"


class Choice(BaseModel):
    """What the adaptive attack chose on its own text; see `attacks.inversion.maximum_posterior.Tuned`.

    Attributes:
        pairs: Draws that the channel was fitted on.
        candidates: Tokens considered in each place.
        weight: The prior's exponent; `None`: releases were taken as they are.
        shrinkage: What the channel's formula was worth in draws; `None` where counts are left out.
        read: The share of its own tokens that it then read.
        as_released: The share that it read by taking releases as they are.
        tokens: Of how many.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    pairs: int
    candidates: int
    weight: float | None
    shrinkage: float | None
    read: float
    as_released: float
    tokens: int


class Read(BaseModel):
    """What an attack made of a cell's texts.

    Attributes:
        outcome: Its number, or why there is none.
        seconds: How long it took, with fitting and controls.
        unseen: The same of tokens that do not stand in the text that a map was fitted on.
        beyond: By how much more it read than the cell's first attack, of the same releases, resampled by text.
        choice: What it chose, if it chooses.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    outcome: Measured | ControlFailed | NotApplicable
    seconds: float
    unseen: Further | None = None
    beyond: Further | None = None
    choice: Choice | None = None


class CellResult(BaseModel):
    """A finished cell.

    Attributes:
        texts: How many left.
        replaced: The share of their tokens that the draw replaced; `None` where rows left.
        fitted: Tokens that a linear map was fitted on; 0 where there is none.
        reads: By attack.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    texts: int
    replaced: float | None = None
    fitted: int = 0
    reads: dict[str, Read]


class CalibrationCell(Spec):
    """Which etas replace which shares of the texts' tokens."""

    model: str
    private: TextFile
    shares: tuple[float, ...]

    @property
    def name(self) -> str:
        """The cell in a few words, for its file."""
        return f"{self.private.name}-calibration"


class Experiment(Stoppable):
    """Where cells are run, and the store of what is finished.

    Args:
        config: The recipe's settings.
        scale: Its size.
        order: Model, data, seeds and folder.
        parts: Which of `PARTS`.
        progress: Where to show progress.

    Attributes:
        model: Fingerprint of the model's weights.

    Raises:
        ConfigError: The model has too few blocks.
        DataError: A data set is missing.
    """

    def __init__(
        self, config: WordsConfig, scale: Scale, order: Order, parts: Sequence[str], progress: Progress
    ) -> None:
        self.folder = order.out
        self.config = config
        self.parts = parts
        self._scale = scale
        self._order = order
        self._progress = progress
        whole = load_model(order.model, head=None)
        self.model = fingerprint(whole)
        blocks = len(block_list(whole, family_of(whole.config).stacks[0]))
        if "unprotected" in parts and max(config.depths) >= blocks:
            raise ConfigError(
                [Fault("depths", max(config.depths), f"must be below the model's {blocks} blocks")],
                remedy="Choose others with --set depths=[0,1].",
            )
        self._home = Home(order.out / "attacker")
        self._finished: CellStore[WordsCell, CellResult] = CellStore(order.out / "cells", CellResult)
        self._calibrations: CellStore[CalibrationCell, Calibration] = CellStore(order.out / "cells", Calibration)
        self._archive = cache(self._cut)
        self._texts = cache(self._tokens)
        self._public = cache(self._public_text)
        for file in (self._mail, self._reviews, *(self._known(each) for each in self._publics)):
            file.path(order.data)  # a missing file is told before anything is run
        self.etas = self._calibrated() if "token-ids" in parts else ()

    # ------------------------------------------------------------ which cells

    @property
    def _mail(self) -> TextFile:
        return self._first(self.config.mail, self._scale.mail)

    @property
    def _reviews(self) -> TextFile:
        return self._first(self.config.reviews, self._scale.reviews)

    @property
    def _publics(self) -> tuple[TextFile, ...]:
        return self.config.public.mail, self.config.public.books, self.config.public.reviews

    def _known(self, file: TextFile) -> TextFile:
        return self._first(file, self._scale.public)

    @staticmethod
    def _first(file: TextFile, texts: int | None) -> TextFile:
        return file if texts is None else file.model_copy(update={"texts": texts})

    def unprotected(self, seed: int) -> list[WordsCell]:
        """Rows without noise: of the table, and behind blocks."""
        common: dict[str, Any] = {"model": self.model, "private": self._mail, "seed": seed}
        table = [WordsCell(**common, leaving=Leaving.TABLE, attacks=(NEAREST,))] if 0 in self.config.depths else []
        return table + [
            WordsCell(
                **common,
                bottom=bottom,
                attacks=(LINEAR,),
                public=self._known(public),
                map_tokens=self.config.map_tokens,
            )
            for bottom in self.config.depths
            for public in (self.config.public.mail, self.config.public.books)
            if bottom
        ]

    def clipped(self, seed: int) -> list[WordsCell]:
        """Noisy rows shortened to the largest norm."""
        return [
            WordsCell(
                model=self.model,
                private=self._mail,
                leaving=Leaving.CLIPPED,
                eta=self.config.clipped,
                attacks=(NEAREST, ADAPTIVE),
                public=self._known(self.config.public.mail),
                seed=seed,
            )
        ]

    def token_ids(self, seed: int) -> list[WordsCell]:
        """Text-to-text, an eta a cell."""
        return [
            WordsCell(
                model=self.model,
                private=self._reviews,
                eta=point.eta,
                attacks=(NEAREST, ADAPTIVE, INFILLING),
                public=self._known(self.config.public.reviews),
                seed=seed,
            )
            for point in self.etas
        ]

    def floats(self, seed: int) -> list[WordsCell]:
        """Rows with noise in single precision, and the road's own on its lattice."""
        few = self._first(self.config.mail, self._scale.floats)
        return [
            WordsCell(model=self.model, private=few, leaving=leaving, eta=eta, attacks=(NEAREST, BITS), seed=seed)
            for eta in self.config.single_precision
            for leaving in (Leaving.SINGLE, Leaving.ROAD)
        ]

    def run(self) -> dict[WordsCell, CellResult]:
        """Results of all cells, those that are finished from the store."""
        of_part = dict(zip(PARTS, (self.unprotected, self.clipped, self.token_ids, self.floats), strict=True))
        cells = [cell for seed in range(self._order.seeds) for part in self.parts for cell in of_part[part](seed)]
        return finish(cells, self._finished, self._run, self._progress)

    # ------------------------------------------------------------ one cell

    def _run(self, cell: WordsCell) -> CellResult:
        folder = self.folder / "transcripts" / self._finished.path(cell).stem
        tokens = self._texts(cell.private)
        transcript, truth, knowledge, replaced = self._left(cell, tokens)
        if cell.public is not None:
            knowledge = replace(knowledge, public=self._public(cell.public))
        if INFILLING in cell.attacks:
            knowledge = replace(knowledge, model=load_model(self._order.model, head=None))
        reads: dict[str, Read] = {}
        first: Reading | None = None
        fitted = 0
        for number, name in enumerate(cell.attacks):
            self._progress.update("attacks", number, len(cell.attacks), name)
            attack = _strength(name, cell)
            begun = time.monotonic()
            found = examine(name, transcript, knowledge=knowledge, truth=truth, run=attack)
            seconds = time.monotonic() - begun
            reading = found.reading
            seen = _fitted_on(knowledge, cell) if name == LINEAR else None
            fitted = fitted if seen is None else seen.tokens
            reads[name] = Read(
                outcome=found.outcome,
                seconds=seconds,
                unseen=None if seen is None or reading is None else _unseen(reading, seen.ids),
                beyond=None if first is None or reading is None else _beyond(reading, first),
                choice=_choice(attack, knowledge, found, rows=cell.leaving is not Leaving.ROAD),
            )
            first = first or reading
        self._progress.update("attacks", len(cell.attacks), len(cell.attacks))
        shutil.rmtree(folder, ignore_errors=True)
        return CellResult(texts=len(tokens), replaced=replaced, fitted=fitted, reads=reads)

    def _left(self, cell: WordsCell, tokens: Tokens) -> tuple[Transcript, TokenTruth, Knowledge, float | None]:
        """What a vendor saw of the texts, what they were, what it knows, and how many tokens were replaced."""
        if cell.leaving is Leaving.ROAD:
            rows = BITS in cell.attacks
            privacy = PrivacySpec.no_privacy()
            if math.isfinite(cell.eta):
                privacy = PrivacySpec(eta=cell.eta, mechanism="vector" if rows else "text-to-text")
            released = release(
                {_SET: tokens},
                privacy,
                bottom=cell.bottom,
                wire_type=WireType.FP32 if rows else WireType.BF16,
                model=self._order.model,
                home=Home(self.folder / "customers" / str(cell.seed)),
                folder=self.folder / "transcripts" / self._finished.path(cell).stem,
                progress=self._progress,
            )
            truth = TokenTruth(tokens, records={identifier(_SET): released.records[_SET]})
            drawn = released.replaced[_SET] if privacy.mechanism == "text-to-text" else None
            return released.transcript, truth, released.knowledge, drawn
        archive = self._archive(cell.bottom)
        if archive.table is None:
            raise TypeError("a bottom has a table")
        table = archive.table.detach().float()
        privacy = PrivacySpec.no_privacy() if math.isinf(cell.eta) else PrivacySpec(mechanism="vector", eta=cell.eta)
        clip = float(table[archive.candidates].norm(dim=1).max()) if cell.leaving is Leaving.CLIPPED else None
        knowledge = Knowledge(
            cut=Cut(bottom=cell.bottom),
            template=archive.template,
            table=table,
            candidates=None if math.isinf(cell.eta) else archive.candidates,
            noise=Noise(privacy, clip=clip),
        )
        rng = np.random.Generator(np.random.PCG64(cell.seed))
        if cell.leaving is Leaving.SINGLE:
            made: Payload = boundary(_added_in_single(tokens, table, cell.eta, rng), knowledge)
        else:
            made = simulate(tokens, knowledge, rows=torch.bfloat16, rng=rng)
        frame = SeenFrame(
            Direction.UP, routes.SHARD_PUT, {"record_set": identifier(_SET), "shard": 0}, lambda: _packed(made)
        )
        records = {identifier(_SET): torch.arange(len(tokens))}
        return Transcript(lambda: [frame]), TokenTruth(tokens, records=records), knowledge, None

    # ------------------------------------------------------------ texts, and what was handed out

    def _cut(self, bottom: int) -> Archive:
        return local_archive(self._home, self._order.model, Cut(bottom=bottom))

    def _tokens(self, file: TextFile) -> Tokens:
        archive = self._archive(0)
        return tokenise(file.read(self._order.data), archive.tokenizer, max_content=archive.template.max_content(1))

    def _public_text(self, file: TextFile) -> PublicText:
        tokens = self._texts(file)
        return PublicText(tokens, source=f"{file.name}/{file.part}, {tokens.total} tokens")

    def _calibrated(self) -> tuple[Calibrated, ...]:
        cell = CalibrationCell(model=self.model, private=self._reviews, shares=self.config.replaced)
        found = self._calibrations.get(cell)
        if found is None:
            archive = self._archive(0)
            search = Knowledge(Cut(), table=archive.table, candidates=archive.candidates).search
            if search is None:
                raise TypeError("a bottom has a table")
            points = etas_for_shares(self._texts(self._reviews), search, cell.shares, seed=_CALIBRATION_SEED)
            found = Calibration(points=tuple(points))
            self._calibrations.put(cell, found)
        return found.points


def _packed(made: Payload) -> dict[str, Tensor]:
    single = isinstance(made, Rows) and made.packed.values.dtype is torch.float32
    return dict(pack(made, vocab_size=2**32, wire_type=WireType.FP32 if single else WireType.BF16))


def _added_in_single(tokens: Tokens, table: Tensor, eta: float, rng: np.random.Generator) -> Tokens:
    """Rows in the place of tokens: noise as float32, added in float32."""
    sides = []
    for side in tokens.segments:
        noise = DChi().noise(etas=np.full(len(side.values), eta), width=table.shape[1], rng=rng)
        sides.append(side.with_values(table[side.values] + torch.from_numpy(noise).float()))
    return Tokens(tuple(sides))


def _strength(name: str, cell: WordsCell) -> Attack:
    if name == LINEAR and cell.map_tokens is not None:
        return replace(ATTACKS[name], run=LinearInversion(LinearInversionSpec(tokens=cell.map_tokens)))
    return ATTACKS[name]


def _fitted_on(knowledge: Knowledge, cell: WordsCell) -> PublicInputs | None:
    if knowledge.public is None or knowledge.template is None or cell.map_tokens is None:
        return None
    return PublicInputs(knowledge.public, knowledge.template, tokens=cell.map_tokens)


def _unseen(reading: Reading, known: Tensor) -> Further | None:
    """What was read of tokens that are not among those known."""
    truth = torch.cat([side.values for side in reading.tokens.segments])
    new = reading.seen & ~torch.isin(truth, known)
    if not bool(new.any()):
        return None
    hits, trials = reading.per_text(reading.right & new), reading.per_text(new)
    return _share("unseen", "tokens that do not stand in the attacker's text", hits, trials)


def _beyond(reading: Reading, first: Reading) -> Further:
    """How many more of the same tokens were read."""
    gained = reading.per_text(reading.right) - first.per_text(first.right)
    return _share("beyond", "more than the first attack, of the same releases", gained, reading.per_text(reading.seen))


def _share(name: str, title: str, hits: Tensor, trials: Tensor) -> Further:
    share: Proportion = clustered(hits, trials)
    return Further(name=name, title=title, value=share.value, interval=bootstrap(hits, trials), n=share.n)


def _choice(attack: Attack, knowledge: Knowledge, found: Examined, *, rows: bool) -> Choice | None:
    if not isinstance(attack.run, MaximumPosterior) or not isinstance(found.outcome, Measured):
        return None
    tuned = attack.run.reader(knowledge.limited(attack.needs), rows=rows).tuned
    return Choice(
        pairs=attack.run.spec.pairs,
        candidates=attack.run.spec.candidates,
        weight=tuned.weight,
        shrinkage=None if math.isinf(tuned.shrinkage) else tuned.shrinkage,
        read=tuned.read,
        as_released=tuned.as_released,
        tokens=tuned.tokens,
    )
