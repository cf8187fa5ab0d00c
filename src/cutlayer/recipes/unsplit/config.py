"""What `configs/unsplit.yaml` holds: which runs are attacked how, and at which size."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pydantic import Field

from cutlayer.attacks import UnSplitSpec
from cutlayer.attacks.inversion.inverter import InverterSpec
from cutlayer.attacks.inversion.inverter_refinement import RefineSpec
from cutlayer.core import Deviation, Spec
from cutlayer.recipes.recipe import Size
from cutlayer.recipes.unsplit.runs import Corpus

Setting = float | int | str | bool | None


class Scale(Spec):
    """What `--size` changes.

    Attributes:
        length: Tokens of a text.
        batch: Texts of an iteration.
        iterations: Iterations of a run on private text.
        lengths: Figure 15's.
        depths: Blocks at the customer, of the figures over depth.
        deepest: Figure 3's last.
        public_tokens: Tokens that the inverter learns from.
        samples: Texts or images of Table 5.
        shorter: Settings laid over those of every attack.
        public_iterations: Instead of the recipe's.
        costs: Whether Figure 22 is measured on the paper's models.
        tails: Blocks of the customer's tail, where labels are read above it.
        tail_texts: E-mails that these runs train on.
        tail_length: Tokens of a block of them.
    """

    length: int = Field(ge=2)
    batch: int = Field(ge=1)
    iterations: int = Field(ge=1)
    lengths: tuple[int, ...] = Field(min_length=1)
    depths: tuple[int, ...] = Field(min_length=1)
    deepest: int = Field(ge=1)
    public_tokens: int = Field(ge=1)
    samples: int = Field(ge=1)
    shorter: Mapping[str, Setting] = {}
    public_iterations: tuple[int, ...] | None = None
    costs: bool = True
    tails: tuple[int, ...] = (0, 1, 2)
    tail_texts: int = Field(default=120, ge=1)
    tail_length: int = Field(default=128, ge=2)


class UnsplitConfig(Spec):
    """`configs/unsplit.yaml`; that file says what each field is for."""

    title: str
    reference: str
    corpora: Mapping[str, Corpus]
    public: Corpus
    lora_dropout: float = Field(ge=0, lt=1)
    kept: tuple[int, ...] = Field(min_length=1)
    public_iterations: tuple[int, ...]
    attack: UnSplitSpec
    rows_attack: UnSplitSpec
    released_attack: UnSplitSpec
    fast_learning_rate: float = Field(gt=0)
    inverter: InverterSpec
    refine: RefineSpec
    vit: Path | None
    sizes: Mapping[Size, Scale]
    deviations: tuple[Deviation, ...]

    def unsplit(self, scale: Scale, which: UnSplitSpec) -> UnSplitSpec:
        """An attack's settings at a size.

        Args:
            scale: The size.
            which: `attack`, `rows_attack` or `released_attack`.
        """
        return UnSplitSpec.model_validate({**which.model_dump(), **scale.shorter})
