"""Classifiers that are trained: in one process, or over the road, with attacks on what the vendor saw of it."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from pydantic import BaseModel, Field

from cutlayer.attacks import (
    ATTACKS,
    Attack,
    ControlFailed,
    Knowledge,
    Measured,
    Need,
    NotApplicable,
    Outcome,
    TokenTruth,
    Transcript,
    examine,
)
from cutlayer.core import Cut, DataError, Deviation, Place, Proportion, Spec
from cutlayer.customer import (
    Client,
    FinetuneResult,
    Lora,
    Objective,
    TrainBottom,
    Training,
    TrainSpec,
    TuningSpec,
)
from cutlayer.customer.attacker import AttackerSpec
from cutlayer.customer.corpora import Corpora
from cutlayer.customer.defaults import PAPERS, Learner, settle_training
from cutlayer.customer.evidence import Evidence
from cutlayer.customer.run import Run
from cutlayer.data import Dataset, tokenise
from cutlayer.data.bins import bin_columns
from cutlayer.models import Kind, Quantization
from cutlayer.privacy import CtiSpec, NoPrivacy, PrivacySpec, TextToText, Vector
from cutlayer.recipes.lab import Cell, Lab
from cutlayer.recipes.long_table import Measure
from cutlayer.recipes.model import Model
from cutlayer.recipes.reference.classifier import train_centralised
from cutlayer.recipes.reference.fit import ReferenceRun, order_without_privacy
from cutlayer.recipes.study import Results
from cutlayer.recipes.tasks import SPLIT_SEED, Limits, Splits, Task, TextFile, TopicLabels, find_topics
from cutlayer.reports import Calibrated


class TopicCell(Cell):
    """The topics of a task whose labels they are.

    They are kept, and not for the time alone: a topic that came out otherwise would change a half-finished experiment.
    """

    task: Task

    @property
    def name(self) -> str:
        return f"{self.task.name}-topics"

    @classmethod
    def result_type(cls) -> type[BaseModel]:
        return TopicLabels

    def run(self, lab: Lab) -> TopicLabels:
        if self.task.topics is None:
            raise DataError(f"{self.task.name} has labels of its own.")
        lab.progress.update(f"find topics of {self.task.title}", 0, 1)
        found = find_topics(self.task.read(lab.options.data), self.task.topics, seed=SPLIT_SEED)
        lab.progress.update(f"find topics of {self.task.title}", 1, 1)
        return found


def splits(lab: Lab, task: Task, limits: Limits) -> Splits:
    """A task's rows.

    Raises:
        DataError: A file is missing.
    """

    def read() -> Splits:
        topics = None if task.topics is None else lab.result(TopicCell(task=task))
        return Splits.read(task, lab.options.data, limits, topics)

    return lab.once((task, limits), read)


def calibrated(
    lab: Lab, task: Task, limits: Limits, shares: Sequence[float], *, max_length: int | None
) -> tuple[Calibrated, ...]:
    """The etas that replace these shares of a task's training tokens, of texts cut at `max_length` positions."""
    model, train = lab.model(), splits(lab, task, limits).train
    tokens = tokenise(train, model.tokenizer, max_content=model.template.max_content(train.segments, max_length))
    about = f"{task.model_dump_json()} {limits.model_dump_json()} {max_length}"
    return lab.etas(tokens, shares, about=about, model=model)


def settled(objective: Objective, tuning: TuningSpec, said: Mapping[str, Any], learner: Learner = PAPERS) -> TrainSpec:
    """How a recipe trains: settings of `Training` that it says, and a learner's defaults of what it does not say."""
    return settle_training(Training(**said), objective, tuning, learner)


# ---------------------------------------------------------------- over the road

NOTHING_KNOWN = AttackerSpec(auxiliary_fraction=0)
"""An attacker that knows no record."""


@dataclass(frozen=True)
class SplitRun:
    """A finished run over the road and what it was run on, while its vendor is still there."""

    result: FinetuneResult
    client: Client
    data: Splits
    source: str | None

    def evidence(self, lab: Lab, attacker: AttackerSpec = NOTHING_KNOWN) -> Evidence:
        """What an attacker saw of it, and is asked; numbers among private attributes are asked for as bins."""
        given = Corpora(binned(self.data.train, attacker), self.data.dev, self.data.test)
        archive = lab.archive(self.result.spec.cut, self.source)
        return Evidence.of(self.result.folder, given, archive, home=self.client.home, attacker=attacker)


def binned(texts: Dataset, attacker: AttackerSpec) -> Dataset:
    """Texts whose private attributes that are numbers are bins of these, where the attacker asks for bins."""
    return texts if attacker.bins is None else bin_columns(texts, attacker.secret, attacker.bins)


@contextmanager
def split_run(
    cell: TrainingCell,
    lab: Lab,
    customer: str,
    *,
    train_bottom: TrainBottom = TrainBottom.FROZEN,
    on_dev: bool = False,
    **settings: Any,
) -> Iterator[SplitRun]:
    """Trains a classifier over the road, with further settings of `Client.finetune`.

    The run stays in the cell's folder until `discard` removes it.

    Args:
        cell: What is trained.
        lab: Where.
        customer: Whose folder and secret.
        train_bottom: Whether and how blocks at the customer are trained.
        on_dev: Whether accuracy is that on dev, and the test texts stay unseen.
        settings: Of `Client.finetune`.
    """
    data = splits(lab, cell.task, cell.limits)
    tuning = cell.tuning.model_copy(update={"train_bottom": train_bottom})
    with closing(cell.client(lab, customer)) as client:
        result = client.finetune(
            data.train, dev=data.dev, test=None if on_dev else data.test, tuning=tuning, training=cell.training,
            label_words=cell.label_words or {}, seed=cell.seed, out=lab.scratch(cell), progress=lab.progress,
            **settings,
        )  # fmt: skip
        yield SplitRun(result, client, data, cell.vendor_model(lab))


def discard(cell: Cell, client: Client, lab: Lab) -> None:
    """Removes a finished run: its adapter at the vendor, and its folder with the transcript."""
    folder = lab.scratch(cell)
    with closing(client):
        if Run.is_finished(folder) and (adapter := Run.read(folder).state.adapter) is not None:
            client.delete_adapter(adapter)
    shutil.rmtree(folder, ignore_errors=True)


# ---------------------------------------------------------------- cells


class Steering(StrEnum):
    """Whether contributing tokens get more eta (CTI), and by which score those of a training text do.

    The paper does not say how a text without a label is scored. Here it is scored by the largest score over classes.
    So training texts may be, too (`CLASS_FREE`), or they are scored by their own class (`BY_CLASS`).
    """

    NONE = "plain"
    BY_CLASS = "cti"
    CLASS_FREE = "cti_class_free"


class Trained(Spec):
    """A finished training.

    Attributes:
        ua: Utility accuracy on test.
        ep: Empirical privacy against nearest-neighbour inversion; `None` where that does not apply.
        ep_note: What it covers, or why there is none.
        replaced: Share of tokens that the draw replaced.
        rows: Rows of train, dev and test.
        epochs: How many were trained.
        seconds: How long it took.
        uplink_bytes: What was sent, by category.
        label_recovery: Share of labels read from output gradients.
        deviations: Where the mechanism differs from the papers, or fills in what they leave open.
        attacks: What came of each attack that the cell names.
    """

    ua: Proportion
    ep: Proportion | None = None
    ep_note: str = ""
    replaced: float | None = None
    rows: tuple[int, int, int]
    epochs: int
    seconds: float
    uplink_bytes: Mapping[str, int] = {}
    label_recovery: float | None = None
    deviations: tuple[Deviation, ...] = ()
    attacks: tuple[Measured | ControlFailed | NotApplicable, ...] = ()

    @classmethod
    def of(cls, result: FinetuneResult) -> Trained:
        ep = None
        if result.ep is not None and result.ep_standard_error is not None:
            ep = Proportion(value=result.ep, n=result.ep_n, standard_error=result.ep_standard_error)
        ua = Proportion(value=result.ua, n=result.ua_n, standard_error=result.ua_standard_error)
        same = ("ep_note", "replaced", "epochs", "seconds", "uplink_bytes", "label_recovery", "deviations")
        rows = (result.n_train, result.n_dev, result.n_test)
        return cls(ua=ua, ep=ep, rows=rows, **{name: getattr(result, name) for name in same})


class TrainingCell(Cell):
    """A classifier's training: its data, how much of it, the model's fingerprint, and how that is trained.

    Attributes:
        source: Where the model comes from, where it is another than the recipe's.
        quantize: How the vendor keeps the weights of its blocks, where not in fp32.
        label_words: What an encoder-decoder writes for a label, where not the label itself; `None` of other models.
    """

    task: Task
    limits: Limits
    model: str
    source: str | None = Field(default=None, exclude_if=lambda source: source is None)
    quantize: Quantization | None = Field(default=None, exclude_if=lambda kind: kind is None)
    training: TrainSpec
    tuning: TuningSpec = Lora()
    label_words: Mapping[str, str] | None = Field(default=None, exclude_if=lambda words: words is None)

    def check(self, lab: Lab) -> None:
        super().check(lab)
        splits(lab, self.task, self.limits)

    def vendor_model(self, lab: Lab) -> str | None:
        """What the vendor serves; the recipe's model by default."""
        return self.source

    def client(self, lab: Lab, customer: str) -> Client:
        """A customer of a vendor that hands out bottoms of every depth which leaves it a block, and no tail.

        Args:
            lab: Where vendors are.
            customer: Whose folder and secret.
        """
        source = self.vendor_model(lab)
        model = lab.model(source)
        tail = 0 if model.family.kind is Kind.DECODER else None  # others have none to hand out
        return lab.client(
            customer, source=source, max_bottom=model.blocks - 1, max_tail=tail, quantize=self.quantize
        )  # fmt: skip

    def reference(self, lab: Lab, customer: str) -> ReferenceRun:
        """The same training in one process, in the order of a customer's runs without privacy."""
        data = splits(lab, self.task, self.limits)
        order = order_without_privacy(lab.home(customer).path, self.seed)
        parts = (data.train, data.dev, data.test)
        return ReferenceRun(*parts, lab.options.model, self.training, self.tuning, self.seed, order)

    def measures(self, result: Trained) -> Iterator[Measure]:
        yield Measure.share("UA", result.ua)
        for name, rows in zip(("train", "dev", "test"), result.rows, strict=True):
            yield Measure(f"{name} rows", rows)
        yield from Measure.fields(result, {"epochs": "epochs", "seconds": "seconds"})


class CentralisedCell(TrainingCell):
    """Ordinary PEFT in one process."""

    @property
    def name(self) -> str:
        return f"{self.task.name}-centralised-s{self.seed}"

    def run(self, lab: Lab) -> Trained:
        """Trains on texts as they are, in the order of the customer whose split runs this is read against."""
        whole = self.reference(lab, str(self.seed))
        run = train_centralised(whole, progress=lab.progress)
        rows, epochs = (len(whole.train), len(whole.dev), len(whole.test)), len(run.dev)
        return Trained(ua=run.accuracy, rows=rows, epochs=epochs, seconds=run.seconds)


def told_of(model: Model, tuning: TuningSpec, label_words: Mapping[str, str]) -> dict[str, Any]:
    """A method, and what is written for labels, as a model is told of them: fields of a `TrainingCell`.

    An encoder-decoder has no head that reads a text, so that there is nothing to be said of what it reads.
    """
    if model.family.kind is not Kind.ENCODER_DECODER:
        return {"tuning": tuning, "label_words": None}
    headless = type(tuning)(**tuning.model_dump(exclude={"method", "pooling"}))
    return {"tuning": headless, "label_words": label_words}


class RoadCell(TrainingCell):
    """The same over the road; each seed is a customer with a secret of its own."""

    def clear(self, lab: Lab) -> None:
        """The transcript of a trainable bottom is as large as its epochs' releases."""
        discard(self, self.client(lab, str(self.seed)), lab)


class SplitCell(RoadCell):
    """A classifier whose tokens or rows are noisy.

    Attributes:
        eta: Privacy parameter; eta0 under CTI; infinite for no privacy.
        steering: Whether and how contributing tokens get more eta; nothing to steer without noise.
        bottom: Blocks at the customer.
        train_bottom: Whether and how they are trained.
        place: Whether noise acts on tokens, or on rows behind the blocks.
        attacks: What reads the recorded traffic once the run is finished.
        attacked_tokens: In place of an attack's own limit, how many tokens it is measured on, where it has a limit.
        public: What the attacker reads beforehand.
    """

    eta: float
    steering: Steering = Steering.NONE
    bottom: int = 0
    train_bottom: TrainBottom = TrainBottom.FROZEN
    place: Place = Place.TOKENS
    attacks: tuple[str, ...] = ()
    attacked_tokens: int | None = None
    public: TextFile | None = None

    @property
    def name(self) -> str:
        steering = "" if self.steering is Steering.NONE else f"-{self.steering.replace('_', '-')}"
        bottom = "" if self.train_bottom is TrainBottom.FROZEN else f"-{self.train_bottom}{self.bottom}"
        if self.attacks:
            bottom = f"-blocks{self.bottom}{'' if self.place is Place.TOKENS else '-rows'}-attacked"
        return f"{self.task.name}-eta{self.eta:g}{steering}{bottom}-s{self.seed}"

    def run(self, lab: Lab) -> Trained:
        settings: dict[str, Any] = {
            "train_bottom": self.train_bottom,
            "privacy": self.privacy,
            "cut": Cut(bottom=self.bottom),
        }
        with split_run(self, lab, str(self.seed), **settings) as run:
            attacks = tuple(self._attacked(run.evidence(lab), lab)) if self.attacks else ()
            return Trained.of(run.result).model_copy(update={"attacks": attacks})

    @property
    def privacy(self) -> PrivacySpec:
        if math.isinf(self.eta):
            return NoPrivacy()
        cti = None if self.steering is Steering.NONE else CtiSpec(class_free=self.steering is Steering.CLASS_FREE)
        if self.place is Place.ACTIVATIONS:
            return Vector(eta=self.eta, place=self.place, cti=cti)
        return TextToText(eta=self.eta, cti=cti)

    def measures(self, result: Trained) -> Iterator[Measure]:
        """With privacy: of the run's own attack without a name, of the others by theirs."""
        yield from super().measures(result)
        yield Measure.share("EP", result.ep, note=result.ep_note)
        yield from Measure.fields(result, {"replaced": "replaced", "label recovery": "label_recovery"})
        for outcome in result.attacks:
            yield from Measure.outcome(outcome)
            if isinstance(outcome, Measured):
                yield Measure.share("EP", outcome.privacy, attack=outcome.attack)
            else:
                yield Measure("EP", None, attack=outcome.attack, note=outcome.reason)

    def _attacked(self, evidence: Evidence, lab: Lab) -> Iterator[Outcome]:
        knowledge: Knowledge = evidence.knowledge
        if self.public is not None:
            knowledge = replace(knowledge, public=lab.public(self.public))

        def view(attack: Attack) -> View:
            if attack.tokens is not None and self.attacked_tokens is not None:
                attack = replace(attack, tokens=self.attacked_tokens)
            # controls read made-up traffic behind the same blocks; those of an attack that is told of the noise have it
            told: object = (self.eta, self.place) if Need.NOISE in attack.needs else math.isinf(self.eta)
            same = (self.model, self.bottom, told, self.attacked_tokens, self.public)
            return View(attack, evidence.transcript, knowledge, evidence.tokens, same)

        return examined(self.attacks, lab, view)


@dataclass(frozen=True)
class View:
    """What an attack on a finished run is given.

    Attributes:
        attack: As it is run.
        transcript: What it reads.
        knowledge: What it is granted.
        truth: What it is measured against.
        same: Runs that are alike in this share its controls, which read made-up traffic.
    """

    attack: Attack
    transcript: Transcript
    knowledge: Knowledge
    truth: TokenTruth
    same: tuple[Hashable, ...]


def examined(names: Sequence[str], lab: Lab, view: Callable[[Attack], View]) -> Iterator[Outcome]:
    """What each attack made of a run."""
    for number, name in enumerate(names):
        lab.progress.update("attacks", number, len(names), name)
        given = view(ATTACKS[name])
        key = ("controls", name, *given.same)
        outcome = examine(
            name, given.transcript, knowledge=given.knowledge, truth=given.truth, run=given.attack,
            controls=lab.shared.get(key),
        ).outcome  # fmt: skip
        if not isinstance(outcome, NotApplicable):
            lab.shared[key] = outcome.controls
        yield outcome
    lab.progress.update("attacks", len(names), len(names))


# ---------------------------------------------------------------- what tables of trainings say beside their numbers


def counted(**where: Any) -> Callable[[Results], Iterable[str]]:
    """What accuracies and attacks were counted over."""

    def told(results: Results) -> Iterable[str]:
        rows = results.rows(**where, attack=("", *ATTACKS)).dropna(subset="value")
        n = {
            of: " or ".join(f"{each:g}" for each in sorted(set(own["n"])))
            for of, own in rows[rows["metric"].isin(["UA", "EP"])].groupby(["metric", "attack"])
        }
        named = "; ".join(f"{attack} {each}" for (_, attack), each in n.items() if str(attack))
        drawn = "training tokens for EP, and for the share replaced, which is a count of what these draws did"
        counted = f"of EP, training tokens: {named}" if named else f"{n.get(('EP', ''), 'no')} {drawn}"
        runs = f", in each of {rows['seed'].nunique()} runs" if rows["seed"].nunique() > 1 else ""
        yield f"n: {n.get(('UA', ''), 'no')} test texts for UA; {counted}{runs}. ± is one standard error."

    return told


def reasons(results: Results) -> Iterable[str]:
    """Why attacks have no number, each once."""
    rows = results.rows(metric="EP", attack=tuple(ATTACKS))
    return sorted({": ".join(row) for row in rows[rows["value"].isna()][["attack", "note"]].itertuples(index=False)})
