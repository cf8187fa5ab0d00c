"""Where trainings differ from what a paper states of its own, or fill in what it leaves open."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from cutlayer.core import Deviation, Spec
from cutlayer.customer import Lora, TrainSpec, TuningSpec
from cutlayer.customer.settings import FullTuning
from cutlayer.recipes.recipe import deviations_table
from cutlayer.recipes.study import Results, Told
from cutlayer.recipes.training import Trained, TrainingCell
from cutlayer.reports import Table


class StatedSetting(Spec):
    """A setting of training in a paper.

    Attributes:
        stated: As it is printed.
        same: As it is told here where it is the same.
    """

    stated: str
    same: str


def differing(paper: Mapping[str, Any]) -> Told:
    """Where trainings differ from a paper, with the data sets whose trainings do; a matter has one row for each reason.

    Args:
        paper: Of `papers/NAME.yaml`; `training` there holds what is stated, by the names of `_settings`.
    """
    stated = {name: StatedSetting.model_validate(each) for name, each in paper["training"].items()}

    def told(results: Results) -> Iterable[Table]:
        trainings = [(cell, found) for cell, found in results.cells.items() if isinstance(cell, TrainingCell)]
        differ: dict[str, dict[str, tuple[Deviation, dict[str, None]]]] = {}
        for cell, found in trainings:
            for each in (
                *_deviations(cell.training, cell.tuning, cell.label_words, stated),
                *(found.deviations if isinstance(found, Trained) else ()),
            ):
                # once, also where a cell of an older version says the same in other words
                differ.setdefault(each.what, {}).setdefault(each.ours, (each, {}))[1][cell.task.title] = None
        everywhere = {cell.task.title for cell, _ in trainings}
        rows: dict[tuple[str, ...], list[str]] = {}
        for same in differ.values():
            for each, titles in same.values():
                place = "all data sets" if titles.keys() == everywhere else ", ".join(titles)
                rows.setdefault((each.what, place, each.value_in_paper, each.why), []).append(each.ours)
        merged = [
            (Deviation(what=what, value_in_paper=stated, ours="; ".join(ours), why=why), place)
            for (what, place, stated, why), ours in rows.items()
        ]
        yield deviations_table(merged, "Where trainings differ from the paper")

    return told


def _deviations(
    training: TrainSpec,
    tuning: TuningSpec,
    label_words: Mapping[str, str] | None,
    stated: Mapping[str, StatedSetting],
) -> Iterator[Deviation]:
    for what, ours in _settings(training, tuning, label_words):
        paper = stated.get(what)
        if paper is None:
            yield Deviation(what=what, value_in_paper="not stated", ours=ours, why="the paper leaves it open")
        elif ours != paper.same:
            yield Deviation(what=what, value_in_paper=paper.stated, ours=ours, why="chosen for this run")


def _settings(
    training: TrainSpec, tuning: TuningSpec, label_words: Mapping[str, str] | None = None
) -> Iterator[tuple[str, str]]:
    """How a classifier is trained, a line for each setting that acts."""
    if label_words is not None:
        yield "what is written for labels", ", ".join(label_words.values()) or "the labels themselves"
    if isinstance(tuning, Lora):
        yield "LoRA rank", f"{tuning.r}"
        yield "LoRA alpha", f"{tuning.lora_alpha:g}"
        yield "LoRA dropout", f"{tuning.lora_dropout:g}"
        yield "LoRA targets", str(tuning.target_modules)
    elif not isinstance(tuning, FullTuning):
        own = tuning.told.model_dump(exclude={"method", "pooling"})
        yield f"{tuning.method} tuning", ", ".join(f"{name} {value}" for name, value in own.items())
        if label_words is None:
            yield "what the head reads", tuning.pooling
    else:
        yield "tuning method", tuning.method
    yield "batch size", f"{training.batch_size}"
    yield "learning rate", f"{training.learning_rate:g}"
    yield "optimiser", training.optim
    yield "schedule of the learning rate", training.lr_scheduler_type
    yield "epochs", f"at most {training.epochs}, stopped after {training.patience} without a better dev accuracy"
    yield "weight decay", f"{training.weight_decay:g}"
    yield "dropout of frozen blocks", "on" if training.dropout else "off"
    yield "order of texts", "batches of about one length" if training.group_by_length else "random"
    yield "precision of training", str(training.precision)
    if training.warmup_steps:
        warmup = training.warmup_steps
        of = f"{warmup:g} updates" if warmup >= 1 else f"{100 * warmup:g} % of the updates"
        yield "warm-up of the learning rate", of
    if training.max_length is not None:
        yield "tokens per text", f"{training.max_length} at most, special tokens included; the rest is cut"
    if training.gradient_accumulation_steps > 1:
        yield "steps of an update", str(training.gradient_accumulation_steps)
    if training.max_grad_norm is not None:
        yield "largest norm of gradients", f"{training.max_grad_norm:g}"
