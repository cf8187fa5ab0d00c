"""The reconstruction head, read at the places of the texts' own words.

RAPT's vendor learns to tell public words from what became of them, by a head over its model's last states. RAPT holds
that this does not compromise privacy, for the texts are not what is reconstructed (§IV-C). Here it is turned on the
texts: the same head, softmax(W_down W_up g), reads g at each of their words. Fitted on the few public words before
texts alone it knows no others, and says them everywhere. So the attacker fits it, and a copy of the model below it, on
public text that it releases itself: by the mechanism where it is told, else by the channel that the public words taught
(`known_pairs`). What the head says counts beside that channel, which is the pointer to the released word, and beside
the bigram model; how much is chosen on text that was kept back (`infill`).

Ref: RAPT §III-B2, eq. (7) and (8). Its use on texts: this project.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable
from functools import partial
from typing import cast

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from cutlayer.attacks.attack import ATTACKS, Attack, Dial, Guesses, Question
from cutlayer.attacks.content import single_texts
from cutlayer.attacks.inversion.channel import Channel, Pairs
from cutlayer.attacks.inversion.emission import Candidates, Emission
from cutlayer.attacks.inversion.infill import ContextModel, InfillSpec, fit_infill, train_context
from cutlayer.attacks.inversion.known_pairs import KnownPairs, KnownPairsSpec, known_pairs
from cutlayer.attacks.inversion.maximum_posterior import MaximumPosterior, OwnText, PosteriorReader, Reader, readings
from cutlayer.attacks.inversion.prior import Bigram
from cutlayer.attacks.knowledge import Inapplicable, Knowledge, Need, PublicText
from cutlayer.attacks.simulate import release_public
from cutlayer.attacks.view import View
from cutlayer.core import Ragged, Tokens
from cutlayer.models import ReconstructionHead


class HeadReadingSpec(InfillSpec):
    """With what strength it is run.

    Attributes:
        width: The head's hidden size, c.
    """

    share: float = Field(default=1.0, gt=0, le=1)
    width: int = Field(default=96, ge=1)


class HeadReading:
    """Guesses each word by what became of it, its neighbours, and a reconstruction head over the model's last states.

    Args:
        spec: With what strength.
    """

    def __init__(self, spec: HeadReadingSpec | None = None) -> None:
        self.spec = spec or HeadReadingSpec()

    def weakened(self, share: float) -> HeadReading:
        """The same whose head learns from a share of the tokens."""
        return HeadReading(self.spec.model_copy(update={"tokens": max(1, round(share * self.spec.tokens))}))

    def __call__(self, view: View) -> Guesses:
        """Guesses every released text.

        Raises:
            Inapplicable: No public words stood before texts, so that no head was learnt; or it has no model, no vectors
                of words or no text of its own.
        """
        pairs = known_pairs(view.transcript, view.knowledge)
        yield from readings(view, partial(self.reader, pairs=pairs))

    def reader(self, knowledge: Knowledge, *, rows: bool, pairs: Pairs) -> Reader:
        """What it reads by: fitted once for each way of privatizing.

        Args:
            knowledge: What it is granted.
            rows: Whether rows were released, not ids.
            pairs: Public words and what became of them, in random order.

        Raises:
            Inapplicable: See `__call__`.
        """
        if knowledge.model is None or knowledge.template is None:
            raise Inapplicable(
                "The head reads the states of the vendor's own model, and the attacker was granted none."
            )
        posterior: PosteriorReader
        fitted_to: Hashable = knowledge.key
        if knowledge.noise is not None:
            posterior = MaximumPosterior(self.spec.posterior).reader(knowledge, rows=rows)
        else:
            told = KnownPairs(KnownPairsSpec(posterior=self.spec.posterior))
            posterior = told.reader(knowledge, rows=rows, pairs=pairs)
            fitted_to = knowledge.key, _digest(pairs)
        own, public = posterior.own, knowledge.public
        if own is None or posterior.tuned.as_released == 1 or public is None:
            return posterior
        key = ("reconstruction-head", self.spec, rows, fitted_to)
        return public.fitted(key, lambda: self._fit(posterior, own, knowledge, public, pairs))

    def _fit(
        self, posterior: PosteriorReader, own: OwnText, knowledge: Knowledge, public: PublicText, pairs: Pairs
    ) -> Reader:
        spec = self.spec

        def trained(emission: Emission) -> ContextModel | None:
            texts, releases = self._released(knowledge, public, pairs)
            return train_context(
                own,
                emission,
                spec,
                texts=texts,
                releases=releases,
                make=lambda _: _Head(knowledge, own.prior, spec),
            )

        return fit_infill(posterior, own, spec, trained)

    def _released(self, knowledge: Knowledge, public: PublicText, pairs: Pairs) -> tuple[Ragged, list[Tensor]]:
        """Public text, and what becomes of it in each pass: by the mechanism, or by the channel that pairs teach."""
        spec = self.spec
        if knowledge.noise is not None:
            texts, releases = release_public(
                knowledge, rows=None, tokens=spec.tokens, seed=spec.seed, draws=spec.passes
            )
            return texts, [cast(Tokens, release).values for release in releases]
        if knowledge.search is None:
            raise TypeError("what reads by a channel was granted a table")
        channel = Channel(knowledge.search, pairs, eta=0.0)
        texts = single_texts(public.tokens).beginning(spec.tokens)
        streams = [np.random.Generator(np.random.PCG64([spec.seed, draw])) for draw in range(spec.passes)]
        return texts, [channel.draw(texts.values, rng) for rng in streams]


_attack = HeadReading()
ATTACKS.add("reconstruction-head")(
    Attack(
        _attack,
        title="the vendor's reconstruction head, learnt on releases of public text, at the texts' own words",
        question=Question.WORDS,
        reference="RAPT §III-B2, turned on the texts by this project (adaptive)",
        costly=True,
        needs=frozenset({Need.TABLE, Need.NOISE, Need.PUBLIC_TEXT, Need.MODEL, Need.PLAIN_WORDS}),
        dial=Dial("public text that its head learns from", _attack.weakened),
    )
)


class _Head(ContextModel):
    """A copy of a model's blocks, and RAPT's head over what the last of them makes of released words.

    Args:
        knowledge: The model, the table and where special tokens stand.
        prior: How often words stand: with that it begins.
        spec: Blocks, width and seed.
    """

    def __init__(self, knowledge: Knowledge, prior: Bigram, spec: HeadReadingSpec) -> None:
        super().__init__(knowledge, prior, share=spec.share)
        self._head = ReconstructionHead(self._blocks, width=spec.width, vocabulary=len(self._table), seed=spec.seed)

    def forward(self, candidates: Candidates, lengths: Tensor, released: Tensor) -> Tensor:
        """See `ContextModel.forward`: words stand as they were released, as before the vendor's head."""
        points = self._head.up(self._states(self._table[released], lengths))
        return self._scores(points, self._head.down.weight, candidates)


def _digest(pairs: Pairs) -> bytes:
    """Tells what was learnt from some pairs from what was learnt from others."""
    state = hashlib.blake2b(digest_size=16)
    for side in (pairs.true, pairs.released):
        state.update(torch.as_tensor(side, dtype=torch.int64).numpy().tobytes())
    return state.digest()
