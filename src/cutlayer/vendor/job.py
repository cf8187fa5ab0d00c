"""One job in memory: what it accepts, in which order, and how it comes back after a crash.

A frame is checked, written to the log, applied, and answered, in that order. So whatever was
answered is in the log; what was not answered is repeated by the customer; and replaying the log
from a checkpoint takes the very steps that were taken, bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from cutlayer.core import ModelError, Payload, StorageError
from cutlayer.core.files import write_whole
from cutlayer.models import FAMILIES, Seq2SeqTop
from cutlayer.models.joint import joint_stacks
from cutlayer.models.optimiser import is_update
from cutlayer.vendor.catalogue import Catalogue, ModelCard
from cutlayer.vendor.checkpoints import Checkpoints, State
from cutlayer.vendor.checks import check_count, check_positions, read_pair, read_release
from cutlayer.vendor.compute import Pieces, use_threads
from cutlayer.vendor.log import GRADIENT, SOURCE, SOURCE_GRADIENT, STEP, UPDATE, Entry, FrameLog, last_entry
from cutlayer.vendor.problems import Refusal, conflict, log, unacceptable
from cutlayer.vendor.records import Records
from cutlayer.vendor.seq2seq import Seq2SeqTrainer
from cutlayer.vendor.settings import VendorSettings
from cutlayer.vendor.trainer import Stage, Trainer, divided
from cutlayer.wire import decode_tensors, encode_tensors, routes
from cutlayer.wire.messages import JobInfo, JobSpec, JobState, WireType

_ROUTES = {
    STEP: routes.STEP,
    GRADIENT: routes.GRADIENT,
    UPDATE: routes.UPDATE,
    SOURCE: routes.SOURCE,
    SOURCE_GRADIENT: routes.SOURCE_GRADIENT,
}
_DUE = {
    Stage.READY: SOURCE,
    Stage.SOURCE: STEP,
    Stage.OUTPUT: GRADIENT,
    Stage.ENCODED: SOURCE_GRADIENT,
}
"""Which frame of an encoder-decoder's step comes next."""
_REPEATED = {Stage.READY: (UPDATE, SOURCE_GRADIENT, GRADIENT), Stage.ENCODED: (GRADIENT, STEP)}
"""Frames of a step, the last first, of which a checkpoint holds what came of them.

A customer that died too begins a step again; between steps it repeats no more than the last frame.
"""
_NAMES = {
    "norm": "the norm of the customer's gradients",
    "shared_gradient": "the gradients of the customer's copies of shared weights",
}
"""What an update that both parties take together needs, by role."""
_STEPS = 200
"""Most steps that are taken again when a job is resumed, which all other jobs wait for."""
_DEATHS = 8
"""Replays of a frame that the process did not outlive, after which it is not replayed again. An operator's
kill -9, or what another program takes of the memory, looks the same, and may come at the same frame some times."""
_DEATHS_IF_HEAVY = 1
"""The same for a frame that takes much memory, which explains it."""
_HEAVY = 1 / 8
"""Share of the memory for graphs that is much."""


@dataclass(frozen=True)
class Standing:
    """Where a job stands, as far as frames move it.

    Attributes:
        step: The last step whose forward pass was taken.
        gradient_applied: Whether nothing waits for that step's gradient.
        update_waits: Whether the update that is due waits for what the customer tells.
    """

    step: int = 0
    gradient_applied: bool = True
    update_waits: bool = False

    def describe(self, name: str, spec: JobSpec, folder: Path, threads: int) -> JobInfo:
        """What the job's customer is told."""
        return JobInfo(
            job=name,
            spec=spec,
            state=JobState.RUNNING,
            step=self.step,
            gradient_applied=self.gradient_applied,
            update_waits=self.update_waits,
            checkpoints=(0, *Checkpoints(folder / "checkpoints").steps()),
            snapshots=tuple(Checkpoints(folder / "snapshots").steps()),
            threads=threads,
        )


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
    if entry.kind != (GRADIENT if card.info.target_blocks is None else SOURCE_GRADIENT):
        return Standing(entry.step, gradient_applied=False)
    schedule = spec.optimiser
    joint = schedule.clip_norm is not None or (
        spec.shared_weights and bool(joint_stacks(FAMILIES[card.info.family], spec.cut))
    )
    return Standing(
        entry.step, update_waits=joint and is_update(entry.step, schedule.accumulation, schedule.total_steps)
    )


@dataclass(frozen=True)
class _Answer:
    """What a frame was answered with, for when it is repeated."""

    step: int
    digest: bytes
    body: bytes


@dataclass(frozen=True)
class _Parsed:
    """An entry's content: the gradient it brings back, what it tells for an update, the release it passes forward."""

    gradient: Tensor | None = None
    told: Mapping[str, Tensor] = field(default_factory=dict)
    payload: Payload | None = None


def _told(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What a frame tells for an update that both parties take together."""
    return {role: tensors[role] for role in _NAMES if role in tensors}


def _answer(kind: int) -> str:
    """What a checkpoint calls the answer to a frame."""
    return f"answer/{kind}"


class LiveJob:
    """A job in memory. Lives in the compute thread.

    Args:
        name: Its identifier.
        spec: Its spec.
        threads: Compute threads that it keeps to.
        folder: Its folder; what is there is resumed.
        settings: The vendor's settings.
        catalogue: The models.
        records: Its stored records, or None.
        held: Bytes that its tensors take between two frames.
        graph_limit: Most bytes that the graph of a step may take.
        make_room: Called before a forward pass, with this job and the bytes that its graph will take.

    Attributes:
        used: When it was last asked for something.
        busy: Whether it is in the middle of a frame, or being resumed.
        standing: Where it stands; `None` before it was resumed. Other threads may read it.
    """

    pinned = False
    busy = False
    used: float = 0
    standing: Standing | None = None

    def __init__(
        self,
        name: str,
        spec: JobSpec,
        *,
        threads: int,
        folder: Path,
        settings: VendorSettings,
        catalogue: Catalogue,
        records: Records | None,
        held: int,
        graph_limit: int,
        make_room: Callable[[LiveJob, int], None],
    ) -> None:
        self.name = name
        self.spec = spec
        self.threads = threads
        self._failed = False
        self._settings = settings
        self._catalogue = catalogue
        self._card = catalogue.card(spec.model)
        self._records = records
        self._held = held
        self._log = FrameLog(folder / "log")
        self._checkpoints = Checkpoints(folder / "checkpoints")
        self._snapshots = Checkpoints(folder / "snapshots")
        self._given_up = folder / "given-up"
        self._graph_limit = graph_limit
        self._make_room = make_room
        self._answers: dict[int, _Answer] = {}
        self._folder = folder
        self._trainer = self._new_trainer()

    def _new_trainer(self) -> Trainer:
        top, device = self._catalogue.top(self.spec.model, self.spec.cut), self._catalogue.device
        if isinstance(top, Seq2SeqTop):
            return Seq2SeqTrainer(top, self._card.template, self._card.targets, self.spec, device)
        return Trainer(top, self._card.template, self.spec, device)

    @property
    def broken(self) -> bool:
        """Whether what is in memory may differ from what is on disk, so that the job must be loaded anew."""
        return self._failed or self._log.in_doubt

    @property
    def held_bytes(self) -> int:
        """Bytes that it holds between two frames: its tensors, at most, and its last answers."""
        return self._held + sum(len(answer.body) for answer in list(self._answers.values()))

    @property
    def graph_bytes(self) -> int:
        """About how many bytes the graph that waits for its gradient takes; 0 if none waits."""
        return self._trainer.graph_bytes

    # ------------------------------------------------------------ steps

    @property
    def info(self) -> JobInfo:
        """Where the job stands."""
        return self._stands().describe(self.name, self.spec, self._folder, self.threads)

    def _stands(self) -> Standing:
        trainer = self._trainer
        return Standing(trainer.step, not trainer.waits, trainer.update_waits)

    def accept(self, kind: int, step: int, body: bytes) -> Pieces[bytes]:
        """Takes a numbered frame, or gives the answer again that it got before.

        Args:
            kind: Of a log's entry.
            step: The step's number.
            body: The frame's bytes.

        Returns:
            The answer's bytes.

        Raises:
            Refusal: The frame is not the next one, not what was agreed, or repeats a number with other bytes.
        """
        entry = Entry(kind, step, body)
        known = self._answers.get(kind)
        if known is not None and known.step == step:
            if known.digest != entry.digest:
                raise conflict(
                    "frame-differs",
                    f"{_ROUTES[kind].name} {step} was accepted with other bytes.",
                    remedy="Repeat a frame with the same bytes; GET the step for its output.",
                )
            return known.body
        self._check_order(kind, step)
        self._check_not_given_up(entry)
        parsed = self._parse(entry)
        self._log.append(entry)
        self.busy = True
        try:
            answer = yield from self._apply(entry, parsed)
        except BaseException:
            # The frame is undone: off the log, and this half-changed state is thrown away by the caller.
            self._failed = True
            self._log.take_back()
            raise
        finally:
            self.busy = False
        self._log.note_applied()
        self.standing = self._stands()
        self._checkpoint_if_due(entry)
        return answer

    def kept_output(self, step: int) -> bytes | None:
        """The output of the last step, as it was answered. Other threads may ask."""
        known = self._answers.get(STEP)
        return known.body if known is not None and known.step == step else None

    def output(self, step: int) -> bytes:
        """The same.

        Raises:
            Refusal: It is not kept.
        """
        known = self.kept_output(step)
        if known is None:
            raise conflict(
                "output-gone",
                f"The output of step {step} is not kept; the job stands at step {self._trainer.step}.",
                remedy="Go on with the next step, or roll back.",
            )
        return known

    def infer(self, body: bytes) -> Pieces[bytes]:
        """The top's output in evaluation mode, with the weights as they are."""
        if self._trainer.waits:
            raise conflict(
                "gradient-missing",
                f"Step {self._trainer.step} waits for its gradient, so the weights are between two steps.",
                remedy=f"POST the gradient of step {self._trainer.step} first.",
            )
        if self._trainer.update_waits:
            raise self._update_waits()
        tensors = decode_tensors(routes.JOB_INFER, body)
        if self._in_two:
            limit = self._settings.limits.max_rows_per_step
            payload: Payload = read_pair(self._card, self.spec, tensors, limit=limit)
        else:
            payload = self._stored(tensors["records"]) if "records" in tensors else self._inline(tensors)
        outputs: list[Tensor] = []
        self.busy = True
        try:
            for part in divided(payload, self._settings.limits.positions_per_piece):
                if outputs:
                    yield
                    use_threads(self.threads)
                outputs.append(self._trainer.infer(part))
        finally:
            self.busy = False
        return encode_tensors({"output": self._output(torch.cat(outputs))})

    @property
    def _in_two(self) -> bool:
        """Whether source and target texts cross one after the other."""
        return isinstance(self._trainer, Seq2SeqTrainer)

    def _check_order(self, kind: int, step: int) -> None:
        at, waits = self._trainer.step, self._trainer.waits
        if self._in_two and kind != UPDATE:
            self._check_due(kind, step)
        elif kind in (SOURCE, SOURCE_GRADIENT):
            raise unacceptable(
                "wrong-form", "This job's model has no source texts of their own.", remedy="POST the step itself."
            )
        if kind == UPDATE and not (self._trainer.update_waits and step == at):
            wanted = f"waits for that of step {at}" if self._trainer.update_waits else "waits for none"
            raise conflict(
                "wrong-step",
                f"What the update after step {step} needs was sent; the job stands at step {at} and {wanted}.",
                remedy="GET the job and go on from there.",
            )
        if kind == GRADIENT and not self._in_two and not (waits and step == at):
            wanted = f"takes the gradient of step {at}" if waits else "waits for no gradient"
            raise conflict(
                "wrong-step",
                f"The gradient of step {step} was sent; the job stands at step {at} and {wanted}.",
                remedy="GET the job and go on from there.",
            )
        if kind == STEP and not self._in_two and step != at + 1:
            raise conflict(
                "wrong-step",
                f"Step {step} was sent; the job stands at step {at} and takes step {at + 1}.",
                remedy="GET the job and go on from there.",
            )
        if kind in (STEP, SOURCE) and step > self.spec.optimiser.total_steps:
            raise conflict(
                "schedule-ended",
                f"Step {step} was sent; the schedule ends at total_steps = {self.spec.optimiser.total_steps}.",
                remedy="Finish the job, or start one with more steps.",
            )

    def _check_due(self, kind: int, step: int) -> None:
        """Refuses a frame of an encoder-decoder's step that is not the next one."""
        if self._trainer.update_waits:
            raise self._update_waits()
        due, number = _DUE[self._trainer.stage], self._trainer.step + (not self._trainer.waits)
        if (kind, step) != (due, number):
            raise conflict(
                "wrong-step",
                f"{_ROUTES[kind].name} {step} was sent; the job takes {_ROUTES[due].name} {number} next.",
                remedy="GET the job and go on from there.",
            )

    def _update_waits(self) -> Refusal:
        at = self._trainer.step
        return conflict(
            "update-waits",
            f"The update after step {at} waits for {' and '.join(_NAMES[role] for role in self._trainer.needed)}.",
            remedy="Send it alone, or, of a model with one stack of blocks, with the next step.",
        )

    def _parse(self, entry: Entry) -> _Parsed:
        """Decodes and checks a frame against the job and where it stands."""
        tensors = decode_tensors(_ROUTES[entry.kind], entry.body)
        gradient, told = tensors.get("gradient"), _told(tensors)
        if entry.kind == STEP and not self._in_two:
            if ("records" in tensors) == self.spec.trainable_bottom:
                raise unacceptable(
                    "wrong-form",
                    "Steps of this job carry their own release."
                    if self.spec.trainable_bottom
                    else "Steps of this job name stored records.",
                    remedy="Send what the spec says: records for a frozen bottom, a release for a trainable one.",
                )
            if (gradient is not None) != self._trainer.waits:
                at = self._trainer.step
                raise conflict(
                    "gradient-missing" if gradient is None else "gradient-not-expected",
                    f"Step {at} {'waits for its gradient' if gradient is None else 'has its gradient already'}.",
                    remedy="Send the gradient of each step once: with the next step, or alone.",
                )
            if not told and self._trainer.update_waits:
                raise self._update_waits()
            if told and not self._trainer.update_waits:
                raise conflict(
                    "update-not-expected",
                    f"No update after step {self._trainer.step} waits for a norm.",
                    remedy="Send it once after each update's last gradient, and only where clip_norm is set.",
                )
        if told:
            self._check_told(told)
        if gradient is not None:
            expected = self._trainer.output_shape
            if tuple(gradient.shape) != expected or gradient.dtype is not self._output_type:
                own_type = gradient.dtype is self._output_type
                types = ("", "") if own_type else (f" {gradient.dtype}", f" {self._output_type}")
                raise unacceptable(
                    "wrong-shape",
                    f"gradient is {list(gradient.shape)}{types[0]}; "
                    f"the output of step {self._trainer.step} is {list(expected)}{types[1]}.",
                    remedy="Send d loss / d output in the output's own shape and element type.",
                )
        if self._in_two:
            self._check_alone(entry, tensors)
        if entry.kind not in (STEP, SOURCE):
            return _Parsed(gradient, told)
        payload = self._stored(tensors["records"]) if "records" in tensors else self._inline(tensors)
        self._check_graph(payload)
        return _Parsed(gradient, told, payload)

    def _check_told(self, told: Mapping[str, Tensor]) -> None:
        """Refuses what an update that both parties take together does not need, or not so."""
        given, needed = {role: len(tensor) for role, tensor in told.items()}, self._trainer.needed
        if given != needed:
            forms = (", ".join(f"{role} [{count}]" for role, count in roles.items()) for roles in (given, needed))
            raise unacceptable(
                "wrong-shape",
                "An update was sent {}; it takes {}.".format(*forms),
                remedy="Send what the job's spec asks for: a norm for clip_norm, copies' gradients for shared_weights.",
            )
        if "norm" in told and float(told["norm"]) < 0:
            raise unacceptable(
                "wrong-shape",
                "norm is less than 0.",
                remedy="Send the squared norm of all gradients that are the customer's alone.",
            )

    def _check_alone(self, entry: Entry, tensors: dict[str, Tensor]) -> None:
        """Refuses what an encoder-decoder's frames do not carry."""
        if entry.kind == STEP and not set(tensors) <= {"rows", "lengths"}:
            raise unacceptable(
                "wrong-form",
                f"The frame holds {'+'.join(sorted(tensors))}; target texts travel alone, as rows.",
                remedy="Send norms and gradients by themselves.",
            )
        texts = self._trainer.texts
        if entry.kind == STEP and texts is not None and len(tensors["lengths"]) != texts:
            raise unacceptable(
                "wrong-lengths",
                f"There are {len(tensors['lengths'])} target texts for {texts} source texts.",
                remedy="Send one target for each source.",
            )

    def _check_graph(self, payload: Payload) -> None:
        """Refuses a step before it is logged if its graph would not fit."""
        size = self._trainer.estimate(payload)
        if size > self._graph_limit:
            raise step_too_large(len(payload), size, self._graph_limit)

    def _stored(self, numbers: Tensor) -> Payload:
        if self._records is None:
            raise unacceptable("wrong-form", "This job has no stored records.", remedy="Send the release itself.")
        limit = self._settings.limits.max_rows_per_step
        check_count(len(numbers), limit)
        chosen = numbers.to(torch.int64).numpy()
        check_positions(len(chosen), self._records.longest(chosen), limit)
        return self._records.gather(chosen)

    def _inline(self, tensors: dict[str, Tensor]) -> Payload:
        targets = self._in_two and self._trainer.stage is Stage.SOURCE
        template = self._card.targets if targets else self._card.template
        return read_release(
            self._card, self.spec, tensors, limit=self._settings.limits.max_rows_per_step, template=template
        )

    def _apply(self, entry: Entry, parsed: _Parsed) -> Pieces[bytes]:
        """Backward, update, forward: whichever the frame asks for. Others may be served between them."""
        trainer = self._trainer
        ends = entry.kind == (SOURCE_GRADIENT if self._in_two else GRADIENT)
        boundary_gradient = None
        if parsed.gradient is not None:
            boundary_gradient = self._backward(entry, parsed.gradient)
        if parsed.told:
            trainer.join(parsed.told)
        tensors: dict[str, Tensor] = {}
        if parsed.payload is not None:
            if parsed.gradient is not None:
                yield
                use_threads(self.threads)
            self._make_room(self, trainer.estimate(parsed.payload))
            tensors = {"output": self._output(self._forward(entry, parsed.payload))}
        elif parsed.gradient is not None:
            tensors = {"boundary_gradient": self._boundary_gradient(boundary_gradient)}
            if ends:
                tensors |= {role: self._finite(tensor) for role, tensor in trainer.told().items()}
        body = encode_tensors(tensors)
        self._answers[entry.kind] = _Answer(entry.step, entry.digest, body)
        return body

    def _forward(self, entry: Entry, payload: Payload) -> Tensor:
        if entry.kind == SOURCE and isinstance(self._trainer, Seq2SeqTrainer):
            return self._trainer.encode(payload)
        return self._trainer.forward(payload)

    def _backward(self, entry: Entry, gradient: Tensor) -> Tensor | None:
        if entry.kind == SOURCE_GRADIENT and isinstance(self._trainer, Seq2SeqTrainer):
            return self._trainer.backward_source(gradient)
        return self._trainer.backward(gradient)

    @property
    def _row_type(self) -> torch.dtype:
        return torch.bfloat16 if self.spec.wire_type is WireType.BF16 else torch.float32

    @property
    def _output_type(self) -> torch.dtype:
        """Logits are fp32; rows of an upper boundary travel like those of a lower one."""
        return torch.float32 if self.spec.cut.tail is None else self._row_type

    def _output(self, output: Tensor) -> Tensor:
        return self._finite(output).to(self._output_type)

    def _boundary_gradient(self, gradient: Tensor | None) -> Tensor:
        if gradient is None:
            return torch.empty(0, self._card.row_width(self.spec.cut), dtype=self._row_type)
        return self._finite(gradient).to(self._row_type)

    def _finite(self, tensor: Tensor) -> Tensor:
        tensor = tensor.detach().float().cpu()
        if not torch.isfinite(tensor).all():
            raise conflict(
                "diverged",
                f"What step {self._trainer.step} computed is not finite: training has diverged.",
                remedy="Begin another job with a lower learning rate, or with clipped gradients.",
            )
        return tensor

    # ------------------------------------------------------------ resuming

    def resume(self) -> Pieces[None]:
        """Loads the furthest checkpoint and takes the logged steps after it again, others being served in between.

        Raises:
            StorageError: Its log or checkpoints are damaged.
        """
        self.busy = True
        try:
            found = self._checkpoints.newest()
            if found is not None:
                self._load(found[1])
            for entry in self._log.read():
                self._replay(entry)
                yield
                use_threads(self.threads)
        finally:
            self.busy = False
        self.standing = self._stands()

    def _give_up(self, entry: Entry) -> None:
        """Cuts the last entry off the log, as the process ended whenever it was applied."""
        log.error("job %s: step %d ended the process again and again; it is not replayed", self.name, entry.step)
        # First, so that a death in between only gives the entry up again.
        write_whole(self._given_up, entry.digest)
        self._log.take_back()

    def _check_not_given_up(self, entry: Entry) -> None:
        """Refuses a frame that was given up, once: its sender has to hear why there is no answer.

        Sent again after that, it is tried again, in case it was only there when others ended the process.
        """
        if self._given_up.exists() and self._given_up.read_bytes() == entry.digest:
            self._given_up.unlink()
            raise unacceptable(
                "step-given-up",
                f"The vendor's process ended whenever it computed step {entry.step}.",
                remedy="It may take too much memory: start a job with smaller batches or shorter texts. "
                "If the vendor was stopped for another reason, send the step again.",
            )

    def _load(self, state: State) -> None:
        tensors = dict(state.tensors)
        answers = {kind: tensors.pop(_answer(kind)) for kind in _ROUTES if _answer(kind) in tensors}
        try:
            self._trainer.load(tensors)
        except (ModelError, KeyError) as error:
            raise StorageError(f"A checkpoint of job {self.name} does not fit its spec.") from error
        for kind, answer in answers.items():
            kept = state.notes[_answer(kind)]
            self._answers[kind] = _Answer(kept["step"], bytes.fromhex(kept["digest"]), answer.numpy().tobytes())

    def _replay(self, entry: Entry) -> None:
        """Takes a logged frame again, as far as the checkpoint does not hold it already."""
        taken = self._trainer.taken
        tensors = decode_tensors(_ROUTES[entry.kind], entry.body)
        if self._in_two and entry.kind != UPDATE:
            if entry.step > taken:
                self._replay_next(entry, tensors)
            return
        completes = entry.step - 1 if entry.kind == STEP else entry.step
        gradient = tensors.get("gradient") if completes > taken else None
        told = _told(tensors) if completes == taken and self._trainer.update_waits else {}
        forwards = entry.kind == STEP and entry.step > max(taken, self._trainer.step)
        if gradient is None and not told and not forwards:
            return
        payload = None
        if forwards:
            payload = self._stored(tensors["records"]) if "records" in tensors else self._inline(tensors)
        in_turn = (
            self._trainer.step == completes
            and self._trainer.waits == (gradient is not None)
            and self._trainer.update_waits == bool(told)
        )
        if not in_turn:
            raise self._gap(entry)
        self._apply_again(entry, _Parsed(gradient, told, payload))

    def _replay_next(self, entry: Entry, tensors: dict[str, Tensor]) -> None:
        """Takes a logged frame of an encoder-decoder's step again, which must be the next one."""
        trainer = self._trainer
        if trainer.stage is Stage.ENCODED and entry.kind in (STEP, GRADIENT) and entry.step == trainer.step:
            return  # the checkpoint holds what came of them
        number = trainer.step + (not trainer.waits)
        if (entry.kind, entry.step) != (_DUE[trainer.stage], number) or trainer.update_waits:
            raise self._gap(entry)
        payload = self._inline(tensors) if entry.kind in (SOURCE, STEP) else None
        self._apply_again(entry, _Parsed(tensors.get("gradient"), payload=payload))

    def _gap(self, entry: Entry) -> StorageError:
        return StorageError(
            f"The log of job {self.name} has a gap before step {entry.step}.", remedy="Roll the job back."
        )

    def _apply_again(self, entry: Entry, parsed: _Parsed) -> None:
        payload = parsed.payload
        graph = max(self._trainer.graph_bytes, 0 if payload is None else self._trainer.estimate(payload))
        if entry.deaths >= (_DEATHS_IF_HEAVY if graph > _HEAVY * self._graph_limit else _DEATHS):
            self._give_up(entry)
            return
        with self._log.replaying(entry):
            # In one piece: a death while others are served would count as this frame's.
            for _ in self._apply(entry, parsed):
                pass

    def _checkpoint_if_due(self, entry: Entry) -> None:
        """Makes a checkpoint after every `checkpoint_every` steps, and shortens a log that is too long.

        For the log's sake a checkpoint is made out of turn, which is none to roll back to: those are at
        the steps that the customer chose, and keeps its own state of. It may hold gradients that wait for an
        update; one to roll back to is put off until there are none.

        A checkpoint that cannot be written loses nothing, as the log goes on; the next frame tries again.
        """
        taken = self._trainer.taken
        last = max(self._checkpoints.steps(), default=0)
        due = taken // self.spec.checkpoint_every > last // self.spec.checkpoint_every and self._trainer.at_update
        too_long = self._log.size > self._settings.limits.log_bytes_per_checkpoint
        too_many = taken - self._log.base >= _STEPS
        # An encoder-decoder's step has several frames to carry over.
        divided = self._in_two and self._trainer.waits
        if (not due and not too_long and not too_many) or divided:
            return
        try:
            self._checkpoints.save(taken, self._state(), recent=not due)
            self._log.begin_segment(taken, entry if self._trainer.waits else None)
            oldest = self._checkpoints.keep_last(self._settings.keep_checkpoints) if due else taken
            self._log.forget_before(oldest)
        except OSError as error:
            log.warning("job %s: no checkpoint (%s); its log goes on", self.name, error.strerror)

    def _state(self) -> State:
        tensors = self._trainer.state()
        notes: dict[str, object] = {"threads": self.threads}
        for kind in _REPEATED.get(self._trainer.stage, ()):
            known = self._answers.get(kind)
            if known is not None and known.step == self._trainer.step:
                # a repetition of this frame may still come
                tensors[_answer(kind)] = torch.frombuffer(bytearray(known.body), dtype=torch.uint8)
                notes[_answer(kind)] = {"step": known.step, "digest": known.digest.hex()}
                if self._trainer.stage is Stage.READY:
                    break
        return State(tensors, notes)

    def leave(self) -> None:
        """Writes a checkpoint out of turn, so that the job comes back without replaying, and closes the log."""
        try:
            self._checkpoints.save(self._trainer.taken, self._state(), recent=True)
        except OSError as error:
            log.warning("job %s leaves memory without a checkpoint (%s)", self.name, type(error).__name__)
        finally:
            self.close()

    def close(self) -> None:
        """Closes the log, and frees the graph that waits."""
        self._log.close()
        self._trainer.forget_graph()

    # ------------------------------------------------------------ snapshots

    @property
    def adapter_bytes(self) -> int:
        """Bytes of the adapter's tensors."""
        return sum(tensor.nbytes for tensor in self._trainer.adapter().values())

    def snapshot(self, step: int) -> None:
        """Keeps the adapter as it is after `step` steps."""
        # At the present step also where there is one: a roll-back cut short may have left it of another branch.
        if self._trainer.taken == step or step not in self._snapshots.steps():
            self._check_at(step)
            self._snapshots.save(step, State(self._trainer.adapter()))

    def trainer_at(self, step: int) -> Trainer:
        """The adapter after `step` steps: the current one, or a snapshot."""
        if self._trainer.taken == step:
            self._check_at(step)
            return self._trainer
        if step not in self._snapshots.steps():
            self._check_at(step)
        trainer = self._new_trainer()
        trainer.load_adapter(self._snapshots.load(step).tensors)
        return trainer

    def _check_at(self, step: int) -> None:
        if self._trainer.taken != step:
            raise conflict(
                "wrong-step",
                f"The adapter after step {step} was asked for; the gradients of {self._trainer.taken} steps have been "
                f"taken, and there are snapshots at {list(self.info.snapshots)}.",
                remedy="Name the present step or one with a snapshot.",
            )
        if self._trainer.update_waits:
            raise self._update_waits()


def step_too_large(texts: int, size: int, limit: int) -> Refusal:
    """Why a step is refused whose graph would not fit.

    Args:
        texts: How many.
        size: Bytes that it takes.
        limit: Bytes that a step may take.
    """
    return unacceptable(
        "batch-too-large",
        f"Training on {texts} texts takes about {size} bytes of memory; this vendor gives a step {limit}.",
        remedy="Use smaller batches, shorter texts, or gradient checkpointing.",
    )


def roll_back(folder: Path, step: int) -> None:
    """Takes a job on disk back to a checkpoint, or to its start at 0; it must not be in memory.

    What is removed is removed from the far end, so a crash in between leaves a state that the job
    once was in.

    Raises:
        Refusal: There is no such checkpoint.
        StorageError: It cannot be read; nothing was removed.
    """
    checkpoints = Checkpoints(folder / "checkpoints")
    if step != 0 and step not in checkpoints.steps():
        raise conflict(
            "no-checkpoint",
            f"There is no checkpoint at step {step}; there are {[0, *checkpoints.steps()]}.",
            remedy="Roll back to one of these.",
        )
    if step != 0:
        checkpoints.load(step)  # before anything is removed
    # First: those that stayed would be published as the adapter of the branch that begins here.
    Checkpoints(folder / "snapshots").forget_after(step)
    checkpoints.forget_after(step)
    FrameLog(folder / "log").clear()
