"""The cells of the recipe: a run or a training each, attacked at once, finished once and kept."""

from __future__ import annotations

import math
import shutil
from collections.abc import Sequence
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any, cast

import torch
from peft import PeftModel
from pydantic import BaseModel, ConfigDict
from torch import Tensor, nn
from transformers import PreTrainedModel

from cutlayer.attacks import Knowledge, LabelTruth, SeenStep
from cutlayer.core import Cut, Guarantee, Proportion, Spec
from cutlayer.customer import Home, Progress, TrainSpec
from cutlayer.customer.evidence import Evidence
from cutlayer.customer.handout import local_archive
from cutlayer.customer.prepare import Corpora
from cutlayer.data import LabelNames
from cutlayer.models import Head, family_of, fingerprint, load_model
from cutlayer.privacy import keep_probability
from cutlayer.recipes.centralised import order_without_privacy, train_centralised
from cutlayer.recipes.experiment import Stoppable, finish
from cutlayer.recipes.labels.config import CorpusSpec, LabelsConfig, LanguageScale, Scale
from cutlayer.recipes.labels.language import language_option, recombined_languages
from cutlayer.recipes.labels.passes import JOB, Steps, step_of
from cutlayer.recipes.labels.readings import NOTHING, Option, Recombined, read_labels, solved
from cutlayer.recipes.loopback import Loopback
from cutlayer.recipes.recipe import Order
from cutlayer.recipes.tasks import Limits, Splits, Task
from cutlayer.reports import CellStore

COVER_SEED = 0


class ClassifierCell(Spec):
    """A classifier's training, and the passes that its gradients are recombined to.

    Attributes:
        model: Fingerprint of the model's weights.
        task: The data.
        limits: How much of it.
        training: How it is trained.
        passes: Numbers of passes that its recorded steps are recombined to.
        cover: How much larger covers are than gradients.
        seed: Initialisation, order, dropout; and which customer's secret labels are drawn from.
    """

    model: str
    task: Task
    limits: Limits
    training: TrainSpec
    passes: tuple[int, ...] = ()
    cover: float
    seed: int


class RunCell(ClassifierCell):
    """A run over the road, texts as they are.

    Attributes:
        epsilon: Of randomised response; `None` for labels as they are.
    """

    epsilon: float | None

    @property
    def name(self) -> str:
        """The cell in a few words, for its file."""
        return f"{self.task.name}-{'ordinary' if self.epsilon is None else f'epsilon{self.epsilon:g}'}-s{self.seed}"


class HeadCell(ClassifierCell):
    """A training in this process that shows what a vendor would see with the head at the customer."""

    @property
    def name(self) -> str:
        """The cell in a few words, for its file."""
        return f"{self.task.name}-head-s{self.seed}"


class LanguageCell(Spec):
    """A language model's training in this process, norm and head at the customer.

    Attributes:
        model: Fingerprint of the model's weights.
        corpus: Private texts.
        scale: How many.
        learning_rate: AdamW's, of all weights.
        epsilon: Of randomised response over the vocabulary; `None` for tokens as they are.
        passes: As of a classifier.
        cover: As of a classifier.
        seed: Which texts, and which customer's secret.
    """

    model: str
    corpus: CorpusSpec
    scale: LanguageScale
    learning_rate: float
    epsilon: float | None
    passes: tuple[int, ...] = ()
    cover: float
    seed: int

    @property
    def name(self) -> str:
        """The cell in a few words, for its file."""
        return f"{self.corpus.name}-{'ordinary' if self.epsilon is None else f'epsilon{self.epsilon:g}'}-s{self.seed}"


Cell = RunCell | HeadCell | LanguageCell


class Attacked(BaseModel):
    """A finished cell: its options, attacked."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    options: tuple[Option, ...]


class Experiment(Stoppable):
    """Where cells are run, and the store of what is finished.

    Args:
        config: The recipe's settings.
        scale: Its size.
        order: Model, data, seeds and folder.
        parts: Which parts of the recipe.
        progress: Where to show progress.

    Attributes:
        folder: Everything is kept here; the same folder goes on with an unfinished experiment.
        model: Fingerprint of the classifier's weights.
    """

    def __init__(
        self, config: LabelsConfig, scale: Scale, order: Order, parts: Sequence[str], progress: Progress
    ) -> None:
        self._config = config
        self._scale = scale
        self._order = order
        self._parts = parts
        self._progress = progress
        self.folder = order.out
        self.model = fingerprint(load_model(order.model, head=Head.CLASSIFICATION))
        self._loopback = Loopback(order.out / "vendor", order.model)
        self._finished: CellStore[Cell, Attacked] = CellStore(order.out / "cells", Attacked)
        self._splits = cache(self._read)

    def stop(self) -> None:
        """Ends the vendor."""
        self._loopback.stop()

    def run(self) -> dict[Cell, Attacked]:
        """Results of all cells, those that are finished from the store."""
        return finish(
            self._cells(),
            self._finished,
            lambda cell: Attacked(options=self._attacked(cell)),
            self._progress,
            # not before: a stopped cell goes on with it
            kept=lambda cell: shutil.rmtree(self._recorded(cell), ignore_errors=True),
        )

    def _cells(self) -> list[Cell]:
        config, language = self._config, self._config.language
        found: list[Cell] = []
        for seed in range(self._order.seeds):
            if "classifier" in self._parts:
                common: dict[str, Any] = {
                    "model": self.model,
                    "task": config.task,
                    "limits": self._scale.limits,
                    "training": config.training_at(self._scale),
                    "cover": config.cover,
                    "seed": seed,
                }
                found.append(RunCell(**common, epsilon=None, passes=config.passes))
                found += [RunCell(**common, epsilon=epsilon) for epsilon in config.epsilons]
                found.append(HeadCell(**common, passes=config.passes))
            if "language" in self._parts:
                for epsilon in (None, *language.epsilons):
                    found.append(
                        LanguageCell(
                            model=fingerprint(load_model(language.model, head=Head.LANGUAGE)),
                            corpus=language.corpus,
                            scale=self._scale.language,
                            learning_rate=language.learning_rate,
                            epsilon=epsilon,
                            passes=language.passes if epsilon is None else (),
                            cover=config.cover,
                            seed=seed,
                        )
                    )
        return found

    def _attacked(self, cell: Cell) -> tuple[Option, ...]:
        if isinstance(cell, RunCell):
            return self._run(cell)
        if isinstance(cell, HeadCell):
            return self._head(cell)
        home = Home(self.folder / "customers" / f"language-{cell.seed}")
        option, steps = language_option(
            self._config.language.model,
            self._order.data,
            cell.corpus,
            cell.scale,
            learning_rate=cell.learning_rate,
            epsilon=cell.epsilon,
            home=home,
            seed=cell.seed,
            progress=self._progress,
        )
        return (option, *recombined_languages(option, steps, cell.passes, cover=cell.cover, seed=COVER_SEED))

    def _read(self, task: Task, limits: Limits) -> Splits:
        return Splits.read(task, self._order.data, limits)

    def _customer(self, cell: Cell) -> Path:
        """Each option is a customer of its own: one that has shown its labels has nothing left to promise."""
        return self.folder / "customers" / self._finished.path(cell).stem

    def _recorded(self, cell: Cell) -> Path:
        return self.folder / "runs" / self._finished.path(cell).stem

    # ------------------------------------------------------------ over the road

    def _run(self, cell: RunCell) -> tuple[Option, ...]:
        splits = self._splits(cell.task, cell.limits)
        client = self._loopback.client(self._customer(cell), self._progress)
        with closing(client):
            result = client.finetune(
                splits.train,
                dev=splits.dev,
                test=splits.test,
                eta=math.inf,
                label_epsilon=cell.epsilon,
                training=cell.training,
                seed=cell.seed,
                out=self._recorded(cell),
                progress=self._progress,
            )
            archive = local_archive(client.home, self._order.model, Cut(bottom=0))
            given = Corpora(splits.train, splits.dev, splits.test)
            evidence = Evidence.of(self._recorded(cell), given, archive, home=client.home)
            if evidence.labels is None:
                raise TypeError("a classifier's texts have labels")
            steps = Steps.of(evidence.transcript)
            option = _option(
                "ordinary" if cell.epsilon is None else "randomised response",
                steps,
                evidence.labels,
                evidence.knowledge,
                accuracy=Proportion(value=result.ua, n=result.ua_n, standard_error=result.ua_standard_error),
                guarantee=result.label_guarantee,
                epsilon=cell.epsilon,
                draws=len(set(splits.train.texts)),
            )
            return (option, *_recombined(option, steps, cell, evidence.labels, evidence.knowledge))

    # ------------------------------------------------------------ with the head at the customer

    def _head(self, cell: HeadCell) -> tuple[Option, ...]:
        splits = self._splits(cell.task, cell.limits)
        seen = _HeadWatcher()
        run = train_centralised(
            splits.train,
            splits.dev,
            splits.test,
            model=self._order.model,
            training=cell.training,
            seed=cell.seed,
            order=order_without_privacy(self._customer(cell), cell.seed),
            progress=self._progress,
            watcher=seen,
        )
        names = LabelNames.of(splits.train.labels or ())
        labels = names.encode(splits.train.labels or (), source="train")
        truth = LabelTruth(labels, len(names), {(JOB, step.number): rows for step, rows in seen.steps})
        # the gradient of a step rides with the next one, as over the road; an epoch's last goes alone
        steps = Steps(tuple(step for step, _ in seen.steps), rounds=len(seen.steps) + len(run.dev))
        option = _option(
            "head at the customer",
            steps,
            truth,
            Knowledge(Cut()),
            accuracy=run.accuracy,
            guarantee=Guarantee.nothing("Directions of gradients and activations show which texts share a label."),
        )
        return (option, *_recombined(option, steps, cell, truth, Knowledge(Cut())))


class _HeadWatcher:
    """Records what goes into a head, and the gradient that comes out of it."""

    def __init__(self) -> None:
        self.steps: list[tuple[SeenStep, Tensor]] = []
        self._states: Tensor | None = None

    def begin(self, model: PeftModel) -> None:
        """Looks at what goes into the head from now on."""
        whole = cast(PreTrainedModel, model.get_base_model())
        path = family_of(whole.config).classifier_output

        def entered(module: nn.Module, arguments: tuple[Tensor, ...]) -> None:
            if arguments[0].requires_grad:
                self._states = arguments[0]
                self._states.retain_grad()

        whole.get_submodule(path).register_forward_pre_hook(entered)

    def step(self, texts: Tensor) -> None:
        """Keeps what went in, and its gradient."""
        if self._states is None or self._states.grad is None:
            raise TypeError("a step goes through the head")
        states, gradient = (tensor.detach().float().cpu() for tensor in (self._states, self._states.grad))
        if states.dim() == 3:
            # where the head is applied to every position, the text's row is the one that has a gradient
            rows = gradient.abs().sum(2).argmax(1)
            states, gradient = (tensor[torch.arange(len(rows)), rows] for tensor in (states, gradient))
        self.steps.append((step_of(len(self.steps) + 1, states, gradient), texts))


def _option(
    name: str,
    steps: Steps,
    truth: LabelTruth,
    knowledge: Knowledge,
    *,
    accuracy: Proportion,
    guarantee: Guarantee,
    epsilon: float | None = None,
    draws: int = 0,
) -> Option:
    return Option(
        name=name,
        epsilon=epsilon,
        readings=read_labels(steps, truth, knowledge),
        rounds=steps.rounds,
        gradient_bytes=steps.gradient_bytes,
        output_bytes=steps.output_bytes,
        accuracy=accuracy,
        guarantee=guarantee,
        bound=None if epsilon is None else report_bound(truth, epsilon),
        draws=draws,
    )


def report_bound(truth: LabelTruth, epsilon: float) -> float:
    """The share of labels that the best guess from reports gets right: Σ_z max_y Pr[y] Pr[z | y].

    With equally frequent labels it is e^ε / (e^ε + K - 1).

    Args:
        truth: The labels, which say how frequent each is.
        epsilon: ε.
    """
    classes = truth.num_labels
    shares = torch.bincount(truth.labels, minlength=classes).double() / len(truth.labels)
    kept = keep_probability(epsilon, classes)
    response = torch.full((classes, classes), (1 - kept) / (classes - 1), dtype=torch.float64)
    response.fill_diagonal_(kept)
    return float((shares[:, None] * response).amax(0).sum())


def _recombined(
    option: Option, steps: Steps, cell: ClassifierCell, truth: LabelTruth, knowledge: Knowledge
) -> list[Option]:
    """The same steps with several passes in the place of each."""
    found = []
    of_logits = steps.seen[0].gradient.shape[1] == truth.num_labels
    for passes in cell.passes:
        several = Recombined(steps, passes, cover=cell.cover, seed=COVER_SEED)
        known = several.from_labels() if of_logits else several.from_update()
        attack = "output-gradient" if of_logits else "gradient-direction"
        named = truth if of_logits else LabelTruth(truth.labels, truth.num_labels, truth.steps, named=False)
        found.append(
            option.model_copy(
                update={
                    "name": f"recombination, {option.name}",
                    "passes": passes,
                    "readings": (
                        *read_labels(several.first, truth, knowledge),
                        solved(known, attack, named, knowledge),
                    ),
                    "gradient_bytes": passes * option.gradient_bytes,
                    "guarantee": NOTHING,
                    "deviation": several.deviation,
                }
            )
        )
    return found
