"""Black-box inversion: what is learnt of a mechanism from releases of one's own, token by token.

The attacker sends text of its own through the mechanism and sees what comes out, as a user of an API would. From such
pairs it learns what a released row, or a released token's row, was made of; nothing is computed from the table.

Ref: RAPT §IV-A1, arXiv:2305.06212.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from copy import copy
from typing import Self

import numpy as np
import torch
from torch import Tensor

from cutlayer.attacks.attack import Guesses
from cutlayer.attacks.content import content_tokens
from cutlayer.attacks.knowledge import Inapplicable, Knowledge, PublicText
from cutlayer.attacks.simulate import release_public, released_as, simulate
from cutlayer.attacks.view import View
from cutlayer.core import Payload, Ragged, Tokens
from cutlayer.models.perceptron import Fitting


class BlackBoxInversion(ABC):
    """Guesses each token from what was released in its place.

    Args:
        tokens: Of public text, so many are released at most.
        draws: How often each of them is.
        queries: How often each candidate is released beside them.
        fitting: How the network is fitted.
    """

    def __init__(self, *, tokens: int, draws: int, queries: int, fitting: Fitting) -> None:
        self._tokens = tokens
        self._draws = draws
        self._queries = queries
        self._fitting = fitting

    def weakened(self, share: float) -> Self:
        """The same that learns from a share of the tokens."""
        weaker = copy(self)
        weaker._tokens = max(1, round(share * self._tokens))
        return weaker

    def __call__(self, view: View) -> Guesses:
        """Guesses every released text.

        Raises:
            Inapplicable: Public text, the table or how releases are privatized was not granted.
        """
        knowledge = view.knowledge
        public, table = granted(knowledge)
        rows = released_as(view.transcript)

        def fit() -> Callable[[Tensor], Tensor]:
            size = {"tokens": self._tokens, "draws": self._draws, "queries": self._queries}
            return self._fit(*pairs(public, knowledge, table, rows, **size), table, candidates_of(knowledge, table))

        key = (*vars(self).values(), type(self), rows, knowledge.key)
        reader = public.fitted(key, fit)
        for release in view.transcript.releases():
            yield release.source, release.number, read_each(release.payload, knowledge, table, reader)

    @abstractmethod
    def _fit(self, features: Tensor, ids: Tensor, table: Tensor, candidates: Tensor) -> Callable[[Tensor], Tensor]:
        """What reads tokens.

        Args:
            features: `[n, f]`, what was released.
            ids: `[n]` int64, the token behind each.
            table: `[vocab, width]`, the embedding table.
            candidates: `[c]` int64, what may be guessed.

        Returns:
            Makes of features `[m, f]` ids `[m]`, or rows `[m, width]` in their place.
        """


def candidates_of(knowledge: Knowledge, table: Tensor) -> Tensor:
    """What may be guessed, `[c]` int64: the candidates, or every row of the table `[vocab, width]`."""
    return torch.arange(len(table)) if knowledge.candidates is None else knowledge.candidates.nonzero()[:, 0]


def granted(knowledge: Knowledge) -> tuple[PublicText, Tensor]:
    """Public text, and the table `[vocab, width]` as it was handed out.

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
        table: `[vocab, width]`, the embedding table.
        rows: Element type of rows on the wire; `None` for ids.
        tokens: Of the text, so many at most, from its beginning.
        draws: How often each text is released.
        queries: How often each candidate is released by itself, where its neighbours do not matter.

    Returns:
        Features `[n, width]`, and the ids `[n]` behind them; kept for the next attack that learns from them.
    """

    def drawn() -> tuple[Tensor, Tensor]:
        texts, releases = release_public(knowledge, rows=rows, tokens=tokens, seed=0, draws=draws)
        found = [(features_of(release, knowledge, table)[0], texts.values) for release in releases]
        if queries and not knowledge.cut.bottom:
            every = candidates_of(knowledge, table).repeat(queries)
            asked = Tokens((Ragged(every, torch.ones_like(every)),))
            rng = np.random.Generator(np.random.PCG64(0))
            found.append((features_of(simulate(asked, knowledge, rows=rows, rng=rng), knowledge, table)[0], every))
        features, ids = zip(*found, strict=True)
        return torch.cat(features), torch.cat(ids)

    return public.fitted(("pairs", rows, tokens, draws, queries, knowledge.key), drawn)


def features_of(payload: Payload, knowledge: Knowledge, table: Tensor) -> tuple[Tensor, list[Tensor]]:
    """What stands in the places of content tokens, segment by segment: their rows, or their ids' rows.

    Args:
        payload: What was released.
        knowledge: Where special tokens stand.
        table: `[vocab, width]`, whose rows ids have.

    Returns:
        `[total, width]` float32, and for each segment the tokens of each text `[n]`.
    """
    content = content_tokens(payload, knowledge)
    rows = table[content.values] if isinstance(payload, Tokens) else content.values
    return rows.float(), [side.lengths for side in content.segments]


def read_each(payload: Payload, knowledge: Knowledge, table: Tensor, reader: Callable[[Tensor], Tensor]) -> Tokens:
    """A release with what is made of each place's features in that place; the same id is read once.

    Args:
        payload: What was released.
        knowledge: Where special tokens stand.
        table: `[vocab, width]`, whose rows ids have.
        reader: Makes of features `[m, width]` ids `[m]`, or rows `[m, width]`.
    """
    content = content_tokens(payload, knowledge)
    if not isinstance(payload, Tokens):
        return content.with_values(reader(content.values.float()))
    ids, place = content.values.unique(return_inverse=True)
    return content.with_values(reader(table[ids].float())[place])
