"""The training loop of the customer: order, loss, early stopping, and going on after a crash."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from cutlayer.core import ConfigError, Perplexity, Proportion, Tokens
from cutlayer.customer.link import Link, Stored
from cutlayer.customer.order import Order
from cutlayer.customer.progress import Progress
from cutlayer.customer.run import OPTIMISER, Run, RunState
from cutlayer.customer.session import Session, Texts
from cutlayer.customer.settings import RunSpec, TrainBottom
from cutlayer.models.batches import EVALUATION_POSITIONS, epoch_batches, padded_batches
from cutlayer.models.joint import JointGradients
from cutlayer.models.optimiser import Optimiser, is_update
from cutlayer.wire import routes
from cutlayer.wire.messages import JobInfo, SnapshotRequest

LANGUAGE_POSITIONS = 2**12
"""Of one evaluation frame where each position is answered with a row, and becomes scores of a whole vocabulary."""

Score = Proportion | Perplexity
"""How good a model is: the share of texts labelled right, or how surprised it is by a token."""


@dataclass(frozen=True)
class Examples:
    """Texts (or their stored releases) and the labels that stay home.

    Attributes:
        texts: `n` texts.
        labels: `[n]` int64; or the true tokens, of which each is the label of those before it.
        lengths: `[n]` int64, positions of each text with its special tokens.
    """

    texts: Texts | Stored
    labels: Tensor | Tokens
    lengths: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def batch(self, indices: Tensor) -> tuple[Texts | Stored, Tensor | Tokens]:
        """The examples at `indices`, `[chosen]` int64; labels `[chosen]`, or the texts' own tokens."""
        labels = self.labels
        return self.texts.select(indices), labels[indices] if isinstance(labels, Tensor) else labels.select(indices)


def evaluation_batches(examples: Examples, positions: int) -> Iterator[Tensor]:
    """Numbers `[batch]` int64 of the texts of each evaluation frame.

    Args:
        examples: What is evaluated.
        positions: Of one frame at most, as the vendor says.
    """
    most = EVALUATION_POSITIONS if isinstance(examples.labels, Tensor) else LANGUAGE_POSITIONS
    return padded_batches(examples.lengths, min(positions, most))


@torch.no_grad()
def evaluate(session: Session, examples: Examples, *, positions: int, progress: Progress, stage: str) -> Score:
    """Utility accuracy (SAP §5.1) of the vendor's answers, or perplexity per token, with its standard error.

    Args:
        session: The road.
        examples: What to measure on.
        positions: Of one frame at most, as the vendor says.
        progress: Where to show progress.
        stage: What to call it there.
    """
    session.eval()
    right = 0
    losses, counts = [torch.zeros(0)], [torch.zeros(0)]
    for indices in evaluation_batches(examples, positions):
        texts, labels = examples.batch(indices)
        output = session(texts)
        if isinstance(labels, Tensor):
            right += int((output.argmax(1) == labels).sum())
        elif session.tail is None:
            losses.append(-output[:, 0].double())
            counts.append(output[:, 1].double())
        else:
            found = session.next_token_losses(output, labels)
            counts.append(found.lengths.double())
            losses += [text.sum()[None] for text in found.values.double().cpu().split(found.lengths.tolist())]
        progress.update(stage, int(indices[-1]) + 1, len(examples))
    if isinstance(examples.labels, Tensor):
        return Proportion.of(right, len(examples))
    return Perplexity.of(torch.cat(losses), torch.cat(counts))


@dataclass(frozen=True)
class TrainingTexts:
    """What a job learns from.

    Attributes:
        train: What to train on.
        dev: What to stop on.
        public: What to begin with, before any of it leaves; `None` begins with `train`.
        order: In which order texts are trained on.
    """

    train: Examples
    dev: Examples
    public: Examples | None
    order: Order


class Trainer:
    """Trains one job to its best dev value.

    Args:
        session: The road, with the job's link.
        link: The job's steps.
        texts: What it learns from.
        run: The run's state and folder.
        optimiser: The customer's own, where it has weights to train.
        positions: Of one frame at most, as the vendor says.
        progress: Where to show progress.
    """

    def __init__(
        self,
        session: Session,
        link: Link,
        texts: TrainingTexts,
        run: Run,
        *,
        optimiser: Optimiser | None,
        positions: int,
        progress: Progress,
    ) -> None:
        self.session = session
        self.link = link
        self.train, self.dev, self.public, self.order = texts.train, texts.dev, texts.public, texts.order
        self.run = run
        self.spec = run.state.spec
        self.optimiser = optimiser
        self.positions = positions
        self.progress = progress

    @property
    def steps_per_epoch(self) -> int:
        """Steps in which every text is seen once."""
        return steps_per_epoch(self.spec, len(self.train))

    @property
    def best_step(self) -> int:
        """The step whose adapter was best on dev."""
        return best_step(self.run.state, len(self.train))

    def _steps_before(self, epoch: int) -> int:
        return steps_before(self.spec, len(self.train), epoch)

    def numbered_batches(self, epoch: int) -> Iterator[tuple[int, Tensor]]:
        """The batches of an epoch, `[batch]` int64 each, with the numbers of their steps."""
        return enumerate(self.batches(epoch), start=self._steps_before(epoch) + 1)

    def fit(self) -> int:
        """Trains until the dev value stops getting better; returns the step of the best adapter.

        Epochs that end after the link's step are forgotten: they will be trained again.
        """
        state, settings = self.run.state, self.spec.training
        self._begin_with_public()
        del state.dev[(self.link.step - self.spec.public_iterations) // self.steps_per_epoch :]
        if not isinstance(self.dev.labels, Tensor) and state.untrained is None:
            state.untrained = self._dev_value("dev before training")
            self.run.save()
        while len(state.dev) < settings.epochs and len(state.dev) - state.best_epoch < settings.patience:
            self._epoch(len(state.dev))
            stage = f"dev after epoch {len(state.dev) + 1}"
            value = self._dev_value(stage)
            if value not in state.dev and value == self.spec.objective.best([*state.dev, value]):
                self._keep()
            state.dev.append(value)
            self.run.save()
        return self.best_step

    def _dev_value(self, stage: str) -> float:
        return evaluate(self.session, self.dev, positions=self.positions, progress=self.progress, stage=stage).value

    def batches(self, epoch: int) -> list[Tensor]:
        """The batches of an epoch, `[batch]` int64 each, the same after a resume."""
        return training_order(self.spec, self.order, self.train.lengths, epoch)

    def look(self, epoch: int) -> int | None:
        """Which fresh release an epoch takes; `None` for the cached one."""
        return epoch if self.spec.train_bottom is TrainBottom.RESAMPLE else None

    def _begin_with_public(self) -> None:
        """The steps on public text, as far as they were not taken."""
        if self.public is None:
            return
        self.session.train()
        iterations, size = self.spec.public_iterations, min(self.spec.training.batch_size, len(self.public))
        for number in range(self.link.step, iterations):
            batch = torch.arange(number * size, (number + 1) * size) % len(self.public)
            value = self._step(*self.public.batch(batch), look=None)
            self.progress.update("public text first", number + 1, iterations, f"loss {value:.3f}")
        self.link.flush()

    def _epoch(self, epoch: int) -> None:
        batches, epochs = self.batches(epoch), self.spec.training.epochs
        self.session.train()
        for number in range(self.link.step - self._steps_before(epoch), len(batches)):
            texts, labels = self.train.batch(batches[number])
            value = self._step(texts, labels, look=self.look(epoch))
            self.progress.update(f"epoch {epoch + 1}/{epochs}", number + 1, len(batches), f"loss {value:.3f}")
        self.link.flush()

    def _step(self, texts: Texts | Stored, labels: Tensor | Tokens, *, look: int | None) -> float:
        settings = self.spec.training
        loss = self.session.loss(texts, labels, look=look)
        value = float(loss.detach())
        if not math.isfinite(value):
            raise ConfigError(
                f"Training diverged: the loss of step {self.link.step} is {value}, at learning rate "
                f"{settings.learning_rate:g}.",
                remedy="Begin again with another --out and a lower --learning-rate, or with --max-grad-norm 1.",
            )
        # before the vendor has its gradient, after which nobody repeats it
        self.run.log_loss(self.link.step, value, reconstruction=self.link.reconstruction_loss)
        (loss / settings.gradient_accumulation_steps).backward()
        if is_update(self.link.step, settings.gradient_accumulation_steps, self._steps_before(settings.epochs)):
            self._update()
        if self.optimiser is not None and self.link.step % settings.checkpoint_steps == 0:
            self._checkpoint()
        return value

    def _update(self) -> None:
        """The customer's part of an update, with what both parties must do alike in it."""
        limit, theirs = self.spec.training.max_grad_norm, self.link.peer_gradient_stats
        gradients = JointGradients(self.session.trained().values(), self.session.copies())
        stats = {} if limit is None else {"norm": gradients.norm()}
        if gradients.numbers:
            stats["shared_gradient"] = gradients.copied()
        if stats:
            gradients.join(norm=theirs.get("norm"), copied=theirs.get("shared_gradient"), limit=limit)
            self.link.send_gradient_stats(stats)
        if self.optimiser is not None:
            self.optimiser.step()

    def _checkpoint(self) -> None:
        if self.optimiser is None:
            return
        tensors = {name: tensor.detach().clone() for name, tensor in self.session.trained().items()}
        tensors |= {f"{OPTIMISER}{name}": tensor for name, tensor in self.optimiser.state().items()}
        self.run.write_checkpoint(self.link.step, tensors, keep=self.best_step)

    def _keep(self) -> None:
        """Has both parties keep this step's weights."""
        self.link.gate.send(
            routes.SNAPSHOT, {"job": self.link.job}, control=SnapshotRequest(step=self.link.step)
        ).expect(JobInfo)
        self._checkpoint()


def steps_per_epoch(spec: RunSpec, texts: int) -> int:
    """Steps in which each of so many texts is seen once."""
    return -(-texts // spec.training.batch_size)


def steps_before(spec: RunSpec, texts: int, epoch: int) -> int:
    """Steps that come before an epoch, counted from 0, of a run over so many texts."""
    return spec.public_iterations + epoch * steps_per_epoch(spec, texts)


def best_step(state: RunState, texts: int) -> int:
    """The step whose adapter was best on dev; 0 before the first epoch's end."""
    return steps_before(state.spec, texts, state.best_epoch) if state.best_epoch else 0


def training_order(spec: RunSpec, order: Order, lengths: Tensor, epoch: int) -> list[Tensor]:
    """Which texts each step of an epoch takes.

    Args:
        spec: The run's settings.
        order: Its order (`run_order`).
        lengths: `[n]` int64, positions of each training text.
        epoch: Counted from 0.
    """
    settings = spec.training
    return epoch_batches(
        lengths,
        batch_size=settings.batch_size,
        rng=order.generator(epoch),
        group_by_length=settings.group_by_length,
    )
