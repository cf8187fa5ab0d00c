"""What of a job outlives the process: its log, its checkpoints and its last answers.

A frame is checked, written to the log, applied, and answered, in that order. So whatever was
answered is in the log; what was not answered is repeated by the customer; and replaying the log
from a checkpoint takes the very steps that were taken, bit for bit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from cutlayer.core import ModelError, StorageError
from cutlayer.core.files import write_whole
from cutlayer.vendor.checkpoints import State
from cutlayer.vendor.log import Entry, FrameLog
from cutlayer.vendor.problems import conflict, log, unacceptable
from cutlayer.vendor.settings import VendorSettings
from cutlayer.vendor.standing import StoredJob
from cutlayer.vendor.steps import STEP_ROUTES, Due, Training, order

_STEPS = 200
"""Most steps that are taken again when a job is resumed, which all other jobs wait for."""
_DEATHS = 8
"""Replays of a frame that the process did not outlive, after which it is not replayed again. An operator's
kill -9, or what another program takes of the memory, looks the same, and may come at the same frame some times."""
_DEATHS_IF_HEAVY = 1
"""The same for a frame that takes much memory, which explains it."""


@dataclass(frozen=True)
class _Answer:
    """What a frame was answered with, for when it is repeated."""

    step: int
    digest: bytes
    body: bytes


class Journal:
    """A job's log, checkpoints and last answers. Lives in the compute thread.

    Args:
        job: The job; what is in its folder is resumed.
        settings: The vendor's settings.

    Attributes:
        log: The frames that were accepted.
    """

    def __init__(self, job: StoredJob, settings: VendorSettings) -> None:
        self._job = job
        self._settings = settings
        self.log = FrameLog(job.log)
        self._checkpoints = job.checkpoints
        self._given_up = job.folder / "given-up"
        self._answers: dict[int, _Answer] = {}

    @property
    def answer_bytes(self) -> int:
        """Bytes of the answers that it keeps. Other threads may ask."""
        return sum(len(answer.body) for answer in list(self._answers.values()))

    # ------------------------------------------------------------ frames

    def answer(self, entry: Entry) -> bytes | None:
        """What a frame was answered with before; `None` if it is no repetition of its kind's last one.

        Raises:
            Refusal: It repeats a number with other bytes.
        """
        known = self._answers.get(entry.kind)
        if known is None or known.step != entry.step:
            return None
        if known.digest != entry.digest:
            raise conflict(
                "frame-differs",
                f"{STEP_ROUTES[entry.kind].name} {entry.step} was accepted with other bytes.",
                remedy="Repeat a frame with the same bytes; GET the step for its output.",
            )
        return known.body

    def kept(self, kind: int, step: int) -> bytes | None:
        """The answer to a frame, if it is kept. Other threads may ask."""
        known = self._answers.get(kind)
        return known.body if known is not None and known.step == step else None

    def keep(self, entry: Entry, body: bytes) -> None:
        """Keeps a frame's answer until the next one of its kind."""
        self._answers[entry.kind] = _Answer(entry.step, entry.digest, body)

    def check_not_given_up(self, entry: Entry) -> None:
        """Refuses a frame that was given up, once: its sender has to hear why there is no answer.

        Sent again after that, it is tried again, in case it was only there when others ended the process.

        Raises:
            Refusal: The process ended whenever the frame was applied.
        """
        if self._given_up.exists() and self._given_up.read_bytes() == entry.digest:
            self._given_up.unlink()
            raise unacceptable(
                "step-given-up",
                f"The vendor's process ended whenever it computed step {entry.step}.",
                remedy="It may take too much memory: start a job with smaller batches or shorter texts. "
                "If the vendor was stopped for another reason, send the step again.",
            )

    # ------------------------------------------------------------ checkpoints

    def checkpoint_if_due(self, entry: Entry, training: Training) -> None:
        """Makes a checkpoint after every `checkpoint_every` steps, and shortens a log that is too long.

        For the log's sake a checkpoint is made out of turn, which is none to roll back to: those are at
        the steps that the customer chose, and keeps its own state of. It may hold gradients that wait for an
        update; one to roll back to is put off until there are none.

        A checkpoint that cannot be written loses nothing, as the log goes on; the next frame tries again.

        Args:
            entry: The frame that was applied last.
            training: What it was applied to.
        """
        if training.unsaved not in ((), (entry.kind,)):
            return  # more frames than this one would have to be carried over
        taken, every = training.taken, self._job.spec.checkpoint_every
        last = max(self._checkpoints.steps(), default=0)
        due = taken // every > last // every and training.at_update
        too_long = self.log.size > self._settings.limits.log_bytes_per_checkpoint
        too_many = taken - self.log.base >= _STEPS
        if not due and not too_long and not too_many:
            return
        try:
            self._checkpoints.save(taken, self._state(training), recent=not due)
            self.log.begin_segment(taken, entry if training.unsaved else None)
            oldest = self._checkpoints.keep_last(self._settings.keep_checkpoints) if due else taken
            self.log.forget_before(oldest)
        except OSError as error:
            log.warning("job %s: no checkpoint (%s); its log goes on", self._job.name, error.strerror)

    def leave(self, training: Training) -> None:
        """Writes a checkpoint out of turn, so that the job comes back without replaying."""
        try:
            self._checkpoints.save(training.taken, self._state(training), recent=True)
        except OSError as error:
            log.warning("job %s leaves memory without a checkpoint (%s)", self._job.name, type(error).__name__)

    def _state(self, training: Training) -> State:
        tensors = training.state()
        notes: dict[str, object] = {"threads": self._job.threads}
        for kind, known in self._repeatable(training).items():
            tensors[_name(kind)] = torch.frombuffer(bytearray(known.body), dtype=torch.uint8)
            notes[_name(kind)] = {"step": known.step, "digest": known.digest.hex()}
        return State(tensors, notes)

    def _repeatable(self, training: Training) -> dict[int, _Answer]:
        """Answers to the present step's frames that are not taken again where the job is resumed.

        A customer that died too begins a step again; between steps it repeats no more than the last frame.
        """
        answered = {
            kind: known
            for kind in order(training)
            if (known := self._answers.get(kind)) is not None
            and known.step == training.step
            and kind not in training.unsaved
        }
        return answered if training.step != training.taken else dict(list(answered.items())[-1:])

    # ------------------------------------------------------------ replay

    def load(self, training: Training) -> None:
        """Puts the furthest checkpoint into what is trained, and its answers back.

        Raises:
            StorageError: It does not fit the job.
        """
        found = self._checkpoints.newest()
        if found is None:
            return
        tensors, notes = dict(found[1].tensors), found[1].notes
        answers = {kind: tensors.pop(_name(kind)) for kind in STEP_ROUTES if _name(kind) in tensors}
        try:
            training.load(tensors)
        except (ModelError, KeyError) as error:
            raise StorageError(f"A checkpoint of job {self._job.name} does not fit its spec.") from error
        for kind, answer in answers.items():
            kept = notes[_name(kind)]
            self._answers[kind] = _Answer(kept["step"], bytes.fromhex(kept["digest"]), answer.numpy().tobytes())

    def still_due(self, training: Training, entry: Entry, tensors: Mapping[str, Tensor]) -> Due | None:
        """What of a logged frame is to be taken again; `None` where what is trained has all of it already.

        Args:
            training: What the frames before were applied to.
            entry: The frame.
            tensors: What it carries, by role.

        Raises:
            StorageError: A frame before it is missing.
        """
        due, kinds = training.due(), order(training)
        found = due.get((entry.kind, entry.step))
        if found is not None and found.is_in(tensors):
            return found
        first = min((step, kinds.index(kind)) for kind, step in due)
        if found is None and entry.kind in kinds and (entry.step, kinds.index(entry.kind)) < first:
            return None
        raise StorageError(
            f"The log of job {self._job.name} has a gap before step {entry.step}.", remedy="Roll the job back."
        )

    def gives_up(self, entry: Entry, *, heavy: bool) -> bool:
        """Whether a frame is not to be replayed: the process ended whenever it was applied. It goes from the log then.

        Args:
            entry: The last frame.
            heavy: Whether it takes much memory.
        """
        if entry.deaths < (_DEATHS_IF_HEAVY if heavy else _DEATHS):
            return False
        log.error("job %s: step %d ended the process again and again; it is not replayed", self._job.name, entry.step)
        # First, so that a death in between only gives the entry up again.
        write_whole(self._given_up, entry.digest)
        self.log.take_back()
        return True


def roll_back(job: StoredJob, step: int) -> None:
    """Takes a job on disk back to a checkpoint, or to its start at 0; it must not be in memory.

    What is removed is removed from the far end, so a crash in between leaves a state that the job
    once was in.

    Raises:
        Refusal: There is no such checkpoint.
        StorageError: It cannot be read; nothing was removed.
    """
    checkpoints = job.checkpoints
    if step != 0 and step not in checkpoints.steps():
        raise conflict(
            "no-checkpoint",
            f"There is no checkpoint at step {step}; there are {[0, *checkpoints.steps()]}.",
            remedy="Roll back to one of these.",
        )
    if step != 0:
        checkpoints.load(step)  # before anything is removed
    # First: those that stayed would be published as the adapter of the branch that begins here.
    job.snapshots.forget_after(step)
    checkpoints.forget_after(step)
    FrameLog(job.log).clear()


def _name(kind: int) -> str:
    """What a checkpoint calls the answer to a frame."""
    return f"answer/{kind}"
