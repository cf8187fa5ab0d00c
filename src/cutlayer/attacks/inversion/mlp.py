"""Black-box embedding inversion by a perceptron: RAPT's MLP-based attack.

A network with one hidden layer learns which token a release came from. Its output is a point of the embedding space,
and each token scores by its own row there and by a bias: the table says what there is to be guessed.

Ref: RAPT §IV-A1, arXiv:2305.06212.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from cutlayer.attacks.attack import ATTACKS, Attack, Dial, Question
from cutlayer.attacks.inversion.black_box import BlackBoxInversion
from cutlayer.attacks.inversion.sampled_softmax import sampled_cross_entropy
from cutlayer.attacks.knowledge import Need
from cutlayer.models.perceptron import Fitting, Perceptron, minimise

_SCORES = 2**24
"""Scores of tokens that are held at a time."""
_UNSEEN = 0.5
"""What is added to each token's count in public text: one that it lacks may still be guessed."""


class MlpInversion(BlackBoxInversion):
    """Guesses each token by a perceptron.

    Args:
        tokens: Of public text, so many are released at most.
        draws: How often each of them is.
        queries: How often each candidate is released beside them.
        hidden: Units of the hidden layer.
        compared: Candidates that each step compares the true ones with, beside one another.
        fitting: How the network is fitted.
    """

    def __init__(
        self,
        *,
        tokens: int = 58_000,
        draws: int = 2,
        queries: int = 1,
        hidden: int = 768,
        compared: int = 1024,
        fitting: Fitting = Fitting(passes=1, batch=256, learning_rate=2e-3),  # noqa: B008 - frozen
    ) -> None:
        super().__init__(tokens=tokens, draws=draws, queries=queries, fitting=fitting)
        self._hidden = hidden
        self._compared = compared

    def _fit(self, features: Tensor, ids: Tensor, table: Tensor, candidates: Tensor) -> Callable[[Tensor], Tensor]:
        place = torch.full((len(table),), -1).index_copy(0, candidates, torch.arange(len(candidates)))
        possible = place[ids] >= 0
        features, targets = features[possible], place[ids[possible]]
        generator = self._fitting.generator()
        net = _Scorer(features, targets, table[candidates].float(), self._hidden, self._fitting, generator)
        minimise(
            net.parameters(),
            lambda items: net.loss(features.index_select(0, items), targets[items], compared=self._compared),
            count=len(targets),
            fitting=self._fitting,
            generator=generator,
        )
        net.eval().requires_grad_(False)
        step = max(1, _SCORES // len(candidates))
        return lambda found: candidates[torch.cat([net(some).argmax(1) for some in found.split(step)])]


_attack = MlpInversion()
ATTACKS.add("mlp-inversion")(
    Attack(
        _attack,
        title="a perceptron that learnt from releases of public text, token by token",
        question=Question.WORDS,
        reference="RAPT §IV-A1 (MLP-based black-box attack)",
        costly=True,
        needs=frozenset({Need.NOISE, Need.PUBLIC_TEXT, Need.TABLE}),
        floor=0.9,
        par=0.5,  # RAPT's: of noisy rows it reads less than the nearest row does
        dial=Dial("public text that it learns from", _attack.weakened),
    )
)


class _Scorer(nn.Module):
    """Scores candidates by a perceptron's point in the space of their rows, and by a bias.

    Args:
        features: What it is fitted on.
        targets: The candidate behind each.
        rows: `[candidates, width]`.
        hidden: Units of the hidden layer.
        fitting: For the dropout.
        generator: Draws weights, and what is compared.
    """

    def __init__(
        self, features: Tensor, targets: Tensor, rows: Tensor, hidden: int, fitting: Fitting, generator: torch.Generator
    ) -> None:
        super().__init__()
        self._point = Perceptron(
            features, hidden=hidden, outputs=rows.shape[1], dropout=fitting.dropout, generator=generator
        )
        self._rows = rows
        counts = torch.bincount(targets, minlength=len(rows)).double() + _UNSEEN
        self._share = counts / counts.sum()
        self._bias = nn.Parameter(self._share.log().float())
        # a score of 1 for a row's length: where rows are long, points need not be
        self._sharpness = nn.Parameter((10 / rows.norm(dim=1).mean().square()).clamp(max=1e4))
        self._generator = generator

    def forward(self, features: Tensor) -> Tensor:
        """Scores `[n, candidates]`."""
        return torch.addmm(self._bias, self._sharpness * self._point(features), self._rows.T)

    def loss(self, features: Tensor, targets: Tensor, *, compared: int) -> Tensor:
        """See `sampled_cross_entropy`."""

        def score(some: Tensor) -> Tensor:
            rows = self._rows.index_select(0, some)
            scores: Tensor = self._sharpness * (self._point(features) @ rows.T) + self._bias[some]
            return scores

        return sampled_cross_entropy(
            score,
            targets,
            share=self._share,
            compared=compared,
            generator=self._generator,
        )
