"""Classifiers whose labels are protected in some way, trained and attacked: over the road, and in this process."""

from __future__ import annotations

import math
from typing import cast

import torch
from peft import PeftModel
from torch import Tensor, nn
from transformers import PreTrainedModel

from cutlayer.attacks import Knowledge, LabelTruth, SeenStep
from cutlayer.core import Cut, Guarantee
from cutlayer.data import LabelNames
from cutlayer.models import family_of
from cutlayer.privacy import keep_probability
from cutlayer.recipes.lab import Lab
from cutlayer.recipes.recorded_steps import JOB, Attacked, OptionCell, Recorded, Steps, step_of
from cutlayer.recipes.reference.classifier import train_centralised
from cutlayer.recipes.training import Trained, TrainingCell, client_of, discard, split_run


class ClassifierCell(OptionCell, TrainingCell):
    """A classifier's training, attacked."""


class RunCell(ClassifierCell):
    """A run over the road, texts as they are.

    Attributes:
        epsilon: Of randomised response; `None` for labels as they are.
    """

    epsilon: float | None

    @property
    def name(self) -> str:
        return f"{self.task.name}-{'ordinary' if self.epsilon is None else f'epsilon{self.epsilon:g}'}-s{self.seed}"

    def run(self, lab: Lab) -> Attacked:
        """Trains over the road and attacks the recording.

        Each option is a customer of its own: one that has shown its labels has nothing left to promise.
        """
        with split_run(self, lab, self.name, eta=math.inf, label_epsilon=self.epsilon) as run:
            evidence = run.evidence(lab)
            if evidence.labels is None:
                raise TypeError("a classifier's texts have labels")
            truth = evidence.labels
            recorded = Recorded(Steps.of(evidence.transcript), truth, evidence.knowledge)
            found = {"accuracy": Trained.of(run.result).ua, "guarantee": run.result.label_guarantee}
            if self.epsilon is None:
                return self.attacked(recorded, recorded.option("ordinary", **found))
            drawn = {"bound": report_bound(truth, self.epsilon), "draws": len(set(run.data.train.texts))}
            option = recorded.option("randomised response", epsilon=self.epsilon, **found, **drawn)
            return self.attacked(recorded, option)

    def clear(self, lab: Lab) -> None:
        discard(self, client_of(lab, self.name), lab)


class HeadCell(ClassifierCell):
    """A training in this process that shows what a vendor would see with the head at the customer."""

    @property
    def name(self) -> str:
        return f"{self.task.name}-head-s{self.seed}"

    def run(self, lab: Lab) -> Attacked:
        whole, seen = self.reference(lab, self.name), _HeadWatcher()
        run = train_centralised(whole, progress=lab.progress, watcher=seen)
        names = LabelNames.of(whole.train.labels or ())
        labels = names.encode(whole.train.labels or (), source="train")
        truth = LabelTruth(labels, len(names), {(JOB, step.number): rows for step, rows in seen.steps})
        # the gradient of a step rides with the next one, as over the road; an epoch's last goes alone
        steps = Steps(tuple(step for step, _ in seen.steps), rounds=len(seen.steps) + len(run.dev))
        recorded = Recorded(steps, truth, Knowledge(Cut()))
        shown = Guarantee.nothing("Directions of gradients and activations show which texts share a label.")
        option = recorded.option("head at the customer", accuracy=run.accuracy, guarantee=shown)
        return self.attacked(recorded, option)


class _HeadWatcher:
    """Records what goes into a head, and the gradient that comes out of it."""

    def __init__(self) -> None:
        self.steps: list[tuple[SeenStep, Tensor]] = []
        self._states: Tensor | None = None

    def begin(self, model: PeftModel) -> None:
        whole = cast(PreTrainedModel, model.get_base_model())
        path = family_of(whole.config).classifier_output

        def entered(module: nn.Module, arguments: tuple[Tensor, ...]) -> None:
            if arguments[0].requires_grad:
                self._states = arguments[0]
                self._states.retain_grad()

        whole.get_submodule(path).register_forward_pre_hook(entered)

    def step(self, texts: Tensor) -> None:
        if self._states is None or self._states.grad is None:
            raise TypeError("a step goes through the head")
        states, gradient = (tensor.detach().float().cpu() for tensor in (self._states, self._states.grad))
        if states.dim() == 3:
            # where the head is applied to every position, the text's row is the one that has a gradient
            rows = gradient.abs().sum(2).argmax(1)
            states, gradient = (tensor[torch.arange(len(rows)), rows] for tensor in (states, gradient))
        self.steps.append((step_of(len(self.steps) + 1, states, gradient), texts))


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
