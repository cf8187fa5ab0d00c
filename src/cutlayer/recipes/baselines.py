"""Baselines that send what a whole encoder makes of a text, with noise on it: DPNR and CAPE, as in RAPT's Figure 4.

The customer runs and tunes the encoder, and the vendor gets one row a text. Neither is a part of the product's road: it
would leave a vendor nothing to do but a linear map. Both scale a row to [0, 1] and add Laplace noise to each number.
DPNR leaves words out beforehand. CAPE tunes the encoder against a classifier of private attributes.

Ref: Lyu et al. 2020 (DPNR), arXiv:2010.01285; Plant et al. 2021 (CAPE), arXiv:2108.12318; RAPT §V-D, arXiv:2305.06212.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from cutlayer.attacks import Fitting, Knowledge, SeenFrame, Transcript
from cutlayer.core import ConfigError, Cut, Proportion, Ragged, Rows, Spec
from cutlayer.customer import Objective
from cutlayer.customer.attacker import AttackerSpec
from cutlayer.customer.evidence import attribute_truths, known_texts
from cutlayer.data import Dataset, LabelNames
from cutlayer.models import Head, Kind, load_model
from cutlayer.models.perceptron import fit_classifier
from cutlayer.privacy.mechanisms import round_to_lattice
from cutlayer.privacy.randomness import NoiseKeys, generator
from cutlayer.recipes.author_attacks import AuthorReading, read_authors, released_readings
from cutlayer.recipes.lab import Lab
from cutlayer.recipes.long_table import Measure
from cutlayer.recipes.reference.classifier import Batches
from cutlayer.recipes.reference.fit import Lesson, ReferenceRun, fit
from cutlayer.recipes.training import TrainingCell, binned
from cutlayer.wire import WireType, pack, routes
from cutlayer.wire.recording import Direction

_BATCH = 64
_RECORDS = "releases"
_VENDORS_HEAD = Fitting(passes=20, batch=32, learning_rate=3e-4, dropout=0.5)
_HIDDEN = 768
"""Of a vendor that learns from releases alone: what RAPT's attacker is, asked for the customer's labels."""


# ---------------------------------------------------------------- the mechanism


def scaled(rows: Tensor) -> Tensor:
    """Rows `[n, width]`, each between 0 and 1: (x - min) / (max - min) of the row itself; a row of one value is 0.

    So no number of a row changes by more than 1, whatever the text: this bounds the sensitivity of each.

    Ref: Lyu et al. 2020, arXiv:2010.01285.
    """
    low, high = rows.amin(1, keepdim=True), rows.amax(1, keepdim=True)
    return torch.where(high > low, (rows - low) / (high - low).clamp(min=torch.finfo(rows.dtype).tiny), 0.0)


def laplace(shape: Sequence[int], *, epsilon: float, rng: np.random.Generator) -> Tensor:
    """Laplace noise of scale 1 / epsilon, independent in each number, float64; none where epsilon is infinite.

    Args:
        shape: Of the noise, `[n, width]`.
        epsilon: Of each number, whose sensitivity is 1.
        rng: Cryptographically secure, but in tests.
    """
    if math.isinf(epsilon):
        return torch.zeros(*shape, dtype=torch.float64)
    return torch.from_numpy(rng.laplace(scale=1 / epsilon, size=tuple(shape)))


def kept(words: Tensor, *, dropped: float, rng: np.random.Generator) -> Tensor:
    """Which positions stay if each word is left out with probability `dropped`, with all of its pieces.

    Args:
        words: `[texts, positions]` int64: the number of each position's word within its text; -1 for special tokens
            and padding, which stay.
        dropped: The probability.
        rng: Draws which.

    Returns:
        `[texts, positions]` bool.

    Ref: Lyu et al. 2020, arXiv:2010.01285.
    """
    stays = torch.from_numpy(rng.random((len(words), 1 + int(words.max().clamp(min=0))))) >= dropped
    return (words < 0) | stays.gather(1, words.clamp(min=0))


def text_epsilon(epsilon: float, *, width: int) -> float:
    """epsilon between any two texts, of whose rows each number is drawn with `epsilon`: these add up."""
    return width * epsilon


def spared_by_dropping(epsilon: float, *, dropped: float) -> float:
    """By how much less than a text's `epsilon` texts that differ in one word are apart, as this may be left out.

    epsilon - ln((1 - dropped) exp(epsilon) + dropped), at most -ln(1 - dropped).

    Ref: Lyu et al. 2020, arXiv:2010.01285; amplification by sampling, Balle et al. 2018, arXiv:1807.01647.
    """
    return -math.log1p(-dropped + dropped * math.exp(-epsilon))


# ---------------------------------------------------------------- the encoder


class OutputNoise(Spec):
    """How an encoder's output is privatized.

    Attributes:
        title: For readers.
        epsilon: That of the paper, for each number of a row.
        dropped: Probability that a word is left out (mu).
        reversal: What the reversed gradient of the classifiers of attributes counts (lambda); 0 without any.
        reversal_rate: Their learning rate.
    """

    title: str
    epsilon: float = Field(gt=0)
    dropped: float = Field(default=0.0, ge=0, lt=1)
    reversal: float = Field(default=0.0, ge=0)
    reversal_rate: float = Field(default=1e-3, gt=0)


def reversed_gradient(rows: Tensor, strength: float) -> Tensor:
    """Rows `[n, width]` as they are, whose gradient is turned round and multiplied by `strength` on its way back.

    Ref: Ganin and Lempitsky 2015, arXiv:1409.7495, eq. (17), (18).
    """
    return (1 + strength) * rows.detach() - strength * rows


class Encoder(nn.Module):
    """A text's row: the mean of the last states of the positions that stay, scaled to [0, 1].

    Args:
        model: The encoder.
        batches: Tokenise for it.
        dropped: Probability that a word is left out.
    """

    def __init__(self, model: nn.Module, batches: Batches, *, dropped: float) -> None:
        super().__init__()
        self.model = model
        self._batches = batches
        self._dropped = dropped

    def forward(self, texts: Sequence[tuple[str, ...]], rng: np.random.Generator) -> Tensor:
        """`[texts, width]`, without noise."""
        encoded = self._batches.of(texts)
        real = encoded["attention_mask"]
        if self._dropped:
            numbers = [[-1 if word is None else word for word in encoded.word_ids(row)] for row in range(len(texts))]
            real = real * kept(torch.tensor(numbers), dropped=self._dropped, rng=rng).to(real)
        states = self.model(**{**encoded, "attention_mask": real}).last_hidden_state.float()
        means = (states * real[..., None]).sum(1) / real.sum(1, keepdim=True)
        return scaled(means)

    @torch.no_grad()
    def release(self, texts: Dataset, *, epsilon: float, rng: np.random.Generator) -> Tensor:
        """What leaves of each text, drawn once: `[n, width]` float64, on the lattice."""
        self.eval()
        batches = (texts.texts[start : start + _BATCH] for start in range(0, len(texts), _BATCH))
        rows = torch.cat([self(batch, rng).double() for batch in batches])
        return round_to_lattice(rows + laplace(rows.shape, epsilon=epsilon, rng=rng))


class _Learner(nn.Module):
    """The encoder beneath a linear map to labels, and one to each private attribute.

    What the maps read is moved and scaled by constants that follow from epsilon alone.
    """

    def __init__(
        self, encoder: Encoder, *, epsilon: float, width: int, classes: int, attributes: Mapping[str, int]
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = nn.Linear(width, classes)
        self.readers = nn.ModuleDict({column: nn.Linear(width, count) for column, count in attributes.items()})
        self._spread = math.sqrt(1 / 12 + 2 / epsilon**2)

    def features(self, rows: Tensor) -> Tensor:
        """Rows with noise `[n, width]`, over the spread of a uniform number and of the noise."""
        return ((rows - 0.5) / self._spread).float()

    @torch.no_grad()
    def forward(self, rows: Tensor) -> Tensor:
        """Scores `[n, classes]` of released rows `[n, width]`."""
        scores: Tensor = self.head(self.features(rows))
        return scores


# ---------------------------------------------------------------- the cell


class Represented(Spec):
    """A classifier of released rows.

    Attributes:
        ua: Accuracy on test of the map that was trained with the encoder, as the papers do.
        from_releases: That of a head which a vendor learns from released rows and labels alone.
        rows: Texts of train, dev and test.
        epochs: How many were trained.
        width: Numbers of a row.
        weights: Of the encoder, which the customer holds.
        seconds: Of its training, at the customer.
        release_seconds: Of computing the rows of train and test, at the customer.
        readings: What attacks infer of the authors of training texts.
    """

    ua: Proportion
    from_releases: Proportion
    rows: tuple[int, int, int]
    epochs: int
    width: int
    weights: int
    seconds: float
    release_seconds: float
    readings: tuple[AuthorReading, ...]


@dataclass(frozen=True)
class _Course:
    """Texts in the order of a run, with their labels and attributes as numbers."""

    train: Dataset
    dev: Dataset
    test: Dataset
    names: LabelNames

    def labels(self, part: Dataset) -> Tensor:
        return self.names.encode(part.labels or (), source="texts")

    def attribute(self, column: str) -> Tensor:
        """Of the training texts, `[n]` int64."""
        values = self.train.attributes[column]
        return LabelNames.of(values).encode(values, source=column)


class RepresentationCell(TrainingCell):
    """An encoder that the customer tunes and runs, and what is read of its rows.

    Attributes:
        noise: How rows are privatized.
        epsilon: In place of the paper's.
        head_rate: Learning rate of the linear map to labels.
        attacks: What reads the rows of training texts.
        attacker: What it knows of their authors, and asks of the others.
    """

    noise: OutputNoise
    epsilon: float = Field(gt=0)
    head_rate: float = Field(gt=0)
    attacks: tuple[str, ...]
    attacker: AttackerSpec

    @property
    def name(self) -> str:
        return f"{self.task.name}-{self.noise.title.lower()}-epsilon{self.epsilon:g}-s{self.seed}"

    def check(self, lab: Lab) -> None:
        super().check(lab)
        if lab.model().family.kind is Kind.ENCODER_DECODER:
            raise ConfigError(
                f"{self.noise.title} needs an encoder or a decoder, and {lab.options.model} is both.",
                remedy="Name another model, or leave the part out.",
            )

    def run(self, lab: Lab) -> Represented:
        """Tunes the encoder, releases each text once, and reads the releases."""
        whole = self.reference(lab, str(self.seed))
        train, dev, test = whole.arranged()
        course = _Course(binned(train, self.attacker), dev, test, LabelNames.of(train.labels or ()))
        rng = generator(NoiseKeys(lab.home(str(self.seed)).secret)(self.model_dump_json().encode()))
        begun = time.monotonic()
        with torch.random.fork_rng(devices=[]):  # the process's generator stays as it is
            learner, epochs = self._tuned(whole, course, rng, lab)
        seconds, begun = time.monotonic() - begun, time.monotonic()
        encoder = learner.encoder
        left, asked = (encoder.release(part, epsilon=self.epsilon, rng=rng) for part in (course.train, course.test))
        release_seconds = time.monotonic() - begun
        labels = course.labels(course.train)
        vendors = fit_classifier(
            left.float(), labels, classes=len(course.names), hidden=_HIDDEN, fitting=_VENDORS_HEAD
        )  # fmt: skip
        expected = course.labels(course.test)
        return Represented(
            ua=_right(learner(asked), expected), from_releases=_right(vendors(asked.float()), expected),
            rows=(len(train), len(dev), len(test)), epochs=epochs, width=left.shape[1],
            weights=sum(parameter.numel() for parameter in encoder.parameters()),
            seconds=seconds, release_seconds=release_seconds, readings=tuple(self._read(left, course.train, lab)),
        )  # fmt: skip

    def measures(self, result: Represented) -> Iterator[Measure]:  # type: ignore[override]
        yield Measure.share("UA", result.ua)
        yield Measure.share("UA from releases alone", result.from_releases)
        total = text_epsilon(self.epsilon, width=result.width)
        yield Measure("epsilon", self.epsilon)
        yield Measure("epsilon of a text", total)
        yield Measure("spared by dropped words", spared_by_dropping(total, dropped=self.noise.dropped))
        yield from Measure.fields(result, {
            "epochs": "epochs", "seconds": "seconds", "seconds of release": "release_seconds",
            "weights at the customer": "weights",
        })  # fmt: skip
        yield from released_readings(result.readings)

    def _tuned(self, run: ReferenceRun, course: _Course, rng: np.random.Generator, lab: Lab) -> tuple[_Learner, int]:
        """The encoder with its maps, and how many epochs it took."""
        model, tokenizer = load_model(run.model, head=Head.CLASSIFICATION), lab.model().tokenizer
        longest = min(limit for limit in (self.training.max_length, lab.model().limit) if limit)
        batches = Batches(tokenizer, longest, torch.device("cpu"))
        encoder = Encoder(model.base_model.requires_grad_(True), batches, dropped=self.noise.dropped)
        values = {column: course.attribute(column) for column in self.attacker.secret if self.noise.reversal}
        torch.manual_seed(self.seed)
        learner = _Learner(
            encoder, epsilon=self.epsilon, width=model.config.hidden_size, classes=len(course.names),
            attributes={column: 1 + int(found.max()) for column, found in values.items()},
        )  # fmt: skip
        labels, expected = course.labels(course.train), course.labels(course.dev)

        def loss(texts: Tensor) -> Tensor:
            rows = encoder([course.train.texts[i] for i in texts.tolist()], rng)
            features = learner.features(rows + laplace(rows.shape, epsilon=self.epsilon, rng=rng))
            found = nn.functional.cross_entropy(learner.head(features), labels[texts])
            turned = reversed_gradient(features, self.noise.reversal)
            for column, classes in values.items():
                found = found + nn.functional.cross_entropy(learner.readers[column](turned), classes[texts])
            return found

        def accuracy() -> float:
            return _right(learner(encoder.release(course.dev, epsilon=self.epsilon, rng=rng)), expected).value

        rates = {"head": self.head_rate, "readers": self.noise.reversal_rate}
        lesson = Lesson(learner, batches.lengths(course.train), loss, accuracy, Objective.CLASSIFICATION.best, rates)
        epochs = len(fit(run, lesson, lab.progress).dev)
        return learner, epochs

    def _read(self, left: Tensor, train: Dataset, lab: Lab) -> Iterator[AuthorReading]:
        """What attacks infer from the rows of training texts `[n, width]`: a vendor has them one by one."""
        ones = torch.ones(len(left), dtype=torch.int64)
        rows = Rows(Ragged(left.float(), ones), ones[:, None])
        tensors = pack(rows, vocab_size=1, wire_type=WireType.FP32)
        where: Mapping[str, str | int] = {"record_set": _RECORDS, "shard": 0}
        frame = SeenFrame(Direction.UP, routes.SHARD_PUT, where, lambda: tensors)
        # controls are checked with rows of the model's table: of these, too, a text's mean is read
        knowledge = Knowledge(Cut(bottom=0), template=lab.model().template, table=lab.model().search.table)
        numbers = torch.arange(len(left))
        known = known_texts(train, numbers, self.attacker)
        truths, seen = (
            attribute_truths(train, known, self.attacker, records={_RECORDS: numbers}),
            Transcript(lambda: [frame]),
        )
        for attack in self.attacks:
            yield from read_authors(attack, seen, knowledge, truths, lab, alike=(type(self), left.shape[1]))


def _right(scores: Tensor, labels: Tensor) -> Proportion:
    """How many of the scores `[n, classes]` are highest at the labels `[n]`."""
    return Proportion.of(int((scores.argmax(1) == labels).sum()), len(labels))
