"""What the lines that split runs are read against have in common: the whole model, one process, nothing private.

PyTorch's own AdamW, the usual linear schedule and PEFT's own wrapper. Only what a seed and a customer decide is taken
from this package, the values that an adapter starts with, each step's dropout and the order of the texts, so that this
customer's split run with the same seed is the same run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import torch
from peft import PeftModel, get_peft_model, set_peft_model_state_dict
from torch import Tensor, nn
from transformers import PreTrainedModel, get_constant_schedule_with_warmup, get_linear_schedule_with_warmup

from cutlayer.core import Cut, ModelError
from cutlayer.customer import Home, Progress, TrainSpec, TuningSpec
from cutlayer.customer.derived import run_order
from cutlayer.customer.order import Order
from cutlayer.data import Dataset
from cutlayer.models import Kind, adapter_state, attach, cut_up, family_of, seed_dropout
from cutlayer.models.batches import epoch_batches
from cutlayer.models.heads import resize_head
from cutlayer.models.optimiser import warmup_in
from cutlayer.models.virtual import ADAPTER
from cutlayer.privacy import NoPrivacy
from cutlayer.wire import Precision


@dataclass(frozen=True)
class ReferenceRun:
    """What is trained in one process; the same settings as those of the split run that is read against it.

    Attributes:
        train: Texts to train on; of an encoder-decoder, pairs.
        dev: Texts to stop on.
        test: Texts to measure on.
        model: An embedded model's name, a local folder or a hub id.
        training: How it is trained.
        tuning: Which weights are.
        seed: Initialisation and dropout.
        order: In which texts are taken: `order_without_privacy` of the split run's customer.
    """

    train: Dataset
    dev: Dataset
    test: Dataset
    model: str
    training: TrainSpec
    tuning: TuningSpec
    seed: int
    order: Order

    def arranged(self) -> Iterator[Dataset]:
        """Train, dev and test in the order in which the split run takes them."""
        return (each.select(self.order.of(each.texts)) for each in (self.train, self.dev, self.test))


def order_without_privacy(customer: Path, seed: int) -> Order:
    """In which a customer's runs without privacy take their texts; the customer's folder is made on first use."""
    return run_order(seed, NoPrivacy(), Home(customer).secret)


def tuned_whole(
    whole: PreTrainedModel, tuning: TuningSpec, *, seed: int, bottom: int = 0, num_labels: int | None = None
) -> nn.Module:
    """The whole model with its head, by PEFT unless all weights are tuned, starting as a split run of this seed.

    `bottom` blocks, counted from below, are not tuned, as at a frozen bottom.

    Raises:
        ModelError: The method puts virtual positions before each text, and some blocks would not see them; or it is a
            prefix of an encoder-decoder, of which PEFT 0.21 gives block i the pair of block 2i; or a head is to read
            what PEFT's does not.
    """
    if num_labels is not None and tuning.pooling != "sequence":
        raise ModelError("PEFT's heads read the whole sequence.", remedy='Compare a run with pooling "sequence".')
    if tuning.method == "prefix" and family_of(whole.config).kind is Kind.ENCODER_DECODER:
        raise ModelError(
            "PEFT's prefix of an encoder-decoder belongs to other blocks than a split run's.", remedy="Use a prompt."
        )
    if bottom and tuning.positions:
        raise ModelError(
            f"PEFT has no {tuning.method} that begins at block {bottom}.", remedy="Compare a run with bottom 0."
        )
    top = cut_up(whole, Cut(bottom=bottom or None)).top
    reference = attach(top, tuning, num_labels=num_labels, shared=not bottom, seed=seed)
    state = adapter_state(reference)
    if isinstance(reference.module, PeftModel):
        adapted = cast(PeftModel, get_peft_model(whole, reference.module.peft_config[ADAPTER]))
        set_peft_model_state_dict(adapted, state)
        return adapted
    if num_labels is not None:
        resize_head(whole, num_labels)
    whole.load_state_dict(state, strict=False)
    for name, parameter in whole.named_parameters():
        parameter.requires_grad_(not bottom or name in state)
    return whole


@dataclass(frozen=True)
class Lesson:
    """What a model learns, and how that is measured.

    Attributes:
        model: What is trained of it requires a gradient.
        lengths: Positions of each text to train on, `[n]`.
        loss: Mean loss of the texts with these numbers, `[batch]`.
        dev: Accuracy or perplexity on dev.
        best: The best of several.
        rates: Learning rates of parts of the model, by name, that have one of their own.
    """

    model: nn.Module
    lengths: Tensor
    loss: Callable[[Tensor], Tensor]
    dev: Callable[[], float]
    best: Callable[[Sequence[float]], float]
    rates: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Fit:
    """Accuracy or perplexity on dev after each epoch, and the training loss of each step."""

    dev: tuple[float, ...]
    losses: tuple[float, ...]


def fit(run: ReferenceRun, lesson: Lesson, progress: Progress, *, watch: Callable[[Tensor], None] | None = None) -> Fit:
    """Trains a model, which then has the weights of the best epoch on dev.

    `watch` is called after each backward pass, with the numbers of its texts `[batch]`.
    """
    training, model = run.training, lesson.model
    trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    place = next(iter(trained.values())).device
    kinds: Mapping[str, Any] = {
        "adamw": torch.optim.AdamW,
        "adam": torch.optim.Adam,
        "adafactor": torch.optim.Adafactor,
    }
    groups: dict[float, list[nn.Parameter]] = {}
    for name, parameter in trained.items():
        rate = lesson.rates.get(name.partition(".")[0], training.learning_rate)
        groups.setdefault(rate, []).append(parameter)
    optimiser = kinds[training.optim](
        [{"params": part, "lr": rate} for rate, part in groups.items()], weight_decay=training.weight_decay
    )
    steps = -(-len(lesson.lengths) // training.batch_size)
    accumulated = training.gradient_accumulation_steps
    updates = -(-steps * training.epochs // accumulated)
    warmup = warmup_in(updates, training.warmup_steps)
    schedule = (
        get_linear_schedule_with_warmup(optimiser, warmup, updates)
        if training.lr_scheduler_type == "linear"
        else get_constant_schedule_with_warmup(optimiser, warmup)
    )
    losses: list[float] = []
    dev: list[float] = []
    best: dict[str, Tensor] = {}
    while len(dev) < training.epochs and (not dev or len(dev) - 1 - _first_best(dev, lesson) < training.patience):
        _train(model, dropout=training.dropout)
        shuffled = epoch_batches(
            lesson.lengths,
            batch_size=training.batch_size,
            rng=run.order.generator(len(dev)),
            group_by_length=training.group_by_length,
        )
        for number, texts in enumerate(shuffled, start=1):
            seed_dropout(run.seed, len(losses) + 1)
            with torch.autocast(place.type, torch.bfloat16, enabled=training.precision is Precision.BF16):
                loss = lesson.loss(texts)
            (loss / accumulated).backward()
            losses.append(float(loss.detach()))
            if watch is not None:
                watch(texts)
            if len(losses) % accumulated == 0 or len(losses) == steps * training.epochs:
                if training.max_grad_norm is not None:
                    nn.utils.clip_grad_norm_(trained.values(), training.max_grad_norm)
                optimiser.step()
                schedule.step()
                optimiser.zero_grad()
            stage = f"centralised epoch {len(dev) + 1}/{training.epochs}"
            progress.update(stage, number, steps, f"loss {losses[-1]:.3f}")
        dev.append(lesson.dev())
        if _first_best(dev, lesson) == len(dev) - 1:
            best = {name: parameter.detach().clone() for name, parameter in trained.items()}
    with torch.no_grad():
        for name, parameter in trained.items():
            parameter.copy_(best[name])
    return Fit(tuple(dev), tuple(losses))


def _first_best(dev: list[float], lesson: Lesson) -> int:
    """The best epoch is the first of equals, as in `customer.trainer`."""
    return dev.index(lesson.best(dev))


def _train(model: nn.Module, *, dropout: bool) -> None:
    """Training mode; an adapter's own dropout follows its rate either way."""
    model.train(dropout)
    for name, module in model.named_modules():
        if "lora_dropout" in name:
            module.train()
