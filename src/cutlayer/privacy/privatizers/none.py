"""No privacy, said out loud."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from cutlayer.core import Deviation, Fault, Guarantee, Tokens
from cutlayer.privacy.context import Excerpts
from cutlayer.privacy.privatizers.privatizer import PRIVATIZERS, Privatizer
from cutlayer.privacy.privatizers.space import Space
from cutlayer.privacy.release import Release
from cutlayer.privacy.spec import PrivacySpec


@PRIVATIZERS.add("none")
class NoPrivacyPrivatizer(Privatizer):
    """Releases texts as they are: an event in the ledger with eta = ∞, not an absence of one."""

    @classmethod
    def faults(cls, spec: PrivacySpec, space: Space) -> Iterator[Fault]:
        """It needs nothing."""
        yield from ()

    @property
    def deviations(self) -> tuple[Deviation, ...]:
        """None: the paper's own line without privatization."""
        return ()

    def _caveats(self) -> tuple[str, ...]:
        return ()

    def _noise_guarantee(self) -> Guarantee:
        return Guarantee.nothing("Texts are released without noise: the vendor can read them, from hidden rows too.")

    def tokens(
        self,
        tokens: Tokens,
        *,
        labels: Tensor | None,
        look: int | None = None,
        excerpts: Excerpts | None = None,
    ) -> Release:
        """See `Privatizer.tokens`: the texts, untouched."""
        release = self._name(tokens, labels, look, excerpts).release
        return replace(release, replaced=torch.zeros(len(release), dtype=torch.int64), pending=None)
