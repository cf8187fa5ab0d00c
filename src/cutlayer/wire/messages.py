"""Control messages: closed schemas in which private text has no field.

Every string a customer can send is an identifier of a fixed shape, an enumerated word or the name
of a vendor's model. There is no free text, no label name, no column name and no file path.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from pathlib import PurePath
from typing import Annotated, Any, Literal, Self

from annotated_types import Ge, Le
from pydantic import AfterValidator, BaseModel, ConfigDict, FailFast, Field, StringConstraints, model_validator

from cutlayer.core import Cut, ModelError
from cutlayer.core.embedding import MOST_WIDTH, EmbeddingSpec
from cutlayer.core.tuning import AnyMethod, LoraSpec, OptimiserKind, Schedule
from cutlayer.wire.label_ids import LabelIds

PROTOCOL = 4
"""The version of this protocol; a customer refuses a vendor that speaks another."""

MAX_CONTROL_BYTES = 2**15
"""No message of a customer is longer: a job that names all the record sets it may has about 3,500 bytes."""

MAX_ANSWER_BYTES = 2**16
"""Most bytes of a vendor's JSON answer, problem details included, unless it is a list."""
MAX_LIST_BYTES = 2**22
"""Of an answer that lists models, adapters or shards: room for some 8,000 adapters, or 35,000 shards."""
MAX_TENSOR_BYTES = 2**30
"""Of an answer with tensors, where the request does not say how many there will be."""
MAX_SIDE = 2**24
"""Of a model's table: rows, and elements of a row."""
MAX_ARCHIVE_FILES = 16
"""Files of an archive; there are four."""

Identifier = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{32}$")]
"""A random 128-bit name, minted by the customer so that a repeated request is the same request."""

ModelName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")]
Space = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:-]{0,127}$")]
CutSlug = Annotated[str, StringConstraints(pattern=r"^(text|[0-9]{1,4})(-d[0-9]{1,4})?(-t[0-9]{1,4})?$")]
FileName = ModelName
"""No path, and nothing that is hidden: it has the form of a model's name."""
Digest = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
Word = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9.+!_-]{0,63}$")]
"""A version or the name of a family: a vendor's, and shown to people."""
Moment = Annotated[str, StringConstraints(pattern=r"^[0-9T:.+Z -]{1,40}$")]
"""A date and time as ISO 8601 writes it."""
LARGEST_COUNT = 2**53
"""Every whole number up to here is a float, too, for those who read JSON so."""

StepNumber = Annotated[int, Ge(1), Le(LARGEST_COUNT)]
ShardNumber = Annotated[int, Ge(0), Le(10**8 - 1)]


def _distinct(names: tuple[str, ...]) -> tuple[str, ...]:
    if len(set(names)) < len(names):
        raise ValueError("names a set more than once")
    return names


RecordSets = Annotated[
    tuple[Identifier, ...],
    Field(max_length=64, json_schema_extra={"uniqueItems": True}),
    FailFast(),  # one fault is told, not one for each element
    AfterValidator(_distinct),
]
"""Each set is opened and kept open by the job, so there are few of them, and each is named once."""


class Message(BaseModel):
    """Base of all control messages: frozen, and closed to fields it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


Count = Annotated[int, Ge(0), Le(LARGEST_COUNT)]


class Form(StrEnum):
    """What a release is made of on the wire."""

    IDS = "ids"
    """Token ids without special tokens; the vendor adds those again."""
    ROWS = "rows"
    """Boundary rows, special tokens' rows included, padding left out."""


class WireType(StrEnum):
    """The element type of boundary rows on the wire. Logits and their gradients are always fp32."""

    BF16 = "bf16"
    FP32 = "fp32"


class Precision(StrEnum):
    """The element type of matrix products in training. Weights and optimiser states are always fp32."""

    FP32 = "fp32"
    BF16 = "bf16"


# ---------------------------------------------------------------- service and models


class ServiceInfo(Message):
    """What a vendor says of itself."""

    service: Literal["cutlayer"] = "cutlayer"
    version: Word
    protocol: Count = PROTOCOL
    default_model: ModelName
    max_body_bytes: Count
    max_rows_per_step: int = Field(ge=1, le=LARGEST_COUNT)
    max_step_bytes: int = Field(ge=1, le=LARGEST_COUNT)
    threads: Count


class WarmedFor(Message):
    """Releases of public text that a model was warmed up to read: their mechanism's settings, by customers' names."""

    mechanism: Word
    eta: float = Field(gt=0, allow_inf_nan=False)
    words: Annotated[tuple[Word, ...], Field(max_length=32)] = ()
    candidates: Word | None = None
    draw: Word | None = None
    space: Space | None = None
    """Whose token embeddings, without where these lie, and of how many principal components."""

    @classmethod
    def told(cls, privacy: Mapping[str, Any]) -> dict[str, Any]:
        """What is told of a mechanism's settings, by name; not where a space lies, nor a name without such letters."""
        known = {name: privacy[name] for name in cls.model_fields if privacy.get(name) is not None}
        if "space" in known:
            space = re.sub("[^A-Za-z0-9._:-]", "-", PurePath(known.pop("space")).name).lstrip("._:-")[-128:]
            known |= {"space": space.lstrip("._:-")} if space else {}
        return known


class ModelInfo(Message):
    """A model that the vendor lets customers train and query."""

    name: ModelName
    family: Word
    fingerprint: Digest
    blocks: Count
    target_blocks: Count | None = None
    """Of an encoder-decoder's decoder, whose encoder has `blocks`; null for models with one stack."""
    width: int = Field(ge=1, le=MOST_WIDTH)
    vocab_size: int = Field(ge=1, le=MAX_SIDE)
    max_length: Count
    max_bottom: Count
    """The deepest cut, of either stack, for which the vendor hands out a bottom."""
    max_tail: Count | None
    """The deepest tail that the vendor hands out; null where it hands out none, as of an encoder."""
    parameters: Count
    quantization: Literal["nf4"] | None = None  # of linear maps of the vendor's blocks; null: the checkpoint's own
    warmed_for: WarmedFor | None = None
    embedding: EmbeddingSpec | None
    """How embeddings are made; null where none are offered, as of a model whose folder asks for more than pooling."""

    def require_embedding(self) -> EmbeddingSpec:
        """How embeddings are made.

        Raises:
            ModelError: None are offered.
        """
        if self.embedding is None:
            why = f"The vendor offers no embeddings of {self.name}."
            raise ModelError(why, remedy="Take another model, or ask the vendor, whose `vendor init` says why.")
        return self.embedding


class ModelList(Message):
    """The models of a vendor."""

    models: Annotated[tuple[ModelInfo, ...], FailFast()]


class ArchiveFile(Message):
    """One file of an archive."""

    name: FileName
    sha256: Digest
    size: Count


class ArchiveManifest(Message):
    """What a customer receives of a model for one cut."""

    model: ModelName
    fingerprint: Digest
    family: Word
    cut: Cut
    files: Annotated[tuple[ArchiveFile, ...], Field(max_length=MAX_ARCHIVE_FILES), FailFast()]
    parameters_handed_out: Count
    parameters_of_model: Count


# ---------------------------------------------------------------- records


MAX_PLAIN_TOKENS = 256  # public words before a text
MAX_PLAIN_SEQUENCES = 64
MAX_PLAIN_INDICES = 1024
"""Of all sequences together: a job names each word of each."""


class RecordSetSpec(Message):
    """What the records of a set are: which model and cut they were made for, and their form."""

    model: ModelName
    cut: Cut
    form: Form
    segments: int = Field(ge=1, le=2)
    wire_type: WireType = WireType.BF16
    plain_tokens: int = Field(default=0, ge=0, le=MAX_PLAIN_TOKENS)
    """Public words that stand before each text, of which the shards tell how many pieces each has."""
    plain_sequences: int = Field(default=1, ge=1, le=MAX_PLAIN_SEQUENCES)
    """Of how many sequences of such words each text has one."""
    num_labels: int | None = Field(default=None, ge=2, le=65536)
    """Classes of labels beside the records; null where labels stay at the customer."""

    @property
    def virtual_positions(self) -> int:
        """Of stored texts none are known: jobs that read them have some, or none."""
        return 0


class ShardInfo(Message):
    """A stored shard."""

    number: Count
    sha256: Digest
    size: Count
    records: Count


class RecordSetInfo(Message):
    """A record set as the vendor holds it: resume an upload by sending the shards that are missing."""

    record_set: Identifier
    spec: RecordSetSpec
    shards: Annotated[tuple[ShardInfo, ...], FailFast()]
    sealed: bool
    records: Count


class SealRequest(Message):
    """Closes a record set: the vendor checks that it holds exactly these shards."""

    shards: int = Field(ge=1, le=LARGEST_COUNT)
    records: int = Field(ge=1, le=LARGEST_COUNT)


# ---------------------------------------------------------------- jobs


class OptimiserSpec(Message):
    """How weights are updated: by default AdamW, with a linear schedule to zero over `total_steps` (SAP §5.1)."""

    kind: OptimiserKind = "adamw"
    schedule: Schedule = "linear"
    learning_rate: float = Field(default=3e-4, gt=0)
    weight_decay: float = Field(default=0.01, ge=0)
    warmup_steps: int = Field(default=0, ge=0, le=LARGEST_COUNT)
    total_steps: int = Field(ge=1, le=LARGEST_COUNT)
    accumulation: int = Field(default=1, ge=1, le=LARGEST_COUNT)
    """Steps whose gradients are added up before an update; the last update takes what there is."""
    clip_norm: float | None = Field(default=None, gt=0)
    """Largest norm of all gradients together, the vendor's and the customer's. For it each tells the other one
    number an update, the squared norm of its own gradients; an update waits for the customer's."""


class StepSize(Message):
    """How large a step becomes at most."""

    texts: int = Field(ge=1, le=LARGEST_COUNT)
    positions: int = Field(ge=1, le=LARGEST_COUNT)
    """Of the longest text, special tokens included; of an encoder-decoder's source texts."""
    target_positions: int = Field(default=0, ge=0, le=LARGEST_COUNT)
    """Of an encoder-decoder's longest target text."""


def _plain_words(words: tuple[tuple[int, ...], ...]) -> tuple[tuple[int, ...], ...]:
    counts = {len(sequence) for sequence in words}
    if len(counts) != 1 or not 1 <= counts.pop() <= MAX_PLAIN_TOKENS:
        raise ValueError(f"sequences must be equally long, of 1 to {MAX_PLAIN_TOKENS} words")
    if sum(map(len, words)) > MAX_PLAIN_INDICES:
        raise ValueError(f"names more than {MAX_PLAIN_INDICES} words")
    return words


class ReconstructionSpec(Message):
    """A second task beside the job's: to tell the public words that stand before stored texts from what they became.

    Ref: RAPT §III-B2, eq. (7), (8) and (11).
    """

    vocabulary: int = Field(ge=2, le=2**20)
    """Outputs of the head: words among which it tells."""
    width: int = Field(default=96, ge=1, le=4096)
    """Its hidden size."""
    weight: float = Field(default=1, ge=0, le=1e6)
    """What its loss counts, beside the customer's."""
    words: Annotated[
        tuple[tuple[Annotated[int, Ge(0), Le(2**20 - 1)], ...], ...],
        Field(min_length=1, max_length=MAX_PLAIN_SEQUENCES),
        FailFast(),
        AfterValidator(_plain_words),
    ]
    """Of each sequence the true words, by their numbers among the outputs."""

    @property
    def plain_tokens(self) -> int:
        """Words of a sequence."""
        return len(self.words[0])

    @model_validator(mode="after")
    def _within(self) -> Self:
        if max(map(max, self.words)) >= self.vocabulary:
            raise ValueError("words must be below vocabulary")
        return self


MAX_EPOCHS_ALONE = 256
"""Of a job that the vendor trains alone: the order of each is told beforehand."""


class LoopSpec(Message):
    """How the vendor trains a job alone, on labels beside its records: set 0 is trained on, set 1 chooses the epoch."""

    orders: Annotated[tuple[Identifier, ...], Field(min_length=1, max_length=MAX_EPOCHS_ALONE, repr=False), FailFast()]
    """Of each epoch the key that its order is drawn from; it tells nothing of the customer's secret."""
    batch_size: int = Field(ge=1, le=LARGEST_COUNT)
    group_by_length: bool
    patience: int = Field(ge=1, le=LARGEST_COUNT)
    """Epochs without a better share of right labels after which training stops."""


class JobSpec(Message):
    """A fine-tuning job, everything the vendor needs and nothing else."""

    model: ModelName
    fingerprint: Digest
    cut: Cut
    form: Form
    wire_type: WireType = WireType.BF16
    segments: int = Field(ge=1, le=2)
    record_sets: RecordSets = ()
    """Sets whose records the steps name, numbered through in this order."""
    loop: LoopSpec | None = None
    """How the vendor trains alone; null where the customer sends the steps."""
    num_labels: int | None = Field(default=None, ge=2, le=65536)
    label_words: LabelIds | None = Field(default=None, repr=False)
    """Labels that the top tells: by a head's outputs, or by words that an encoder-decoder writes. Null with a tail."""
    trainable_bottom: bool = False
    """Each step carries its own release and gets the boundary's gradient back."""
    tuning: AnyMethod = LoraSpec()
    """What is trained of the top; `full` trains its own weights, all of them, in a copy of this job's."""
    shared_weights: bool = False
    """Whether what all blocks of a stack use (T5's relative position biases) is trained with the rest. Where the
    customer holds a copy, both take the same updates: each tells the other the gradient of its own copy, and an update
    waits for the customer's."""
    reconstruction: ReconstructionSpec | None = None
    """What else is learnt from public words before stored texts, which the vendor computes alone."""
    optimiser: OptimiserSpec
    dropout: bool = True
    """Whether the blocks' own dropout is on while training."""
    gradient_checkpointing: bool = False
    """Computes each block again in the backward pass instead of keeping what it needs: less memory, more time."""
    precision: Precision = Precision.FP32
    """bf16 is faster where the vendor's device multiplies bf16 matrices; evaluation and inference stay fp32."""
    seed: int = Field(ge=0, lt=2**63)
    """Initialisation and dropout; never privacy noise."""
    checkpoint_every: int = Field(default=50, ge=1, le=LARGEST_COUNT)
    largest_steps: Annotated[tuple[StepSize, ...], Field(max_length=8)] = ()
    """One for each set of texts. Told so that a vendor that has no memory for one says so before any text leaves; each
    step is checked all the same."""

    @property
    def virtual_positions(self) -> int:
        """Positions that the job's method puts before each text."""
        return self.tuning.positions


class JobState(StrEnum):
    """Where a job stands."""

    QUEUED = "queued"
    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_over(self) -> bool:
        """Whether nothing will be trained any more."""
        return self not in (JobState.QUEUED, JobState.RUNNING)


class JobProgress(Message):
    """How far a job is that the vendor trains alone: numbers, and no text.

    Attributes:
        event: Grows with the job, over restarts too: a later state has a larger number.
        state: Where it stands.
        step: Steps whose gradients were taken.
        total_steps: Steps of its schedule.
        losses: Mean training loss of each epoch that is over; `reconstruction_losses` are those of a second task.
        dev: Share of right labels of the second set after each epoch.
        problem: Why it failed, or does not go on at the moment, as the type of a refusal.
    """

    job: Identifier
    event: Count
    state: JobState
    step: Count
    total_steps: Count
    losses: tuple[float, ...] = ()
    reconstruction_losses: tuple[float, ...] = ()
    dev: tuple[float, ...] = ()
    problem: Word | None = None


class JobInfo(Message):
    """A job as the vendor holds it.

    Attributes:
        step: The last step of which a forward pass was accepted; 0 before the first.
        gradient_applied: Whether all gradients of `step` have been taken too.
        update_waits: Whether the update after that gradient waits for what the customer tells of its own gradients.
        checkpoints: Steps to which the job can be rolled back, ascending.
        snapshots: Steps at which the adapter was kept for `finish`.
        threads: Compute threads of the vendor; results are bit-identical only at the same number.
        progress: How far it is, where the vendor trains it alone.
    """

    job: Identifier
    spec: JobSpec
    state: JobState
    step: Count
    gradient_applied: bool
    update_waits: bool = False
    checkpoints: tuple[Count, ...]
    snapshots: tuple[Count, ...]
    threads: Count
    progress: JobProgress | None = None


class JobEntry(Message):
    """A job in a list; `step` is null where only resuming it tells."""

    job: Identifier
    model: ModelName
    state: JobState
    step: Count | None
    total_steps: Count
    by_vendor: bool


class JobList(Message):
    """The jobs of a tenant that were not deleted."""

    jobs: Annotated[tuple[JobEntry, ...], FailFast()]


class SnapshotRequest(Message):
    """Keeps (or, for `finish`, publishes) the adapter as it was after `step` gradients."""

    step: int = Field(ge=0, le=LARGEST_COUNT)


class AdapterInfo(Message):
    """A published adapter: its job's identifier is its own."""

    adapter: Identifier
    model: ModelName
    fingerprint: Digest
    cut: Cut
    form: Form
    wire_type: WireType
    segments: Count
    num_labels: Count | None
    virtual_positions: Count = 0
    """Positions that the adapter puts before each text, which count among those that the model takes."""
    step: Count
    sha256: Digest
    size: Count
    created: Moment


class AdapterList(Message):
    """The adapters of a tenant."""

    adapters: Annotated[tuple[AdapterInfo, ...], FailFast()]
