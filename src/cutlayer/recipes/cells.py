"""The parts of an experiment: one training run each, finished once, kept, and never run again."""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import cast

from pydantic import BaseModel, ConfigDict

from cutlayer.attacks import (
    ATTACKS,
    Control,
    ControlFailed,
    Measured,
    Need,
    NotApplicable,
    Outcome,
    PublicText,
    examine,
)
from cutlayer.core import Cut, Deviation, Place, Proportion, Spec
from cutlayer.customer import FinetuneResult, Home, Progress, TrainBottom, TrainSpec
from cutlayer.customer.evidence import Evidence
from cutlayer.customer.handout import local_archive
from cutlayer.customer.prepare import Corpora
from cutlayer.data import Dataset, tokenise
from cutlayer.models import (
    Archive,
    Bottom,
    Head,
    Template,
    block_list,
    candidate_tokens,
    family_of,
    fingerprint,
    load_model,
    load_tokenizer,
    max_length,
    share_handed_out,
    split,
)
from cutlayer.privacy.neighbours import NeighbourSearch
from cutlayer.recipes.centralised import order_without_privacy, train_centralised
from cutlayer.recipes.experiment import Calibration, Stoppable
from cutlayer.recipes.loopback import Loopback
from cutlayer.recipes.tasks import Limits, Splits, Task, TextFile, fresh_topics
from cutlayer.recipes.topics import TopicLabels, Topics
from cutlayer.reports import Calibrated, CellStore, etas_for_shares

_CALIBRATION_SEED = 0


class CentralisedCell(Spec):
    """Ordinary PEFT in one process.

    Attributes:
        task: The data.
        limits: How much of it.
        model: Fingerprint of the model's weights.
        training: How it is trained.
        seed: Initialisation, order, dropout; and which customer's secret the noise comes from.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=True, ser_json_inf_nan="strings")

    task: Task
    limits: Limits
    model: str
    training: TrainSpec
    seed: int

    @property
    def name(self) -> str:
        """The cell in a few words, for its file."""
        return f"{self.task.name}-centralised-s{self.seed}"


class Steering(StrEnum):
    """Whether contributing tokens get more eta (CTI), and by which score a training text's tokens do.

    The paper does not say how a text without label is scored. Here it is by the largest score over
    classes; so training texts may be, too (`CLASS_FREE`), or by their own class's (`BY_CLASS`).
    """

    NONE = "plain"
    BY_CLASS = "cti"
    CLASS_FREE = "cti_class_free"

    @property
    def ending(self) -> str:
        """Of a cell's name."""
        return "" if self is Steering.NONE else f"-{self.replace('_', '-')}"


class SplitCell(CentralisedCell):
    """The same over the road.

    Attributes:
        eta: Privacy parameter; eta0 under CTI; infinite for no privacy.
        steering: Whether and how contributing tokens get more eta; nothing to steer without noise.
        bottom: Blocks at the customer.
        train_bottom: Whether and how they are trained.
    """

    eta: float
    steering: Steering = Steering.NONE
    bottom: int = 0
    train_bottom: TrainBottom = TrainBottom.FROZEN

    @property
    def name(self) -> str:
        """The cell in a few words, for its file."""
        bottom = "" if self.train_bottom is TrainBottom.FROZEN else f"-{self.train_bottom}{self.bottom}"
        return f"{self.task.name}-eta{self.eta:g}{self.steering.ending}{bottom}-s{self.seed}"


class AttackedCell(SplitCell):
    """A run whose recorded traffic is attacked, by name of the attack, once it is finished.

    Attributes:
        place: Whether noise acts on tokens, or on rows behind the blocks.
        attacks: Which.
        attacked_tokens: Of an attack that is measured on so many tokens at most, how many; in place of its own number.
        public: What the attacker reads beforehand.
    """

    place: Place = Place.TOKENS
    attacks: tuple[str, ...]
    attacked_tokens: int
    public: TextFile

    @property
    def name(self) -> str:
        """The cell in a few words, for its file."""
        place = "" if self.place is Place.TOKENS else "-rows"
        return (
            f"{self.task.name}-blocks{self.bottom}-eta{self.eta:g}{place}{self.steering.ending}-attacked-s{self.seed}"
        )


class CellResult(BaseModel):
    """What a finished cell tells.

    Attributes:
        ua: Utility accuracy on test.
        ep: Empirical privacy; `None` where the attack does not apply.
        ep_note: What it covers, or why there is none.
        replaced: Share of tokens that the draw replaced.
        rows: Rows of train, dev and test.
        epochs: How many were trained.
        seconds: How long it took.
        uplink_bytes: What was sent, by category.
        label_recovery: Share of labels read from output gradients.
        deviations: Where the run differs from the paper.
        attacks: What came of each attack that the cell names.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    ua: Proportion
    ep: Proportion | None = None
    ep_note: str = ""
    replaced: float | None = None
    rows: tuple[int, int, int]
    epochs: int
    seconds: float
    uplink_bytes: dict[str, int] = {}
    label_recovery: float | None = None
    deviations: tuple[Deviation, ...] = ()
    attacks: tuple[Measured | ControlFailed | NotApplicable, ...] = ()


class CalibrationCell(Spec):
    """Which eta replaces which share of a task's tokens."""

    task: Task
    limits: Limits
    model: str
    shares: tuple[float, ...]
    max_length: int | None

    @property
    def name(self) -> str:
        """The cell in a few words, for its file."""
        return f"{self.task.name}-calibration"


class TopicCell(Spec):
    """The topics of a task whose labels they are."""

    task: Task

    @property
    def name(self) -> str:
        """The cell in a few words, for its file."""
        return f"{self.task.name}-topics"


class Experiment(Stoppable):
    """Where cells are run: data, model, a vendor of its own on loopback, and the store of what is finished.

    Args:
        folder: Everything is kept here; the same folder goes on with an unfinished experiment.
        model: `starter`, a local folder or a hub id.
        data: The folder of public data sets.
        progress: Where to show progress.
    """

    def __init__(self, folder: Path, *, model: str, data: Path, progress: Progress) -> None:
        self.folder = folder
        self.source = model
        whole = load_model(model, head=Head.CLASSIFICATION)
        self.model = fingerprint(whole)
        self.family = family_of(whole.config)
        self._data = data
        self._progress = progress
        self._config = whole.config
        self.blocks = len(block_list(whole, self.family.stacks[0]))
        # as deep as any cell asks for
        self._loopback = Loopback(folder / "vendor", model, max_bottom=self.blocks - 1)
        self._finished: CellStore[CentralisedCell, CellResult] = CellStore(folder / "cells", CellResult)
        self._calibrations: CellStore[CalibrationCell, Calibration] = CellStore(folder / "cells", Calibration)
        self._labels: CellStore[TopicCell, TopicLabels] = CellStore(folder / "cells", TopicLabels)
        self.splits = cache(self._splits)
        self._public = cache(self._public_text)
        self._archives: dict[int, Archive] = {}
        self._controls: dict[tuple[object, ...], tuple[Control, ...]] = {}

    def stop(self) -> None:
        """Ends the vendor."""
        self._loopback.stop()

    def _splits(self, task: Task, limits: Limits) -> Splits:
        return Splits.read(task, self._data, limits, label=self._topics)

    def _topics(self, task: Task, topics: Topics, datasets: Sequence[Dataset]) -> TopicLabels:
        # kept, not for the time alone: a topic that came out otherwise would change a half-finished experiment
        cell = TopicCell(task=task)
        found = self._labels.get(cell)
        if found is None:
            stage = f"find topics of {task.title}"
            self._progress.update(stage, 0, 1)
            found = fresh_topics(task, topics, datasets)
            self._labels.put(cell, found)
            self._progress.update(stage, 1, 1)
        return found

    def handed_out(self, bottom: int) -> float:
        """The share of the model's weights that a customer gets with so many blocks."""
        return share_handed_out(load_model(self.source, head=Head.CLASSIFICATION), Cut(bottom=bottom))

    def calibrated(
        self, task: Task, limits: Limits, shares: Sequence[float], *, max_tokens: int | None
    ) -> tuple[Calibrated, ...]:
        """The etas that replace these shares of a task's training tokens, from the store or measured."""
        cell = CalibrationCell(task=task, limits=limits, model=self.model, shares=tuple(shares), max_length=max_tokens)
        found = self._calibrations.get(cell)
        if found is None:
            whole = load_model(self.source, head=Head.CLASSIFICATION)
            tokenizer = load_tokenizer(self.source)
            template = Template.from_tokenizer(tokenizer, max_length=max_length(whole.config))
            train = self.splits(task, limits).train
            tokens = tokenise(train, tokenizer, max_content=template.max_content(train.segments, max_tokens))
            table = cast(Bottom, split(whole, Cut(bottom=0)).bottom).table
            search = NeighbourSearch(table, candidate_tokens(tokenizer, vocab_size=len(table)))
            found = Calibration(points=tuple(etas_for_shares(tokens, search, shares, seed=_CALIBRATION_SEED)))
            self._calibrations.put(cell, found)
        return found.points

    def run(self, cells: Sequence[CentralisedCell]) -> dict[CentralisedCell, CellResult]:
        """Results of cells, those that are finished from the store, the others run in order."""
        results: dict[CentralisedCell, CellResult] = {}
        for number, cell in enumerate(dict.fromkeys(cells), start=1):
            self._progress.update("cells", number - 1, len(set(cells)), cell.name)
            results[cell] = self._finished.get(cell) or (
                self._split(cell) if isinstance(cell, SplitCell) else self._centralised(cell)
            )
            self._progress.update("cells", number, len(set(cells)), cell.name)
        return results

    def _customer(self, seed: int) -> Path:
        """Each seed is a customer of its own: the same secret would draw the same noise for the same text."""
        return self.folder / "customers" / str(seed)

    def _centralised(self, cell: CentralisedCell) -> CellResult:
        splits = self.splits(cell.task, cell.limits)
        run = train_centralised(
            splits.train,
            splits.dev,
            splits.test,
            model=self.source,
            training=cell.training,
            seed=cell.seed,
            order=order_without_privacy(self._customer(cell.seed), cell.seed),
            progress=self._progress,
        )
        found = CellResult(
            ua=run.accuracy,
            rows=(len(splits.train), len(splits.dev), len(splits.test)),
            epochs=len(run.dev),
            seconds=run.seconds,
            deviations=cell.training.deviations(self.family),
        )
        self._finished.put(cell, found)
        return found

    def _split(self, cell: SplitCell) -> CellResult:
        splits = self.splits(cell.task, cell.limits)
        client = self._loopback.client(self._customer(cell.seed), self._progress)
        run = self.folder / "runs" / self._finished.path(cell).stem
        place = cell.place if isinstance(cell, AttackedCell) else Place.TOKENS
        with closing(client):
            result = client.finetune(
                splits.train,
                dev=splits.dev,
                test=splits.test,
                eta=cell.eta,
                mechanism="vector" if place is Place.ACTIVATIONS else None,
                place=place,
                cti=cell.steering is Steering.BY_CLASS,
                cti_class_free=cell.steering is Steering.CLASS_FREE,
                bottom=cell.bottom,
                train_bottom=cell.train_bottom,
                training=cell.training,
                seed=cell.seed,
                out=run,
                progress=self._progress,
            )
            found = _result(result)
            if isinstance(cell, AttackedCell):
                found = found.model_copy(update={"attacks": tuple(self._attacked(cell, run, client.home))})
            self._finished.put(cell, found)  # before anything of it is deleted
            # the transcript of a trainable bottom is as large as its epochs' releases
            client.delete_adapter(result.adapter_id)
        shutil.rmtree(run)
        return found

    def _attacked(self, cell: AttackedCell, run: Path, home: Home) -> Iterator[Outcome]:
        """What each attack reads of a finished run."""
        splits = self.splits(cell.task, cell.limits)
        archive = self._archive(cell.bottom, home)
        evidence = Evidence.of(run, Corpora(splits.train, splits.dev, splits.test), archive, home=home)
        knowledge = replace(evidence.knowledge, public=self._public(cell.public))
        for name in cell.attacks:
            self._progress.update("attacks", cell.attacks.index(name), len(cell.attacks), name)
            attack = ATTACKS[name]
            if attack.tokens is not None:
                attack = replace(attack, tokens=cell.attacked_tokens)
            # made-up traffic behind the same blocks; an attack that is told of the noise is checked with it
            told: object = (cell.eta, cell.place) if Need.NOISE in attack.needs else math.isinf(cell.eta)
            key = (name, cell.bottom, told, cell.attacked_tokens)
            outcome = examine(
                name,
                evidence.transcript,
                knowledge=knowledge,
                truth=evidence.tokens,
                run=attack,
                controls=self._controls.get(key),
            ).outcome
            if not isinstance(outcome, NotApplicable):
                self._controls[key] = outcome.controls
            yield outcome
        self._progress.update("attacks", len(cell.attacks), len(cell.attacks))

    def _archive(self, bottom: int, home: Home) -> Archive:
        """What is handed out for a cut; one object for each, by which attacks know what they fitted for it."""
        if bottom not in self._archives:
            self._archives[bottom] = local_archive(home, self.source, Cut(bottom=bottom))
        return self._archives[bottom]

    def _public_text(self, file: TextFile) -> PublicText:
        tokenizer = load_tokenizer(self.source)
        template = Template.from_tokenizer(tokenizer, max_length=max_length(self._config))
        tokens = tokenise(file.read(self._data), tokenizer, max_content=template.max_content(1))
        return PublicText(tokens, source=f"{file.name}/{file.part}, {tokens.total} tokens")


def _result(result: FinetuneResult) -> CellResult:
    ep = None
    if result.ep is not None and result.ep_standard_error is not None:
        ep = Proportion(value=result.ep, n=result.ep_n, standard_error=result.ep_standard_error)
    return CellResult(
        ua=Proportion(value=result.ua, n=result.ua_n, standard_error=result.ua_standard_error),
        ep=ep,
        ep_note=result.ep_note,
        replaced=result.replaced,
        rows=(result.n_train, result.n_dev, result.n_test),
        epochs=result.epochs,
        seconds=result.seconds,
        uplink_bytes=result.uplink_bytes,
        label_recovery=result.label_recovery,
        deviations=result.deviations,
    )
