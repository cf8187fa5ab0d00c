"""Where a job stands, as its customer is told: in memory, or from the ends of its files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from cutlayer.models import FAMILIES
from cutlayer.models.joint import joint_stacks
from cutlayer.models.optimiser import is_update
from cutlayer.vendor.catalogue import ModelCard
from cutlayer.vendor.checkpoints import Checkpoints
from cutlayer.vendor.log import UPDATE, last_entry
from cutlayer.vendor.steps import Training
from cutlayer.vendor.trainers import training_of
from cutlayer.wire.messages import JobInfo, JobSpec, JobState


@dataclass(frozen=True)
class StoredJob:
    """What of a job stays as it is, and where the rest of it is kept.

    Attributes:
        name: Its identifier.
        spec: Its spec.
        threads: Compute threads that it keeps to.
        folder: Its folder, which is made when the job is first opened.
    """

    name: str
    spec: JobSpec
    threads: int
    folder: Path

    @property
    def was_opened(self) -> bool:
        """Whether its record sets were all there once."""
        return self.folder.exists()

    @property
    def log(self) -> Path:
        """The folder of its log."""
        return self.folder / "log"

    @property
    def checkpoints(self) -> Checkpoints:
        """Its states to go on from."""
        return Checkpoints(self.folder / "checkpoints")

    @property
    def snapshots(self) -> Checkpoints:
        """Its adapters to publish."""
        return Checkpoints(self.folder / "snapshots")

    def info(self, standing: Standing) -> JobInfo:
        """What the job's customer is told."""
        waits = self.spec.loop is not None and standing.step == 0
        return JobInfo(
            job=self.name,
            spec=self.spec,
            state=JobState.QUEUED if waits else JobState.RUNNING,
            step=standing.step,
            gradient_applied=standing.gradient_applied,
            update_waits=standing.update_waits,
            checkpoints=(0, *self.checkpoints.steps()),
            snapshots=tuple(self.snapshots.steps()),
            threads=self.threads,
        )


@dataclass(frozen=True)
class Standing:
    """Where a job stands, as far as frames move it.

    Attributes:
        step: The last step of which a frame was taken.
        gradient_applied: Whether that step is over.
        update_waits: Whether the update that is due waits for what the customer tells.
    """

    step: int = 0
    gradient_applied: bool = True
    update_waits: bool = False

    @classmethod
    def of(cls, training: Training) -> Standing:
        """Where a job in memory stands."""
        return cls(training.step, training.step == training.taken, training.update_waits)


def standing_on_disk(folder: Path, spec: JobSpec, card: ModelCard) -> Standing | None:
    """Where a job stands that is not in memory, without resuming it. May be called from any thread.

    What moves a job is in its log, and what each frame's answer said of it follows from the frame's kind and
    the spec. So nothing is computed; nor is anything but the ends of the files read.

    Returns:
        `None` where only resuming the job tells: the last frame may not have been applied, or a file is damaged.
    """
    reached = Checkpoints(folder / "checkpoints").reached()
    found = last_entry(folder / "log")
    if reached is None or found is None:
        return None
    (taken, update_waits), (base, entry) = reached, found
    if taken < base:
        return None
    at_checkpoint = Standing(taken, True, update_waits)
    if entry is None:
        return at_checkpoint
    if not entry.applied:
        return None
    if entry.kind == UPDATE:
        return at_checkpoint if entry.step < taken else Standing(entry.step)
    if entry.step <= taken:
        return at_checkpoint
    if entry.kind != training_of(card, spec).frames[-1]:
        return Standing(entry.step, gradient_applied=False)
    schedule = spec.optimiser
    joint = schedule.clip_norm is not None or (
        spec.shared_weights and bool(joint_stacks(FAMILIES[card.info.family], spec.cut))
    )
    return Standing(
        entry.step, update_waits=joint and is_update(entry.step, schedule.accumulation, schedule.total_steps)
    )
