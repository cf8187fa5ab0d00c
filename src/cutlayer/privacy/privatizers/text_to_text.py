"""Text to text: each token becomes the candidate nearest to its noisy embedding."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property

import torch
from torch import Tensor

from cutlayer.core import Deviation, Fault, Tokens
from cutlayer.privacy.context import Excerpts
from cutlayer.privacy.layout import check_ids
from cutlayer.privacy.neighbours import NeighbourSearch
from cutlayer.privacy.privatizers.privatizer import PRIVATIZERS, Privatizer
from cutlayer.privacy.privatizers.space import Space
from cutlayer.privacy.release import Release
from cutlayer.privacy.replacement import Replaceable, replacements
from cutlayer.privacy.spec import PrivacySpec


@PRIVATIZERS.add("text-to-text")
class TextToTextPrivatizer(Privatizer):
    """SAP's privatization: noise on the token's row, then the nearest row's token.

        ids'[t] = argmin over candidates w of ‖table[ids[t]] + n - table[w]‖        eq. (3), (4)

    A token that is no candidate is noised like any other; it can only not come out.

    Ref: SAP §4.3, arXiv:2312.15603; Feyisetan et al. 2020.
    """

    @classmethod
    def faults(cls, spec: PrivacySpec, space: Space) -> Iterator[Fault]:
        """It needs a table, its name, and candidates."""
        if space.table is None:
            yield Fault("table", None, "must be the token-embedding table; at a text cut the customer has none")
        if space.candidates is None:
            yield Fault("candidates", None, "must be the public list of tokens that may come out")
        if not space.fingerprint:
            yield Fault("table_fingerprint", space.fingerprint, "must name the table")

    @cached_property
    def search(self) -> NeighbourSearch:
        """The search, made at the first text."""
        table = self.space.require_table()
        candidates = self.space.candidates
        return NeighbourSearch(table, torch.ones(len(table), dtype=torch.bool) if candidates is None else candidates)

    @property
    def deviations(self) -> tuple[Deviation, ...]:
        """See `Privatizer.deviations`."""
        candidates = int(self.space.candidates.sum()) if self.space.candidates is not None else 0
        own = (
            Deviation(
                what="where noise goes",
                value_in_paper="stated for a bottom that is the embedding layer; not for deeper bottoms",
                ours="at the tokens, before the blocks",
                why="Only there is a nearest neighbour defined; what the blocks make of it is post-processing.",
            ),
            Deviation(
                what="w_l of eq. (4)",
                value_in_paper="vectors of the embedding space",
                ours=f"the {candidates} rows of a public list without special and unused tokens",
                why="Special tokens inside a text change its meaning to the model. A public list is post-processing.",
            ),
        )
        return own + self._common_deviations

    def _caveats(self) -> tuple[str, ...]:
        return ("The search for the nearest candidate is post-processing and costs no budget.",)

    def replaceable(self, ids: Tensor) -> Replaceable:
        """See `Privatizer.replaceable`."""
        check_ids(ids, len(self.search.table))
        own, of = ids.unique(return_inverse=True)
        return Replaceable(self.search, self.search.table[own], own, torch.zeros_like(own), of)

    def tokens(
        self,
        tokens: Tokens,
        *,
        labels: Tensor | None,
        look: int | None = None,
        excerpts: Excerpts | None = None,
    ) -> Release:
        """See `Privatizer.tokens`: token ids for token ids."""
        table = self.search.table
        check_ids(tokens.values, len(table))
        named = self._name(tokens, labels, look, excerpts)
        ids = named.texts.values
        found = torch.empty_like(ids)
        for part, noise in self._noise(width=table.shape[1], etas=named.etas, names=named.names):
            found[part] = replacements(ids[part], noise, self.search)
        return replace(
            named.release,
            payload=named.texts.tokens(found),
            replaced=named.texts.sums((found != ids).long()),
            pending=None,
        )
