"""What an attacker sees: the recorded transcript, beside knowledge that is declared.

Nothing else reaches an attack (design, promise 4). Whoever measures it also holds the truth, but an
attack is called with a `View` and returns guesses; it never meets the customer's side.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor

from cutlayer.attacks.knowledge import Knowledge
from cutlayer.core import Payload, PrecededTokens, Rows
from cutlayer.wire import Route, routes, unpack
from cutlayer.wire.recording import Direction, read_recording


@dataclass(frozen=True)
class SeenFrame:
    """A message with tensors, as the vendor saw it.

    Attributes:
        direction: Who sent it.
        route: What kind of message.
        where: Values of the path's placeholders.
        tensors: The body, by role, of the shapes `[...]` that the route states (`wire.routes`); read when it is needed,
            so that a long transcript need not fit in memory.
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
            release, `job/ID/source` for the source texts of an encoder-decoder's, `job/ID/infer`,
            `adapter/ID/infer` or `model/NAME/embeddings` for queries.
        number: The shard, the step, or the running number of the query.
        payload: Token ids or boundary rows; without public words before the texts.
        preceded: The same token ids with public words before them; `None` where there are none.
    """

    source: str
    number: int
    payload: Payload
    preceded: PrecededTokens | None = None


@dataclass(frozen=True)
class SeenStep:
    """What one training step showed of its labels.

    Attributes:
        source: `job/ID`.
        number: The step.
        output: What the vendor computed: logits `[texts, labels]`, or rows `[rows, width]` of the upper boundary;
            `None` if the step's answer is not in the transcript.
        gradient: d loss / d output, which the customer sent, in the shape of the output.
        lengths: `[texts, segments]` int64, ids or rows of each text that went up for it; `None` if that is not in
            the transcript.
        records: `[texts]` int64, numbers of the stored records that it named; `None` if it named none.
    """

    source: str
    number: int
    output: Tensor | None
    gradient: Tensor
    lengths: Tensor | None = None
    records: Tensor | None = None


@dataclass(frozen=True)
class SeenAnswer:
    """What a query was answered with.

    Attributes:
        source: `job/ID/infer`, `adapter/ID/infer` or `model/NAME/embeddings`.
        number: The running number of the query.
        output: Logits `[texts, labels]`, embeddings `[texts, width]`, or rows `[rows, width]` of the upper boundary.
        lengths: `[texts, segments]` int64, ids or rows of each text that was asked about; `None` if that is not in the
            transcript.
    """

    source: str
    number: int
    output: Tensor
    lengths: Tensor | None


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

    @classmethod
    def joined(cls, runs: Sequence[Transcript]) -> Transcript:
        """Those of several runs, one behind the other; jobs and record sets of each have names of their own."""
        return cls(lambda: (frame for run in runs for frame in run))

    def __iter__(self) -> Iterator[SeenFrame]:
        return iter(self._frames())

    def first_steps(self, last: int, *, after: int = 0) -> Transcript:
        """The same up to a step and its gradient, without those up to another; what is no step stays.

        Of queries for embeddings, those stay that are numbered up to the same last one.
        """

        def frames() -> Iterator[SeenFrame]:
            queries = 0
            for frame in self:
                if frame.route is routes.EMBEDDINGS:
                    queries += frame.direction is Direction.UP
                    if queries <= last + 1:  # they are numbered from 0
                        yield frame
                    continue
                if "step" not in frame.where or "job" not in frame.where:
                    yield frame
                    continue
                step = int(frame.where["step"])
                if after < step <= last:
                    yield frame
                    continue
                # the gradient of the last step may ride with the next one, whose release stays out
                carries = step == last + 1 and frame.route is routes.STEP and frame.direction is Direction.UP
                if carries and "gradient" in (tensors := frame.tensors()):
                    kept = {role: tensors[role] for role in ("records", "gradient") if role in tensors}
                    yield replace(frame, tensors=_holding(kept))

        return Transcript(frames)

    def only(self, *kinds: Route) -> Transcript:
        """The frames of some routes."""
        return Transcript(lambda: (frame for frame in self if frame.route in kinds))

    def first_records(self, record_set: str, count: int) -> Transcript:
        """The first texts that were stored in a record set, and nothing else."""

        def frames() -> Iterator[SeenFrame]:
            left = count
            for frame in self.only(routes.SHARD_PUT):
                if frame.where["record_set"] != record_set or frame.direction is not Direction.UP or not left:
                    continue
                payload = unpack(frame.tensors())
                kept = payload.select(torch.arange(min(left, len(payload))))
                left -= len(kept)
                yield replace(frame, tensors=_tensors_of(kept)) if isinstance(kept, Rows) else frame

        return Transcript(frames)

    def shortened(self, positions: int) -> Transcript:
        """The same with the first rows alone of each text that is trained on or embedded; source texts stay whole."""

        def frames() -> Iterator[SeenFrame]:
            for frame in self:
                if frame.route in _OWN_TEXTS and frame.direction is Direction.UP:
                    payload = unpack(tensors) if "rows" in (tensors := frame.tensors()) else None
                    if isinstance(payload, Rows) and payload.segment_count == 1:
                        kept = payload.packed.first(payload.packed.lengths.clamp(max=positions))
                        yield replace(frame, tensors=_tensors_of(Rows(kept, kept.lengths[:, None])))
                        continue
                yield frame

        return Transcript(frames)

    def targets(self) -> Transcript:
        """What an encoder-decoder's target texts crossed in, as if there were no source texts."""

        def frames() -> Iterator[SeenFrame]:
            skipped = False
            for frame in self:
                if frame.route in (routes.SOURCE, routes.SOURCE_GRADIENT):
                    continue
                if frame.route in _QUERIES and frame.direction is Direction.UP:
                    payload = unpack(frame.tensors())
                    sides = payload.parted() if isinstance(payload, Rows) else ()
                    skipped = len(sides) < 2
                    if not skipped:
                        yield replace(frame, tensors=_tensors_of(sides[1]))
                elif frame.route not in _QUERIES or not skipped:
                    yield frame

        return Transcript(frames)

    def only_answers(self, queries: Collection[tuple[str, int]]) -> Transcript:
        """The same with no answers but those of some queries, by source and number."""
        return _SomeAnswers(self._frames, queries)

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
            at = queries[source] if number is None else int(frame.where[number])
            payload = unpack(tensors)
            preceded = payload if isinstance(payload, PrecededTokens) else None
            yield SeenRelease(source, at, payload if preceded is None else preceded.parted()[1], preceded)

    def steps(self) -> Iterator[SeenStep]:
        """The training steps whose gradient was sent, with the output that it belongs to."""
        outputs: dict[tuple[str, int], Tensor] = {}
        sizes: dict[tuple[str, int], Tensor | None] = {}
        named: dict[tuple[str, int], Tensor] = {}
        stored = _StoredLengths()
        for frame in self:
            stored.see(frame)
            if frame.route not in (routes.STEP, routes.STEP_GET, routes.GRADIENT):
                continue
            job, step = f"job/{frame.where['job']}", int(frame.where["step"])
            tensors = frame.tensors()
            if frame.route is routes.STEP and frame.direction is Direction.UP:
                sizes[job, step] = stored.of(tensors)
                if "records" in tensors:
                    named[job, step] = tensors["records"].to(torch.int64)
            if "output" in tensors:
                outputs[job, step] = tensors["output"]
            if "gradient" in tensors:
                # a step's own frame carries the gradient of the step before
                of = step - 1 if frame.route is routes.STEP else step
                at = (job, of)
                yield SeenStep(
                    *at, outputs.pop(at, None), tensors["gradient"], sizes.pop(at, None), named.pop(at, None)
                )

    def answers(self) -> Iterator[SeenAnswer]:
        """The queries, each with what it was answered."""
        asked: dict[str, Tensor | None] = {}
        numbers: dict[str, int] = {}
        stored = _StoredLengths()
        for frame in self._frames():
            stored.see(frame)
            if frame.route not in _QUERIES:
                continue
            source = _RELEASED_INTO[frame.route.name][0].format(**frame.where)
            tensors = frame.tensors()
            if frame.direction is Direction.UP:
                asked[source] = stored.of(tensors)
            else:
                numbers[source] = numbers.get(source, -1) + 1
                yield SeenAnswer(source, numbers[source], tensors["output"], asked[source])


def _tensors_of(rows: Rows) -> Callable[[], Mapping[str, Tensor]]:
    return _holding({"rows": rows.packed.values, "lengths": rows.segment_lengths})


def _holding(tensors: Mapping[str, Tensor]) -> Callable[[], Mapping[str, Tensor]]:
    return lambda: tensors


class _SomeAnswers(Transcript):
    def __init__(self, frames: Callable[[], Iterable[SeenFrame]], queries: Collection[tuple[str, int]]) -> None:
        super().__init__(frames)
        self._queries = frozenset(queries)

    def answers(self) -> Iterator[SeenAnswer]:
        return (answer for answer in super().answers() if (answer.source, answer.number) in self._queries)


class _StoredLengths:
    """Lengths of stored records, numbered through all sets in the order in which they were sent."""

    def __init__(self) -> None:
        self._lengths: list[Tensor] = []

    def see(self, frame: SeenFrame) -> None:
        """Notes the records that a frame stores."""
        if frame.route is routes.SHARD_PUT and frame.direction is Direction.UP:
            self._lengths.append(frame.tensors()["lengths"].to(torch.int64))

    def of(self, tensors: Mapping[str, Tensor]) -> Tensor | None:
        """Lengths `[texts, segments]` of the texts in a frame, or of the records that it names, if they were seen."""
        if "lengths" in tensors:
            return tensors["lengths"].to(torch.int64)
        return torch.cat(self._lengths)[tensors["records"].to(torch.int64)] if self._lengths else None


_OWN_TEXTS = (routes.STEP, routes.SHARD_PUT, routes.EMBEDDINGS)
_QUERIES = (routes.JOB_INFER, routes.ADAPTER_INFER, routes.EMBEDDINGS)
_UNCHANGING = (routes.ADAPTER_INFER, routes.EMBEDDINGS)
_RELEASED_INTO: Mapping[str, tuple[str, str | None]] = {
    routes.SHARD_PUT.name: ("record-set/{record_set}", "shard"),
    routes.STEP.name: ("job/{job}", "step"),
    routes.SOURCE.name: ("job/{job}/source", "step"),
    routes.JOB_INFER.name: ("job/{job}/infer", None),
    routes.ADAPTER_INFER.name: ("adapter/{adapter}/infer", None),
    routes.EMBEDDINGS.name: ("model/{model}/embeddings", None),
}


def _recorded(folder: Path | str) -> Iterator[SeenFrame]:
    seen: set[tuple[str, ...]] = set()
    asked: dict[str, str] = {}
    for frame in read_recording(folder):
        path = frame.route.path.format(**frame.where)
        if frame.direction is Direction.UP:
            asked[path] = frame.sha256
        if not (frame.route.reply_tensors if frame.direction is Direction.DOWN else frame.route.tensors):
            continue
        # the same bytes at the same address are a retry: no second look, and no second step
        key: tuple[str, ...] = (frame.direction, path, frame.sha256)
        if frame.route in _UNCHANGING and frame.direction is Direction.DOWN:
            # these weights do not change: what is asked again after a stop, was answered before
            key = (frame.direction, path, asked.get(path, ""))
        # a job does: there a query may be asked twice, and mean another moment
        if key not in seen or frame.route is routes.JOB_INFER:
            seen.add(key)
            yield SeenFrame(frame.direction, frame.route, frame.where, frame.tensors)


@dataclass(frozen=True)
class View:
    """All that an attack may look at."""

    transcript: Transcript
    knowledge: Knowledge
