"""The most probable word, by a channel that is learnt from public words which left with the texts.

Before each text that is trained on, some public words stand (`--plain-tokens`), and the vendor is told which: it learns
to reconstruct them. So it has pairs of a word and of what that became, as many as there are texts times words, drawn by
the mechanism that drew the texts. It need not be told that mechanism: it fits a channel on the pairs,

    ln P(w' | w) = a e_w · e_w' + b ‖e_w'‖² + c ‖e_w'‖ + s [w' = w] - ln Z(w),

mixes counted pairs in as far as pairs that were kept back become more probable by it, and reads words as
`maximum-posterior` does. How much the prior counts is chosen on text of its own that the fitted channel draws.

Ref: this project. The words: RAPT §III-B2, which holds that they do not compromise privacy (§IV-B).
"""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from cutlayer.attacks.attack import ATTACKS, Attack, Guesses, Question
from cutlayer.attacks.inversion.channel import Channel, Pairs
from cutlayer.attacks.inversion.emission import Emission, Released
from cutlayer.attacks.inversion.maximum_posterior import (
    Drawn,
    MaximumPosteriorSpec,
    PosteriorReader,
    chosen_reader,
    readings,
)
from cutlayer.attacks.inversion.prior import Bigram
from cutlayer.attacks.knowledge import Inapplicable, Knowledge, Need
from cutlayer.attacks.view import Transcript, View
from cutlayer.core import Spec
from cutlayer.privacy.neighbours import NeighbourSearch

_HELD_OUT = 5
"""Every so manieth pair is kept back to choose by."""


class KnownPairsSpec(Spec):
    """With what strength it is run.

    Attributes:
        posterior: Of the reading; its pairs and shrinkages are not used.
        shrinkages: What the fitted formula may be worth, in draws of a word, against the counted pairs.
    """

    posterior: MaximumPosteriorSpec = MaximumPosteriorSpec()
    shrinkages: tuple[float, ...] = Field(default=(3.0, 30.0, 300.0, math.inf), min_length=1)


class KnownPairs:
    """Guesses each word as the most probable one, by what became of words that are known.

    Args:
        spec: With what strength.
    """

    def __init__(self, spec: KnownPairsSpec | None = None) -> None:
        self.spec = spec or KnownPairsSpec()

    def __call__(self, view: View) -> Guesses:
        """Guesses every released text.

        Raises:
            Inapplicable: No public words stood before texts, or it has no vectors of words or no text of its own.
        """
        pairs = known_pairs(view.transcript, view.knowledge)
        yield from readings(view, partial(self.reader, pairs=pairs))

    def reader(self, knowledge: Knowledge, *, rows: bool, pairs: Pairs) -> PosteriorReader:
        """What it reads by.

        Args:
            knowledge: What it is granted.
            rows: Whether rows were released, not ids.
            pairs: What it learns from, in random order.

        Raises:
            Inapplicable: See `__call__`.
        """
        search, public = knowledge.search, knowledge.public
        if rows or search is None:
            raise Inapplicable("The attacker has no vectors of the words that were released.")
        if public is None:
            raise Inapplicable("The attacker has no text of its own, which the prior is fitted on.")
        return chosen_reader(public, search, self.spec.posterior, partial(self._drawn, search=search, pairs=pairs))

    def _drawn(self, ids: Tensor, *, prior: Bigram, sources: Tensor, search: NeighbourSearch, pairs: Pairs) -> Drawn:
        channel = Channel(search, pairs, eta=0.0)
        shrinkage = self._shrinkage(channel, pairs)
        mixed = channel.shrunk(shrinkage)
        observed = channel.draw(ids, np.random.Generator(np.random.PCG64(self.spec.posterior.seed)))

        def emission(prior: Bigram) -> Emission:
            return Released(mixed, prior.unigram, sources)

        return Drawn(observed, observed, {shrinkage: emission})

    def _shrinkage(self, channel: Channel, pairs: Pairs) -> float:
        """What makes pairs that were kept back most probable."""
        held = torch.arange(len(pairs.true)) % _HELD_OUT == 0
        learnt = Pairs(pairs.true[~held], pairs.released[~held])
        kept = Pairs(pairs.true[held], pairs.released[held])

        def likelihood(shrinkage: float) -> float:
            found = channel.shrunk(shrinkage, learnt).log_probability(kept.released, kept.true[:, None])
            return float(found.double().mean())

        return max(self.spec.shrinkages, key=likelihood)


def known_pairs(transcript: Transcript, knowledge: Knowledge) -> Pairs:
    """Public words and what became of them, in random order.

    Args:
        transcript: What was released.
        knowledge: Which words these are, and where tokens are words the group of each.

    Raises:
        Inapplicable: No such words were released, or it is not known which they are.
    """
    plain, groups = knowledge.plain, knowledge.groups
    true, became = [], []
    for release in transcript.releases():
        if release.preceded is not None and plain is not None:
            words, _ = release.preceded.parted()
            place = torch.arange(len(words.values)) - words.offsets[:-1].repeat_interleave(words.lengths)
            true.append(plain[release.preceded.sequences.repeat_interleave(words.lengths), place])
            became.append(words.values)
    if not true:
        raise Inapplicable("No public words stood before the texts, from which the attacker would learn.")
    pairs = Pairs(torch.cat(true), torch.cat(became))
    if groups is not None:
        # a word becomes one of its group; what did not is no draw of it
        within = groups[pairs.true] == groups[pairs.released]
        pairs = Pairs(pairs.true[within], pairs.released[within])
    if not len(pairs.true):
        raise Inapplicable("No public word became one of its own group, so nothing is to be learnt.")
    order = torch.randperm(len(pairs.true), generator=torch.Generator().manual_seed(0))
    return Pairs(pairs.true[order], pairs.released[order])


ATTACKS.add("known-pairs")(
    Attack(
        KnownPairs(),
        title="the most probable word, by what became of the public words before the texts",
        question=Question.WORDS,
        reference="this project (adaptive); the words: RAPT §III-B2",
        needs=frozenset({Need.TABLE, Need.PUBLIC_TEXT, Need.PLAIN_WORDS}),
    )
)
