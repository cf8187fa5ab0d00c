"""Where a run's settings differ from the papers or fill in what they leave open, beside the privatizer's own."""

from __future__ import annotations

from collections.abc import Mapping

from cutlayer.core import Deviation
from cutlayer.customer.defaults import BLOCK_LENGTH
from cutlayer.customer.settings import FullTuning, Lora, RunSpec, TrainBottom
from cutlayer.models import Family


def deviations(spec: RunSpec, family: Family) -> tuple[Deviation, ...]:
    """Where a run's settings differ from the paper, or fill in what it leaves open.

    Classifiers are compared with SAP §5.1, the others with Yao & Li §3.3.1.

    Args:
        spec: The run's settings.
        family: The model's, which names what is adapted.
    """
    stated = _stated_for_language(spec) if spec.objective.generates else _STATED_FOR_CLASSIFIERS
    found = []
    for what, ours in _settings(spec, family).items():
        paper, same = stated.get(what, ("not stated", None))
        if ours != same:
            why = "the paper leaves it open" if what not in stated else "chosen for this run"
            found.append(Deviation(what=what, value_in_paper=paper, ours=ours, why=why))
    return (*found, *_of_bottom(spec), *_of_reconstruction(spec))


_STATED: Mapping[str, tuple[str, str]] = {
    "optimiser": ("AdamW", "adamw"),
    "schedule of the learning rate": ("linear", "linear"),
    "tuning method": ("LoRA", ""),
}
_STATED_FOR_CLASSIFIERS: Mapping[str, tuple[str, str]] = {
    **_STATED,
    "learning rate": ("3e-4 (RoBERTa-large)", "0.0003"),
}


def _settings(spec: RunSpec, family: Family) -> dict[str, str]:
    training, better = spec.training, "perplexity" if spec.objective.generates else "accuracy"
    settings = {
        **_of_method(spec, family),
        "batch size": f"{training.batch_size}",
        "learning rate": f"{training.learning_rate:g}",
        "optimiser": training.optim,
        "schedule of the learning rate": training.lr_scheduler_type,
        "epochs": f"at most {training.epochs}, stopped after {training.patience} without a better dev {better}",
        "weight decay": f"{training.weight_decay:g}",
        "dropout of frozen blocks": "on" if training.dropout else "off",
        "order of texts": "batches of about one length" if training.group_by_length else "random",
        "precision of training": str(training.precision),
    }
    if training.warmup_steps:
        settings["warm-up of the learning rate"] = (
            f"{training.warmup_steps:g} updates"
            if training.warmup_steps >= 1
            else f"{100 * training.warmup_steps:g} % of the updates"
        )
    if training.packing:
        settings["tokens of a block"] = str(training.max_length or f"{BLOCK_LENGTH}, or the model's limit")
    elif training.max_length is not None:
        settings["tokens per text"] = f"{training.max_length} at most, special tokens included; the rest is cut"
    if training.gradient_accumulation_steps > 1:
        settings["steps of an update"] = str(training.gradient_accumulation_steps)
    if training.max_grad_norm is not None:
        settings["largest norm of gradients"] = f"{training.max_grad_norm:g}"
    return settings


def _of_method(spec: RunSpec, family: Family) -> dict[str, str]:
    """What is tuned; Yao & Li tune all weights, too."""
    tuning = spec.tuning
    if isinstance(tuning, Lora):
        return _lora(tuning, family)
    if isinstance(tuning, FullTuning) and spec.objective.generates:
        return {}
    told = tuning.told.model_dump(exclude={"method"})
    return {"tuning method": "".join([tuning.method, *(f", {name} {value}" for name, value in told.items())])}


def _lora(lora: Lora, family: Family) -> dict[str, str]:
    every = lora.target_modules == "all-linear"
    maps = "all linear maps of the blocks" if every else ", ".join(family.query_value)
    return {
        "LoRA rank": f"{lora.r}",
        "LoRA alpha": f"{lora.lora_alpha:g}",
        "LoRA dropout": f"{lora.lora_dropout:g}",
        "LoRA targets": f"{lora.target_modules}: {maps}",
    }


def _stated_for_language(spec: RunSpec) -> dict[str, tuple[str, str]]:
    """What Yao & Li print (§3.3.1, §3.3.2; the rank by Table 3's column), as it is told and as it is set here."""
    rate = "5e-6" if isinstance(spec.tuning, FullTuning) else "2e-4"
    return {
        **_STATED,
        "LoRA rank": ("8", "8"),
        "batch size": ("4", "4"),
        "learning rate": (rate, f"{float(rate):g}"),
        "tokens of a block": ("1,024", str(BLOCK_LENGTH)),
    }


def _of_bottom(spec: RunSpec) -> tuple[Deviation, ...]:
    """Of a bottom that is trained."""
    if spec.train_bottom is TrainBottom.FROZEN:
        return ()
    bottom = Deviation(
        what="what of the bottom is trained",
        value_in_paper="the embedding layer; not stated for deeper bottoms",
        ours="the token table" if not spec.cut.bottom else "the blocks; the table stays as it was handed out",
        why="Released tokens then stay tokens of one table.",
    )
    drawn = Deviation(
        what="which table noise is added to and searched, eq. (3) and (4), once the table is trained",
        value_in_paper="not stated",
        ours="the initial one; the row that is sent is the trained table's",
        why="Distances of a table that private texts have trained would be no public metric, and budgets over "
        "changing metrics could not be added.",
    )
    return (bottom, drawn) if not spec.cut.bottom else (bottom,)


def _of_reconstruction(spec: RunSpec) -> tuple[Deviation, ...]:
    """Of plain words, which RAPT §III-B2 describes."""
    if not spec.reconstruction.plain_tokens:
        return ()
    return (
        Deviation(
            what="state of a plain word, eq. (7)",
            value_in_paper="g at its position",
            ours="the mean over its pieces",
            why="A word is drawn, and may have several pieces in the vendor's model.",
        ),
        Deviation(
            what="noise on plain words",
            value_in_paper="not stated",
            ours="drawn for each text",
            why="One draw of a sequence for all texts would be as many fixed words to learn by heart.",
        ),
        Deviation(
            what="vocabulary of the reconstruction head, §V-A3",
            value_in_paper="19,369 words, not stated which",
            ours="the public words of the categories that are replaced"
            if (outputs := spec.reconstruction.reconstruction_vocabulary) is None
            else f"{outputs:,} outputs, those of the plain words and others that no text has",
            why="Plain words are drawn from these words, and no other is ever to be told.",
        ),
    )
