"""Labels read from output gradients: d loss / d logits of a cross-entropy *is* the label.

With p = softmax(logits), which the vendor knows because it computed the logits, a mean cross-entropy over B texts has
gradient g = (p - onehot(y)) / B. Its one negative entry stands at y; and y = argmax(p - B g), exactly, which smoothing
and class weights do not change either.

Ref: Li et al., arXiv:2102.08504; Zhao et al., iDLG, arXiv:2001.02610, for the sign.
"""

from __future__ import annotations

import torch
from torch import Tensor

from cutlayer.attacks.attack import ATTACKS, Attack, Guesses, Question, SignalSource
from cutlayer.attacks.knowledge import Inapplicable, Need
from cutlayer.attacks.view import SeenStep, View


class GradientSign:
    """Guesses each text's label by its gradient alone: the entry that is most below zero."""

    def __call__(self, view: View) -> Guesses:
        """Guesses the labels of every step whose gradient was sent.

        Raises:
            Inapplicable: Gradients are of hidden states.
        """
        for step in view.transcript.steps():
            _check_is_of_logits(step, view.knowledge.classes)
            yield step.source, step.number, step.gradient.float().argmin(1)


class OutputGradient:
    """Guesses each text's label by what its gradient takes from the vendor's own softmax: argmax(p - B g)."""

    def __call__(self, view: View) -> Guesses:
        """Guesses the labels of every step whose gradient was sent.

        Raises:
            Inapplicable: Gradients are of hidden states.
        """
        for step in view.transcript.steps():
            yield step.source, step.number, told_labels(step, view.knowledge.classes)


def told_labels(step: SeenStep, classes: int | None) -> Tensor:
    """argmax(p - B g) `[texts]` of a step's gradients; of gradients alone where its output is not known.

    Args:
        step: The step.
        classes: How many labels there are; `None` if that is not known.

    Raises:
        Inapplicable: Gradients are of hidden states.
    """
    _check_is_of_logits(step, classes)
    scores = -len(step.gradient) * step.gradient.float()
    if step.output is not None:
        scores = scores + torch.softmax(step.output.float(), 1)
    return scores.argmax(1)


def _check_is_of_logits(step: SeenStep, classes: int | None) -> None:
    width = step.gradient.shape[1]
    if classes is not None and width != classes:
        raise Inapplicable(
            f"Gradients of {width} numbers a text were sent, for {classes} classes: they are of hidden states. Their "
            "directions and lengths tell classes apart all the same."
        )


ATTACKS.add("gradient-sign")(
    Attack(
        GradientSign(),
        title="labels, from the signs of the outputs' gradients",
        question=Question.LABEL,
        reference="Li et al., arXiv:2102.08504; Zhao et al., iDLG, arXiv:2001.02610",
        needs=frozenset({Need.CLASSES}),
        signal=SignalSource.GRADIENTS,
    )
)
ATTACKS.add("output-gradient")(
    Attack(
        OutputGradient(),
        title="labels, from the gradients of the outputs beside the vendor's own softmax",
        question=Question.LABEL,
        reference="this project; d loss / d logits of a cross-entropy",
        needs=frozenset({Need.CLASSES}),
        signal=SignalSource.GRADIENTS,
    )
)
