"""The protocol as a table: every message that may cross, what it holds, and nothing else.

Customer and vendor meet only here. A route's body is either one JSON control message or one
safetensors block, never both; a tensor has a role, and a role has its element types and rank.
What stands in a path has a form, too. There is no route, message or role that could hold raw text. Labels have one
role, beside a record set, which runs with labels at the vendor alone use; of a model that writes labels their names
stand in the job.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from string import Formatter
from typing import Any, Final

from pydantic import TypeAdapter

from cutlayer.wire import messages as m
from cutlayer.wire.denoisers import DenoiserList
from cutlayer.wire.generation import GenerationInfo, GenerationSpec

MOST_LENGTH_PENALTY: Final = 10.0
"""Of a beam search, either way: a text's length to this power is a number still."""


class Category(StrEnum):
    """What bytes on the wire were spent on, as reports split them."""

    RELEASE = "release"
    GRADIENT = "gradient"
    CONTROL = "control"


LISTS = (m.ModelList, m.RecordSetInfo, m.AdapterList, m.JobList, DenoiserList)
"""Answers that grow with what a vendor holds."""


@dataclass(frozen=True, slots=True)
class Role:
    """What a named tensor in a frame is.

    Attributes:
        dtypes: safetensors names of the element types allowed.
        rank: Number of dimensions.
        category: How its bytes are counted.
    """

    dtypes: tuple[str, ...]
    rank: int
    category: Category


INDEX = ("U8", "U16", "U32")

ROLES: Mapping[str, Role] = {
    # a release as ids: [tokens] and [texts, segments]
    "ids": Role(("U16", "U32"), 1, Category.RELEASE),
    "lengths": Role(("U8", "U16"), 2, Category.RELEASE),
    # a release as rows: [rows, width]; its `lengths` count rows per segment
    "rows": Role(("BF16", "F32"), 2, Category.RELEASE),
    # of each text how many pieces each public word before it has: [texts, words]; and which words they are: [texts]
    "preceding": Role(("U8",), 2, Category.RELEASE),
    "sequences": Role(("U8",), 1, Category.CONTROL),
    # what randomised response returned for each text, as a number of a class: [texts]; as they are where it is off
    "labels": Role(INDEX, 1, Category.RELEASE),
    # stored records that a step, an inference or labels name: [texts]
    "records": Role(INDEX, 1, Category.CONTROL),
    # d loss / d output of the step before: [texts, labels], or [rows, width] where there is a tail
    "gradient": Role(("BF16", "F32"), 2, Category.GRADIENT),
    # squared norm of all gradients that are one party's alone: [1]
    "norm": Role(("F32",), 1, Category.GRADIENT),
    # gradients of one party's copies of what both hold, T5's position biases, of all stacks: [numbers]
    "shared_gradient": Role(("F32",), 1, Category.GRADIENT),
    # the sequence that each one goes on from, in beam search: [sequences]
    "parents": Role(INDEX, 1, Category.CONTROL),
    # how the vendor is to choose tokens: beams, tokens of a text at most, length penalty, the id that ends a text: [4]
    "search": Role(("F32",), 1, Category.CONTROL),
    # answers: logits [texts, labels], embeddings [texts, width], or the upper boundary [rows, width]; the gradient of
    # a boundary [rows, width]
    "output": Role(("BF16", "F32"), 2, Category.RELEASE),
    # of the vendor's own task beside the customer's: [1]
    "reconstruction_loss": Role(("F32",), 1, Category.CONTROL),
    "boundary_gradient": Role(("BF16", "F32"), 2, Category.GRADIENT),
}

PLACEHOLDERS: Mapping[str, TypeAdapter[Any]] = {
    "model": TypeAdapter(m.ModelName),
    "cut": TypeAdapter(m.CutSlug),
    "file": TypeAdapter(m.FileName),
    "record_set": TypeAdapter(m.Identifier),
    "shard": TypeAdapter(m.ShardNumber),
    "after": TypeAdapter(m.Count),
    "job": TypeAdapter(m.Identifier),
    "step": TypeAdapter(m.StepNumber),
    "adapter": TypeAdapter(m.Identifier),
    "generation": TypeAdapter(m.Identifier),
    "denoiser": TypeAdapter(m.Identifier),
}


@dataclass(frozen=True, slots=True)
class Route:
    """One kind of message.

    Attributes:
        name: Its name in ledgers and transcripts.
        method: HTTP method. `PUT`, `GET` and `DELETE` may be repeated freely; the `POST`s here are
            numbered or named, so that they may be repeated too.
        path: Path template.
        control: The JSON body's schema, if it has one.
        tensors: Sets of roles that a tensor body may hold; one of them, exactly.
        reply: The JSON answer's schema, if it has one.
        reply_tensors: Sets of roles that a tensor answer may hold; one of them, exactly.
        raw_reply: The answer is a file's bytes.
        is_event: The JSON answer comes as a server-sent event.
    """

    name: str
    method: str
    path: str
    control: type[m.Message] | None = None
    tensors: tuple[frozenset[str], ...] = ()
    reply: type[m.Message] | None = None
    reply_tensors: tuple[frozenset[str], ...] = ()
    raw_reply: bool = False
    is_event: bool = False

    @property
    def reply_bytes(self) -> int:
        """Most bytes of an answer, where the frame does not tell it more exactly."""
        if self.reply_tensors or self.raw_reply:
            return m.MAX_TENSOR_BYTES
        return m.MAX_LIST_BYTES if self.reply in LISTS else m.MAX_ANSWER_BYTES

    @property
    def placeholders(self) -> frozenset[str]:
        """Names of what stands in the path; `PLACEHOLDERS` has their forms."""
        return frozenset(name for _, name, _, _ in Formatter().parse(self.path) if name)


def _sets(*names: str) -> tuple[frozenset[str], ...]:
    return tuple(frozenset(name.split()) for name in names)


INLINE = ("ids lengths", "rows lengths")
PRECEDED = "ids lengths preceding sequences"
_OUTPUT = _sets("output")
_STEP_OUTPUT = _sets("output", "output reconstruction_loss")
_TOLD = ("norm", "shared_gradient", "norm shared_gradient")
"""What one party tells the other for an update that both take together."""

SERVICE = Route("service", "GET", "/v1", reply=m.ServiceInfo)
MODELS = Route("models", "GET", "/v1/models", reply=m.ModelList)
ARCHIVE = Route("archive", "GET", "/v1/models/{model}/archives/{cut}", reply=m.ArchiveManifest)
ARCHIVE_FILE = Route("archive.file", "GET", "/v1/models/{model}/archives/{cut}/files/{file}", raw_reply=True)

EMBEDDINGS = Route(
    "embeddings",
    "POST",
    "/v1/models/{model}/embeddings",
    # the frozen model's: no adapter, no job, and nothing is kept. One row comes down for each text.
    tensors=_sets(*INLINE),
    reply_tensors=_OUTPUT,
)

DENOISERS = Route("denoisers", "GET", "/v1/models/{model}/denoisers", reply=DenoiserList)
DENOISER_FILE = Route("denoiser.file", "GET", "/v1/models/{model}/denoisers/{denoiser}/files/{file}", raw_reply=True)

RECORD_SET_PUT = Route(
    "record-set.put", "PUT", "/v1/record-sets/{record_set}", control=m.RecordSetSpec, reply=m.RecordSetInfo
)
RECORD_SET_GET = Route("record-set.get", "GET", "/v1/record-sets/{record_set}", reply=m.RecordSetInfo)
RECORD_SET_DELETE = Route("record-set.delete", "DELETE", "/v1/record-sets/{record_set}")
SHARD_PUT = Route(
    "shard.put",
    "PUT",
    "/v1/record-sets/{record_set}/shards/{shard}",
    tensors=_sets(*INLINE, PRECEDED),
    reply=m.ShardInfo,
)
LABELS_PUT = Route(
    "record-set.labels",
    "PUT",
    "/v1/record-sets/{record_set}/labels",
    # of each text the record that holds it, counted from 0 within the set, and its label: the one place where labels
    # may travel
    tensors=_sets("records labels"),
    reply=m.RecordSetInfo,
)
SEAL = Route(
    "record-set.seal", "POST", "/v1/record-sets/{record_set}/seal", control=m.SealRequest, reply=m.RecordSetInfo
)

JOB_PUT = Route("job.put", "PUT", "/v1/jobs/{job}", control=m.JobSpec, reply=m.JobInfo)
JOB_GET = Route("job.get", "GET", "/v1/jobs/{job}", reply=m.JobInfo)
JOB_DELETE = Route("job.delete", "DELETE", "/v1/jobs/{job}")
JOBS = Route("jobs", "GET", "/v1/jobs", reply=m.JobList)
JOB_CANCEL = Route("job.cancel", "POST", "/v1/jobs/{job}/cancel", reply=m.JobInfo)
# how far a job is that the vendor trains alone, as soon as it is further than event `after`, or after some seconds
JOB_EVENTS = Route("job.events", "GET", "/v1/jobs/{job}/events/{after}", reply=m.JobProgress, is_event=True)
STEP = Route(
    "job.step",
    "POST",
    "/v1/jobs/{job}/steps/{step}",
    # frozen bottom: name stored records; from the second step on the gradient of step - 1 rides along.
    # trainable bottom: the step's own release. Where gradients are clipped, step - 1's has gone before, and the
    # customer's norm rides along, after which the vendor takes its update.
    tensors=_sets("records", "records gradient", *INLINE, *(f"{what} norm" for what in ("records", *INLINE))),
    reply_tensors=_STEP_OUTPUT,
)
SOURCE = Route(
    "job.source",
    "POST",
    "/v1/jobs/{job}/steps/{step}/source",
    # encoder-decoders: the source texts' own release begins a step, and the encoder's output comes down; the
    # target texts' follows as `job.step`
    tensors=_sets("rows lengths"),
    reply_tensors=_OUTPUT,
)
STEP_GET = Route("job.step.get", "GET", "/v1/jobs/{job}/steps/{step}", reply_tensors=_STEP_OUTPUT)
GRADIENT = Route(
    "job.gradient",
    "POST",
    "/v1/jobs/{job}/steps/{step}/gradient",
    # the gradient of `step` alone: the end of an epoch, or a second trip, which is answered with the boundary's
    # gradient (empty for a frozen bottom) and, where gradients are clipped, the norm of the vendor's own
    tensors=_sets("gradient"),
    reply_tensors=_sets("boundary_gradient", "boundary_gradient norm"),
)
SOURCE_GRADIENT = Route(
    "job.source-gradient",
    "POST",
    "/v1/jobs/{job}/steps/{step}/source/gradient",
    # what the customer's decoder blocks add to d loss / d encoder's output, after `job.gradient`; it ends the step
    tensors=_sets("gradient"),
    reply_tensors=_sets("boundary_gradient", *(f"boundary_gradient {told}" for told in _TOLD)),
)
UPDATE = Route(
    "job.update",
    "POST",
    "/v1/jobs/{job}/steps/{step}/update",
    # what the customer tells for the update after `step`, where no further step carries it: the end of an epoch, and
    # always for encoder-decoders
    tensors=_sets(*_TOLD),
    reply=m.JobInfo,
)
# of encoder-decoders: source texts, answered with the encoder's output; then source and target texts, a segment each
JOB_INFER = Route("job.infer", "POST", "/v1/jobs/{job}/infer", tensors=_sets("records", *INLINE), reply_tensors=_OUTPUT)
SNAPSHOT = Route("job.snapshot", "POST", "/v1/jobs/{job}/snapshot", control=m.SnapshotRequest, reply=m.JobInfo)
ROLLBACK = Route("job.rollback", "POST", "/v1/jobs/{job}/rollback", control=m.SnapshotRequest, reply=m.JobInfo)
FINISH = Route("job.finish", "POST", "/v1/jobs/{job}/finish", control=m.SnapshotRequest, reply=m.AdapterInfo)

ADAPTERS = Route("adapters", "GET", "/v1/adapters", reply=m.AdapterList)
ADAPTER_GET = Route("adapter.get", "GET", "/v1/adapters/{adapter}", reply=m.AdapterInfo)
ADAPTER_DELETE = Route("adapter.delete", "DELETE", "/v1/adapters/{adapter}")
ADAPTER_INFER = Route(
    "adapter.infer", "POST", "/v1/adapters/{adapter}/infer", tensors=_sets(*INLINE), reply_tensors=_OUTPUT
)
ADAPTER_GENERATE = Route(
    "adapter.generate",
    "POST",
    "/v1/adapters/{adapter}/generate",
    # at the text cut the vendor holds all that chooses tokens: ids up, ids down
    tensors=_sets("ids lengths search"),
    reply_tensors=_sets("ids lengths"),
)

GENERATION_PUT = Route(
    "generation.put", "PUT", "/v1/generations/{generation}", control=GenerationSpec, reply=GenerationInfo
)
GENERATION_STEP = Route(
    "generation.step",
    "POST",
    "/v1/generations/{generation}/steps/{step}",
    # the prompts first (of encoder-decoders: the source texts), then the tokens that were chosen; a sequence that has
    # ended has length 0
    tensors=_sets(*INLINE, *(f"{what} parents" for what in INLINE)),
    reply_tensors=_OUTPUT,
)
GENERATION_DELETE = Route("generation.delete", "DELETE", "/v1/generations/{generation}")

ROUTES: Mapping[str, Route] = {route.name: route for route in list(globals().values()) if isinstance(route, Route)}
