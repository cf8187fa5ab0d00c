"""Texts that left in one of several forms, and what attacks read of them word by word."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import replace
from enum import StrEnum
from typing import Any

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from cutlayer.attacks import (
    ATTACKS,
    Attack,
    ControlFailed,
    Examined,
    Knowledge,
    LinearInversion,
    LinearInversionSpec,
    MaximumPosterior,
    Measured,
    Noise,
    NotApplicable,
    Reading,
    SecondaryMetric,
    SeenFrame,
    TokenTruth,
    Transcript,
    bootstrap,
    examine,
)
from cutlayer.attacks.inversion.linear import PublicInputs
from cutlayer.attacks.simulate import boundary, simulate
from cutlayer.core import ConfigError, Cut, Fault, Payload, Spec, Tokens
from cutlayer.customer.releases import identifier, release
from cutlayer.privacy import NoPrivacy, PrivacySpec, TextToText, Vector
from cutlayer.privacy.mechanisms import DChi
from cutlayer.privacy.spec import D_CHI
from cutlayer.recipes.lab import Cell, Lab
from cutlayer.recipes.long_table import Measure
from cutlayer.recipes.tasks import TextFile
from cutlayer.wire import WireType, pack, routes
from cutlayer.wire.recording import Direction

NEAREST, LINEAR, POSTERIOR, BITS = "nearest-neighbour", "linear-inversion", "maximum-posterior", "float-support"
INFILLING = "masked-infill"
_SET = "texts"


class Form(StrEnum):
    """How texts left."""

    ROAD = "road"
    """Over a customer's own road, through its gate."""
    TABLE = "table rows"
    """As rows of the table, without noise."""
    CLIPPED = "clipped rows"
    """Over the same road, as noisy rows clipped to the table's largest norm (SnD)."""
    ROWS = "rows"
    """Over the same road, as noisy rows as they are."""
    SINGLE = "single precision"
    """As rows with noise that was drawn and added in single precision, as others do."""

    @property
    def slug(self) -> str:
        """For names of cells and folders."""
        return self.value.replace(" ", "-")

    def privacy(self, eta: float, noise: str = D_CHI) -> PrivacySpec:
        """How texts that leave over the road in this form are privatized, with some mechanism's noise."""
        if math.isinf(eta):
            return NoPrivacy()
        if self is Form.ROAD:
            return TextToText(eta=eta, noise=noise)
        return Vector(eta=eta, noise=noise, clip=self is Form.CLIPPED)


def of_mechanism() -> Any:
    """A cell's field for whose noise is drawn; cells keep the names that they had before there was a choice."""
    return Field(default=D_CHI, exclude_if=lambda noise: bool(noise == D_CHI))


_BY_ROAD = (Form.ROAD, Form.CLIPPED, Form.ROWS)


class ReadCell(Cell):
    """Texts that left in one form, and the attacks that read them.

    Attributes:
        private: The texts.
        bottom: Blocks at the customer.
        eta: Privacy parameter; infinite without noise.
        noise: Whose noise is drawn, by the mechanism's name.
        public: The attacker's own text; `None` for attacks that need none.
        map_tokens: Of it, what a linear map is fitted on.
    """

    model: str
    private: TextFile
    form: Form = Form.ROAD
    bottom: int = 0
    eta: float = math.inf
    noise: str = of_mechanism()
    attacks: tuple[str, ...]
    public: TextFile | None = None
    map_tokens: int | None = None

    @property
    def name(self) -> str:
        known = "" if self.public is None else f"-{self.public.name}"
        return f"{self.private.name}{known}-{self.form.slug}-b{self.bottom}-eta{self.eta:g}-s{self.seed}"

    def check(self, lab: Lab) -> None:
        super().check(lab)
        blocks = lab.model(head=None).blocks
        if self.bottom >= blocks:
            raise ConfigError(
                [Fault("depths", self.bottom, f"must be below the model's {blocks} blocks")],
                remedy="Choose others with --set depths=[0,1].",
            )

    def run(self, lab: Lab) -> CellReadings:
        tokens = lab.tokens(self.private)
        transcript, truth, knowledge, replaced = _released(self, tokens, lab)
        if self.public is not None:
            knowledge = replace(knowledge, public=lab.public(self.public))
        if INFILLING in self.attacks:
            knowledge = replace(knowledge, model=lab.model(head=None).whole)
        reads: dict[str, AttackReading] = {}
        first: Reading | None = None
        for number, name in enumerate(self.attacks):
            lab.progress.update("attacks", number, len(self.attacks), name)
            attack = self._strength(name)
            begun = time.monotonic()
            found = examine(name, transcript, knowledge=knowledge, truth=truth, run=attack)
            seconds = time.monotonic() - begun
            known, reading = self._fitted_on(knowledge) if name == LINEAR else None, found.reading
            reads[name] = AttackReading(
                outcome=found.outcome, seconds=seconds, fitted=0 if known is None else known.tokens,
                unseen=None if known is None or reading is None else _unseen(reading, known.ids),
                beyond=None if first is None or reading is None else _share(
                    "beyond", "more than the first attack, of the same releases",
                    reading.per_text(reading.right) - first.per_text(first.right), reading.per_text(reading.seen),
                ),
                choice=_choice(attack, knowledge, found, rows=self.form is not Form.ROAD),
            )  # fmt: skip
            first = first or reading
        lab.progress.update("attacks", len(self.attacks), len(self.attacks))
        return CellReadings(texts=len(tokens), replaced=replaced, reads=reads)

    def measures(self, result: CellReadings) -> Iterator[Measure]:
        if result.replaced is not None:
            yield Measure("replaced", result.replaced)
        for name, read in result.reads.items():
            yield from Measure.outcome(read.outcome, attack=name)
            yield Measure("seconds", read.seconds, attack=name)
            if read.fitted:
                yield Measure("fitted", read.fitted, attack=name)
            for other in (read.unseen, read.beyond):
                if other is not None:
                    yield Measure.secondary(other, attack=name)
            if read.choice is not None:
                yield from read.choice.measures(name)

    def _strength(self, name: str) -> Attack:
        if name == LINEAR and self.map_tokens is not None:
            return replace(ATTACKS[name], run=LinearInversion(LinearInversionSpec(tokens=self.map_tokens)))
        return ATTACKS[name]

    def _fitted_on(self, knowledge: Knowledge) -> PublicInputs | None:
        if knowledge.public is None or knowledge.template is None or self.map_tokens is None:
            return None
        return PublicInputs(knowledge.public, knowledge.template, tokens=self.map_tokens)


class Choice(Spec):
    """What the adaptive attack chose on its own text.

    Attributes:
        pairs: Draws that the channel was fitted on.
        candidates: Tokens considered in each place.
        weight: As of `attacks.maximum_posterior.Tuned`, and so the others; `None` where that is infinite.
    """

    pairs: int
    candidates: int
    weight: float | None
    shrinkage: float | None
    read: float
    as_released: float
    tokens: int

    def measures(self, attack: str) -> Iterator[Measure]:
        names = {"channel draws": "pairs", "candidates": "candidates", "prior's weight": "weight"}
        yield from Measure.fields(self, names, attack=attack)
        yield Measure("formula's worth", self.shrinkage, attack=attack, note="" if self.shrinkage else "formula alone")
        yield Measure("own text", self.read, n=self.tokens, attack=attack)
        yield Measure("own text as released", self.as_released, n=self.tokens, attack=attack)


class AttackReading(Spec):
    """What an attack made of a cell's texts.

    Attributes:
        outcome: Its number, or why there is none.
        seconds: How long it took, with fitting and controls.
        fitted: Tokens that it was fitted on; 0 for none.
        unseen: The same of tokens that do not stand in the text that a map was fitted on.
        beyond: By how much more it read than the cell's first attack, of the same releases, resampled by text.
        choice: What it chose, if it chooses.
    """

    outcome: Measured | ControlFailed | NotApplicable
    seconds: float
    fitted: int = 0
    unseen: SecondaryMetric | None = None
    beyond: SecondaryMetric | None = None
    choice: Choice | None = None


class CellReadings(Spec):
    """How many texts left, the share of their tokens that the draw replaced, if it did, and what attacks read."""

    texts: int
    replaced: float | None = None
    reads: dict[str, AttackReading]


# ---------------------------------------------------------------- how texts left


def _released(cell: ReadCell, tokens: Tokens, lab: Lab) -> tuple[Transcript, TokenTruth, Knowledge, float | None]:
    """What a vendor saw of the texts, what they were, what it knows, and how many tokens were replaced."""
    if cell.form not in _BY_ROAD:
        return _made_up(cell, tokens, lab)
    bits = BITS in cell.attacks
    privacy = (Form.ROWS if bits and cell.form is Form.ROAD else cell.form).privacy(cell.eta, cell.noise)
    wire_type = WireType.FP32 if bits else WireType.BF16
    released = release(
        {_SET: tokens}, privacy, bottom=cell.bottom, wire_type=wire_type, model=lab.options.model,
        home=lab.home(str(cell.seed)), folder=lab.scratch(cell), progress=lab.progress,
    )  # fmt: skip
    truth = TokenTruth(tokens, records={identifier(_SET): released.records[_SET]})
    drawn = released.replaced[_SET] if privacy.mechanism == "text-to-text" else None
    return released.transcript, truth, released.knowledge, drawn


def _made_up(cell: ReadCell, tokens: Tokens, lab: Lab) -> tuple[Transcript, TokenTruth, Knowledge, None]:
    """Forms that the road does not have: one frame, made with a generator of the cell's seed."""
    archive = lab.archive(Cut(bottom=cell.bottom))
    if archive.table is None:
        raise TypeError("a bottom has a table")
    table = archive.table.detach().float()
    privacy = NoPrivacy() if math.isinf(cell.eta) else Vector(eta=cell.eta)
    knowledge = Knowledge(
        cut=Cut(bottom=cell.bottom),
        template=archive.template,
        table=table,
        candidates=None if math.isinf(cell.eta) else archive.candidates,
        noise=Noise(privacy),
    )
    rng = np.random.Generator(np.random.PCG64(cell.seed))
    if cell.form is Form.SINGLE:
        made: Payload = boundary(_added_in_single(tokens, table, cell.eta, rng), knowledge)
    else:
        made = simulate(tokens, knowledge, rows=torch.bfloat16, rng=rng)
    where: dict[str, str | int] = {"record_set": identifier(_SET), "shard": 0}
    wire_type = WireType.FP32 if cell.form is Form.SINGLE else WireType.BF16
    frame = SeenFrame(
        Direction.UP, routes.SHARD_PUT, where, lambda: dict(pack(made, vocab_size=2**32, wire_type=wire_type))
    )
    records = {identifier(_SET): torch.arange(len(tokens))}
    return Transcript(lambda: [frame]), TokenTruth(tokens, records=records), knowledge, None


def _added_in_single(tokens: Tokens, table: Tensor, eta: float, rng: np.random.Generator) -> Tokens:
    """Rows in the place of tokens: noise as float32, added in float32."""
    sides = []
    for side in tokens.segments:
        noise = DChi().noise(etas=np.full(len(side.values), eta), width=table.shape[1], rng=rng)
        sides.append(side.with_values(table[side.values] + torch.from_numpy(noise).float()))
    return Tokens(tuple(sides))


# ---------------------------------------------------------------- what was read beside the attack's own number


def _unseen(reading: Reading, known: Tensor) -> SecondaryMetric | None:
    truth = torch.cat([side.values for side in reading.tokens.segments])
    new = reading.seen & ~torch.isin(truth, known)
    if not bool(new.any()):
        return None
    hits, trials = reading.per_text(reading.right & new), reading.per_text(new)
    return _share("unseen", "tokens that do not stand in the attacker's text", hits, trials)


def _share(name: str, title: str, hits: Tensor, trials: Tensor) -> SecondaryMetric:
    n = int(trials.sum())  # hits beyond another attack's may be below zero: that is no share
    return SecondaryMetric(name=name, title=title, value=float(hits.sum()) / n, interval=bootstrap(hits, trials), n=n)


def _choice(attack: Attack, knowledge: Knowledge, found: Examined, *, rows: bool) -> Choice | None:
    if not isinstance(attack.run, MaximumPosterior) or not isinstance(found.outcome, Measured):
        return None
    tuned = attack.run.reader(knowledge.limited(attack.needs), rows=rows).tuned
    return Choice(
        pairs=attack.run.spec.pairs, candidates=attack.run.spec.candidates, weight=tuned.weight,
        shrinkage=None if math.isinf(tuned.shrinkage) else tuned.shrinkage, read=tuned.read,
        as_released=tuned.as_released, tokens=tuned.tokens,
    )  # fmt: skip
