"""Black-box embedding inversion by an autoencoder: RAPT's second black-box attack.

The attacker sends text of its own through the mechanism, and fits an encoder and a decoder that make of each released
row the row that stood there before. The encoder compresses: what it drops is to be the noise. How far its rows are from
the true ones is the attack's own metric; each also counts as the token whose row is nearest.

Ref: RAPT §IV-A1, eq. 13, arXiv:2305.06212: "the mean squared error (MSE) quantifies the reconstruction error",
MSE(x, x') = ‖x - x'‖².
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy

import torch
from torch import Tensor

from cutlayer.attacks.attack import ATTACKS, Attack, Dial, Guesses, Question
from cutlayer.attacks.knowledge import Knowledge, Need, PublicText
from cutlayer.attacks.mlp_inversion import granted, pairs, read_each
from cutlayer.attacks.perceptron import Fitting, Perceptron, minimise
from cutlayer.attacks.simulate import released_as
from cutlayer.attacks.view import View

_LEAST = 64


class AutoencoderInversion:
    """Guesses the row of each token from what was released in its place.

    Args:
        tokens: Of public text, so many are released at most.
        draws: How often each of them is.
        queries: How often each candidate is released beside them.
        latent: What the encoder compresses a row to, as a share of its width; but no fewer than 64 numbers.
        fitting: How both are fitted.
    """

    def __init__(
        self,
        *,
        tokens: int = 50_000,
        draws: int = 2,
        queries: int = 1,
        latent: float = 0.5,
        fitting: Fitting = Fitting(passes=3, batch=256, learning_rate=2e-3),  # noqa: B008 - frozen
    ) -> None:
        self._tokens = tokens
        self._draws = draws
        self._queries = queries
        self._latent = latent
        self._fitting = fitting

    def weakened(self, share: float) -> AutoencoderInversion:
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
        """Reads rows `[n, width]` from features `[n, f]`."""
        features, ids = pairs(
            public, knowledge, table, rows, tokens=self._tokens, draws=self._draws, queries=self._queries
        )
        generator = self._fitting.generator()
        own, unit = table[ids].float(), table.float().square().mean()
        net = Perceptron(
            features,
            hidden=max(_LEAST, round(self._latent * table.shape[1])),
            outputs=table.shape[1],
            dropout=self._fitting.dropout,
            generator=generator,
        )
        minimise(
            net.parameters(),
            # in units of the table's own rows, so that one learning rate suits tables of any size
            lambda items: (net(features[items]) - own[items]).square().mean() / unit,
            count=len(ids),
            fitting=self._fitting,
            generator=generator,
        )
        net.eval().requires_grad_(False)
        return net


_attack = AutoencoderInversion()
ATTACKS.add("autoencoder-inversion")(
    Attack(
        _attack,
        title="an autoencoder that learnt to take the noise off rows",
        question=Question.WORDS,
        reference="RAPT §IV-A1 (autoencoder-based black-box attack)",
        costly=True,
        needs=frozenset({Need.NOISE, Need.PUBLIC_TEXT, Need.TABLE}),
        floor=0.9,
        dial=Dial("public text that it learns from", _attack.weakened),
    )
)
