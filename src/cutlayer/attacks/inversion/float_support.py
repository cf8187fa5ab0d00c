"""Which tokens could have produced exactly these bits: what sums of floats keep of their terms.

Where noise is drawn and added in single precision, a released number is y = fl(e_w + n) for some float n. For
another token no float may give it: e_w' + fl(y - e_w') rounds to a neighbour of y. Over hundreds of coordinates
that leaves one token, the true one, at noise under which nearest neighbour finds next to nothing. Noise that is
added in double precision and rounded to a lattice that is the same for all tokens leaves every token: whoever
took it for the other kind would find the same few tokens behind all rows.

Ref: this project; the support attack on floating-point noise, after Mironov 2012.
"""

from __future__ import annotations

import torch
from torch import Tensor

from cutlayer.attacks.attack import ATTACKS, Attack, Guesses, Question
from cutlayer.attacks.content import content_tokens
from cutlayer.attacks.knowledge import Inapplicable, Need
from cutlayer.attacks.view import View
from cutlayer.core import Rows, Tokens
from cutlayer.privacy.mechanisms import LATTICE

_COORDINATES = 16
"""Looked at together, before tokens that they rule out are left."""


class FloatSupport:
    """Guesses each token as the nearest of those that could have produced its row."""

    def __call__(self, view: View) -> Guesses:
        """Guesses every released text.

        Raises:
            Inapplicable: Ids or hidden states were sent, rows were rounded on the wire, or they stand on a lattice,
                so that their bits rule no token out.
        """
        knowledge = view.knowledge
        if knowledge.cut.bottom:
            raise Inapplicable("Rows behind blocks were sent: no token's row was added to noise there.")
        for release in view.transcript.releases():
            if not isinstance(release.payload, Rows):
                raise Inapplicable("Token ids were released, which have no bits to spare.")
            if release.payload.packed.values.dtype is not torch.float32:
                raise Inapplicable("Rows were rounded on the wire, and what the sum's last bits told with it.")
            search = knowledge.search
            if search is None:
                raise Inapplicable("Boundary rows were sent, and the attacker was given no embedding table.")
            content = content_tokens(release.payload, knowledge)
            if all(_on_lattice(side.values) for side in content.segments):
                raise Inapplicable(
                    f"All numbers are multiples of {LATTICE:g}, to which all sums of noise and a row are rounded: "
                    "their bits tell nothing that the distance does not."
                )
            table = search.table.detach().float()
            sides = []
            for side in content.segments:
                found = [_read(row, table, search.candidates) for row in side.values]
                sides.append(side.with_values(torch.tensor(found, dtype=torch.int64)))
            yield release.source, release.number, Tokens(tuple(sides))


ATTACKS.add("float-support")(
    Attack(
        FloatSupport(),
        title="tokens whose row could have given exactly these bits",
        question=Question.WORDS,
        reference="this project (adaptive); Mironov 2012 on floating-point noise",
        needs=frozenset({Need.TABLE}),
    )
)


def support(row: Tensor, table: Tensor, candidates: Tensor) -> Tensor:
    """The candidates that single-precision noise could have led to a row from.

    Args:
        row: `[width]` float32.
        table: `[vocab, width]` float32.
        candidates: `[k]` int64.

    Returns:
        `[m]` int64, those of the candidates w for which fl(e_w + fl(y - e_w)) = y in every coordinate.
    """
    left = candidates
    for part in torch.arange(len(row)).split(_COORDINATES):
        known = table[left[:, None], part]
        left = left[((row[part] - known) + known == row[part]).all(1)]
    return left


def _on_lattice(rows: Tensor) -> bool:
    return bool((rows.double() / LATTICE).frac().eq(0).all())


def _read(row: Tensor, table: Tensor, candidates: Tensor) -> int:
    left = support(row, table, candidates)
    # the sampler was another one than thought: then distance is all there is
    left = left if len(left) else candidates
    return int(left[(table[left] - row).square().sum(1).argmin()])
