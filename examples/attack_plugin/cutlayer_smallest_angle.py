"""An attack in one file: each released row is guessed as the row of the embedding table at the smallest angle.

Nearest neighbour by distance prefers short rows where a release was clipped to the table's largest
norm, as SnD does; angles do not change when a row is shortened.
"""

from __future__ import annotations

import torch
from torch import Tensor

from cutlayer.attacks import Attack, Guesses, Inapplicable, Need, Question, View, content_tokens
from cutlayer.core import Tokens

ROWS_AT_ONCE = 4096


def smallest_angle(view: View) -> Guesses:
    """Guesses every released text: ids as they are, rows by their angle.

    Raises:
        Inapplicable: The rows are no noisy rows of the embedding table, or there is no table.
    """
    knowledge = view.knowledge
    if knowledge.cut.bottom:
        raise Inapplicable("Behind blocks of the model rows are hidden states, which resemble no row of the table.")
    for release in view.transcript.releases():
        guess = content_tokens(release.payload, knowledge)
        if not isinstance(release.payload, Tokens):
            if knowledge.table is None:
                raise Inapplicable("Rows were sent, and the attacker has no embedding table.")
            table = torch.nn.functional.normalize(knowledge.table.double(), dim=1)
            if knowledge.candidates is not None:
                table[~knowledge.candidates] = 0  # at a right angle to everything
            guess = Tokens(tuple(side.with_values(_closest(side.values, table)) for side in guess.segments))
        yield release.source, release.number, guess


def _closest(rows: Tensor, table: Tensor) -> Tensor:
    """`[rows]`: ids of the rows of `table` at the smallest angle to `rows` `[rows, width]`."""
    # a row of length 0 counts the same for all ids, so rows need not be normalised
    return torch.cat([(block.double() @ table.T).argmax(1) for block in rows.split(ROWS_AT_ONCE)])


SMALLEST_ANGLE = Attack(
    smallest_angle,
    title="the row of the embedding table at the smallest angle",
    question=Question.WORDS,
    reference="examples/attack_plugin of cutlayer",
    needs=frozenset({Need.TABLE}),
)
