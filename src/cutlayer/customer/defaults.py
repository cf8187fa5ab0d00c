"""What a setting is where nothing was said of it, by what is learnt and what is tuned."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
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
from cutlayer.models.optimiser import updates_in
from cutlayer.privacy.spec import PrivacySpec

BLOCK_LENGTH: Final = 1024
"""Tokens of a block of packed texts (Yao & Li, §3.3.2)."""

_EPOCHS: Final = 5
_MOST_EPOCHS: Final = 40
_UPDATES: Final = 600
_PATIENCE: Final = 2
_PATIENT_UPDATES: Final = 300
_WARMUP: Final = 0.06


@dataclass(frozen=True)
class Rates:
    """Learning rates of a method.

    Attributes:
        classifier: Of classifiers; of one as wide as SAP's where `by_width`.
        language: Of language models and encoder-decoders.
        by_width: Whether a classifier's rate grows as the model gets narrower.

    Of classifiers they were tried on MiniLM (hidden size 384) and SST-2's sentences without noise, 300 updates of 32
    texts, one seed; accuracy on dev, n = 872: `lora` 84.3 % at 8e-4; `full` 87.2 % at 1e-4, 85.6 at 3e-4; `prefix`
    51.3 % at 8e-4, 80.8 at 0.01, 83.0 at 0.03; `prompt` of 20 positions 50.9 % at 8e-4 (`sequence`), 81.1 at 0.01,
    82.8 at 0.03. Rates of prompts and prefixes for language models and encoder-decoders are chosen by analogy, and not
    measured.
    """

    classifier: float
    language: float
    by_width: bool = True


_RATES: Final[Mapping[str, Rates]] = {
    "lora": Rates(3e-4, 2e-4),
    "full": Rates(4e-5, 5e-6),
    "prompt": Rates(3e-2, 1e-2, by_width=False),
    "prefix": Rates(3e-2, 1e-2, by_width=False),
}

_GENERATION: Final[Mapping[str, tuple[str, int]]] = {"prompt": ("prompt_length", 50), "prefix": ("prefix_length", 5)}
"""Virtual positions where texts are written (RAPT §V-A3); a classifier's are those of the settings themselves."""

_CUTS: Final = {
    Objective.CLASSIFICATION: Cut(bottom=0),
    Objective.LM: Cut(bottom=1, tail=0),
    Objective.SEQ2SEQ: Cut(bottom=1, tail=0, target=1),
}


@dataclass(frozen=True)
class Learner:
    """What a classifier's schedule depends on, beside its settings. None of it is private: the vendor is told all.

    Attributes:
        texts: How many texts there are to train on, those included that are held out for dev.
        width: The model's hidden size.
        drops_out: Whether a cut model can drop out as the whole one does.
    """

    texts: int
    width: int
    drops_out: bool = True


PAPERS: Final = Learner(texts=66_675, width=1024)
"""SAP's own: RoBERTa-large on SST-2 (Table 1)."""


def settle_training(
    training: Training, objective: Objective, tuning: TuningSpec, learner: Learner = PAPERS, *, packing: bool = True
) -> TrainSpec:
    """Training with nothing left open.

    Ref: Yao & Li, §3.3.1: AdamW at 5e-6 for the whole model and 2e-4 with LoRA, batches of 4, blocks of 1,024. Of a
    classifier see `benchmarks/defaults.py`; SAP's rate (§5.1) is that of a model as wide as SAP's, and Adam's best rate
    falls as 1 / width (Yang et al., Tensor Programs V, 2022), but that of vectors that are trained themselves, as
    prompts and prefixes are, does not.

    Args:
        training: What was said of it.
        objective: What is learnt.
        tuning: Which weights are trained.
        learner: What it is learnt by, and from how much.
        packing: Whether a language model's texts may be joined and cut into blocks.
    """
    said = {name: value for name, value in training.model_dump().items() if value is not None}
    if not objective.generates:
        looks = tuning.train_bottom is TrainBottom.RESAMPLE
        return TrainSpec(**_classifier_training(said, learner, _RATES[tuning.method], looks=looks))
    open_ = {"epochs": 5, "patience": 2, "learning_rate": _RATES[tuning.method].language, "warmup_steps": 0}
    if objective is Objective.LM:
        open_ |= {"batch_size": 4, "packing": packing, "dropout": True}
    else:  # a cut T5 cannot drop out in its parts as the whole one does
        open_ |= {"batch_size": 8, "packing": False, "dropout": False}
    return TrainSpec(**(open_ | said))


def _classifier_training(said: Mapping[str, Any], learner: Learner, rates: Rates, *, looks: bool) -> dict[str, Any]:
    """A classifier's training. A head that begins with nothing takes a number of updates, however few the texts are."""
    scale = PAPERS.width / learner.width if rates.by_width else 1
    open_ = {
        "batch_size": 32,
        "learning_rate": float(f"{rates.classifier * scale:.1g}"),
        "warmup_steps": _WARMUP,
        "packing": False,
        "dropout": learner.drops_out,
    }
    settled = open_ | dict(said)
    if looks:  # each epoch is one more look at every text: no default multiplies these
        return {"epochs": _EPOCHS, "patience": _PATIENCE, **settled}
    of_epoch = updates_in(-(-learner.texts // settled["batch_size"]), settled.get("gradient_accumulation_steps", 1))
    epochs = min(max(_EPOCHS, -(-_UPDATES // of_epoch)), _MOST_EPOCHS)
    return {"epochs": epochs, "patience": max(_PATIENCE, -(-_PATIENT_UPDATES // of_epoch)), **settled}


def settle_cut(cut: Cut | None, objective: Objective, *, words: bool = False) -> Cut:
    """Where the model is cut: what was said of it, else where the objective's models are cut by default.

    Args:
        cut: What was said.
        objective: What is learnt.
        words: Whether words are drawn. A language model then takes the ids of what they make, for which the customer
            needs no block.
    """
    said = {} if cut is None else cut.model_dump(exclude_unset=True)
    if said.get("tail", 0) is None:
        del said["tail"]
    usual = _CUTS[objective].model_dump()
    if words and objective is Objective.LM:
        usual["bottom"] = None
    if objective is Objective.SEQ2SEQ and said.get("bottom", 0) is None:
        usual = {"bottom": None, "tail": None, "target": 0}  # the vendor holds all of it
    return Cut.model_validate(usual | said)


def settle_train_bottom(tuning: TuningSpec, cut: Cut, objective: Objective, privacy: PrivacySpec) -> TrainBottom:
    """How the customer's lower blocks are trained: a language model's are, unless that takes a second draw of a text.

    Args:
        tuning: Which weights are trained.
        cut: Where the model is cut.
        objective: What is learnt.
        privacy: How releases are privatized.
    """
    if tuning.train_bottom is not None:
        return tuning.train_bottom
    if not objective.generates or tuning.at_vendor or cut.is_text:
        return TrainBottom.FROZEN
    blocks = cut.bottom or (cut.target if objective is Objective.SEQ2SEQ else cut.bottom)
    if blocks and privacy.mechanism != "vector":
        return TrainBottom.CACHED
    whole_table = blocks == 0 and privacy.mechanism == "none" and isinstance(tuning, FullTuning)
    return TrainBottom.RESAMPLE if whole_table else TrainBottom.FROZEN


def settle_tuning(given: FinetuneSpec, cut: Cut) -> TuningSpec:
    """Which weights are trained, with nothing left open: how the bottom is, and how many virtual positions there are.

    Args:
        given: What was said of the run.
        cut: Where the model is cut.
    """
    said, changes = given.tuning, dict[str, Any]()
    changes["train_bottom"] = settle_train_bottom(said, cut, given.objective, given.privacy)
    if given.objective.generates and said.method in _GENERATION:
        name, positions = _GENERATION[said.method]
        if name not in said.model_fields_set:
            changes[name] = positions
    return said.model_copy(update=changes)


def of_pairs(given: FinetuneSpec) -> FinetuneSpec:
    """What was said of a run, where its rows are pairs: a decoder's are not joined to blocks.

    Args:
        given: What was said.
    """
    if given.objective is not Objective.LM or given.training.packing is not None:
        return given
    return given.model_copy(update={"training": given.training.model_copy(update={"packing": False})})


def settle(given: FinetuneSpec, *, public: bool = False, learner: Learner = PAPERS) -> RunSpec:
    """A run's settings with nothing left open but the vendor's model and a seed, which are "" and 0 until then.

    Args:
        given: What was said.
        public: Whether there is public text to begin with.
        learner: What a classifier's schedule depends on.
    """
    words = given.privacy.mechanism == "words"
    cut = settle_cut(given.cut, given.objective, words=words)
    iterations = given.public_iterations
    settled = {
        "model": given.model or "",
        "cut": cut,
        "tuning": settle_tuning(given, cut),
        "training": settle_training(
            given.training,
            given.objective,
            given.tuning,
            learner,
            packing=not (words or given.reconstruction.plain_tokens),
        ),
        "public_iterations": int(public) if iterations is None else iterations,
        "seed": given.seed or 0,
    }
    return RunSpec(**{name: getattr(given, name) for name in FinetuneSpec.model_fields} | settled)
