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

from typing import cast

import torch
from torch import Tensor, nn

from cutlayer.attacks.attack import ATTACKS, Attack, Dial, Guesses, Question
from cutlayer.attacks.inversion.emission import Candidates, Emission
from cutlayer.attacks.inversion.infill import ContextModel, InfillSpec, fit_infill, train_context
from cutlayer.attacks.inversion.maximum_posterior import (
    MaximumPosterior,
    OwnText,
    PosteriorReader,
    Reader,
    readings,
)
from cutlayer.attacks.inversion.prior import Bigram
from cutlayer.attacks.knowledge import Inapplicable, Knowledge, Need
from cutlayer.attacks.simulate import release_public
from cutlayer.attacks.view import View
from cutlayer.core import Tokens
from cutlayer.models import Kind, family_of
from cutlayer.models.perceptron import linear


class MaskedInfillSpec(InfillSpec):
    """With what strength it is run."""


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
        return fit_infill(posterior, own, self.spec, lambda emission: self._trained(own, emission, knowledge))

    def _trained(self, own: OwnText, emission: Emission, knowledge: Knowledge) -> ContextModel | None:
        spec = self.spec
        texts, releases = release_public(knowledge, rows=None, tokens=spec.tokens, seed=spec.seed, draws=spec.passes)
        return train_context(
            own,
            emission,
            spec,
            texts=texts,
            releases=[cast(Tokens, release).values for release in releases],
            make=lambda generator: _MaskedLanguageModel(knowledge, own.prior, share=spec.share, generator=generator),
        )


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


class _MaskedLanguageModel(ContextModel):
    """A copy of an encoder's lower blocks, and BERT's head for masked tokens, tied to the table.

    Args:
        knowledge: The encoder, the table and where special tokens stand.
        prior: How often tokens stand: with that it begins.
        share: Of the encoder's blocks.
        generator: Draws the head's weights.
    """

    def __init__(self, knowledge: Knowledge, prior: Bigram, *, share: float, generator: torch.Generator) -> None:
        super().__init__(knowledge, prior, share=share)
        self._mask = nn.Parameter(self._table.mean(0))
        width = self._table.shape[1]
        self._dense = linear(width, width, generator)
        self._norm = nn.LayerNorm(width)
        # whatever the table's scale, what the head says at first is of the size of what it may say
        nn.init.constant_(self._norm.weight, 1 / float(self._table.square().sum(1).mean().sqrt()))

    def forward(self, candidates: Candidates, lengths: Tensor, released: Tensor) -> Tensor:
        """See `ContextModel.forward`: a place is masked as far as what was released there is suspicious."""
        likely, best = (candidates.scores + self._unigram[candidates.ids]).softmax(1).float().max(1, keepdim=True)
        rows = likely * self._table[candidates.ids.gather(1, best)[:, 0]] + (1 - likely) * self._mask
        points = self._norm(nn.functional.gelu(self._dense(self._states(rows, lengths))))
        return self._scores(points, self._table, candidates)
