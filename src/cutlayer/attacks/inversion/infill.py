"""What the rest of a text says of a place, beside the channel: how a model of it is fitted, chosen by and read by.

    P(token | all) ∝ P(released | token) P_bigram(token | neighbours)^a (P_context(token | the rest) / P(token))^b

with a and b chosen on text of the attacker's own that it privatizes itself. One of the choices is b = 0, which is the
attack whose channel and prior it uses, and one is to take each release as it is. What P_context is made of is the
attacks' own: `masked_infill`, `reconstruction_head`.

Ref: this project.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from pydantic import Field
from torch import Tensor, nn

from cutlayer.attacks.content import content_rows
from cutlayer.attacks.inversion.decoding import decode
from cutlayer.attacks.inversion.emission import Candidates, Emission
from cutlayer.attacks.inversion.maximum_posterior import MaximumPosteriorSpec, OwnText, PosteriorReader, Reader
from cutlayer.attacks.inversion.prior import Bigram
from cutlayer.attacks.knowledge import Knowledge
from cutlayer.attacks.simulate import batches
from cutlayer.attacks.states import reading_blocks
from cutlayer.core import Cut, Ragged, Spec, Tokens
from cutlayer.models import tune_whole
from cutlayer.models.perceptron import Fitting, by_length, minimise
from cutlayer.privacy.neighbours import bf16_serves

_POSITIONS = 2**11
"""Padded positions that are read at a time."""
_LEAST = -70.0
"""ln of the least probability that a token begins with."""


class InfillSpec(Spec):
    """With what strength it is run.

    Attributes:
        posterior: Of the attack whose channel and prior it uses.
        tokens: Of the attacker's own text, so many at most are learnt from.
        passes: Over them, each with noise of its own.
        batch: Tokens of a step, about.
        learning_rate: Of AdamW, at the beginning.
        share: Of the model's blocks, how many read before the head does, from the lowest on.
        exponents: What the model of the context may count (b), to choose from beside 0.
        weights: What the bigram model may count beside it (a), to choose from.
        seed: Draws weights, order and the attacker's noise.
    """

    posterior: MaximumPosteriorSpec = MaximumPosteriorSpec()
    tokens: int = Field(default=58_000, ge=1)
    passes: int = Field(default=3, ge=1)
    batch: int = Field(default=256, ge=1)
    learning_rate: float = Field(default=5e-4, gt=0)
    share: float = Field(default=0.5, gt=0, le=1)
    exponents: tuple[float, ...] = Field(default=(0.4, 0.7, 1.0), min_length=1)
    weights: tuple[float, ...] = Field(default=(0.5, 0.75, 0.9), min_length=1)
    seed: int = 0

    @property
    def fitting(self) -> Fitting:
        """How the model is fitted, but for the batch, which is of texts."""
        return Fitting(passes=self.passes, learning_rate=self.learning_rate, weight_decay=0.0, seed=self.seed)


@dataclass(frozen=True)
class TunedInfill:
    """What was chosen on the attacker's own text.

    Attributes:
        exponent: What the model of the context counts; 0: it reads nothing more.
        weight: What the bigram model counts beside it; `None`: releases are taken as they are.
        read: The share of its own tokens that it then read.
        without: The share that it read without a model of the context.
        tokens: Of how many.
    """

    exponent: float
    weight: float | None
    read: float
    without: float
    tokens: int


class ContextModel(nn.Module, ABC):
    """Tells candidates of a place apart by the text around it: a copy of a model's lower blocks, and a head.

    Args:
        knowledge: The model, the table and where special tokens stand.
        prior: How often tokens stand: with that it begins.
        share: Of the model's blocks.
    """

    def __init__(self, knowledge: Knowledge, prior: Bigram, *, share: float) -> None:
        super().__init__()
        if knowledge.table is None or knowledge.template is None:
            raise TypeError("what released ids was granted a table")
        self._knowledge, self._template = knowledge, knowledge.template
        rows = knowledge.rows
        self._table = (knowledge.table if rows is None else rows.words).detach().float()
        self._specials = self._table if rows is None else rows.specials
        # at this cut blocks take rows in the place of tokens
        self._blocks = tune_whole(reading_blocks(replace(knowledge, cut=Cut(bottom=0)), share=share, tuned=True))
        self._unigram = prior.unigram
        self._bias = nn.Parameter(prior.unigram.float().clamp(min=_LEAST))

    @abstractmethod
    def forward(self, candidates: Candidates, lengths: Tensor, released: Tensor) -> Tensor:
        """ln P(candidate | the rest of its text) `[places, k]`, up to a constant of each place.

        Args:
            candidates: Of the places of texts, text by text.
            lengths: `[texts]` int64, places of each text; none is empty.
            released: `[places]` int64, what was released there.
        """

    def _states(self, rows: Tensor, lengths: Tensor) -> Tensor:
        """What the blocks make of rows `[places, width]` in the places of texts, `[places, width]`."""
        texts = Tokens((Ragged(rows, lengths),))
        inputs = self._template.assemble(texts, table=self._specials)
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16_serves()):
            states = self._blocks(inputs, inputs.inputs_embeds)
        content, _ = content_rows(self._template.unpad(states.float(), texts), self._knowledge)
        return content

    def _scores(self, points: Tensor, rows: Tensor, candidates: Candidates) -> Tensor:
        """`[places, k]`: candidates' rows of `[vocab, width]` times points `[places, width]`, with a bias."""
        # embedding copies whole rows, which takes a quarter of the time of an index
        found = nn.functional.embedding(candidates.ids, rows)
        scores: Tensor = (found @ points[:, :, None])[:, :, 0] + self._bias[candidates.ids]
        return scores

    @torch.no_grad()
    def log_ratio(self, candidates: Candidates, lengths: Tensor, prior: Bigram, released: Tensor) -> Tensor:
        """ln of how much more probable each candidate `[places, k]` is for the rest of its text; float64.

        Up to a constant of each place; for any number of texts.
        """
        found = torch.empty_like(candidates.scores)
        ends = lengths.cumsum(0)
        for texts in batches(lengths, _POSITIONS):
            at = torch.cat([torch.arange(int(ends[text] - lengths[text]), int(ends[text])) for text in texts])
            some = Candidates(candidates.ids[at], candidates.scores[at])
            found[at] = self(some, lengths[texts], released[at]).double()
        return found - prior.unigram[candidates.ids]


@dataclass(frozen=True)
class InfillReader:
    """Reads each token as the most probable one, a model of the context being asked too.

    Attributes:
        posterior: What reads without it.
        model: The model of the context.
        tuned: What was chosen on the attacker's own text.
    """

    posterior: PosteriorReader
    model: ContextModel
    tuned: TunedInfill

    def read(self, looks: Sequence[Tensor], lengths: Tensor) -> Tensor:
        """See `Reader.read`."""
        if not self.tuned.exponent or self.tuned.weight is None:
            return self.posterior.read(looks, lengths)
        candidates, prior = self.posterior.candidates(looks), self.posterior.prior
        rounded = self.posterior.rounded
        released = looks[0] if rounded is None else rounded.nearest(looks[0].double())
        told = self.model.log_ratio(candidates, lengths, prior, released)
        infilled = Candidates(candidates.ids, candidates.scores + self.tuned.exponent * told)
        return decode(infilled, lengths, prior, weight=self.tuned.weight)


def fit_infill(
    posterior: PosteriorReader, own: OwnText, spec: InfillSpec, train: Callable[[Emission], ContextModel | None]
) -> Reader:
    """What reads most of the attacker's own text that was kept back.

    Args:
        posterior: What reads without a model of the context.
        own: Its own text.
        spec: What there is to choose from.
        train: Fits the model by how releases are explained; `None` where there is nothing to learn from.
    """
    emission = own.explained(own.prior)
    model = train(emission)
    if model is None:
        return posterior
    candidates = emission.candidates(own.observed, posterior.k)
    told = model.log_ratio(candidates, own.held.lengths, own.prior, own.observed)
    without = posterior.tuned.read
    best = TunedInfill(0.0, posterior.tuned.weight, without, without, posterior.tuned.tokens)
    for exponent in spec.exponents:
        infilled = Candidates(candidates.ids, candidates.scores + exponent * told)
        for weight in spec.weights:
            guess = decode(infilled, own.held.lengths, own.prior, weight=weight)
            read = float((guess == own.held.values).double().mean())
            if read > best.read:
                best = TunedInfill(exponent, weight, read, without, best.tokens)
    if best.exponent:
        posterior = replace(posterior, emission=own.explained(posterior.prior))
    return InfillReader(posterior, model, best)


def train_context(
    own: OwnText,
    emission: Emission,
    spec: InfillSpec,
    *,
    texts: Ragged,
    releases: Sequence[Tensor],
    make: Callable[[torch.Generator], ContextModel],
) -> ContextModel | None:
    """Trains a model to tell apart the tokens that the channel leaves open, by cross-entropy.

    Args:
        own: The attacker's own text: what of it is kept back is not learnt from.
        emission: How releases are explained.
        spec: With what strength.
        texts: The beginning of that text, as single texts.
        releases: Of each pass `[total]` int64, what became of its tokens: a pass has a draw of its own, for what noise
            did to a text once is nothing to learn.
        make: Makes the model, with weights from a generator.

    Returns:
        `None` where all texts that it may learn from are kept back to choose by.
    """
    learnt = own.learnt[own.learnt < len(texts)]
    if not len(learnt):
        return None
    drawn = [texts.with_values(ids).select(learnt).values for ids in releases]
    texts = texts.select(learnt)
    size = max(1, spec.batch * len(texts) // len(texts.values))
    fitting = replace(spec.fitting, batch=size)
    generator = fitting.generator()
    model = make(generator)
    offsets = texts.offsets
    # of all passes together: most released tokens stand in several, and each is explained once
    explained = emission.candidates(torch.cat(drawn), spec.posterior.candidates)
    places = len(texts.values)
    passes = zip(explained.ids.split(places), explained.scores.split(places), drawn, strict=True)
    seen: tuple[Tensor, Tensor, Tensor]

    def released(order: Tensor) -> Iterator[Tensor]:
        nonlocal seen
        seen = next(passes)
        return by_length(order, texts.lengths, size, generator)

    def loss(items: Tensor) -> Tensor:
        some = texts.select(items)
        at = torch.cat([torch.arange(int(offsets[item]), int(offsets[item + 1])) for item in items])
        ids, scores, left = (part[at] for part in seen)
        posterior = (scores.float() + model(Candidates(ids, scores), some.lengths, left)).log_softmax(1)
        # of a token that is no candidate nothing is learnt
        true = ids == some.values[:, None]
        missed: Tensor = -(posterior * true).sum() / true.sum().clamp(min=1)
        return missed

    fitted = [parameter for parameter in model.parameters() if parameter.requires_grad]
    minimise(fitted, loss, count=len(texts), fitting=fitting, generator=generator, batches=released)
    return model.requires_grad_(False)
