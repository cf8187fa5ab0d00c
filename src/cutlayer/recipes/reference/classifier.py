"""The line that a classifier's split run is read against: ordinary PEFT, one process, nothing private.

Hugging Face's own class, tokenising and padding; see `fit` for the rest.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from transformers import BatchEncoding, PreTrainedTokenizerBase

from cutlayer.core import Proportion
from cutlayer.customer import Objective, Progress
from cutlayer.customer.connection import choose_device
from cutlayer.data import Dataset, LabelNames
from cutlayer.models import Head, load_model, load_tokenizer, max_length
from cutlayer.recipes.reference.fit import Fit, Lesson, ReferenceRun, fit, tuned_whole

_EVALUATION_BATCH = 64


Watch: TypeAlias = Callable[[nn.Module], Callable[[Tensor], None]]
"""Is given the model before the first step. What it returns is called after each backward pass, with the numbers of its
texts `[batch]`. It changes nothing."""


@dataclass(frozen=True)
class Centralised(Fit):
    """A finished run: accuracy on test with the weights of the best epoch on dev."""

    accuracy: Proportion
    seconds: float


def train_centralised(
    run: ReferenceRun,
    *,
    progress: Progress,
    bottom: int = 0,
    device: str = "auto",
    watch: Watch | None = None,
) -> Centralised:
    """Fine-tunes the whole model on texts as they are, blocks below `bottom` as they were.

    The device is `cpu`, `cuda`, or `auto` for a GPU if there is one, which is what a split run's two parties take.

    Raises:
        ConfigError: There is no such device here.
    """
    place = choose_device(device)
    started = time.monotonic()
    train, dev, test = run.arranged()
    names = LabelNames.of(train.labels or ())
    whole = load_model(run.model, head=Head.CLASSIFICATION, num_labels=len(names))
    tokenizer = load_tokenizer(run.model)
    if tokenizer.pad_token is None:
        # decoders without a padding token: the usual choice, so that the last real token is found
        tokenizer.pad_token = tokenizer.eos_token
    whole.config.pad_token_id = tokenizer.pad_token_id
    adapted = tuned_whole(whole, run.tuning, seed=run.seed, bottom=bottom, num_labels=len(names))
    adapted.to(place)
    limits = (run.training.max_length, max_length(whole.config), tokenizer.model_max_length)
    batches = Batches(tokenizer, min(limit for limit in limits if limit), place)
    labels = names.encode(train.labels or (), source="train")

    def loss(texts: Tensor) -> Tensor:
        logits = adapted(**batches.of([train.texts[i] for i in texts.tolist()])).logits
        return torch.nn.functional.cross_entropy(logits.float(), labels[texts].to(place))

    def accuracy(dataset: Dataset, stage: str) -> Proportion:
        return _accuracy(adapted, batches, dataset, names, progress, stage)

    numbers, watched = torch.tensor(run.order.of(run.train.texts)), None if watch is None else watch(adapted)
    lesson = Lesson(
        adapted, batches.lengths(train), loss, lambda: accuracy(dev, "centralised dev").value,
        Objective.CLASSIFICATION.best,
    )  # fmt: skip
    fitted = fit(run, lesson, progress, watch=None if watched is None else lambda texts: watched(numbers[texts]))
    return Centralised(**vars(fitted), accuracy=accuracy(test, "centralised test"), seconds=time.monotonic() - started)


@torch.no_grad()
def _accuracy(
    model: nn.Module, batches: Batches, dataset: Dataset, names: LabelNames, progress: Progress, stage: str
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
    """Hugging Face's own tokenising and padding, of texts cut at `longest` positions."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, longest: int, device: torch.device) -> None:
        self._tokenizer = tokenizer
        self._longest = longest
        self._device = device

    def of(self, texts: Sequence[tuple[str, ...]]) -> BatchEncoding:
        return self._encode(texts, padding=True, return_tensors="pt").to(self._device)

    def lengths(self, dataset: Dataset) -> Tensor:
        """Positions of each text, `[texts]` int64."""
        return torch.tensor([len(ids) for ids in self._encode(dataset.texts)["input_ids"]])

    def _encode(self, texts: Sequence[tuple[str, ...]], **how: Any) -> BatchEncoding:
        columns: list[Any] = [list(column) for column in zip(*texts, strict=True)]
        encoded: BatchEncoding = self._tokenizer(
            *columns, truncation="longest_first", max_length=self._longest, split_special_tokens=True, **how
        )
        return encoded
