"""Black-box embedding inversion by an autoencoder: RAPT's second black-box attack.

An encoder and a decoder learn to make of each released row the row that stood there before. The encoder compresses:
what it drops is to be the noise. How far its rows are from the true ones is the attack's own metric; each also counts
as the token whose row is nearest.

Ref: RAPT §IV-A1, eq. 13, arXiv:2305.06212: "the mean squared error (MSE) quantifies the reconstruction error",
MSE(x, x') = ‖x - x'‖².
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from cutlayer.attacks.attack import ATTACKS, Attack, Dial, Question
from cutlayer.attacks.inversion.black_box import BlackBoxInversion
from cutlayer.attacks.knowledge import Need
from cutlayer.models.perceptron import Fitting, Perceptron, minimise

_LEAST = 64


class AutoencoderInversion(BlackBoxInversion):
    """Guesses the row of each token by an autoencoder.

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
        tokens: int = 58_000,
        draws: int = 2,
        queries: int = 1,
        latent: float = 0.5,
        fitting: Fitting = Fitting(passes=3, batch=256, learning_rate=2e-3),  # noqa: B008 - frozen
    ) -> None:
        super().__init__(tokens=tokens, draws=draws, queries=queries, fitting=fitting)
        self._latent = latent

    def _fit(self, features: Tensor, ids: Tensor, table: Tensor, candidates: Tensor) -> Callable[[Tensor], Tensor]:
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
            lambda items: (net(features.index_select(0, items)) - own.index_select(0, items)).square().mean() / unit,
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
        par=0.1,  # under strong noise it reads a seventh of what the nearest row does, which is told as RAPT's
        dial=Dial("public text that it learns from", _attack.weakened),
    )
)
