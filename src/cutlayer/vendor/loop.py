"""A job that the vendor trains alone, on labels that lie beside its records.

What a customer with labels at home sends step by step is made here instead, and taken by the same code: the frames are
logged, applied and replayed as those of other jobs, so weights are the same, and so is what a crash leaves.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from cutlayer.core import Perplexity, Proportion
from cutlayer.core.files import write_whole
from cutlayer.models.batches import EVALUATION_POSITIONS, epoch_batches, padded_batches
from cutlayer.models.label_words import mean_loss
from cutlayer.privacy import generator
from cutlayer.serving.compute import Pieces
from cutlayer.vendor.job import LiveJob
from cutlayer.vendor.log import GRADIENT, STEP, UPDATE
from cutlayer.vendor.problems import conflict
from cutlayer.vendor.standing import Standing, StoredJob
from cutlayer.wire import decode_tensors, encode_tensors, routes, smallest_index
from cutlayer.wire.messages import JobInfo, JobProgress, JobSpec, JobState, LoopSpec

_FILE: Final = "loop.json"
_LOSSES: Final = "losses.jsonl"


@dataclass(frozen=True)
class Examples:
    """Texts of one record set, with their labels.

    Attributes:
        records: `[texts]` int64, the record that holds each, numbered over the job's sets.
        labels: `[texts]` int64, as they were reported; `None` of pairs, whose target texts are records.
        lengths: `[texts]` int64, positions of each, special tokens included.
    """

    records: Tensor = field(repr=False)
    labels: Tensor | None = field(repr=False)
    lengths: Tensor = field(repr=False)

    def __len__(self) -> int:
        return len(self.records)


@dataclass
class History:
    """What the epochs that are over came to; written whole after each.

    Attributes:
        dev: Share of right labels of the second set after each, or perplexity of its target texts.
        losses: Mean loss of each one's steps.
        reconstruction_losses: The same of the second task.
    """

    dev: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    reconstruction_losses: list[float] = field(default_factory=list)

    @classmethod
    def read(cls, folder: Path) -> History:
        """What stands in a job's folder; empty before its first epoch is over."""
        file = folder / _FILE
        return cls(**json.loads(file.read_bytes())) if file.exists() else cls()

    def write(self, folder: Path) -> None:
        """Replaces what stands there."""
        write_whole(folder / _FILE, json.dumps(asdict(self)).encode())

    def progress(self, job: StoredJob, standing: Standing, state: JobState, problem: str | None = None) -> JobProgress:
        """What the job's customer is told."""
        taken = standing.step if standing.gradient_applied else standing.step - 1
        return JobProgress(
            job=job.name,
            event=max(taken, 0) + len(self.dev) + (standing.step > 0) + state.is_over,
            state=state,
            step=max(taken, 0),
            total_steps=job.spec.optimiser.total_steps,
            losses=tuple(self.losses),
            reconstruction_losses=tuple(self.reconstruction_losses),
            dev=tuple(self.dev),
            problem=problem,
        )


class Loop:
    """The order, loss and early stopping of a job that the vendor trains alone. Lives in the compute thread.

    Args:
        job: The job.
        train: What it learns from.
        dev: What chooses the epoch.
        positions: Of one evaluation batch at most, padding included.

    Attributes:
        history: What the epochs came to.
    """

    def __init__(self, job: StoredJob, train: Examples, dev: Examples, *, positions: int) -> None:
        self._folder, self._train, self._dev = job.folder, train, dev
        self._spec: JobSpec = job.spec
        self._loop = loop_of(job.spec)
        self._positions = min(EVALUATION_POSITIONS, positions)
        self._steps = steps_per_epoch(self._loop, len(train))
        self._batches: tuple[int, list[Tensor]] = (-1, [])
        self.history = History.read(job.folder)

    @property
    def best_epoch(self) -> int:
        """The epoch with the best share or perplexity, the first of equals; 0 before the first."""
        dev = self.history.dev
        return 1 + dev.index(self._best(dev)) if dev else 0

    def _best(self, values: Sequence[float]) -> float:
        return min(values) if self._train.labels is None else max(values)

    @property
    def best_step(self) -> int:
        """The step after which the adapter was best."""
        return self.best_epoch * self._steps

    @property
    def is_over(self) -> bool:
        """Whether all epochs were taken, or `patience` of them without a better one."""
        epochs = len(self.history.dev)
        return epochs >= len(self._loop.orders) or epochs - self.best_epoch >= self._loop.patience

    def advance(self, job: LiveJob) -> Pieces[None]:
        """Takes the next frame, or the evaluation that is due; a job keeps the adapter of its best epoch.

        Args:
            job: The job in memory.

        Raises:
            Refusal: Training has diverged, or the frame cannot be taken.
        """
        standing = job.standing or Standing()
        at_rest = standing.gradient_applied and not standing.update_waits
        if at_rest and standing.step == self._steps * (len(self.history.dev) + 1):
            yield from self._evaluate(job, standing.step)
            return
        kind, step, tensors = self._frame(job, standing)
        yield from job.accept(kind, step, encode_tensors(tensors))

    def _frame(self, job: LiveJob, standing: Standing) -> tuple[int, int, Mapping[str, Tensor]]:
        """What a customer would send next: the gradient of the last step rides with the next one where it may."""
        step = standing.step
        ends = step > 0 and step % self._steps == 0
        tensors: dict[str, Tensor] = {}
        if not standing.gradient_applied:
            tensors["gradient"] = self._gradient(job, step)
            if ends or self._spec.optimiser.clip_norm is not None:
                return GRADIENT, step, tensors
        if standing.update_waits:
            tensors["norm"] = torch.zeros(1)  # nothing is trained at the customer
            if ends:
                return UPDATE, step, tensors
        records = self._train.records[self._batch(step + 1)]
        tensors["records"] = records.to(smallest_index(int(records.max())))
        return STEP, step + 1, tensors

    def _batch(self, step: int) -> Tensor:
        """Numbers `[batch]` of a step's texts."""
        epoch, place = divmod(step - 1, self._steps)
        if self._batches[0] != epoch:
            batches = epoch_batches(
                self._train.lengths,
                batch_size=self._loop.batch_size,
                rng=generator(bytes.fromhex(self._loop.orders[epoch])),
                group_by_length=self._loop.group_by_length,
            )
            self._batches = epoch, batches
        return self._batches[1][place]

    def _gradient(self, job: LiveJob, step: int) -> Tensor:
        """d loss / d output `[texts, labels]` of the last step: of the mean loss, a share of its update.

        Of pairs the output is `[texts, 2]` (`passes.write`), and the mean is one over tokens.
        """
        answer = decode_tensors(routes.STEP, job.output(step), reply=True)
        output = answer["output"].detach().requires_grad_()
        labels = self._train.labels
        if labels is None:
            loss = -output[:, 0].sum() / output[:, 1].detach().sum()
        else:
            loss = mean_loss(output, labels[self._batch(step)], written=self._spec.label_words is not None)
        value = float(loss.detach())
        if not math.isfinite(value):
            raise conflict(
                "diverged",
                f"The loss of step {step} is not finite: training has diverged.",
                remedy="Begin another job with a lower learning rate, or with clipped gradients.",
            )
        own = answer.get("reconstruction_loss")
        with (self._folder / _LOSSES).open("a") as file:
            file.write(json.dumps([step, value, None if own is None else float(own)]) + "\n")
        (loss / self._spec.optimiser.accumulation).backward()
        if output.grad is None:
            raise RuntimeError("the loss has no gradient")
        return output.grad

    def _evaluate(self, job: LiveJob, step: int) -> Pieces[None]:
        answers = []
        for indices in padded_batches(self._dev.lengths, self._positions):
            records = self._dev.records[indices]
            body = encode_tensors({"records": records.to(smallest_index(int(records.max())))})
            answer = yield from job.infer(body)
            answers.append((indices, decode_tensors(routes.JOB_INFER, answer, reply=True)["output"]))
        history, value = self.history, self._value(answers)
        if value not in history.dev and value == self._best([*history.dev, value]):
            job.snapshot(step)
            job.stored.snapshots.keep_last(1)
        losses = _read_losses(self._folder, after=step - self._steps)
        history.losses.append(_mean([loss for loss, _ in losses]))
        if self._spec.reconstruction is not None:
            history.reconstruction_losses.append(_mean([own for _, own in losses if own is not None]))
        history.dev.append(value)
        history.write(self._folder)

    def _value(self, answers: Sequence[tuple[Tensor, Tensor]]) -> float:
        """What the second set's answers come to: the share of right labels, or a perplexity."""
        labels = self._dev.labels
        if labels is None:
            outputs = torch.cat([output for _, output in answers])
            return Perplexity.of(-outputs[:, 0], outputs[:, 1]).value
        right = sum(int((output.argmax(1) == labels[indices]).sum()) for indices, output in answers)
        return Proportion.of(right, len(self._dev)).value


def _read_losses(folder: Path, *, after: int) -> list[tuple[float, float | None]]:
    """Losses of the steps after one, the customer's task's and the vendor's own; a repeated step counts once."""
    found: dict[int, tuple[float, float | None]] = {}
    for line in (folder / _LOSSES).read_text().splitlines():
        try:
            step, loss, own = json.loads(line)
        except ValueError:
            continue  # the line that a crash tore
        found[step] = loss, own
    return [found[step] for step in sorted(found) if step > after]


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def told(
    job: StoredJob, standing: Standing | None, state: JobState | None = None, problem: str | None = None
) -> JobInfo:
    """What a job's customer is told; of one that the vendor trains alone also what its epochs came to.

    Args:
        job: The job.
        standing: Where it stands; `None` for its beginning.
        state: How it ended; `None` while it goes on.
        problem: Why it failed, if it did.
    """
    standing = standing or Standing()
    info = job.info(standing)
    state = state or info.state
    progress = None
    if job.spec.loop is not None:
        progress = History.read(job.folder).progress(job, standing, state, problem)
    return info.model_copy(update={"state": state, "progress": progress})


def loop_of(spec: JobSpec) -> LoopSpec:
    """How the vendor trains a job alone.

    Raises:
        TypeError: It does not.
    """
    if spec.loop is None:
        raise TypeError("the customer sends this job's steps")
    return spec.loop


def steps_per_epoch(loop: LoopSpec, texts: int) -> int:
    """Steps in which each of so many texts is seen once."""
    return -(-texts // loop.batch_size)
