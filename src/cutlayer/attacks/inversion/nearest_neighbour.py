"""Embedding inversion by nearest neighbour: SAP's EIA against a bottom of embeddings.

"For the case where the bottom model only has the embedding layer, the nearest neighbor of each
perturbed embedding is searched in the embedding space as a prediction of the original token."
Ref: SAP §5.1 and, for a trainable bottom, Appendix A.
"""

from __future__ import annotations

import torch
from torch import Tensor

from cutlayer.attacks.attack import ATTACKS, Attack, Guesses, Question
from cutlayer.attacks.content import content_tokens
from cutlayer.attacks.knowledge import Inapplicable, Knowledge, Need
from cutlayer.attacks.view import View
from cutlayer.core import Rows, Tokens
from cutlayer.privacy.neighbours import NeighbourSearch

_ROWS_AT_ONCE = 16_384


class NearestNeighbour:
    """Guesses each released token as the nearest row of the embedding table as it was handed out.

    A released id is the nearest neighbour of its own row, so against ids the guess is the id itself.
    This is the paper's attack and the one that its EP is measured by; it uses neither how likely a
    token is nor several looks together, so it is a lower bound of what a vendor could recover.
    """

    def __call__(self, view: View) -> Guesses:
        """Guesses every released text.

        Raises:
            Inapplicable: The boundary holds hidden states, or rows of another space than the table's.
        """
        depth = view.knowledge.cut.bottom
        if depth:
            raise Inapplicable(
                f"The boundary after {depth} block{'' if depth == 1 else 's'} holds hidden states, which are no rows "
                "of the embedding table: nearest-neighbour search would miss them and call that privacy."
            )
        for release in view.transcript.releases():
            payload = release.payload
            guess = payload if isinstance(payload, Tokens) else _invert(payload, view.knowledge)
            yield release.source, release.number, guess


ATTACKS.add("nearest-neighbour")(
    Attack(
        NearestNeighbour(),
        title="the nearest row of the embedding table",
        question=Question.WORDS,
        reference="SAP §5.1 (EIA); RAPT §IV-A1, eq. 12; SnD §4.3, eq. 12",
        needs=frozenset({Need.TABLE}),
    )
)


def _invert(rows: Rows, knowledge: Knowledge) -> Tokens:
    search = knowledge.search
    if search is None:
        raise Inapplicable("Boundary rows were sent, and the attacker was given no embedding table to search.")
    width, expected = rows.packed.values.shape[1], search.table.shape[1]
    if width != expected:
        raise Inapplicable(f"Boundary rows are {width} wide, rows of the embedding table {expected}.")
    content = content_tokens(rows, knowledge)
    return Tokens(tuple(side.with_values(_nearest(search, side.values)) for side in content.segments))


def _nearest(search: NeighbourSearch, rows: Tensor) -> Tensor:
    return torch.cat([search.nearest(block.double()) for block in rows.split(_ROWS_AT_ONCE)])
