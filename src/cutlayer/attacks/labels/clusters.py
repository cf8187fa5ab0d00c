"""Texts of one label grouped without any label: by the directions of gradients, or by the vendor's own activations.

With a head W at the customer the vendor gets d loss / d hidden = (p - onehot(y)) W / B: rows of one class lie in one
cone, whatever W is. And a model that has learnt the labels shows them in what it computes, gradients or none.
Which group is which class is left open: the vendor needs a text of each to tell, or a look at what they have in common.

Ref: Li et al. (directions), arXiv:2102.08504; Sun et al., "Label leakage and protection from forward embedding in
vertical federated learning", arXiv:2203.01451.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from cutlayer.attacks.attack import ATTACKS, Attack, Guesses, Question, SignalSource
from cutlayer.attacks.knowledge import Inapplicable, Need
from cutlayer.attacks.view import SeenStep, View
from cutlayer.core.extras import require

_FITTED_ROWS = 2**14
"""Rows that groups are found by; the others are put into them."""
_LAST = 0.25
"""Share of the steps whose activations are looked at, the last ones: the model knows most by then."""
_STARTS = 10
_SEED = 2026
"""Of where groups begin. It hides nothing: the same traffic gives the same groups."""


class GradientDirection:
    """Groups texts by the direction of their gradients, of logits or of hidden states."""

    def __call__(self, view: View) -> Guesses:
        """Groups the texts of every step whose gradient was sent.

        Raises:
            Inapplicable: The number of classes is not known, or there are fewer texts than that.
        """
        yield from _grouped(view, lambda step: torch.nn.functional.normalize(step.gradient.float(), dim=1))


class ActivationClusters:
    """Groups texts by what the vendor computed of them in the last steps. No gradient is looked at."""

    def __call__(self, view: View) -> Guesses:
        """Groups the texts of the last steps that were answered.

        Raises:
            Inapplicable: The number of classes is not known, or there are fewer texts than that.
        """
        steps = sum(step.output is not None for step in view.transcript.steps())
        skipped = steps - max(1, round(_LAST * steps))
        yield from _grouped(view, lambda step: None if step.output is None else step.output.float(), skipped=skipped)


def _grouped(view: View, features: Callable[[SeenStep], Tensor | None], *, skipped: int = 0) -> Guesses:
    """k-means of rows `[texts, width]`, as many groups as classes.

    Args:
        view: What the attacker has.
        features: A step's rows; `None` for a step without.
        skipped: First steps that are left out, of those that have rows.
    """
    classes = view.knowledge.classes
    if classes is None:
        raise Inapplicable("How many classes there are is not known.")

    def shown() -> Iterable[tuple[SeenStep, Tensor]]:
        found = ((step, rows) for step in view.transcript.steps() if (rows := features(step)) is not None)
        return (pair for number, pair in enumerate(found) if number >= skipped)

    total = sum(len(rows) for _, rows in shown())
    if total < classes:
        raise Inapplicable(f"{total} texts were seen in training, too few for {classes} groups.")
    stride = -(-total // _FITTED_ROWS)
    model = _groups(torch.cat([rows for _, rows in shown()])[::stride], classes)
    for step, rows in shown():
        yield step.source, step.number, torch.from_numpy(model.predict(rows.numpy())).long()


def _groups(rows: Tensor, classes: int) -> Any:
    """Lloyd's algorithm, the best of some starts."""
    require("audit")
    from sklearn.cluster import KMeans

    return KMeans(classes, n_init=_STARTS, random_state=_SEED).fit(rows.numpy())


ATTACKS.add("gradient-direction")(
    Attack(
        GradientDirection(),
        title="which texts share a label, from the directions of gradients",
        question=Question.LABEL,
        reference="Li et al., arXiv:2102.08504; groups instead of known examples",
        needs=frozenset({Need.CLASSES}),
        named=False,
        signal=SignalSource.GRADIENTS,
    )
)
ATTACKS.add("activation-clusters")(
    Attack(
        ActivationClusters(),
        title="which texts share a label, from what the vendor computed of them, without gradients",
        question=Question.LABEL,
        reference="Sun et al., arXiv:2203.01451; groups instead of known examples",
        needs=frozenset({Need.CLASSES}),
        named=False,
        signal=SignalSource.GRADIENTS,
    )
)
