"""No privacy, said out loud."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from cutlayer.core import Deviation, Fault, Guarantee, Tokens
from cutlayer.privacy.layout import TextMajor
from cutlayer.privacy.privatizers.privatizer import PRIVATIZERS, Privatizer, Space
from cutlayer.privacy.release import Release
from cutlayer.privacy.spec import PrivacySpec


@PRIVATIZERS.add("none")
class NoPrivacy(Privatizer):
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
        look: tuple[int, int] | None = None,
        after: Sequence[bytes] | None = None,
    ) -> Release:
        """The texts, untouched; see `Privatizer.tokens`."""
        texts = TextMajor.of(tokens)
        release = self._name(tokens, texts, self._etas(tokens, texts, labels), look, after)
        return replace(release, etas=torch.full((len(tokens),), self.spec.eta, dtype=torch.float64))
