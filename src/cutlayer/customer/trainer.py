"""The training loop of the customer: order, loss, early stopping, and going on after a crash."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from cutlayer.core import Proportion
from cutlayer.customer.link import Link, Stored
from cutlayer.customer.order import epoch_batches
from cutlayer.customer.progress import Progress
from cutlayer.customer.run import OPTIMISER, Run
from cutlayer.customer.session import Session, Texts
from cutlayer.customer.settings import RunSpec, TrainBottom
from cutlayer.models.optimiser import Optimiser
from cutlayer.wire import routes
from cutlayer.wire.messages import JobInfo, SnapshotRequest

EVALUATION_POSITIONS = 2**15
"""Positions of one evaluation frame, padding included, where the vendor takes as many: enough to hide headers."""


@dataclass(frozen=True)
class Examples:
    """Texts (or their stored releases) and the labels that stay home.

    Attributes:
        texts: `n` texts.
        labels: `[n]` int64.
        lengths: `[n]` int64, positions of each text with its special tokens.
    """

    texts: Texts | Stored
    labels: Tensor
    lengths: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def batch(self, indices: Tensor) -> tuple[Texts | Stored, Tensor]:
        """The examples at `indices`."""
        return self.texts.select(indices), self.labels[indices]


def padded_batches(lengths: Tensor, most: int) -> Iterator[Tensor]:
    """Consecutive texts' numbers whose padded batch stays within `most` and `EVALUATION_POSITIONS`."""
    most = min(most, EVALUATION_POSITIONS)
    start = longest = 0
    for number, length in enumerate(lengths.tolist()):
        longest = max(longest, length)
        if number > start and longest * (number + 1 - start) > most:
            yield torch.arange(start, number)
            start, longest = number, length
    if start < len(lengths):
        yield torch.arange(start, len(lengths))


@torch.no_grad()
def evaluate(session: Session, examples: Examples, *, positions: int, progress: Progress, stage: str) -> Proportion:
    """Utility accuracy (SAP §5.1) of the vendor's answers, with its standard error.

    Args:
        session: The road.
        examples: What to measure on.
        positions: Of one frame at most, as the vendor says.
        progress: Where to show progress.
        stage: What to call it there.
    """
    session.eval()
    right = 0
    for indices in padded_batches(examples.lengths, positions):
        texts, labels = examples.batch(indices)
        right += int((session(texts).argmax(1) == labels).sum())
        progress.update(stage, int(indices[-1]) + 1, len(examples))
    return Proportion.of(right, len(examples))


class Trainer:
    """Trains one job to its best dev accuracy.

    Args:
        session: The road, with the job's link.
        link: The job's steps.
        train: What to train on.
        dev: What to stop on.
        run: The run's state and folder.
        optimiser: The customer's own, for a trainable bottom.
        positions: Of one frame at most, as the vendor says.
        progress: Where to show progress.
    """

    def __init__(
        self,
        session: Session,
        link: Link,
        train: Examples,
        dev: Examples,
        run: Run,
        *,
        optimiser: Optimiser | None,
        positions: int,
        progress: Progress,
    ) -> None:
        self.session = session
        self.link = link
        self.train = train
        self.dev = dev
        self.run = run
        self.spec = run.state.spec
        self.optimiser = optimiser
        self.positions = positions
        self.progress = progress

    @property
    def steps_per_epoch(self) -> int:
        """Steps in which every text is seen once."""
        return -(-len(self.train) // self.spec.train.batch_size)

    @property
    def best_step(self) -> int:
        """The step whose adapter was best on dev."""
        return self.run.state.best_epoch * self.steps_per_epoch

    def fit(self) -> int:
        """Trains until dev accuracy stops rising; returns the step of the best adapter.

        Epochs that end after the link's step are forgotten: they will be trained again.
        """
        state, settings = self.run.state, self.spec.train
        del state.dev[self.link.step // self.steps_per_epoch :]
        while len(state.dev) < settings.epochs and len(state.dev) - state.best_epoch < settings.patience:
            self._epoch(len(state.dev))
            stage = f"dev after epoch {len(state.dev) + 1}"
            accuracy = evaluate(
                self.session, self.dev, positions=self.positions, progress=self.progress, stage=stage
            ).value
            if not state.dev or accuracy > max(state.dev):
                self._keep()
            state.dev.append(accuracy)
            self.run.save()
        return self.best_step

    def batches(self, epoch: int) -> list[Tensor]:
        """The batches of an epoch, the same after a resume."""
        return training_order(self.spec, self.train.lengths, epoch)

    def look(self, epoch: int, step: int) -> tuple[int, int] | None:
        """Which fresh release a step takes; `None` for the memoised one."""
        return (epoch, step) if self.spec.train_bottom is TrainBottom.REDRAW else None

    def _epoch(self, epoch: int) -> None:
        batches = self.batches(epoch)
        self.session.train()
        for number in range(self.link.step - epoch * self.steps_per_epoch, len(batches)):
            texts, labels = self.train.batch(batches[number])
            loss = self.session.loss(texts, labels, look=self.look(epoch, self.link.step + 1))
            loss.backward()
            if self.optimiser is not None:
                self.optimiser.step()
                if self.link.step % self.spec.train.checkpoint_every == 0:
                    self._checkpoint()
            value = float(loss.detach())
            self.run.log_loss(self.link.step, value)
            self.progress.update(
                f"epoch {epoch + 1}/{self.spec.train.epochs}", number + 1, len(batches), f"loss {value:.3f}"
            )
        self.link.flush()

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


def training_order(spec: RunSpec, lengths: Tensor, epoch: int) -> list[Tensor]:
    """Which texts each step of an epoch takes.

    Args:
        spec: The run's settings.
        lengths: `[n]` int64, positions of each training text.
        epoch: Counted from 0.
    """
    settings = spec.train
    return epoch_batches(
        lengths,
        batch_size=settings.batch_size,
        seed=spec.seed,
        epoch=epoch,
        group_by_length=settings.group_by_length,
    )
