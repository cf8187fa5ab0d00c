"""What a fine-tuning run is: its privacy, its training, its machine, apart from one another.

A reviewer compares two runs' `PrivacySpec`s, and whether either redraws its releases or takes its noise from a seed.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal

from pydantic import ConfigDict, Field

from cutlayer.core import Cut, Deviation, Spec
from cutlayer.privacy import LARGEST_EPSILON, PrivacySpec
from cutlayer.wire import Form, Precision, WireType

if TYPE_CHECKING:
    from cutlayer.models import Family

BLOCK_LENGTH = 1024
"""Tokens of a block of packed texts (Yao & Li, §3.3.2)."""


BUDGETS = ("budget", "label_budget")
"""Settings that say how far a run may go, not which run it is."""


class TrainBottom(StrEnum):
    """How the bottom is trained (SAP Appendix A)."""

    FROZEN = "frozen"
    """Not at all: every text is released once."""
    REDRAW = "redraw"
    """A fresh release for each epoch and step, each one charged."""
    MEMOISED = "memoised"
    """Trainable blocks above one memoised token release: no second look at the text."""


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


class Method(StrEnum):
    """Which weights are trained."""

    LORA = "lora"
    """Low-rank adapters on each party's blocks."""
    FULL = "full"
    """Each party's own weights."""


class TrainSpec(Spec):
    """How the model is tuned.

    Attributes:
        method: Low-rank adapters, or all weights.
        epochs: Epochs at most.
        patience: Epochs without a better dev value after which training stops.
        batch_size: Texts per step.
        learning_rate: AdamW's initial rate, falling linearly to zero.
        weight_decay: AdamW's decoupled weight decay.
        rank: LoRA's rank.
        alpha: LoRA's scale, times 1/rank.
        lora_dropout: Dropout before LoRA's first matrix.
        targets: Which linear maps LoRA adapts.
        dropout: Whether the blocks' own dropout is on while training.
        dev_share: Share of train held out for early stopping where there is no dev file.
        max_length: Tokens of a text, special tokens included; `None` takes the model's limit. With `packing`, of a
            block; `None` takes 1,024 of the model's limit.
        max_target_length: The same of a target text; `None` takes `max_length`'s.
        packing: Whether texts are joined and cut into blocks of `max_length`, as language models are trained.
        accumulation: Steps whose gradients are averaged for an update. The loss is a mean over each step's texts or
            tokens, so where batches differ in size it is the mean of their means, and no larger batch's loss.
        clip_norm: Largest norm of both parties' gradients together, or `None`. For it each tells the other one number
            an update.
        gradient_checkpointing: Computes blocks again in the backward pass, on both sides: less memory, more time.
        group_by_length: Batches of texts of about one length: less padding.
        precision: Element type of matrix products while training, in what is trained on either side; weights,
            optimiser, losses and answers stay fp32.
        checkpoint_every: Steps between two checkpoints.
    """

    method: Method = Method.LORA
    epochs: int = Field(default=5, ge=1)
    patience: int = Field(default=2, ge=1)
    batch_size: int = Field(default=32, ge=1)
    learning_rate: float = Field(default=3e-4, gt=0, allow_inf_nan=False)
    weight_decay: float = Field(default=0.01, ge=0, allow_inf_nan=False)
    rank: int = Field(default=8, ge=1, le=1024)
    alpha: float = Field(default=16, gt=0, allow_inf_nan=False)
    lora_dropout: float = Field(default=0, ge=0, lt=1)
    targets: Literal["query-value", "all-linear"] = "query-value"
    dropout: bool = True
    dev_share: float = Field(default=0.01, gt=0, lt=1)
    max_length: int | None = Field(default=None, ge=1)
    max_target_length: int | None = Field(default=None, ge=1)
    packing: bool = False
    accumulation: int = Field(default=1, ge=1)
    clip_norm: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    gradient_checkpointing: bool = False
    group_by_length: bool = True
    precision: Precision = Precision.FP32
    checkpoint_every: int = Field(default=50, ge=1)

    @classmethod
    def language(cls, *, method: Method = Method.LORA, **changes: Any) -> TrainSpec:
        """Settings for a language model: those of the split fine-tuning study where it states them.

        Ref: Yao & Li, §3.3.1: AdamW at 5e-6 for the whole model and 2e-4 with LoRA, batches of 4, blocks of 1,024.

        Args:
            method: Which weights are trained.
            **changes: Other settings.
        """
        stated: dict[str, Any] = {
            "method": method,
            "learning_rate": 2e-4 if method is Method.LORA else 5e-6,
            "batch_size": 4,
            "packing": True,
        }
        return cls(**(stated | changes))

    @classmethod
    def seq2seq(cls, *, method: Method = Method.LORA, **changes: Any) -> TrainSpec:
        """Settings for an encoder-decoder: those of a language model, each text by itself.

        The blocks' own dropout is off: a cut T5 cannot drop out in its parts as the whole one does.

        Args:
            method: Which weights are trained.
            **changes: Other settings.
        """
        return cls.language(method=method, **({"packing": False, "dropout": False, "batch_size": 8} | changes))

    @property
    def checkpoint_steps(self) -> int:
        """Steps between two checkpoints, at which no gradient waits for its update."""
        return -(-self.checkpoint_every // self.accumulation) * self.accumulation

    def deviations(self, family: Family, objective: Objective = Objective.CLASSIFICATION) -> tuple[Deviation, ...]:
        """Where these settings differ from the paper or fill in what it leaves open.

        Args:
            family: The model's, which names what is adapted.
            objective: Classifiers are compared with SAP §5.1, the others with Yao & Li §3.3.1.
        """
        maps = "all linear maps of the blocks" if self.targets == "all-linear" else ", ".join(family.query_value)
        better = "perplexity" if objective.generates else "accuracy"
        settings = {
            **(self._lora(maps) if self.method is Method.LORA else {}),
            "batch size": f"{self.batch_size}",
            "learning rate": f"{self.learning_rate:g}",
            "epochs": f"at most {self.epochs}, stopped after {self.patience} without a better dev {better}",
            "weight decay": f"{self.weight_decay:g}",
            "dropout of frozen blocks": "on" if self.dropout else "off",
            "order of texts": "batches of about one length" if self.group_by_length else "random",
            "precision of training": str(self.precision),
        }
        if self.packing:
            settings["tokens of a block"] = str(self.max_length or f"{BLOCK_LENGTH}, or the model's limit")
        elif self.max_length is not None:
            settings["tokens per text"] = f"{self.max_length} at most, special tokens included; the rest is cut"
        if self.accumulation > 1:
            settings["steps of an update"] = str(self.accumulation)
        if self.clip_norm is not None:
            settings["largest norm of gradients"] = f"{self.clip_norm:g}"
        classifiers = {"learning rate": ("3e-4 (RoBERTa-large)", "0.0003")}
        stated = self._stated_for_language() if objective.generates else classifiers
        found = []
        for what, ours in settings.items():
            paper, same = stated.get(what, ("not stated", None))
            if ours != same:
                why = "the paper leaves it open" if what not in stated else "chosen for this run"
                found.append(Deviation(what=what, value_in_paper=paper, ours=ours, why=why))
        return tuple(found)

    def _lora(self, maps: str) -> dict[str, str]:
        return {
            "LoRA rank": f"{self.rank}",
            "LoRA alpha": f"{self.alpha:g}",
            "LoRA dropout": f"{self.lora_dropout:g}",
            "LoRA targets": f"{self.targets}: {maps}",
        }

    def _stated_for_language(self) -> dict[str, tuple[str, str]]:
        """What Yao & Li print (§3.3.1, §3.3.2; the rank by Table 3's column), as it is told and as it is set here."""
        rate = "2e-4" if self.method is Method.LORA else "5e-6"
        return {
            "LoRA rank": ("8", "8"),
            "batch size": ("4", "4"),
            "learning rate": (rate, f"{float(rate):g}"),
            "tokens of a block": ("1,024", str(BLOCK_LENGTH)),
        }


class RunSpec(Spec):
    """A fine-tuning run, all of it; equal specs on equal data resume one another.

    Attributes:
        privacy: What is promised.
        train: How the model is tuned.
        objective: What is learnt.
        model: The vendor's model.
        bottom: Blocks at the customer; `None` is the text cut.
        tail: Blocks below the head at the customer; `None` leaves the head at the vendor.
        target: Of an encoder-decoder, the decoder's first blocks at the customer.
        train_bottom: Whether and how the bottom is trained.
        wire_type: Element type of boundary rows.
        budget: Largest sum of eta per text, or `None`.
        label_epsilon: Randomised response of a classifier's labels; `None` computes losses from them as they are.
        label_budget: Largest sum of epsilon per label, or `None`.
        public_iterations: Steps on public text before any private text leaves (Yao & Li, §5).
        seed: Data order, initialisation, dropout. Never privacy noise.
        unsafe_noise_seed: What noise was drawn from instead of the customer's secret; protects nothing.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=True, ser_json_inf_nan="strings")

    privacy: PrivacySpec
    train: TrainSpec
    objective: Objective = Objective.CLASSIFICATION
    model: str
    bottom: int | None
    tail: int | None = None
    target: int = 0
    train_bottom: TrainBottom
    wire_type: WireType
    budget: float | None = Field(gt=0, allow_inf_nan=False)
    label_epsilon: float | None = Field(default=None, gt=0, le=LARGEST_EPSILON)
    label_budget: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    public_iterations: int = Field(default=0, ge=0)
    seed: int = Field(ge=0, lt=2**63)
    unsafe_noise_seed: int | None = None

    @property
    def cut(self) -> Cut:
        """Where the customer's parts end."""
        return Cut(bottom=self.bottom, tail=self.tail, target=self.target)

    @property
    def form(self) -> Form:
        """What texts leave as: ids where all below the cut is a frozen lookup of drawn tokens, else rows."""
        ids = not self.bottom and self.stores and self.privacy.mechanism != "vector"
        return Form.IDS if ids else Form.ROWS

    @property
    def stores(self) -> bool:
        """Whether every text is released once and stored, and steps name it.

        An encoder-decoder's target texts meet what the vendor's encoder makes of their source, which changes.
        """
        return self.train_bottom is TrainBottom.FROZEN and self.objective is not Objective.SEQ2SEQ

    def deviations(self, family: Family) -> tuple[Deviation, ...]:
        """Where these settings differ from the paper, beside the privatizer's own."""
        found = self.train.deviations(family, self.objective)
        if self.train_bottom is TrainBottom.FROZEN:
            return found
        bottom = Deviation(
            what="what of the bottom is trained",
            value_in_paper="the embedding layer; not stated for deeper bottoms",
            ours="the token table" if not self.bottom else "the blocks; the table stays as it was handed out",
            why="Released tokens then stay tokens of one table.",
        )
        drawn = Deviation(
            what="which table noise is added to and searched, eq. (3) and (4), once the table is trained",
            value_in_paper="not stated",
            ours="the initial one; the row that is sent is the trained table's",
            why="Distances of a table that private texts have trained would be no public metric, and budgets over "
            "changing metrics could not be added.",
        )
        return (*found, bottom, drawn) if not self.bottom else (*found, bottom)
