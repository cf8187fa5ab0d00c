"""Vectors: noisy rows leave as they are."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cutlayer.core import Deviation, Fault, Place, PrivacyError, Ragged, Rows, Tokens
from cutlayer.privacy.context import NAME_BYTES, Excerpts
from cutlayer.privacy.layout import check_ids
from cutlayer.privacy.privatizers.privatizer import PRIVATIZERS, Privatizer
from cutlayer.privacy.privatizers.space import Space
from cutlayer.privacy.release import Release
from cutlayer.privacy.replacement import largest_norm, noisy_rows
from cutlayer.privacy.spec import PrivacySpec


@PRIVATIZERS.add("vector")
class VectorPrivatizer(Privatizer):
    """Adds noise to rows and releases the rows.

    **Which rows.** At place `tokens`: the rows of content tokens. Special tokens' rows are entries
    of a public table at public places, the same in every text, and the blocks above compute
    everything else, specials' rows too, from rows that are noisy already. At place `activations`:
    every row. Above a block a special token's row has attended to the whole text (the classifier
    reads nothing but [CLS]), so leaving it clean would release the text; below the first block
    noising it is needless and harmless, and one rule cannot be applied to the wrong cut.

    An attacker gets more from a vector than from a token at the same eta: nearest neighbour is only
    the weakest reading of it.

    Ref: SAP §4.3, eq. (3).
    """

    @classmethod
    def faults(cls, spec: PrivacySpec, space: Space) -> Iterator[Fault]:
        """It needs a named table at the tokens, a named boundary at the activations."""
        if spec.place is Place.TOKENS and space.table is None:
            yield Fault("table", None, "must be the token-embedding table; at a text cut the customer has none")
        if spec.place is Place.TOKENS and not space.fingerprint:
            yield Fault("table_fingerprint", space.fingerprint, "must name the table")
        if spec.place is Place.ACTIVATIONS and not space.boundary:
            yield Fault("boundary", space.boundary, "must name model and cut: one draw must not cover two cuts")

    @property
    def deviations(self) -> tuple[Deviation, ...]:
        """See `Privatizer.deviations`."""
        at_tokens = self.spec.place is Place.TOKENS
        own: tuple[Deviation, ...] = (
            Deviation(
                what="where noise goes",
                value_in_paper="stated for a bottom that is the embedding layer; not for deeper bottoms",
                ours="at the tokens, before the blocks" if at_tokens else "on every row of the bottom's output",
                why="As asked for.",
            ),
            Deviation(
                what="nearest neighbour, eq. (4)",
                value_in_paper="the noisy row is replaced by the nearest row of the table",
                ours="left out: noisy rows are released",
                why="As asked for. It keeps more of the text, for the attacker too.",
            ),
        )
        if self.spec.clipped:
            own += (
                Deviation(
                    what="the bound of clipped norms, SnD eq. (2)",
                    value_in_paper="the upper bound of the norms of the inputs' rows",
                    ours="the largest norm of the rows that any token may have",
                    why="A bound of the texts' own rows would tell which tokens they have.",
                ),
            )
        return own + self._common_deviations

    def _caveats(self) -> tuple[str, ...]:
        if self.spec.place is Place.TOKENS:
            if self.spec.clipped:
                return (
                    "Clipping stops nearest neighbour, not an attacker who undoes it: at eta 50 one reads 0.2 % of "
                    "tokens, the other 45.7 % (docs/papers/words.md).",
                )
            return (
                "Released vectors give an adaptive attacker more than nearest neighbour shows: 48 % instead of 13 % of "
                "tokens at eta 50 in one study.",
            )
        return (
            "eta is per row of the bottom's output, and one changed token changes every row of its text: the exponents "
            "of all rows add up, and no public constant bounds their distances.",
        )

    def tokens(
        self,
        tokens: Tokens,
        *,
        labels: Tensor | None,
        look: int | None = None,
        excerpts: Excerpts | None = None,
    ) -> Release:
        """See `Privatizer.tokens`: noisy rows for token ids, or at place `activations` the texts as they are."""
        if self.space.table is not None:
            check_ids(tokens.values, len(self.space.table))
        named = self._name(tokens, labels, look, excerpts)
        if self.spec.place is Place.ACTIVATIONS:
            return replace(named.release, pending=Place.ACTIVATIONS)
        table, ids = self.space.require_table(), named.texts.values
        rows = torch.empty((len(ids), table.shape[1]), dtype=torch.float32)
        for part, noise in self._noise(width=table.shape[1], etas=named.etas, names=named.names):
            rows[part] = noisy_rows(table[ids[part]], noise, longest=self._longest).float()
        return replace(named.release, payload=named.texts.tokens(rows), pending=None)

    @cached_property
    def _longest(self) -> float | None:
        """What rows are clipped to, if they are; kept, as it takes a pass over the whole table."""
        return largest_norm(self.space.require_table(), self.space.candidates) if self.spec.clipped else None

    def activations(self, release: Release, rows: Rows) -> Release:
        """Noises every row, or passes on what was noised at the tokens; see `Privatizer.activations`.

        Raises:
            PrivacyError: The release does not come from this privatizer's `tokens`.
        """
        if self.spec.place is Place.TOKENS:
            return super().activations(release, rows)
        if release.pending is not Place.ACTIVATIONS or len(release) != len(rows):
            raise PrivacyError(
                f"Rows of {len(rows)} texts do not belong to a release of {len(release)} texts that waits for noise.",
                remedy="Call tokens() first and pass on what it returns.",
            )
        clean = rows.packed.values.detach().cpu()
        cleartext = Rows(Ragged(clean, rows.packed.lengths), rows.segment_lengths)
        draws = self._draws(release, replace(release, payload=cleartext).digests())
        noised = torch.empty(clean.shape, dtype=torch.float32)
        for part, noise in self._noise(
            width=clean.shape[1],
            etas=torch.full((len(clean),), self.spec.eta, dtype=torch.float64),
            names=_row_names(draws, rows.packed.lengths),
        ):
            noised[part] = noisy_rows(clean[part], noise).float()
        return release.noised(Rows(Ragged(noised, rows.packed.lengths), rows.segment_lengths), draws)


def _row_names(draws: tuple[bytes, ...], lengths: Tensor) -> NDArray[np.uint8]:
    """`[rows, NAME_BYTES]`: the draw of each row of each item."""
    names = [
        hashlib.blake2b(struct.pack("<q", row), key=draw, digest_size=NAME_BYTES).digest()
        for draw, length in zip(draws, lengths.tolist(), strict=True)
        for row in range(length)
    ]
    return np.frombuffer(b"".join(names), dtype=np.uint8).reshape(-1, NAME_BYTES)
