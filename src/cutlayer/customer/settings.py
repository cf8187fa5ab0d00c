"""What a fine-tuning run is: its privacy, its cut, what is tuned and how it is trained, apart from one another.

Each setting is declared here once, or in `cutlayer.privacy.spec` and `cutlayer.core.cut`: name, type, default, bounds,
unit, help and source. `FinetuneSpec` is what a user says of a run, `RunSpec` the same with nothing left open. What is
filled in is in `cutlayer.customer.defaults`, rules across settings are in `cutlayer.customer.validate`.

A reviewer compares two runs' `PrivacySpec`s, and whether either resamples its releases or takes its noise from a seed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Final, Self

from pydantic import Field, TypeAdapter, field_validator, model_validator

from cutlayer.core.cut import CUT, Cut
from cutlayer.core.setting import Shown, setting
from cutlayer.core.spec import SettingsSpec, SpecFamily
from cutlayer.core.tuning import (
    TUNING,
    AnyMethod,
    FullSpec,
    LoraSpec,
    MethodSpec,
    OptimiserKind,
    PrefixSpec,
    PromptSpec,
    Schedule,
)
from cutlayer.customer import earlier
from cutlayer.customer.reconstruction import Reconstruction
from cutlayer.privacy.spec import LARGEST_EPSILON, PRIVACY, PrivacySpec
from cutlayer.wire.messages import Form, Precision, WireType
from cutlayer.wire.routes import MOST_LENGTH_PENALTY

TRAINING: Final = "Training"
SAMPLING: Final = "Sampling"
"""Topics of these settings, beside those of texts, privacy and the cut."""

LOCAL_MODEL: Final = "starter"
"""The model of a vendor in this process, where none is named."""

BUDGETS: Final = ("privacy_budget", "label_budget")
"""Settings that say how far a run may go, not which run it is."""


class TrainBottom(StrEnum):
    """How the bottom is trained (SAP Appendix A)."""

    FROZEN = "frozen"
    """Not at all: every text is released once."""
    RESAMPLE = "resample"
    """A fresh release for each epoch and step, each one charged."""
    CACHED = "cached"
    """Trainable blocks above one cached token release: no second look at the text."""


class LabelsAt(StrEnum):
    """Where losses are computed from labels."""

    CUSTOMER = "customer"
    """At the customer, who sends gradients, step by step."""
    VENDOR = "vendor"
    """At the vendor, who trains alone: labels are sent, as they are reported."""


class Objective(StrEnum):
    """What is learnt. The vendor is not told: it returns what its blocks compute."""

    CLASSIFICATION = "classification"
    """One label per text; the head is the vendor's."""
    LM = "lm"
    """The next token of every token; the head is the customer's."""
    SEQ2SEQ = "seq2seq"
    """A target text for each source text, by an encoder-decoder; the head is the customer's."""

    @property
    def generates(self) -> bool:
        """Whether what is learnt is text."""
        return self is not Objective.CLASSIFICATION

    def best(self, values: Sequence[float]) -> float:
        """The best of several dev values: the highest accuracy, or the lowest perplexity."""
        return min(values) if self.generates else max(values)


class TuningSpec(MethodSpec, SpecFamily):
    """Which weights are trained: one kind for each method."""

    tag = "method"

    train_bottom: TrainBottom | None = setting(
        None,
        help="Whether and how your bottom is trained. resample: with a fresh, charged release each epoch. cached: the "
        "blocks above one release of the tokens.",
        shown=Shown(TUNING, source="SAP, Appendix A", default="frozen; of language models cached where it can be"),
    )

    @property
    def told(self) -> AnyMethod:
        """What the vendor is told of it."""
        return TypeAdapter[AnyMethod](AnyMethod).validate_python(self.model_dump(exclude={"train_bottom"}))


class Lora(LoraSpec, TuningSpec):
    """Low-rank adapters on each party's blocks, by PEFT's names.

    Ref: Hu et al. 2021, arXiv:2106.09685.
    """


class FullTuning(FullSpec, TuningSpec):
    """Each party's own weights."""


class Prompt(PromptSpec, TuningSpec):
    """Trained rows before each text's, where these enter the vendor's blocks.

    Ref: Lester et al. 2021, arXiv:2104.08691.
    """


class Prefix(PrefixSpec, TuningSpec):
    """Trained keys and values before each text's, in each of the vendor's blocks.

    Ref: Li & Liang 2021, arXiv:2101.00190.
    """


class Training(SettingsSpec):
    """How the model is trained, by the names of Hugging Face's `TrainingArguments` where they exist.

    What is `None` here and has a default follows from what is learnt and what is tuned (`cutlayer.customer.defaults`).
    """

    epochs: int | None = setting(
        None,
        help="Epochs at most; early stopping may end sooner.",
        shown=Shown(
            TRAINING,
            unit="epochs",
            common=True,
            default="5; of a classifier as many as make 600 updates, if those are more, and 40 at most "
            "(5 where the bottom is drawn anew each epoch)",
        ),
        ge=1,
    )
    patience: int | None = setting(
        None,
        help="Epochs without a better dev value after which training stops.",
        shown=Shown(
            TRAINING, unit="epochs", default="2; of a classifier as many as make 300 updates, if those are more"
        ),
        ge=1,
    )
    batch_size: int | None = setting(
        None,
        help="Texts per step; of a language model blocks, of an encoder-decoder pairs.",
        shown=Shown(
            TRAINING,
            unit="texts",
            source="Yao & Li, §3.3.1, for language models",
            default="32; of a language model 4, of an encoder-decoder 8",
        ),
        ge=1,
    )
    learning_rate: float | None = setting(
        None,
        help="The largest rate, from which it falls linearly to zero unless lr_scheduler_type is constant.",
        shown=Shown(
            TRAINING,
            source="SAP §5.1; Yao & Li, §3.3.1",
            common=True,
            default="of a classifier 3e-4 · 1024 / hidden size, 4e-5 · 1024 / hidden size where all weights are tuned; "
            "of language models and encoder-decoders 2e-4, where all weights are tuned 5e-6; of a prompt or a prefix "
            "0.03, of language models and encoder-decoders 0.01",
        ),
        gt=0,
        allow_inf_nan=False,
    )
    optim: OptimiserKind = setting(
        "adamw",
        help="The optimiser, on both sides. adafactor: its steps are relative to the size of what it updates.",
        shown=Shown(TRAINING, source="SAP §5.1; Yao & Li, §3.3.1"),
    )
    lr_scheduler_type: Schedule = setting(
        "linear", help="Whether the rate falls to zero after the warm-up, or stays.", shown=Shown(TRAINING)
    )
    warmup_steps: float | None = setting(
        None,
        help="Updates over which the rate rises to learning_rate, before it falls; below 1, that share of all updates.",
        shown=Shown(TRAINING, unit="updates", default="0; of a classifier 0.06"),
        ge=0,
        allow_inf_nan=False,
    )
    weight_decay: float = setting(
        0.01,
        help="Weight decay; decoupled, but of adam added to the gradients.",
        shown=Shown(TRAINING),
        ge=0,
        allow_inf_nan=False,
    )
    gradient_accumulation_steps: int = setting(
        1,
        help="Steps whose gradients are averaged for an update. A step's loss is a mean over its texts or tokens, so "
        "where steps differ in size this is a mean of means.",
        shown=Shown(TRAINING, unit="steps"),
        ge=1,
    )
    max_grad_norm: float | None = setting(
        None,
        help="Largest norm of both sides' gradients together; for it each side tells the other one number an update.",
        shown=Shown(TRAINING, default="none"),
        gt=0,
        allow_inf_nan=False,
    )
    dropout: bool | None = setting(
        None,
        help="The blocks' own dropout while training; a frozen bottom never drops out.",
        shown=Shown(TRAINING, default="on; of encoder-decoders off"),
    )
    dev_share: float | None = setting(
        None,
        help="Share of train that is held out where there is no dev set.",
        shown=Shown(
            TRAINING, unit="share", default="a tenth, but 50 texts at least where those are no more than a fifth"
        ),
        gt=0,
        lt=1,
    )
    max_length: int | None = setting(
        None,
        help="Tokens per text, special tokens included; with packing per block.",
        shown=Shown(
            TRAINING,
            unit="tokens",
            source="Yao & Li, §3.3.2, for blocks",
            flags=("--max-length", "--block-length"),
            default="the model's limit; of a block 1024 at most",
        ),
        ge=1,
    )
    max_target_length: int | None = setting(
        None,
        help="Encoder-decoders: tokens per target text.",
        shown=Shown(TRAINING, unit="tokens", default="as max_length"),
        ge=1,
    )
    packing: bool | None = setting(
        None,
        help="Language models: join texts and cut them into blocks, or keep each text by itself.",
        shown=Shown(TRAINING, source="Yao & Li, §3.3.2", default="on for language models"),
    )
    group_by_length: bool = setting(
        True, help="Batches of texts of about one length: less padding.", shown=Shown(TRAINING)
    )
    gradient_checkpointing: bool = setting(
        False,
        help="Compute blocks again in the backward pass, on both sides: less memory, more time.",
        shown=Shown(TRAINING),
    )
    precision: Precision = setting(
        Precision.FP32,
        help="Of matrix products while training, on both sides. bf16: faster where devices multiply bf16. Weights, "
        "optimiser, losses and answers stay fp32.",
        shown=Shown(TRAINING),
    )
    save_steps: int = setting(50, help="Steps between two checkpoints.", shown=Shown(TRAINING, unit="steps"), ge=1)

    @property
    def checkpoint_steps(self) -> int:
        """Steps between two checkpoints, at which no gradient waits for its update."""
        accumulated = self.gradient_accumulation_steps
        return -(-self.save_steps // accumulated) * accumulated


class TrainSpec(Training):
    """`Training` with nothing left open."""

    if TYPE_CHECKING:
        epochs: int
        patience: int
        batch_size: int
        learning_rate: float
        warmup_steps: float
        dropout: bool
        packing: bool

    @model_validator(mode="before")
    @classmethod
    def _read(cls, data: Any) -> Any:
        # versions without a warm-up wrote nothing of it
        return {"warmup_steps": 0, **data} if isinstance(data, Mapping) else data

    @model_validator(mode="after")
    def _check(self) -> Self:
        names = ("epochs", "patience", "batch_size", "learning_rate", "warmup_steps", "dropout", "packing")
        if open_ := [name for name in names if getattr(self, name) is None]:
            raise ValueError(f"{', '.join(open_)} must be filled in by `cutlayer.customer.defaults`")
        return self


class FinetuneSpec(SettingsSpec):
    """What a user says of a fine-tuning run."""

    objective: Objective = setting(
        Objective.CLASSIFICATION,
        help="What is learnt: a label per text, (lm) to continue texts, or (seq2seq) to write a target text for each. "
        "Of the latter two the head is yours.",
        shown=Shown(TRAINING, common=True),
    )
    model: str | None = setting(
        None,
        help="One of the vendor's models.",
        shown=Shown(CUT, common=True, metavar="NAME", default="the vendor's"),
    )
    privacy: PrivacySpec
    cut: Cut | None = None
    tuning: TuningSpec = Lora()
    training: Training = Training()
    reconstruction: Reconstruction = Reconstruction()
    wire_type: WireType = setting(WireType.BF16, help="Element type of boundary rows on the wire.", shown=Shown(CUT))
    privacy_budget: float | None = setting(
        None,
        help="Most eta that one text may be charged over all its releases.",
        shown=Shown(PRIVACY, unit="1/distance", metavar="ETA"),
        gt=0,
        allow_inf_nan=False,
    )
    label_epsilon: float | None = setting(
        None,
        help="Classifiers: randomised response of training labels. Each is reported as it is with probability "
        "e^ε / (e^ε + K - 1), else as one of the others, drawn once per text. Smaller hides more.",
        shown=Shown(PRIVACY, unit="epsilon", metavar="EPSILON", default="none, and gradients show the labels"),
        gt=0,
        le=LARGEST_EPSILON,
    )
    labels_at: LabelsAt = setting(
        LabelsAt.CUSTOMER,
        help="Classifiers: where labels are. vendor: they are sent as label_epsilon reports them, in clear without it, "
        "and the vendor trains alone. Encoder-decoders at the text cut: target texts are sent with source texts.",
        shown=Shown(PRIVACY, source="RAPT §III-B"),
    )
    label_words: tuple[str, ...] = setting(
        (),
        help="Classifiers on an encoder-decoder, which writes the words of a label: what it writes for one. The vendor "
        "is told these words.",
        shown=Shown(TRAINING, metavar="LABEL=WORDS", source="RAPT §V-A1", default="the labels themselves"),
    )
    label_budget: float | None = setting(
        None,
        help="Most epsilon that one label may be charged over all its draws; needs label_epsilon.",
        shown=Shown(PRIVACY, unit="epsilon", metavar="EPSILON"),
        gt=0,
        allow_inf_nan=False,
    )
    public_iterations: int | None = setting(
        None,
        help="Language models: steps on public text before any private text leaves, a multiple of "
        "gradient_accumulation_steps. Measured, it hides little: see docs/papers/unsplit.md.",
        shown=Shown(PRIVACY, unit="steps", source="Yao & Li, §5", default="1 where public text is given"),
        ge=0,
    )
    seed: int | None = setting(
        None,
        help="Repeats data order, initialisation and dropout; never noise.",
        shown=Shown(TRAINING, metavar="N", default="drawn"),
        ge=0,
        lt=2**63,
    )
    unsafe_noise_seed: int | None = setting(
        None,
        help="UNSAFE: draw privacy noise from this number, so that whoever knows it can undo it. Marks every output. "
        "For tests.",
        shown=Shown(PRIVACY, metavar="N"),
    )

    @field_validator("label_words", mode="before")
    @classmethod
    def _as_written(cls, given: Any) -> Any:
        return tuple(f"{label}={words}" for label, words in given.items()) if isinstance(given, Mapping) else given


class RunSpec(FinetuneSpec):
    """A fine-tuning run, all of it; equal specs on equal data resume one another."""

    training: TrainSpec

    if TYPE_CHECKING:
        model: str
        cut: Cut
        public_iterations: int
        seed: int

    @model_validator(mode="before")
    @classmethod
    def _read_earlier(cls, data: Any) -> Any:
        return earlier.settings(data)

    @model_validator(mode="after")
    def _check(self) -> Self:
        values = {name: getattr(self, name) for name in ("model", "cut", "public_iterations", "seed")}
        values["tuning.train_bottom"] = self.tuning.train_bottom
        if open_ := [name for name, value in values.items() if value is None]:
            raise ValueError(f"{', '.join(open_)} must be filled in by `cutlayer.customer.defaults`")
        return self

    @property
    def train_bottom(self) -> TrainBottom:
        """Whether and how the bottom is trained."""
        if self.tuning.train_bottom is None:
            raise TypeError("nothing of a run's settings is open")
        return self.tuning.train_bottom

    @property
    def form(self) -> Form:
        """What texts leave as: ids where all below the cut is a frozen lookup of drawn tokens, else rows."""
        ids = not self.cut.bottom and self.stores and self.privacy.mechanism != "vector"
        return Form.IDS if ids else Form.ROWS

    @property
    def row_type(self) -> WireType | None:
        """The element type of rows that texts leave as; `None` where they leave as ids."""
        return self.wire_type if self.form is Form.ROWS else None

    @property
    def step_type(self) -> WireType | None:
        """That of rows in a step's frames, of texts or of gradients; `None` where there are none."""
        return self.wire_type if self.cut.tail is not None else None if self.stores else self.row_type

    @property
    def stores(self) -> bool:
        """Whether every text is released once and stored, and steps name it.

        An encoder-decoder's target texts meet what the vendor's encoder makes of their source, which changes; unless
        the vendor has all of it.
        """
        return self.train_bottom is TrainBottom.FROZEN and (self.objective is not Objective.SEQ2SEQ or self.sends_pairs)

    @property
    def sends_pairs(self) -> bool:
        """Whether an encoder-decoder's target texts are the vendor's, beside their source texts."""
        return self.objective is Objective.SEQ2SEQ and self.labels_at is LabelsAt.VENDOR


class Sampling(SettingsSpec):
    """How tokens are chosen, by the names of Hugging Face's `GenerationConfig` where they exist."""

    max_new_tokens: int = setting(
        128, help="Tokens of a text at most, its prompt left out.", shown=Shown(SAMPLING, unit="tokens"), ge=1
    )
    greedy: bool = setting(
        False,
        help="Always the most probable token; temperature, top-k and top-p then mean nothing.",
        shown=Shown(SAMPLING),
    )
    temperature: float = setting(
        1.0, help="Logits are divided by it.", shown=Shown(SAMPLING), gt=0, allow_inf_nan=False
    )
    top_k: int | None = setting(
        None, help="Only the so many most probable tokens.", shown=Shown(SAMPLING, unit="tokens", default="all"), ge=1
    )
    top_p: float = setting(
        1.0,
        help="Only the most probable tokens that make up this share; 1 for all.",
        shown=Shown(SAMPLING, unit="probability"),
        gt=0,
        le=1,
    )
    num_beams: int = setting(
        1,
        help="How many continuations beam search follows, of which the most probable is taken; tokens are then not "
        "drawn. Of decoders the vendor follows them, where token ids leave and you hold no trained weights. 1: no beam "
        "search.",
        shown=Shown(SAMPLING, unit="beams"),
        ge=1,
    )
    length_penalty: float = setting(
        1.0,
        help="Of beam search: a text's log-probability is divided by its length to this power.",
        shown=Shown(SAMPLING),
        ge=-MOST_LENGTH_PENALTY,
        le=MOST_LENGTH_PENALTY,
        allow_inf_nan=False,
    )
    stop_strings: tuple[Annotated[str, Field(min_length=1)], ...] = setting(
        (),
        help="A text ends before the first of these that appears in it.",
        shown=Shown(SAMPLING, flags=("--stop",), metavar="TEXT"),
    )
    seed: int | None = setting(
        None,
        help="Repeats the draws of tokens; never noise.",
        shown=Shown(SAMPLING, metavar="N", default="drawn"),
        ge=0,
        lt=2**63,
    )
