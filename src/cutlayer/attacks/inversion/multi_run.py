"""All looks at a token together, wherever it left: in another run, under another cut, or as a passage elsewhere.

A text that leaves under another cut is another text with noise of its own, and so is a passage that stands under many
texts. `alignment` finds which places are of one original. What all draws of it show is multiplied,

    P(token | all draws) ∝ P(token) × product over its draws of P(released | token),

and the text around it is asked as `maximum_posterior` does. A token of which there is one draw is read as there. A
place may be aligned wrongly: each of several draws may be of another token with a small probability, and so may a place
itself, of which then its own draw alone tells.

Ref: this project. Several releases of one text: SAP, Appendix A, E attacks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from cutlayer.attacks.attack import ATTACKS, Attack, Guesses, Question
from cutlayer.attacks.content import content_tokens
from cutlayer.attacks.inversion.alignment import Kinds, Looks, aligned_looks
from cutlayer.attacks.inversion.decoding import decode
from cutlayer.attacks.inversion.emission import Candidates, Released
from cutlayer.attacks.inversion.maximum_posterior import (
    MaximumPosterior,
    MaximumPosteriorSpec,
    PosteriorReader,
    readings,
)
from cutlayer.attacks.knowledge import Inapplicable, Need
from cutlayer.attacks.view import SeenRelease, View
from cutlayer.core import Ragged, Spec, Tokens

_ASKED = 8
"""Of each draw so many of the likeliest tokens are considered for the original."""
_MOST_DRAWS = 24
"""Of one original that are read together."""
_ASTRAY = 0.02
"""How probable it is that one of several draws is of another original."""
_MISPLACED = 0.1
"""How probable it is that a place itself is."""
_PRODUCTS = 2**19
"""Tokens and draws that are compared at a time."""
_TOKENS = 2**18
"""Of a transcript, that it is measured on at most."""


class MultiRunSpec(Spec):
    """With what strength it is run.

    Attributes:
        posterior: Of the attack whose channel and prior it uses.
    """

    posterior: MaximumPosteriorSpec = MaximumPosteriorSpec()


@dataclass(frozen=True)
class _Settings:
    """How releases of several settings are explained: symbols are the token and n times the vocabulary, in the n-th.

    Attributes:
        parts: How a draw is explained by each token, in each setting.
        vocabulary: Tokens that there are.
    """

    parts: tuple[Released, ...]
    vocabulary: int

    def candidates(self, symbols: Tensor, k: int) -> Candidates:
        """See `Emission.candidates`."""
        found = {
            number: self.parts[number].candidates(symbols[at] % self.vocabulary, k)
            for number, at in self._each(symbols)
        }
        width = min((each.ids.shape[1] for each in found.values()), default=k)
        ids = torch.empty(len(symbols), width, dtype=torch.int64)
        scores = torch.empty(len(symbols), width, dtype=torch.float64)
        for number, at in self._each(symbols):
            ids[at], scores[at] = found[number].ids[:, :width], found[number].scores[:, :width]
        return Candidates(ids, scores)

    def scores(self, symbols: Tensor, ids: Tensor) -> Tensor:
        """See `Emission.scores`."""
        told = torch.empty(ids.shape, dtype=torch.float64)
        for number, at in self._each(symbols):
            told[at] = self.parts[number].scores(symbols[at] % self.vocabulary, ids[at])
        return told

    def log_evidence(self, kinds: Tensor) -> Tensor:
        """See `Released.log_evidence`."""
        told = torch.empty(len(kinds), dtype=torch.float64)
        for number, at in self._each(kinds):
            told[at] = self.parts[number].log_evidence(kinds[at] % self.vocabulary)
        return told

    def _each(self, symbols: Tensor) -> Iterator[tuple[int, Tensor]]:
        """Settings that are seen, and where."""
        setting = symbols // self.vocabulary
        for number in setting.unique().tolist():
            yield number, (setting == number).nonzero()[:, 0]


@dataclass(frozen=True)
class JointReader:
    """Reads tokens from all draws of their originals.

    Attributes:
        posterior: What reads tokens of which there is one draw, in the first setting.
        emission: How a draw is explained by each token.
    """

    posterior: PosteriorReader
    emission: _Settings

    @classmethod
    def of(cls, *posteriors: PosteriorReader) -> JointReader | None:
        """`None` where nothing was drawn in the first setting, so that one look tells all.

        Args:
            posteriors: What reads one look in each setting; a released token of the n-th is told as the token and n
                times the vocabulary.
        """
        drawn = []
        for posterior in posteriors:
            emission = posterior.emission
            if posterior.own is not None and not isinstance(emission, Released):
                # of one look it is best taken as it is; several looks want their likelihood
                emission = posterior.own.explained(posterior.prior)
            if not isinstance(emission, Released):
                return None
            drawn.append(emission)
        first = posteriors[0]
        return cls(first, _Settings(tuple(drawn), len(first.prior.unigram)))

    def aligned(self, released: Ragged) -> Looks:
        """Which places of released texts look at the same; see `aligned_looks`."""
        kinds = released.values.unique()
        candidates = self.emission.candidates(kinds, self.posterior.k)
        evidence = self.emission.log_evidence(kinds)
        return aligned_looks(released, Kinds(kinds, candidates, evidence, self.posterior.prior.unigram))

    def read(self, released: Ragged, looks: Looks) -> Tensor:
        """Tokens `[places]` of texts, none of them empty, from all looks at each."""
        candidates, several = self.candidates(released.values, looks)
        tuned, unigram = self.posterior.tuned, self.posterior.prior.unigram
        if tuned.weight is not None:
            return decode(candidates, released.lengths, self.posterior.prior, weight=tuned.weight)
        likeliest = (candidates.scores + unigram[candidates.ids]).argmax(1, keepdim=True)
        return torch.where(several, candidates.ids.gather(1, likeliest)[:, 0], released.values % len(unigram))

    def candidates(self, values: Tensor, looks: Looks) -> tuple[Candidates, Tensor]:
        """What may have been in each place by all looks at it.

        Args:
            values: `[places]` int64, released tokens.
            looks: Which places look at the same.

        Returns:
            The candidates of each place, and in which places `[places]` bool there were several looks.
        """
        unigram = self.posterior.prior.unigram
        single = self.emission.candidates(values, self.posterior.k)
        likely = (single.scores + unigram[single.ids]).topk(min(_ASKED, single.ids.shape[1]), dim=1).indices
        asked = single.ids.gather(1, likely)
        kinds, kind = values.unique(return_inverse=True)
        evidence = self.emission.log_evidence(kinds)[kind]
        originals, draws = (part.contiguous() for part in torch.stack([looks.original, looks.draw]).unique(dim=1))
        # so many draws at a time: they leave nothing open that more would tell
        within = torch.arange(len(draws)) - torch.searchsorted(originals, originals)
        group = (originals * (1 + len(values)) + within // _MOST_DRAWS).unique(return_inverse=True)[1]
        counts = torch.bincount(group)
        starts = counts.cumsum(0) - counts
        ids, scores = single.ids.clone(), single.scores.clone()
        several = torch.zeros(len(values), dtype=torch.bool)
        for count in counts[counts > 1].unique().tolist():
            for part in (counts == count).nonzero()[:, 0].split(max(1, _PRODUCTS // (_ASKED * count * count))):
                places = draws[starts[part, None] + torch.arange(count)]
                joint = self._joint(values[places], asked[places].flatten(1), evidence[places])
                places, width = places.flatten(), min(ids.shape[1], joint.ids.shape[1])
                # of fewer candidates than elsewhere the first stands in the empty places, and counts once
                ids[places], scores[places] = joint.ids[:, :1], -torch.inf
                ids[places, :width], scores[places, :width] = joint.ids[:, :width], joint.scores[:, :width]
                several[places] = True
        return Candidates(ids[looks.draw], scores[looks.draw]), several[looks.draw]

    def _joint(self, values: Tensor, asked: Tensor, evidence: Tensor) -> Candidates:
        """What all draws of originals tell of the place of each, the most probable token first.

        Args:
            values: `[n, draws]` int64.
            asked: `[n, k]` int64, tokens that may be the original.
            evidence: `[n, draws]`, ln P(released).

        Returns:
            Of `[n * draws]` places.
        """
        unigram = self.posterior.prior.unigram
        ids = asked.sort(1).values
        repeated = torch.zeros_like(ids, dtype=torch.bool)
        repeated[:, 1:] = ids[:, 1:] == ids[:, :-1]
        own = torch.stack([self.emission.scores(look, ids) for look in values.unbind(1)], 1)
        told = torch.logaddexp(own + math.log1p(-_ASTRAY), (evidence + math.log(_ASTRAY))[:, :, None])
        others = told.sum(1, keepdim=True) - told
        prior = unigram[ids].masked_fill(repeated, -torch.inf)[:, None]
        others = others - (others + prior).logsumexp(2, keepdim=True)
        # the place itself shows its own draw for certain; where it is misplaced, all others tell nothing of it
        scores = own + torch.logaddexp(others + math.log1p(-_MISPLACED), torch.full_like(others, math.log(_MISPLACED)))
        scores = scores.masked_fill(repeated[:, None], -torch.inf).flatten(0, 1)
        every = ids.repeat_interleave(values.shape[1], 0)
        order = (scores + unigram[every]).argsort(1, descending=True)
        return Candidates(every.gather(1, order), scores.gather(1, order))


class MultiRun:
    """Guesses each token from all draws of it that a transcript of one or several runs shows.

    Args:
        spec: With what strength.
    """

    def __init__(self, spec: MultiRunSpec | None = None) -> None:
        self.spec = spec or MultiRunSpec()

    def __call__(self, view: View) -> Guesses:
        """Guesses every released text.

        Raises:
            Inapplicable: As for `maximum-posterior`; or rows with noise were sent, which are no tokens to align.
        """
        knowledge = view.knowledge
        if knowledge.noise is not None and knowledge.noise.privacy.mechanism == "vector":
            raise Inapplicable(
                "Noisy rows were sent, and it aligns released tokens. maximum-posterior reads rows, those of linked "
                "texts together."
            )
        posterior = MaximumPosterior(self.spec.posterior)
        seen = [(release, content_tokens(release.payload, knowledge)) for release in view.transcript.releases()]
        if not seen:
            return
        rows, noises = seen[0][1].values.is_floating_point(), knowledge.noises or {}
        settings = [
            knowledge,
            *(replace(knowledge, noise=noise) for noise in {each.key: each for each in noises.values()}.values()),
        ]
        singles = [posterior.reader(setting, rows=rows) for setting in settings]
        reader = JointReader.of(*singles)
        if reader is None or knowledge.links:
            # what links tell needs no alignment
            yield from readings(view, posterior.reader)
            return
        if (search := singles[0].rounded) is not None:
            seen = [(release, tokens.with_values(search.nearest(tokens.values.double()))) for release, tokens in seen]
        number = {setting.noise.key: at for at, setting in enumerate(settings) if setting.noise is not None}
        shift = {source: number[noise.key] * len(singles[0].prior.unigram) for source, noise in noises.items()}
        yield from _read(
            [(release, tokens.with_values(tokens.values + shift.get(release.source, 0))) for release, tokens in seen],
            reader,
        )


def _read(seen: Sequence[tuple[SeenRelease, Tokens]], reader: JointReader) -> Guesses:
    joined = Ragged.concatenate([side for _, tokens in seen for side in tokens.segments])
    texts = joined.select(joined.lengths.nonzero()[:, 0])
    if not len(texts):
        yield from ((release.source, release.number, tokens) for release, tokens in seen)
        return
    read = reader.read(texts, reader.aligned(texts)).split([tokens.total for _, tokens in seen])
    for (release, tokens), values in zip(seen, read, strict=True):
        yield release.source, release.number, tokens.with_values(values)


ATTACKS.add("multi-run")(
    Attack(
        MultiRun(),
        title="all looks at each token together, in whatever run and under whatever cut it left",
        question=Question.WORDS,
        reference="this project (adaptive); several releases: SAP, Appendix A",
        needs=frozenset({Need.TABLE, Need.NOISE, Need.PUBLIC_TEXT, Need.LINKS}),
        tokens=_TOKENS,
        costly=True,
        joint=True,
    )
)
