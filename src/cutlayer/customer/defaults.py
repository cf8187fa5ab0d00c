"""What a setting is where nothing was said of it, by what is learnt and what is tuned."""

from __future__ import annotations

from typing import Any, Final

from cutlayer.core.cut import Cut
from cutlayer.customer.settings import (
    FinetuneSpec,
    FullTuning,
    Objective,
    RunSpec,
    TrainBottom,
    Training,
    TrainSpec,
    TuningSpec,
)
from cutlayer.privacy.spec import PrivacySpec

BLOCK_LENGTH: Final = 1024
"""Tokens of a block of packed texts (Yao & Li, §3.3.2)."""

_CUTS: Final = {
    Objective.CLASSIFICATION: Cut(bottom=0),
    Objective.LM: Cut(bottom=1, tail=0),
    Objective.SEQ2SEQ: Cut(bottom=1, tail=0, target=1),
}


def default_training(objective: Objective, tuning: TuningSpec) -> dict[str, Any]:
    """Settings of training by name.

    Ref: SAP §5.1 (a classifier's rate); Yao & Li, §3.3.1: AdamW at 5e-6 for the whole model and 2e-4 with LoRA,
    batches of 4, blocks of 1,024.

    Args:
        objective: What is learnt.
        tuning: Which weights are trained.
    """
    if not objective.generates:
        return {"batch_size": 32, "learning_rate": 3e-4, "packing": False, "dropout": True}
    rate = 5e-6 if isinstance(tuning, FullTuning) else 2e-4
    if objective is Objective.LM:
        return {"batch_size": 4, "learning_rate": rate, "packing": True, "dropout": True}
    # a cut T5 cannot drop out in its parts as the whole one does
    return {"batch_size": 8, "learning_rate": rate, "packing": False, "dropout": False}


def settle_training(training: Training, objective: Objective, tuning: TuningSpec) -> TrainSpec:
    """Training with nothing left open.

    Args:
        training: What was said of it.
        objective: What is learnt.
        tuning: Which weights are trained.
    """
    said = {name: value for name, value in training.model_dump().items() if value is not None}
    return TrainSpec(**(default_training(objective, tuning) | said))


def settle_cut(cut: Cut | None, objective: Objective) -> Cut:
    """Where the model is cut: what was said of it, else where the objective's models are cut by default.

    Args:
        cut: What was said.
        objective: What is learnt.
    """
    said = {} if cut is None else cut.model_dump(exclude_unset=True)
    if said.get("tail", 0) is None:
        del said["tail"]
    return Cut.model_validate(_CUTS[objective].model_dump() | said)


def settle_train_bottom(tuning: TuningSpec, cut: Cut, objective: Objective, privacy: PrivacySpec) -> TrainBottom:
    """Of language models the bottom is trained, as the tail is, where it can be without a second look at a text.

    Args:
        tuning: Which weights are trained.
        cut: Where the model is cut.
        objective: What is learnt.
        privacy: How releases are privatized.
    """
    if tuning.train_bottom is not None:
        return tuning.train_bottom
    if not objective.generates:
        return TrainBottom.FROZEN
    blocks = cut.bottom or (cut.target if objective is Objective.SEQ2SEQ else cut.bottom)
    if blocks and privacy.mechanism != "vector":
        return TrainBottom.CACHED
    whole_table = blocks == 0 and privacy.mechanism == "none" and isinstance(tuning, FullTuning)
    return TrainBottom.RESAMPLE if whole_table else TrainBottom.FROZEN


def settle(given: FinetuneSpec, *, public: bool = False) -> RunSpec:
    """A run's settings with nothing left open but the vendor's model and a seed, which are "" and 0 until then.

    Args:
        given: What was said.
        public: Whether there is public text to begin with.
    """
    cut = settle_cut(given.cut, given.objective)
    train_bottom = settle_train_bottom(given.tuning, cut, given.objective, given.privacy)
    iterations = given.public_iterations
    settled = {
        "model": given.model or "",
        "cut": cut,
        "tuning": given.tuning.model_copy(update={"train_bottom": train_bottom}),
        "training": settle_training(given.training, given.objective, given.tuning),
        "public_iterations": int(public) if iterations is None else iterations,
        "seed": given.seed or 0,
    }
    return RunSpec(**{name: getattr(given, name) for name in FinetuneSpec.model_fields} | settled)
