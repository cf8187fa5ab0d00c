"""Methods of tuning: what each is told, declared once for settings, for the wire and for the registry of methods."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Annotated, ClassVar, Final, Literal

from pydantic import Field

from cutlayer.core.setting import Shown, setting
from cutlayer.core.spec import Spec

TUNING: Final = "Tuning"
"""The topic of these settings."""

OptimiserKind = Literal["adamw", "adam", "adafactor"]
Schedule = Literal["linear", "constant"]
Targets = Literal["query-value", "all-linear"]
Pooling = Literal["sequence", "text", "mean"]


class MethodSpec(Spec):
    """What a method of tuning is told.

    Attributes:
        at_vendor: Whether all that the method trains is the vendor's, whatever the customer's parts are.
    """

    at_vendor: ClassVar[bool] = False

    pooling: Pooling = setting(
        "sequence",
        help="What a classifier's head reads: what the model's own head reads of the sequence, virtual positions among "
        "it, as PEFT has it; the same of the text's positions alone; or their mean (RAPT eq. 9).",
        shown=Shown(TUNING, default="sequence; of a prompt mean"),
    )

    if TYPE_CHECKING:

        @property
        @abstractmethod
        def method(self) -> str:
            """The method's name in the registry."""

    @property
    def positions(self) -> int:
        """Virtual positions that the method puts before each text."""
        return 0

    @property
    def rows(self) -> int:
        """How many of them are computed with the text's; those of a prefix are attended to alone."""
        return 0


class LoraSpec(MethodSpec):
    """Low-rank adapters on each party's blocks, by PEFT's names.

    Ref: Hu et al. 2021, arXiv:2106.09685.
    """

    method: Literal["lora"] = "lora"
    r: int = setting(
        8,
        help="LoRA's rank.",
        shown=Shown(TUNING, source="Yao & Li, Table 3", flags=("--lora-r",)),
        ge=1,
        le=1024,
    )
    lora_alpha: float = setting(16, help="LoRA's scale, times 1/r.", shown=Shown(TUNING), gt=0, allow_inf_nan=False)
    lora_dropout: float = setting(
        0, help="Dropout before LoRA's first matrix.", shown=Shown(TUNING, unit="probability"), ge=0, lt=1
    )
    target_modules: Targets = setting("query-value", help="Which linear maps LoRA adapts.", shown=Shown(TUNING))


class FullSpec(MethodSpec):
    """Each party's own weights."""

    method: Literal["full"] = "full"


class PromptSpec(MethodSpec):
    """Trained rows before the text's rows, where these enter the vendor's blocks.

    A BERT's own head reads the first position, which behind a prompt is a virtual one; so does PEFT's. That costs much:
    MiniLM on SST-2's sentences without noise, 20 virtual positions, 300 updates of 32 texts, one seed, accuracy on dev
    (n = 872, standard error 1.4): `sequence` 75.8 and 76.6 % at rates of 0.01 and 0.03, `text` 75.6 % at 0.01, `mean`
    81.1 and 82.8 %. So the mean is the default, as in RAPT, and PEFT's head is `sequence`.
    Ref: Lester et al. 2021, arXiv:2104.08691.
    """

    at_vendor: ClassVar[bool] = True

    method: Literal["prompt"] = "prompt"
    prompt_length: int = setting(
        150,
        help="Virtual positions of a prompt.",
        shown=Shown(
            TUNING, unit="positions", source="RAPT §V-A3", default="150; of language models and encoder-decoders 50"
        ),
        ge=1,
        le=4096,
    )
    pooling: Pooling = "mean"

    @property
    def positions(self) -> int:
        """Virtual positions that the method puts before each text."""
        return self.prompt_length

    @property
    def rows(self) -> int:
        """All of them are computed with the text's."""
        return self.prompt_length


class PrefixSpec(MethodSpec):
    """Trained keys and values before the text's, in each of the vendor's blocks.

    A prefix has no positions in the sequence, so PEFT's head reads the text: measured as in `PromptSpec`, at a rate of
    0.03, `sequence` 83.0 %, `mean` 84.9, which one seed does not tell apart.
    Ref: Li & Liang 2021, arXiv:2101.00190; without re-parameterisation, as P-tuning v2, Liu et al. 2021,
    arXiv:2110.07602.
    """

    at_vendor: ClassVar[bool] = True

    method: Literal["prefix"] = "prefix"
    prefix_length: int = setting(
        10,
        help="Virtual positions of a prefix.",
        shown=Shown(
            TUNING, unit="positions", source="RAPT §V-A3", default="10; of language models and encoder-decoders 5"
        ),
        ge=1,
        le=4096,
    )

    @property
    def positions(self) -> int:
        """Virtual positions that the method puts before each text."""
        return self.prefix_length


AnyMethod = Annotated[LoraSpec | FullSpec | PromptSpec | PrefixSpec, Field(discriminator="method")]
"""One of them, told apart by `method`."""
