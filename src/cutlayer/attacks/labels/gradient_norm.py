"""Labels read from how long gradients are, where one of two classes is rare.

A model that has seen few texts of a class is less sure of them, so their gradients are longer. It holds of any
layer's gradient: a head at the customer does not hide it.

Ref: Li et al., "Label leakage and protection in two-party split learning", arXiv:2102.08504.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from cutlayer.attacks.attack import ATTACKS, Attack, Guesses, Question, SignalSource
from cutlayer.attacks.knowledge import Inapplicable, Need
from cutlayer.attacks.view import SeenStep, View

_LARGEST_SHARE = 0.4
"""Of the rarer class: of two equally frequent ones a model is equally sure."""
_WINDOW = 1024
"""Texts that are compared with one another: of one moment of the training, in which norms fall."""


class GradientNorm:
    """Guesses the rarer of two labels for the longest gradients, about as many as its share."""

    def __call__(self, view: View) -> Guesses:
        """Guesses the labels of every step whose gradient was sent.

        Raises:
            Inapplicable: There are not two classes, one of them rarer; or their shares are not known.
        """
        shares = view.knowledge.shares
        if shares is None:
            raise Inapplicable("How frequent classes are is not known.")
        if len(shares) != 2 or float(shares.min()) > _LARGEST_SHARE:
            raise Inapplicable(
                f"Lengths of gradients tell the rarer of two classes apart; here {len(shares)} classes have shares "
                f"from {float(shares.min()):.2f} to {float(shares.max()):.2f}."
            )
        rare = int(shares.argmin())
        for window in _windows(view.transcript.steps()):
            norms = torch.cat([len(step.gradient) * step.gradient.float().norm(dim=1) for step in window])
            guesses = torch.full(norms.shape, 1 - rare)
            guesses[_longest(norms, float(shares[rare]))] = rare
            parts = guesses.split([len(step.gradient) for step in window])
            yield from ((step.source, step.number, part) for step, part in zip(window, parts, strict=True))


def _longest(norms: Tensor, share: float) -> Tensor:
    """Which `[n]` norms stand out: those above the widest gap that leaves half to twice as many as expected."""
    falling, order = norms.sort(descending=True, stable=True)
    expected = share * len(norms)
    fewest = max(1, round(expected / 2))
    gaps = (falling[:-1] - falling[1:])[fewest - 1 : max(fewest, round(2 * expected))]
    return order[: fewest + int(gaps.argmax())] if len(gaps) else order[:fewest]


def _windows(steps: Iterable[SeenStep]) -> Iterator[list[SeenStep]]:
    """Consecutive steps of about so many texts."""
    window: list[SeenStep] = []
    for step in steps:
        window.append(step)
        if sum(len(each.gradient) for each in window) >= _WINDOW:
            yield window
            window = []
    if window:
        yield window


ATTACKS.add("gradient-norm")(
    Attack(
        GradientNorm(),
        title="the rarer of two labels, from the lengths of gradients",
        question=Question.LABEL,
        reference="Li et al., arXiv:2102.08504",
        needs=frozenset({Need.SHARES}),
        signal=SignalSource.GRADIENTS,
    )
)
