"""Masked-LM infill of suspicious tokens: what stood there, by what stands around it.

A released token is suspicious where it is improbable that it stood in the text, by the channel and by how often tokens
stand: P(token | released) ∝ P(released | token) P(token). Suspicious tokens are masked, each as far as it is
suspicious: in a place whose most probable token is so with probability p stands p times that token's row and 1 - p
times the mask's. A masked language model says what such surroundings ask for. Its word counts beside the channel's, and
beside that of the bigram model of `maximum_posterior`:

    P(token | all) ∝ P(released | token) P_bigram(token | neighbours)^a (P_masked(token | the rest) / P(token))^b

with a and b chosen on text of the attacker's own that it privatizes itself. One of the choices is b = 0, which is
`maximum-posterior`, and one is to take each release as it is.

Few encoders are to be had with the head that they were trained with; the embedded one is not. So the attacker makes a
masked language model of a copy of the vendor's encoder: its lower blocks, and over their states a new head as BERT's,
tied to the table. It releases its own text as the customer does and trains on that, by the cross-entropy of
P(released | token) P_masked(token | the rest) among each place's candidates. So the model learns from the masks and the
noise that it meets, and only to tell apart the tokens that the channel leaves open.

Ref: this project. The head: Devlin et al., BERT, arXiv:1810.04805. Masks by degrees: Zhang et al., "Spelling Error
Correction with Soft-Masked BERT", ACL 2020, arXiv:2005.07421, where a network learns how probable an error is; here the
mechanism tells.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import cast

import torch
from pydantic import Field
from torch import Tensor, nn

from cutlayer.attacks.attack import ATTACKS, Attack, Dial, Guesses, Question
from cutlayer.attacks.content import content_rows
from cutlayer.attacks.inversion.decoding import decode
from cutlayer.attacks.inversion.emission import Candidates, Emission
from cutlayer.attacks.inversion.maximum_posterior import (
    MaximumPosterior,
    MaximumPosteriorSpec,
    OwnText,
    PosteriorReader,
    Reader,
    readings,
)
from cutlayer.attacks.inversion.prior import Bigram
from cutlayer.attacks.knowledge import Inapplicable, Knowledge, Need
from cutlayer.attacks.perceptron import Fitting, by_length, linear, minimise
from cutlayer.attacks.simulate import batches, release_public
from cutlayer.attacks.states import reading_blocks
from cutlayer.attacks.view import View
from cutlayer.core import Cut, Ragged, Spec, Tokens
from cutlayer.models import Kind, family_of, tune_whole
from cutlayer.privacy.neighbours import bf16_serves

_POSITIONS = 2**11
"""Padded positions that are read at a time."""
_LEAST = -70.0
"""ln of the least probability that a token begins with."""


class MaskedInfillSpec(Spec):
    """With what strength it is run.

    Attributes:
        posterior: Of the attack whose channel and prior it uses.
        tokens: Of the attacker's own text, so many at most are learnt from.
        passes: Over them, each with noise of its own.
        batch: Tokens of a step, about.
        learning_rate: Of AdamW, at the beginning.
        share: Of the encoder's blocks, how many read before the head does, from the lowest on.
        exponents: What the masked language model may count (b), to choose from beside 0.
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


@dataclass(frozen=True)
class TunedInfill:
    """What was chosen on the attacker's own text.

    Attributes:
        exponent: What the masked language model counts; 0: it reads nothing more.
        weight: What the bigram model counts beside it; `None`: releases are taken as they are.
        read: The share of its own tokens that it then read.
        without: The share that it read without a masked language model.
        tokens: Of how many.
    """

    exponent: float
    weight: float | None
    read: float
    without: float
    tokens: int


class MaskedInfill:
    """Guesses each token by its release, its neighbours, and a masked language model.

    Args:
        spec: With what strength.
    """

    def __init__(self, spec: MaskedInfillSpec | None = None) -> None:
        self.spec = spec or MaskedInfillSpec()

    def weakened(self, share: float) -> MaskedInfill:
        """The same whose masked language model learns from a share of the tokens."""
        tokens = max(1, round(share * self.spec.tokens))
        return MaskedInfill(self.spec.model_copy(update={"tokens": tokens}))

    def __call__(self, view: View) -> Guesses:
        """Guesses every released text.

        Raises:
            Inapplicable: What was sent are not released tokens; the model is no encoder; or text of its own, model,
                table or mechanism was not granted.
        """
        yield from readings(view, self.reader)

    def reader(self, knowledge: Knowledge, *, rows: bool) -> Reader:
        """What it reads by: fitted once for each way of privatizing.

        Args:
            knowledge: What it is granted.
            rows: Whether rows were released, not ids.

        Returns:
            An `InfillReader`; where nothing is hidden, `maximum-posterior`'s.

        Raises:
            Inapplicable: See `__call__`.
        """
        model, noise, public = knowledge.model, knowledge.noise, knowledge.public
        if noise is not None and noise.privacy.mechanism == "vector":
            raise Inapplicable(
                "Noisy rows were sent, and a masked language model fills in tokens among released tokens. "
                "maximum-posterior reads rows by their likelihood."
            )
        if model is None or knowledge.template is None:
            raise Inapplicable("The attacker makes a masked language model of the vendor's own, and was granted none.")
        if family_of(model.config).kind is not Kind.ENCODER:
            raise Inapplicable(
                "The model is no encoder: its states know nothing of what stands behind a masked token. "
                "maximum-posterior asks the tokens before and behind."
            )
        posterior = MaximumPosterior(self.spec.posterior).reader(knowledge, rows=rows)
        own = posterior.own
        if own is None or posterior.tuned.as_released == 1 or public is None:
            return posterior
        key = ("masked-infill", self.spec, rows, knowledge.key)
        return public.fitted(key, lambda: self._fit(posterior, own, knowledge))

    def _fit(self, posterior: PosteriorReader, own: OwnText, knowledge: Knowledge) -> Reader:
        emission = own.explained(own.prior)
        model = self._trained(own, emission, knowledge)
        if model is None:
            return posterior
        candidates = emission.candidates(own.observed, posterior.k)
        told = model.log_ratio(candidates, own.held.lengths, own.prior)
        without = posterior.tuned.read
        best = TunedInfill(0.0, posterior.tuned.weight, without, without, posterior.tuned.tokens)
        for exponent in self.spec.exponents:
            infilled = Candidates(candidates.ids, candidates.scores + exponent * told)
            for weight in self.spec.weights:
                guess = decode(infilled, own.held.lengths, own.prior, weight=weight)
                read = float((guess == own.held.values).double().mean())
                if read > best.read:
                    best = TunedInfill(exponent, weight, read, without, best.tokens)
        if best.exponent:
            posterior = replace(posterior, emission=own.explained(posterior.prior))
        return InfillReader(posterior, model, best)

    def _trained(self, own: OwnText, emission: Emission, knowledge: Knowledge) -> _MaskedLanguageModel | None:
        """`None` where all texts that it may learn from are held out to choose by."""
        spec = self.spec
        # a pass has a draw of its own: what noise did to a text once is nothing to learn
        texts, releases = release_public(knowledge, rows=None, tokens=spec.tokens, seed=spec.seed, draws=spec.passes)
        learnt = own.learnt[own.learnt < len(texts)]
        if not len(learnt):
            return None
        texts = texts.select(learnt)
        size = max(1, spec.batch * len(texts) // len(texts.values))
        fitting = Fitting(
            passes=spec.passes, batch=size, learning_rate=spec.learning_rate, weight_decay=0.0, seed=spec.seed
        )
        generator = fitting.generator()
        model = _MaskedLanguageModel(knowledge, own.prior, share=spec.share, generator=generator)
        offsets = texts.offsets
        # of all passes together: most released tokens stand in several, and each is explained once
        drawn = [cast(Tokens, release).segments[0].select(learnt).values for release in releases]
        explained = emission.candidates(torch.cat(drawn), spec.posterior.candidates)
        places = len(texts.values)
        passes = map(Candidates, explained.ids.split(places), explained.scores.split(places))
        seen: Candidates

        def released(order: Tensor) -> Iterator[Tensor]:
            nonlocal seen
            seen = next(passes)
            return by_length(order, texts.lengths, size, generator)

        def loss(items: Tensor) -> Tensor:
            some = texts.select(items)
            at = torch.cat([torch.arange(int(offsets[item]), int(offsets[item + 1])) for item in items])
            candidates = Candidates(seen.ids[at], seen.scores[at])
            posterior = (candidates.scores.float() + model(candidates, some.lengths)).log_softmax(1)
            # of a token that is no candidate nothing is learnt
            true = candidates.ids == some.values[:, None]
            missed: Tensor = -(posterior * true).sum() / true.sum().clamp(min=1)
            return missed

        fitted = [parameter for parameter in model.parameters() if parameter.requires_grad]
        minimise(fitted, loss, count=len(texts), fitting=fitting, generator=generator, batches=released)
        return model.requires_grad_(False)


_attack = MaskedInfill()
ATTACKS.add("masked-infill")(
    Attack(
        _attack,
        title="a masked language model, made of the vendor's own, in the place of suspicious tokens",
        question=Question.WORDS,
        reference="this project (adaptive); soft masks: Zhang et al., ACL 2020",
        costly=True,
        needs=frozenset({Need.TABLE, Need.NOISE, Need.PUBLIC_TEXT, Need.LINKS, Need.MODEL}),
        dial=Dial("public text that its language model learns from", _attack.weakened),
    )
)


@dataclass(frozen=True)
class InfillReader:
    """Reads each token as the most probable one, a masked language model being asked too.

    Attributes:
        posterior: What reads without it.
        model: The masked language model.
        tuned: What was chosen on the attacker's own text.
    """

    posterior: PosteriorReader
    model: _MaskedLanguageModel
    tuned: TunedInfill

    def read(self, looks: Sequence[Tensor], lengths: Tensor) -> Tensor:
        """See `Reader.read`."""
        if not self.tuned.exponent or self.tuned.weight is None:
            return self.posterior.read(looks, lengths)
        candidates, prior = self.posterior.candidates(looks), self.posterior.prior
        told = self.model.log_ratio(candidates, lengths, prior)
        infilled = Candidates(candidates.ids, candidates.scores + self.tuned.exponent * told)
        return decode(infilled, lengths, prior, weight=self.tuned.weight)


class _MaskedLanguageModel(nn.Module):
    """A copy of an encoder's lower blocks, and BERT's head for masked tokens, tied to the table.

    Args:
        knowledge: The encoder, the table and where special tokens stand.
        prior: How often tokens stand: with that it begins.
        share: Of the encoder's blocks.
        generator: Draws the head's weights.
    """

    def __init__(self, knowledge: Knowledge, prior: Bigram, *, share: float, generator: torch.Generator) -> None:
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
        self._mask = nn.Parameter(self._table.mean(0))
        width = self._table.shape[1]
        self._dense = linear(width, width, generator)
        self._norm = nn.LayerNorm(width)
        # whatever the table's scale, what the head says at first is of the size of what it may say
        nn.init.constant_(self._norm.weight, 1 / float(self._table.square().sum(1).mean().sqrt()))
        self._bias = nn.Parameter(prior.unigram.float().clamp(min=_LEAST))

    def forward(self, candidates: Candidates, lengths: Tensor) -> Tensor:
        """ln P(candidate | the rest of its text) `[places, k]`, up to a constant of each place.

        Args:
            candidates: Of the places of texts, text by text.
            lengths: `[texts]` int64, places of each text; none is empty.
        """
        likely, best = (candidates.scores + self._unigram[candidates.ids]).softmax(1).float().max(1, keepdim=True)
        rows = likely * self._table[candidates.ids.gather(1, best)[:, 0]] + (1 - likely) * self._mask
        texts = Tokens((Ragged(rows, lengths),))
        inputs = self._template.assemble(texts, table=self._specials)
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16_serves()):
            states = self._blocks(inputs, inputs.inputs_embeds)
        content, _ = content_rows(self._template.unpad(states.float(), texts), self._knowledge)
        points = self._norm(nn.functional.gelu(self._dense(content)))
        # embedding copies whole rows, which takes a quarter of the time of an index
        rows = nn.functional.embedding(candidates.ids, self._table)
        scores: Tensor = (rows @ points[:, :, None])[:, :, 0] + self._bias[candidates.ids]
        return scores

    @torch.no_grad()
    def log_ratio(self, candidates: Candidates, lengths: Tensor, prior: Bigram) -> Tensor:
        """ln of how much more probable each candidate `[places, k]` is for the rest of its text; float64.

        Up to a constant of each place; for any number of texts.
        """
        found = torch.empty_like(candidates.scores)
        ends = lengths.cumsum(0)
        for texts in batches(lengths, _POSITIONS):
            at = torch.cat([torch.arange(int(ends[text] - lengths[text]), int(ends[text])) for text in texts])
            some = Candidates(candidates.ids[at], candidates.scores[at])
            found[at] = self(some, lengths[texts]).double()
        return found - prior.unigram[candidates.ids]
