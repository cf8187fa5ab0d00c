"""What an attacker has: the recorded transcript, and knowledge that is declared.

Nothing else reaches an attack (design, promise 4). Whoever measures it also holds the truth, but an
attack is called with a `View` and returns guesses; it never meets the customer's side.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from cutlayer.core import Cut, Payload
from cutlayer.privacy.neighbours import NeighbourSearch
from cutlayer.wire import Route, routes, unpack
from cutlayer.wire.recording import Direction, read_recording

if TYPE_CHECKING:
    from cutlayer.models import Template


class Inapplicable(Exception):  # noqa: N818 - an answer of an attack, not a fault of anybody's
    """Raised by an attack that does not apply to what was sent: a number would flatter.

    Args:
        reason: Why, and what would apply, as a sentence for a report.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True)
class SeenFrame:
    """A message with tensors, as the vendor saw it.

    Attributes:
        direction: Who sent it.
        route: What kind of message.
        where: Values of the path's placeholders.
        tensors: The body, by role; read when it is needed, so that a long transcript need not fit in memory.
    """

    direction: Direction
    route: Route
    where: Mapping[str, str | int]
    tensors: Callable[[], Mapping[str, Tensor]] = field(repr=False)


@dataclass(frozen=True)
class SeenRelease:
    """Texts in the form in which one frame released them.

    Attributes:
        source: What they were released into: `record-set/ID`, `job/ID` for a step with its own
            release, `job/ID/infer` or `adapter/ID/infer` for queries.
        number: The shard, the step, or the running number of the query.
        payload: Token ids or boundary rows.
    """

    source: str
    number: int
    payload: Payload


@dataclass(frozen=True)
class SeenStep:
    """What one training step showed of its labels.

    Attributes:
        source: `job/ID`.
        number: The step.
        output: `[texts, labels]` logits, which the vendor computed; `None` if the step's answer is not
            in the transcript.
        gradient: `[texts, labels]` d loss / d output, which the customer sent.
    """

    source: str
    number: int
    output: Tensor | None
    gradient: Tensor


class Transcript:
    """Everything with tensors that crossed, in order; a repeated frame counts once.

    Args:
        frames: Gives the frames from the beginning, each time it is called.
    """

    def __init__(self, frames: Callable[[], Iterable[SeenFrame]]) -> None:
        self._frames = frames

    @classmethod
    def recorded(cls, folder: Path | str) -> Transcript:
        """The transcript that `RecordingTransport` wrote."""
        return cls(lambda: _recorded(folder))

    def __iter__(self) -> Iterator[SeenFrame]:
        return iter(self._frames())

    def releases(self) -> Iterator[SeenRelease]:
        """The customer's frames that released texts."""
        queries: dict[str, int] = {}
        for frame in self:
            if frame.direction is not Direction.UP or frame.route.name not in _RELEASED_INTO:
                continue
            tensors = frame.tensors()
            if "lengths" not in tensors:
                continue  # it names stored records instead
            template, number = _RELEASED_INTO[frame.route.name]
            source = template.format(**frame.where)
            if number is None:
                queries[source] = queries.get(source, -1) + 1
            yield SeenRelease(source, queries[source] if number is None else int(frame.where[number]), unpack(tensors))

    def steps(self) -> Iterator[SeenStep]:
        """The training steps whose gradient was sent, with the output that it belongs to."""
        outputs: dict[tuple[str, int], Tensor] = {}
        for frame in self:
            if frame.route not in (routes.STEP, routes.STEP_GET, routes.GRADIENT):
                continue
            job, step = f"job/{frame.where['job']}", int(frame.where["step"])
            tensors = frame.tensors()
            if "output" in tensors:
                outputs[job, step] = tensors["output"]
            if "gradient" in tensors:
                # a step's own frame carries the gradient of the step before
                of = step - 1 if frame.route is routes.STEP else step
                yield SeenStep(job, of, outputs.pop((job, of), None), tensors["gradient"])


_RELEASED_INTO: Mapping[str, tuple[str, str | None]] = {
    routes.SHARD_PUT.name: ("record-set/{record_set}", "shard"),
    routes.STEP.name: ("job/{job}", "step"),
    routes.JOB_INFER.name: ("job/{job}/infer", None),
    routes.ADAPTER_INFER.name: ("adapter/{adapter}/infer", None),
}


def _recorded(folder: Path | str) -> Iterator[SeenFrame]:
    seen: set[tuple[str, str, str]] = set()
    for frame in read_recording(folder):
        if not (frame.route.reply_tensors if frame.direction is Direction.DOWN else frame.route.tensors):
            continue
        # the same bytes at the same address are a retry: no second look, and no second step
        key = (frame.direction, frame.route.path.format(**frame.where), frame.sha256)
        if key not in seen:
            seen.add(key)
            yield SeenFrame(frame.direction, frame.route, frame.where, frame.tensors)


@dataclass(frozen=True, eq=False)
class Knowledge:
    """What the attacker is granted beside the transcript: here, what the vendor owns anyway.

    Attributes:
        cut: Where the model was cut for this customer.
        table: `[vocab, width]`, the embedding table as it was handed out, before any training. Not
            needed against ids.
        candidates: `[vocab]` bool, the ids that may be guessed; `None` allows every row of the table,
            which is the paper's "nearest neighbour in the embedding space".
        template: Where special tokens stand among boundary rows.
    """

    cut: Cut
    table: Tensor | None = None
    candidates: Tensor | None = None
    template: Template | None = None

    @cached_property
    def search(self) -> NeighbourSearch | None:
        """Nearest neighbours among the candidates, if there is a table."""
        if self.table is None:
            return None
        everything = torch.ones(len(self.table), dtype=torch.bool)
        return NeighbourSearch(self.table, everything if self.candidates is None else self.candidates)


@dataclass(frozen=True)
class View:
    """All that an attack may look at."""

    transcript: Transcript
    knowledge: Knowledge
