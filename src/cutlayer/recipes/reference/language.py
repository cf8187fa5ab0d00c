"""The line that a language model's split run is read against: the whole model, one process, nothing private.

Texts are packed and padded here, not by what a split run does it with; see `fit` for the rest.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from cutlayer.core import Perplexity
from cutlayer.customer import Objective, Progress, TrainSpec
from cutlayer.customer.connection import choose_device
from cutlayer.customer.defaults import BLOCK_LENGTH
from cutlayer.data import Dataset
from cutlayer.models import Head, Kind, family_of, load_model, load_tokenizer, max_length
from cutlayer.recipes.reference.fit import Fit, Lesson, ReferenceRun, fit, tuned_whole

_EVALUATION_BATCH = 4


@dataclass(frozen=True)
class CentralisedLanguage(Fit):
    """A finished run: perplexity on test with the weights of the best epoch on dev, and on dev `before` all."""

    perplexity: Perplexity
    before: float
    seconds: float
    model: nn.Module


def train_centralised_language_model(
    run: ReferenceRun, *, progress: Progress, device: str = "auto"
) -> CentralisedLanguage:
    """Fine-tunes the whole model, a decoder or an encoder-decoder, on texts as they are.

    Raises:
        ConfigError: There is no such device here.
    """
    place = choose_device(device)
    started = time.monotonic()
    whole = load_model(run.model, head=Head.LANGUAGE)
    tuned = tuned_whole(whole, run.tuning, seed=run.seed)
    tuned.to(place)
    kind = Pairs if family_of(whole.config).kind is Kind.ENCODER_DECODER else Blocks
    corpus = kind(load_tokenizer(run.model), run.training, max_length(whole.config))
    train, dev, test = (corpus.of(dataset) for dataset in run.arranged())

    def loss(texts: Tensor) -> Tensor:
        return torch.cat(corpus.losses(tuned, [train[i] for i in texts.tolist()], place)).mean()

    def perplexity(texts: list[Text], stage: str) -> Perplexity:
        return _perplexity(tuned, corpus, texts, place, progress, stage)

    before = perplexity(dev, "centralised dev before").value
    lesson = Lesson(
        tuned, torch.tensor([corpus.length(text) for text in train]), loss,
        lambda: perplexity(dev, "centralised dev").value, Objective.LM.best,
    )  # fmt: skip
    fitted = fit(run, lesson, progress)
    reached = perplexity(test, "centralised test")
    return CentralisedLanguage(
        **vars(fitted), perplexity=reached, before=before, model=tuned, seconds=time.monotonic() - started
    )


Text = tuple[Tensor, ...]
"""Ids: of a block; or of a source text and of its target."""


class Corpus(ABC):
    """What a model is trained on: texts cut as the training says, and where the model's positions end."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, training: TrainSpec, limit: int | None) -> None:
        self._tokenizer = tokenizer
        self._training = training
        self._limit = limit
        with_specials: list[int] = tokenizer("a")["input_ids"]
        bare: list[int] = tokenizer("a", add_special_tokens=False)["input_ids"]
        at = next(place for place in range(len(with_specials)) if with_specials[place : place + len(bare)] == bare)
        self._opening, self._closing = with_specials[:at], with_specials[at + len(bare) :]

    @abstractmethod
    def of(self, dataset: Dataset) -> list[Text]:
        """What is learnt from a data set."""

    @abstractmethod
    def length(self, text: Text) -> int:
        """Positions of a text."""

    @abstractmethod
    def losses(self, model: nn.Module, texts: list[Text], device: torch.device) -> list[Tensor]:
        """Negative log-likelihoods of each text's predicted tokens, `[tokens]` each, in nats."""

    def _ids(self, text: str) -> list[int]:
        encoded = self._tokenizer(text, add_special_tokens=False, split_special_tokens=True, verbose=False)
        return cast(list[int], encoded["input_ids"])

    def _longest(self, *limits: int | None) -> int:
        return min(size for size in (*limits, self._limit, self._tokenizer.model_max_length) if size)


class Blocks(Corpus):
    """Texts closed by the end mark, joined, and cut into blocks with the tokenizer's special tokens before each."""

    def of(self, dataset: Dataset) -> list[Text]:
        longest = self._longest(self._training.max_length or BLOCK_LENGTH)
        content = longest - len(self._opening) - len(self._closing)
        end = self._tokenizer.eos_token_id
        closed: list[list[int]] = []
        for (text,) in dataset.texts:
            ids = self._ids(text)
            closed.append([*ids, end] if ids else [])
        if self._training.packing:
            stream = [token for text in closed for token in text]
            closed = [stream[start : start + content] for start in range(0, len(stream), content)]
        blocks = ([*self._opening, *text[:content], *self._closing] for text in closed if text)
        return [(torch.tensor(block),) for block in blocks if len(block) > 1]

    def length(self, text: Text) -> int:
        return len(text[0])

    def losses(self, model: nn.Module, texts: list[Text], device: torch.device) -> list[Tensor]:
        """See `Corpus.losses`."""
        ids, mask = _padded([text for (text,) in texts], device)
        logits = model(input_ids=ids, attention_mask=mask, use_cache=False).logits
        return _token_losses(logits[:, :-1], ids[:, 1:], [len(text) - 1 for (text,) in texts])


class Pairs(Corpus):
    """Source texts with the tokenizer's special tokens, and target texts closed by the end mark."""

    def of(self, dataset: Dataset) -> list[Text]:
        settings = self._training
        source_content = self._longest(settings.max_length) - len(self._opening) - len(self._closing)
        # a start token stands before what goes into the decoder, which the end mark does not
        target_content = self._longest(settings.max_target_length or settings.max_length) - 1
        pairs: list[Text] = []
        for source, target in dataset.texts:
            ids = [*self._opening, *self._ids(source)[:source_content], *self._closing]
            closed = [*self._ids(target)[:target_content], self._tokenizer.eos_token_id]
            pairs.append((torch.tensor(ids), torch.tensor(closed)))
        return pairs

    def length(self, text: Text) -> int:
        return max(map(len, text))

    def losses(self, model: nn.Module, texts: list[Text], device: torch.device) -> list[Tensor]:
        """See `Corpus.losses`."""
        ids, mask = _padded([source for source, _ in texts], device)
        targets, real = _padded([target for _, target in texts], device)
        labels = targets.masked_fill(real == 0, -100)
        logits = model(input_ids=ids, attention_mask=mask, labels=labels, use_cache=False).logits
        return _token_losses(logits, targets, [len(target) for _, target in texts])


def _token_losses(logits: Tensor, targets: Tensor, lengths: list[int]) -> list[Tensor]:
    return [
        nn.functional.cross_entropy(row[:length].float(), ids[:length], reduction="none")
        for row, ids, length in zip(logits, targets, lengths, strict=True)
    ]


def _padded(texts: list[Tensor], device: torch.device) -> tuple[Tensor, Tensor]:
    """Ids and mask `[n, longest]`, padded on the right."""
    ids = nn.utils.rnn.pad_sequence(texts, batch_first=True)
    mask = nn.utils.rnn.pad_sequence([torch.ones_like(text) for text in texts], batch_first=True)
    return ids.to(device), mask.to(device)


@torch.no_grad()
def _perplexity(
    model: nn.Module, corpus: Corpus, texts: list[Text], device: torch.device, progress: Progress, stage: str
) -> Perplexity:
    model.eval()
    sums: list[float] = []
    counts: list[int] = []
    for start in range(0, len(texts), _EVALUATION_BATCH):
        found = corpus.losses(model, texts[start : start + _EVALUATION_BATCH], device)
        sums += [float(text.double().sum()) for text in found]
        counts += [len(text) for text in found]
        progress.update(stage, len(sums), len(texts))
    return Perplexity.of(torch.tensor(sums), torch.tensor(counts))
