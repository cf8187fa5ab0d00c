"""Black-box embedding inversion by a perceptron: RAPT's MLP-based attack.

The attacker sends text of its own through the mechanism and sees what comes out, as a user of an API would. From such
pairs a network with one hidden layer learns which token a release came from. Its output is a point of the embedding
space, and each token scores by its own row there and by a bias: the table says what there is to be guessed, and nothing
is computed from it.

Ref: RAPT §IV-A1, arXiv:2305.06212.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy

import numpy as np
import torch
from torch import Tensor, nn

from cutlayer.attacks.attack import ATTACKS, Attack, Dial, Guesses, Question
from cutlayer.attacks.knowledge import Inapplicable, Knowledge, Need, PublicText
from cutlayer.attacks.nearest_neighbour import content_rows
from cutlayer.attacks.perceptron import Fitting, Perceptron, minimise
from cutlayer.attacks.sampled_softmax import sampled_cross_entropy
from cutlayer.attacks.simulate import released_as, simulate
from cutlayer.attacks.view import View
from cutlayer.core import Payload, Ragged, Tokens

_SCORES = 2**24
"""Scores of tokens that are held at a time."""
_UNSEEN = 0.5
"""What is added to each token's count in public text: one that it lacks may still be guessed."""


class MlpInversion:
    """Guesses each token from what was released in its place.

    Args:
        tokens: Of public text, so many are released at most.
        draws: How often each of them is.
        queries: How often each candidate is released beside them.
        hidden: Units of the hidden layer.
        compared: Candidates that each step compares the true ones with, beside one another.
        fitting: How the network is fitted.
    """

    def __init__(
        self,
        *,
        tokens: int = 50_000,
        draws: int = 2,
        queries: int = 1,
        hidden: int = 768,
        compared: int = 1024,
        fitting: Fitting = Fitting(passes=1, batch=256, learning_rate=2e-3),  # noqa: B008 - frozen
    ) -> None:
        self._tokens = tokens
        self._draws = draws
        self._queries = queries
        self._hidden = hidden
        self._compared = compared
        self._fitting = fitting

    def weakened(self, share: float) -> MlpInversion:
        """The same that learns from a share of the tokens."""
        weaker = copy(self)
        weaker._tokens = max(1, round(share * self._tokens))
        return weaker

    def __call__(self, view: View) -> Guesses:
        """Guesses every released text.

        Raises:
            Inapplicable: Public text, the table or how releases are privatized was not granted.
        """
        public, table = granted(view.knowledge)
        rows = released_as(view.transcript)
        key = (*vars(self).values(), type(self), rows, view.knowledge.key)
        reader = public.fitted(key, lambda: self._fit(public, view.knowledge, table, rows))
        for release in view.transcript.releases():
            yield release.source, release.number, read_each(release.payload, view.knowledge, table, reader)

    def _fit(
        self, public: PublicText, knowledge: Knowledge, table: Tensor, rows: torch.dtype | None
    ) -> Callable[[Tensor], Tensor]:
        """Reads ids `[n]` from features `[n, width]`."""
        candidates = torch.arange(len(table)) if knowledge.candidates is None else knowledge.candidates.nonzero()[:, 0]
        features, ids = pairs(
            public, knowledge, table, rows, tokens=self._tokens, draws=self._draws, queries=self._queries
        )
        place = torch.full((len(table),), -1).index_copy(0, candidates, torch.arange(len(candidates)))
        possible = place[ids] >= 0
        features, targets = features[possible], place[ids[possible]]
        generator = self._fitting.generator()
        net = _Scorer(features, targets, table[candidates].float(), self._hidden, self._fitting, generator)
        minimise(
            net.parameters(),
            lambda items: net.loss(features[items], targets[items], compared=self._compared),
            count=len(targets),
            fitting=self._fitting,
            generator=generator,
        )
        net.eval().requires_grad_(False)
        step = max(1, _SCORES // len(candidates))
        return lambda found: candidates[torch.cat([net(some).argmax(1) for some in found.split(step)])]


_attack = MlpInversion()
ATTACKS.add("mlp-inversion")(
    Attack(
        _attack,
        title="a perceptron that learnt from releases of public text, token by token",
        question=Question.WORDS,
        reference="RAPT §IV-A1 (MLP-based black-box attack)",
        costly=True,
        needs=frozenset({Need.NOISE, Need.PUBLIC_TEXT, Need.TABLE}),
        floor=0.9,
        dial=Dial("public text that it learns from", _attack.weakened),
    )
)


class _Scorer(nn.Module):
    """Scores candidates by a perceptron's point in the space of their rows, and by a bias.

    Args:
        features: What it is fitted on.
        targets: The candidate behind each.
        rows: `[candidates, width]`.
        hidden: Units of the hidden layer.
        fitting: For the dropout.
        generator: Draws weights, and what is compared.
    """

    def __init__(
        self, features: Tensor, targets: Tensor, rows: Tensor, hidden: int, fitting: Fitting, generator: torch.Generator
    ) -> None:
        super().__init__()
        self._point = Perceptron(
            features, hidden=hidden, outputs=rows.shape[1], dropout=fitting.dropout, generator=generator
        )
        self._rows = rows
        counts = torch.bincount(targets, minlength=len(rows)).double() + _UNSEEN
        self._share = counts / counts.sum()
        self._bias = nn.Parameter(self._share.log().float())
        # a score of 1 for a row's length: where rows are long, points need not be
        self._sharpness = nn.Parameter((10 / rows.norm(dim=1).mean().square()).clamp(max=1e4))
        self._generator = generator

    def forward(self, features: Tensor) -> Tensor:
        """Scores `[n, candidates]`."""
        scores: Tensor = self._sharpness * (self._point(features) @ self._rows.T) + self._bias
        return scores

    def loss(self, features: Tensor, targets: Tensor, *, compared: int) -> Tensor:
        """See `sampled_cross_entropy`."""
        return sampled_cross_entropy(
            lambda some: self._sharpness * (self._point(features) @ self._rows[some].T) + self._bias[some],
            targets,
            share=self._share,
            compared=compared,
            generator=self._generator,
        )


# ---------------------------------------------------------------- what black-box attacks on tokens share


def granted(knowledge: Knowledge) -> tuple[PublicText, Tensor]:
    """Public text and the table.

    Raises:
        Inapplicable: They, or how releases are privatized, were not granted.
    """
    if knowledge.public is None or knowledge.table is None or knowledge.noise is None:
        raise Inapplicable("The attacker learns from releases of its own, and lacks text, table or mechanism for them.")
    return knowledge.public, knowledge.table.detach()


def pairs(
    public: PublicText,
    knowledge: Knowledge,
    table: Tensor,
    rows: torch.dtype | None,
    *,
    tokens: int,
    draws: int,
    queries: int,
) -> tuple[Tensor, Tensor]:
    """What the mechanism makes of public text, token by token.

    Args:
        public: The text.
        knowledge: What releases are made with.
        table: The embedding table.
        rows: Element type of rows on the wire; `None` for ids.
        tokens: Of the text, so many at most, from its beginning.
        draws: How often each text is released.
        queries: How often each candidate is released by itself, where its neighbours do not matter.

    Returns:
        Features `[n, width]`, and the ids `[n]` behind them; kept for the next attack that learns from them.
    """

    def drawn() -> tuple[Tensor, Tensor]:
        (text, *_) = public.tokens.segments
        kept = text.select((text.lengths.cumsum(0) <= max(tokens, int(text.lengths[0]))).nonzero()[:, 0])
        sent = [kept] * draws
        if queries and not knowledge.cut.bottom:
            every = torch.arange(len(table)) if knowledge.candidates is None else knowledge.candidates.nonzero()[:, 0]
            sent += [Ragged(every, torch.ones_like(every))] * queries
        own = Tokens((Ragged.concatenate(sent),))
        rng = np.random.Generator(np.random.PCG64(0))
        released = simulate(own, knowledge, rows=rows, rng=rng)
        return features_of(released, knowledge, table)[0], own.segments[0].values

    return public.fitted(("pairs", rows, tokens, draws, queries, knowledge.key), drawn)


def features_of(payload: Payload, knowledge: Knowledge, table: Tensor) -> tuple[Tensor, list[Tensor]]:
    """What stands in the places of content tokens, segment by segment: their rows, or their ids' rows.

    Returns:
        `[total, width]`, and for each segment the tokens of each text `[n]`.
    """
    if isinstance(payload, Tokens):
        ids = torch.cat([side.values for side in payload.segments])
        return table[ids].float(), [side.lengths for side in payload.segments]
    values, lengths = content_rows(payload, knowledge)
    owner = torch.arange(lengths.shape[1]).repeat(len(lengths)).repeat_interleave(lengths.flatten())
    parts = [values[owner == side] for side in range(lengths.shape[1])]
    return torch.cat(parts).float(), [counts.contiguous() for counts in lengths.unbind(1)]


def read_each(payload: Payload, knowledge: Knowledge, table: Tensor, reader: Callable[[Tensor], Tensor]) -> Tokens:
    """A release with what `reader` makes of each place's features in that place; the same id is read once."""
    if isinstance(payload, Tokens):
        ids, place = torch.cat([side.values for side in payload.segments]).unique(return_inverse=True)
        parts = reader(table[ids].float())[place].split([len(side.values) for side in payload.segments])
        return Tokens(tuple(side.with_values(part) for side, part in zip(payload.segments, parts, strict=True)))
    features, counts = features_of(payload, knowledge, table)
    parts = reader(features).split([int(each.sum()) for each in counts])
    return Tokens(tuple(Ragged(part, each) for part, each in zip(parts, counts, strict=True)))
