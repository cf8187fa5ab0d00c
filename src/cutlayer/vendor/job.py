"""One job in memory: frames are ordered, read, logged, applied and answered here.

What a frame does is what is trained (`steps.Training`); what comes back after a crash is the journal's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from cutlayer.core import Payload, PrecededTokens
from cutlayer.serving.compute import Pieces, use_threads
from cutlayer.vendor.catalogue import Catalogue
from cutlayer.vendor.checkpoints import State
from cutlayer.vendor.checks import check_count, check_longest, check_positions, read_query, read_release
from cutlayer.vendor.journal import Journal
from cutlayer.vendor.log import STEP, Entry
from cutlayer.vendor.passes import in_pieces
from cutlayer.vendor.problems import conflict, unacceptable
from cutlayer.vendor.records import Records
from cutlayer.vendor.settings import VendorSettings
from cutlayer.vendor.standing import Standing, StoredJob
from cutlayer.vendor.steps import (
    STEP_ROUTES,
    Due,
    Forward,
    Training,
    check_at_rest,
    check_content,
    check_turn,
    peer_stats_in,
    step_too_large,
    update_waits,
)
from cutlayer.vendor.trainers import training_of
from cutlayer.wire import decode_tensors, encode_tensors, routes
from cutlayer.wire.messages import JobInfo, WireType

_HEAVY = 1 / 8
"""Share of the memory for graphs that is much for one frame."""


@dataclass(frozen=True)
class Room:
    """Memory that a job may take.

    Attributes:
        held: Bytes that its tensors take between two frames.
        graph_limit: Most bytes that the graphs of a step may take.
        make: Called before a forward pass, with the job and the bytes that its graphs will take.
    """

    held: int
    graph_limit: int
    make: Callable[[LiveJob, int], None]


@dataclass(frozen=True)
class _Content:
    """What a frame carries of what is due.

    Attributes:
        gradient: Of an earlier output, in that output's shape.
        peer_stats: What it tells of the customer's gradients, by role.
        payload: The release.
    """

    gradient: Tensor | None
    peer_stats: Mapping[str, Tensor]
    payload: Payload | None


class LiveJob:
    """A job in memory. Lives in the compute thread.

    Args:
        stored: The job; what is in its folder is resumed.
        settings: The vendor's settings.
        catalogue: The models.
        records: Its stored records, or None.
        room: Memory that it may take.

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
        stored: StoredJob,
        *,
        settings: VendorSettings,
        catalogue: Catalogue,
        records: Records | None,
        room: Room,
    ) -> None:
        self.stored = stored
        self.spec = stored.spec
        self.threads = stored.threads
        self._limits = settings.limits
        self._catalogue = catalogue
        self._card = catalogue.card(self.spec.model)
        self._records = records
        self._room = room
        self._journal = Journal(stored, settings)
        self._trainer = self._new_trainer()
        self._failed = False

    def _new_trainer(self) -> Training:
        top = self._catalogue.top(self.spec.model, self.spec.cut)
        return training_of(self._card, self.spec).of(top, self._card, self.spec, self._catalogue.device)

    @property
    def broken(self) -> bool:
        """Whether what is in memory may differ from what is on disk, so that the job must be loaded anew."""
        return self._failed or self._journal.log.in_doubt

    @property
    def stored_records(self) -> Records:
        """Its stored records.

        Raises:
            TypeError: It has none.
        """
        if self._records is None:
            raise TypeError("this job's steps carry their own texts")
        return self._records

    @property
    def held_bytes(self) -> int:
        """Bytes that it holds between two frames: its tensors, at most, and its last answers."""
        return self._room.held + self._journal.answer_bytes

    @property
    def graph_bytes(self) -> int:
        """About how many bytes the graph that waits for its gradient takes; 0 if none waits."""
        return self._trainer.graph_bytes

    @property
    def info(self) -> JobInfo:
        """Where the job stands."""
        return self.stored.info(Standing.of(self._trainer))

    # ------------------------------------------------------------ frames

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
        if (known := self._journal.answer(entry)) is not None:
            return known
        due = check_turn(self._trainer, kind, step, total_steps=self.spec.optimiser.total_steps)
        self._journal.check_not_given_up(entry)
        tensors = decode_tensors(STEP_ROUTES[kind], body)
        check_content(self._trainer, due, tensors, self._output_type)
        content = self._read(due, tensors)
        self._check_graph(content.payload)
        self._journal.log.append(entry)
        self.busy = True
        try:
            answer = yield from self._apply(entry, due, content)
        except BaseException:
            # The frame is undone: off the log, and this half-changed state is thrown away by the caller.
            self._failed = True
            self._journal.log.take_back()
            raise
        finally:
            self.busy = False
        self._journal.log.note_applied()
        self.standing = Standing.of(self._trainer)
        self._journal.checkpoint_if_due(entry, self._trainer)
        return answer

    def resume(self) -> Pieces[None]:
        """Loads the furthest checkpoint and takes the logged frames after it again, others being served in between.

        Raises:
            StorageError: Its log or checkpoints are damaged.
        """
        self.busy = True
        try:
            self._journal.load(self._trainer)
            for entry in self._journal.log.read():
                tensors = decode_tensors(STEP_ROUTES[entry.kind], entry.body)
                due = self._journal.still_due(self._trainer, entry, tensors)
                if due is not None:
                    self._apply_again(entry, due, self._read(due, tensors))
                yield
                use_threads(self.threads)
        finally:
            self.busy = False
        self.standing = Standing.of(self._trainer)

    def _apply_again(self, entry: Entry, due: Due, content: _Content) -> None:
        graph = self._trainer.graph_bytes
        if content.payload is not None:
            graph = max(graph, self._trainer.estimate(content.payload))
        if self._journal.gives_up(entry, heavy=graph > _HEAVY * self._room.graph_limit):
            return
        with self._journal.log.replaying(entry):
            # In one piece: a death while others are served would count as this frame's.
            for _ in self._apply(entry, due, content):
                pass

    def _apply(self, entry: Entry, due: Due, content: _Content) -> Pieces[bytes]:
        """Backward, update, forward: whichever the frame asks for. Others may be served between them."""
        trainer = self._trainer
        tensors: dict[str, Tensor] = {}
        boundary_gradient = None
        if due.backward is not None and content.gradient is not None:
            boundary_gradient = due.backward.run(content.gradient)
        if content.peer_stats:
            trainer.join(content.peer_stats)
        if due.forward is not None and content.payload is not None:
            if due.backward is not None:
                yield
                use_threads(self.threads)
            self._room.make(self, trainer.estimate(content.payload))
            tensors["output"] = self._finite(due.forward.run(content.payload)).to(self._output_type)
            tensors |= {role: self._finite(tensor) for role, tensor in due.forward.told().items()}
        elif due.backward is not None:
            tensors["boundary_gradient"] = self._boundary_gradient(boundary_gradient)
            if entry.kind == trainer.frames[-1]:
                tensors |= {role: self._finite(tensor) for role, tensor in trainer.gradient_stats().items()}
        body = encode_tensors(tensors)
        self._journal.keep(entry, body)
        return body

    # ------------------------------------------------------------ what frames carry

    def _read(self, due: Due, tensors: dict[str, Tensor]) -> _Content:
        """What a frame carries of what is due, its release checked against the job and where it stands."""
        return _Content(
            tensors["gradient"] if due.backward is not None else None,
            peer_stats_in(tensors) if due.peer_stats else {},
            self._release(due.forward, tensors) if due.forward is not None else None,
        )

    def _release(self, forward: Forward, tensors: dict[str, Tensor]) -> Payload:
        if forward.stored:
            payload = self._stored(tensors["records"])
            if forward.preceded and not isinstance(payload, PrecededTokens):
                raise unacceptable(
                    "records-do-not-fit",
                    "A step of this job names a record without plain words before it, which there is to reconstruct.",
                    remedy="Train on records of a set with plain_tokens.",
                )
            return payload
        if forward.texts is not None and len(tensors["lengths"]) != forward.texts:
            raise unacceptable(
                "wrong-lengths",
                f"The frame holds {len(tensors['lengths'])} texts; {forward.texts} are due.",
                remedy="Send one for each text that the step began with.",
            )
        limit = self._limits.max_rows_per_step
        return read_release(self._card, self.spec, tensors, limit=limit, template=forward.template)

    def _stored(self, numbers: Tensor) -> Payload:
        if self._records is None:
            raise unacceptable("wrong-form", "This job has no stored records.", remedy="Send the release itself.")
        limit = self._limits.max_rows_per_step
        check_count(len(numbers), limit)
        chosen = numbers.to(torch.int64).numpy()
        longest = self._records.longest(chosen)
        check_positions(len(chosen), longest, limit)
        check_longest(self._card, longest, self.spec.virtual_positions)
        return self._records.gather(chosen)

    def _check_graph(self, payload: Payload | None) -> None:
        """Refuses a step before it is logged if its graph would not fit."""
        if payload is not None and (size := self._trainer.estimate(payload)) > self._room.graph_limit:
            raise step_too_large(len(payload), size, self._room.graph_limit)

    # ------------------------------------------------------------ what answers carry

    @property
    def _row_type(self) -> torch.dtype:
        return torch.bfloat16 if self.spec.wire_type is WireType.BF16 else torch.float32

    @property
    def _output_type(self) -> torch.dtype:
        """Logits are fp32; rows of an upper boundary travel like those of a lower one."""
        return torch.float32 if self.spec.cut.tail is None else self._row_type

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

    # ------------------------------------------------------------ what is asked

    def kept_output(self, step: int) -> bytes | None:
        """The output of the last step, as it was answered. Other threads may ask."""
        return self._journal.kept(STEP, step)

    def output(self, step: int) -> bytes:
        """The output of the last step, as it was answered.

        Raises:
            Refusal: It is not kept, or was another step's.
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
        check_at_rest(self._trainer)
        tensors = decode_tensors(routes.JOB_INFER, body)
        if "records" in tensors:
            payload = self._stored(tensors["records"])
        else:
            payload = read_query(self._card, self.spec, tensors, limit=self._limits.max_rows_per_step)
        self.busy = True
        try:
            most, of_texts = self._limits.positions_per_piece, self.spec.cut.tail is None
            output = yield from in_pieces(
                payload, self._card.template, most, threads=self.threads, of_texts=of_texts, run=self._trainer.infer
            )
        finally:
            self.busy = False
        return encode_tensors({"output": self._finite(output).to(self._output_type)})

    # ------------------------------------------------------------ leaving memory

    def leave(self) -> None:
        """Writes a checkpoint out of turn, so that the job comes back without replaying, and closes the log."""
        try:
            self._journal.leave(self._trainer)
        finally:
            self.close()

    def close(self) -> None:
        """Closes the log, and frees the graph that waits."""
        self._journal.log.close()
        self._trainer.forget_graph()

    # ------------------------------------------------------------ snapshots

    @property
    def adapter_bytes(self) -> int:
        """Bytes of the adapter's tensors."""
        return sum(tensor.nbytes for tensor in self._trainer.adapter().values())

    def snapshot(self, step: int) -> None:
        """Keeps the adapter as it is after `step` steps."""
        # At the present step also where there is one: a roll-back cut short may have left it of another branch.
        if self._trainer.taken == step or step not in self.stored.snapshots.steps():
            self._check_at(step)
            self.stored.snapshots.save(step, State(self._trainer.adapter()))

    def trainer_at(self, step: int) -> Training:
        """The adapter after `step` steps: the current one, or a snapshot."""
        if self._trainer.taken == step:
            self._check_at(step)
            return self._trainer
        if step not in self.stored.snapshots.steps():
            self._check_at(step)
        trainer = self._new_trainer()
        trainer.load_adapter(self.stored.snapshots.load(step).tensors)
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
            raise update_waits(self._trainer)
