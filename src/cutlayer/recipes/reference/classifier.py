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
from transformers import BatchEncoding, PreTrainedModel, PreTrainedTokenizerBase

from cutlayer.core import Proportion
from cutlayer.customer import Objective, Progress
from cutlayer.customer.connection import choose_device
from cutlayer.data import Dataset, LabelNames
from cutlayer.models import Head, Kind, family_of, load_model, load_tokenizer, max_length
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
    tokenizer, whole = load_tokenizer(run.model), load_model(run.model, head=None)
    written = Written(names.names, tokenizer, whole) if family_of(whole.config).kind is Kind.ENCODER_DECODER else None
    labelled = len(names) if written is None else None
    if written is None:
        whole = load_model(run.model, head=Head.CLASSIFICATION, num_labels=labelled)
    if tokenizer.pad_token is None:
        # decoders without a padding token: the usual choice, so that the last real token is found
        tokenizer.pad_token = tokenizer.eos_token
    whole.config.pad_token_id = tokenizer.pad_token_id
    adapted = tuned_whole(whole, run.tuning, seed=run.seed, bottom=bottom, num_labels=labelled)
    adapted.to(place)
    limits = (run.training.max_length, max_length(whole.config), tokenizer.model_max_length)
    batches = Batches(tokenizer, min(limit for limit in limits if limit), place)
    labels = names.encode(train.labels or (), source="train")

    def scores(texts: Sequence[tuple[str, ...]]) -> Tensor:
        batch = batches.of(texts)
        logits: Tensor = adapted(**batch).logits if written is None else written(adapted, batch)
        return logits.float()

    def loss(texts: Tensor) -> Tensor:
        found = scores([train.texts[i] for i in texts.tolist()])
        learnt = torch.nn.functional.cross_entropy if written is None else torch.nn.functional.nll_loss
        return learnt(found, labels[texts].to(place))

    def accuracy(dataset: Dataset, stage: str) -> Proportion:
        return _accuracy(adapted, scores, dataset, names, progress, stage)

    numbers, watched = torch.tensor(run.order.of(run.train.texts)), None if watch is None else watch(adapted)
    lesson = Lesson(
        adapted, batches.lengths(train), loss, lambda: accuracy(dev, "centralised dev").value,
        Objective.CLASSIFICATION.best,
    )  # fmt: skip
    fitted = fit(run, lesson, progress, watch=None if watched is None else lambda texts: watched(numbers[texts]))
    return Centralised(**vars(fitted), accuracy=accuracy(test, "centralised test"), seconds=time.monotonic() - started)


@torch.no_grad()
def _accuracy(
    model: nn.Module,
    scores: Callable[[Sequence[tuple[str, ...]]], Tensor],
    dataset: Dataset,
    names: LabelNames,
    progress: Progress,
    stage: str,
) -> Proportion:
    model.eval()
    labels = names.encode(dataset.labels or (), source=stage)
    right = 0
    by_length = sorted(range(len(dataset)), key=lambda row: sum(map(len, dataset.texts[row])))
    for start in range(0, len(dataset), _EVALUATION_BATCH):
        rows = by_length[start : start + _EVALUATION_BATCH]
        right += int((scores([dataset.texts[row] for row in rows]).argmax(1).cpu() == labels[rows]).sum())
        progress.update(stage, start + len(rows), len(dataset))
    return Proportion.of(right, len(dataset))


class Written:
    """Labels as words that a whole encoder-decoder writes: Hugging Face's own forward pass behind each of their starts.

    Args:
        names: The labels, each of which is written as it is called.
        tokenizer: The model's.
        whole: The model.
    """

    def __init__(self, names: Sequence[str], tokenizer: PreTrainedTokenizerBase, whole: PreTrainedModel) -> None:
        ids = [tokenizer(name, add_special_tokens=False)["input_ids"] for name in names]
        closing = [] if all(len(each) == 1 for each in ids) else [tokenizer.eos_token_id]
        self._words = [[*each, *closing] for each in ids]
        self._start = whole.config.decoder_start_token_id

    def __call__(self, model: nn.Module, batch: BatchEncoding) -> Tensor:
        """Log-probabilities of each label's words, `[batch, labels]`."""
        texts, logs = len(batch["input_ids"]), {}
        found = []
        for words in self._words:
            start = (self._start, *words[:-1])
            if start not in logs:
                ids = torch.tensor([start] * texts, device=batch["input_ids"].device)
                source = {name: batch[name] for name in ("input_ids", "attention_mask")}
                logs[start] = model(**source, decoder_input_ids=ids).logits.float().log_softmax(-1)
            found.append(sum(logs[start][:, place, word] for place, word in enumerate(words)))
        return torch.stack(found, 1)


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
