"""Labels read from output gradients: d loss / d logits of a cross-entropy *is* the label.

With p = softmax(logits), which the vendor knows because it computed the logits, a mean cross-entropy
over B texts has gradient g = (p - onehot(y)) / B, so y = argmax(p - B g), exactly. Smoothing and class
weights do not change where the maximum is.
"""

from __future__ import annotations

import torch

from cutlayer.attacks.attack import ATTACKS, Attack, Clue, Guesses, Question
from cutlayer.attacks.view import View


class OutputGradient:
    """Guesses the label of each text of each step from the gradient that the customer sent for it."""

    def __call__(self, view: View) -> Guesses:
        """Guesses the labels of every step whose gradient was sent."""
        for step in view.transcript.steps():
            scores = -len(step.gradient) * step.gradient
            if step.output is not None:
                scores = scores + torch.softmax(step.output, 1)
            yield step.source, step.number, scores.argmax(1)


ATTACKS.add("output-gradient")(
    Attack(
        OutputGradient(),
        title="labels, from the gradients of the outputs",
        question=Question.LABEL,
        reference="this project; d loss / d logits of a cross-entropy",
        clue=Clue.GRADIENTS,
    )
)
