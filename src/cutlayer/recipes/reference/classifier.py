"""The line that a split run is read against: ordinary PEFT, one process, nothing private.

Hugging Face's own class, PEFT's own wrapper, PyTorch's own AdamW and the usual linear schedule; no
module of this package computes anything here. Only what a seed and a customer decide is taken from it, the
values that the adapter starts with, each step's dropout and the order of the texts, so that this customer's
split run with the same seed is the same run.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

import torch
from peft import LoraConfig, PeftModel, get_peft_model, set_peft_model_state_dict
from torch import Tensor
from transformers import BatchEncoding, PreTrainedModel, PreTrainedTokenizerBase, get_linear_schedule_with_warmup

from cutlayer.core import Cut, Proportion
from cutlayer.customer import Progress, TrainSpec
from cutlayer.customer.client import choose_device
from cutlayer.customer.derived import run_order
from cutlayer.customer.home import Home
from cutlayer.customer.order import Order, epoch_batches
from cutlayer.data import Dataset, LabelNames
from cutlayer.models import (
    Head,
    adapter_state,
    attach_lora,
    load_model,
    load_tokenizer,
    max_length,
    seed_dropout,
    split,
)
from cutlayer.privacy import PrivacySpec
from cutlayer.wire import Precision

_EVALUATION_BATCH = 64


class Watcher(Protocol):
    """Looks at a training and changes nothing of it."""

    def begin(self, model: PeftModel) -> None:
        """Is given the model before the first step."""
        ...

    def step(self, texts: Tensor) -> None:
        """Is called after each backward pass, with the numbers of its texts `[batch]`."""
        ...


@dataclass(frozen=True)
class Centralised:
    """A finished run.

    Attributes:
        accuracy: Share of test texts labelled right, with the weights of the best epoch on dev.
        dev: Dev accuracy after each epoch.
        losses: Training loss of each step.
        seconds: How long it took.
    """

    accuracy: Proportion
    dev: tuple[float, ...]
    losses: tuple[float, ...]
    seconds: float


def order_without_privacy(customer: Path, seed: int) -> Order:
    """In which a customer's runs without privacy take their texts.

    Args:
        customer: Its folder; made on first use.
        seed: The run's.
    """
    return run_order(seed, PrivacySpec.no_privacy(), Home(customer).secret)


def train_centralised(
    train: Dataset,
    dev: Dataset,
    test: Dataset,
    *,
    model: str,
    training: TrainSpec,
    seed: int,
    order: Order,
    progress: Progress,
    bottom: int = 0,
    device: str = "auto",
    watcher: Watcher | None = None,
) -> Centralised:
    """Fine-tunes the whole model with LoRA on texts as they are.

    Args:
        train: Texts to train on.
        dev: Texts to stop on.
        test: Texts to measure on.
        model: `starter`, a local folder or a hub id.
        training: How the adapter is trained; the same settings as a split run's.
        seed: Initialisation and dropout, as in a split run.
        order: In which texts are taken: `order_without_privacy` of the customer whose split runs this is read against.
        progress: Where to show progress.
        bottom: Blocks without adapter, counted from below, as at a frozen bottom.
        device: `cpu`, `cuda`, or `auto` for a GPU if there is one, which is what a split run's two parties take.
        watcher: Looks on.

    Raises:
        ConfigError: There is no such device here.
    """
    place = choose_device(device)
    started = time.monotonic()
    places = order.of(train.texts)
    train, dev, test = train.select(places), *(each.select(order.of(each.texts)) for each in (dev, test))
    names = LabelNames.of(train.labels or ())
    whole = load_model(model, head=Head.CLASSIFICATION, num_labels=len(names))
    tokenizer = load_tokenizer(model)
    if tokenizer.pad_token is None:
        # decoders without a padding token: the usual choice, so that the last real token is found
        tokenizer.pad_token = tokenizer.eos_token
    whole.config.pad_token_id = tokenizer.pad_token_id
    adapted = ordinary_peft(whole, training, bottom=bottom, num_labels=len(names), seed=seed)
    adapted.to(place)
    if watcher is not None:
        watcher.begin(adapted)
    limits = (training.max_length, max_length(whole.config), tokenizer.model_max_length)
    longest = min(limit for limit in limits if limit)
    batches = Batches(tokenizer, longest, place)

    trained = [parameter for parameter in adapted.parameters() if parameter.requires_grad]
    optimiser = torch.optim.AdamW(trained, lr=training.learning_rate, weight_decay=training.weight_decay)
    steps = -(-len(train) // training.batch_size)
    schedule = get_linear_schedule_with_warmup(optimiser, 0, steps * training.epochs)
    labels = names.encode(train.labels or (), source="train")
    lengths = batches.lengths(train)
    losses: list[float] = []
    dev_accuracy: list[float] = []
    best: dict[str, Tensor] = {}
    while len(dev_accuracy) < training.epochs and _keeps_rising(dev_accuracy, training.patience):
        epoch = len(dev_accuracy)
        _train(adapted, dropout=training.dropout)
        shuffled = epoch_batches(
            lengths,
            batch_size=training.batch_size,
            rng=order.generator(epoch),
            group_by_length=training.group_by_length,
        )
        for number, indices in enumerate(shuffled, start=1):
            seed_dropout(seed, len(losses) + 1)
            with torch.autocast(place.type, torch.bfloat16, enabled=training.precision is Precision.BF16):
                logits = adapted(**batches.of([train.texts[i] for i in indices.tolist()])).logits
            loss = torch.nn.functional.cross_entropy(logits.float(), labels[indices].to(place))
            loss.backward()
            if watcher is not None:
                watcher.step(torch.tensor(places)[indices])
            optimiser.step()
            schedule.step()
            optimiser.zero_grad()
            losses.append(float(loss.detach()))
            progress.update(f"centralised epoch {epoch + 1}/{training.epochs}", number, steps, f"loss {losses[-1]:.3f}")
        accuracy = _accuracy(adapted, batches, dev, names, progress, "centralised dev")
        if not dev_accuracy or accuracy.value > max(dev_accuracy):
            best = {name: parameter.detach().clone() for name, parameter in _trained(adapted)}
        dev_accuracy.append(accuracy.value)
    with torch.no_grad():
        for name, parameter in _trained(adapted):
            parameter.copy_(best[name])
    accuracy = _accuracy(adapted, batches, test, names, progress, "centralised test")
    return Centralised(accuracy, tuple(dev_accuracy), tuple(losses), time.monotonic() - started)


def ordinary_peft(whole: PreTrainedModel, training: TrainSpec, *, bottom: int, num_labels: int, seed: int) -> PeftModel:
    """PEFT around the whole model, starting from the values that a split run starts from.

    Args:
        whole: The model with its head.
        training: Rank, scale, dropout and targets of the adapter.
        bottom: Blocks without adapter, counted from below.
        num_labels: Outputs of the head.
        seed: What the adapter's first values are drawn from.
    """
    reference = attach_lora(
        split(whole, Cut(bottom=bottom or None)).top,
        rank=training.rank,
        alpha=training.alpha,
        dropout=training.lora_dropout,
        targets=training.targets,
        num_labels=num_labels,
        seed=seed,
    )
    config = cast(LoraConfig, cast(PeftModel, reference.module).peft_config["default"])
    adapted = cast(PeftModel, get_peft_model(whole, config))
    set_peft_model_state_dict(adapted, adapter_state(reference))
    return adapted


def _train(model: PeftModel, *, dropout: bool) -> None:
    """Training mode; the adapter's own dropout follows its rate either way."""
    model.train(dropout)
    for name, module in model.named_modules():
        if "lora_dropout" in name:
            module.train()


def _trained(model: PeftModel) -> Iterator[tuple[str, torch.nn.Parameter]]:
    return ((name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad)


def _keeps_rising(dev: Sequence[float], patience: int) -> bool:
    """Early stopping as `customer.trainer` does it: the best epoch is the first of equals."""
    return not dev or len(dev) - 1 - dev.index(max(dev)) < patience


@torch.no_grad()
def _accuracy(
    model: PeftModel, batches: Batches, dataset: Dataset, names: LabelNames, progress: Progress, stage: str
) -> Proportion:
    model.eval()
    labels = names.encode(dataset.labels or (), source=stage)
    right = 0
    by_length = sorted(range(len(dataset)), key=lambda row: sum(map(len, dataset.texts[row])))
    for start in range(0, len(dataset), _EVALUATION_BATCH):
        rows = by_length[start : start + _EVALUATION_BATCH]
        logits = model(**batches.of([dataset.texts[row] for row in rows])).logits
        right += int((logits.argmax(1).cpu() == labels[rows]).sum())
        progress.update(stage, start + len(rows), len(dataset))
    return Proportion.of(right, len(dataset))


class Batches:
    """Hugging Face's own tokenising and padding.

    Args:
        tokenizer: The model's.
        longest: Positions of a text at most.
        device: Where batches are computed on.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, longest: int, device: torch.device) -> None:
        self._tokenizer = tokenizer
        self._longest = longest
        self._device = device

    def of(self, texts: Sequence[tuple[str, ...]]) -> BatchEncoding:
        """A padded batch."""
        return self._encode(texts, padding=True, return_tensors="pt").to(self._device)

    def lengths(self, dataset: Dataset) -> Tensor:
        """Positions of each text, `[n]`."""
        return torch.tensor([len(ids) for ids in self._encode(dataset.texts)["input_ids"]])

    def _encode(self, texts: Sequence[tuple[str, ...]], **how: Any) -> BatchEncoding:
        columns: list[Any] = [list(column) for column in zip(*texts, strict=True)]
        encoded: BatchEncoding = self._tokenizer(
            *columns, truncation="longest_first", max_length=self._longest, split_special_tokens=True, **how
        )
        return encoded
