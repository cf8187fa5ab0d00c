"""Several backward passes in the place of one, and how a vendor finds which combination of them is the gradient.

A backward pass is linear in what is sent into it: with S_i = Σ_j A_ij X_j of the gradient X_1 = G and covers X_2, …,
the gradient of every weight for G is the combination Σ_i c_i (that for S_i), c the first row of A⁻¹ (of an
orthogonal A, its first column). Each S_i by
itself is mostly cover. Ref: P3EFT, arXiv:2412.16669, where the *customer* holds adapters and optimiser.

Here the vendor does, so it must be told the combination, or its result. Either gives c away:

- the update is Σ_i c_i (that for S_i) in thousands of numbers, with as many unknowns as passes: least squares;
- without any update, p - B Σ_i c_i S_i must be one-hot in every row, with p the vendor's own softmax. For some rows
  each choice of labels gives a c, and the other rows tell which is right.

So this is an experiment on recorded passes, no option of a run, and nothing is promised of it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from cutlayer.core import ConfigError, Fault

_CHOICES = 2**16
"""Choices of labels that are tried at most."""


def recombine(gradient: Tensor, passes: int, *, cover: float, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """Gradients of which a secret combination is the true one.

    Covers are as a careful customer would draw them: rows of a gradient of logits add up to zero, and so do theirs.

    Args:
        gradient: `[rows, width]`, of logits or of hidden states.
        passes: How many are sent in its place.
        cover: Standard deviation of covers, in that of the gradient.
        rng: Draws covers and combination.

    Returns:
        Passes `[passes, rows, width]`, and the coefficients `[passes]` of the combination.

    Raises:
        ConfigError: Fewer than two passes hide nothing.
    """
    if passes < 2:
        raise ConfigError([Fault("passes", passes, "must be 2 or more: one pass is the gradient itself")])
    true = gradient.double()
    covers = torch.randn(passes - 1, *true.shape, generator=rng, dtype=torch.float64) * cover * true.std()
    if bool((true.sum(1).abs() < 1e-5 * true.abs().sum(1)).all()):
        covers = covers - covers.mean(2, keepdim=True)
    # an orthogonal mixture keeps rounding small and treats all passes alike
    mixture = torch.linalg.qr(torch.randn(passes, passes, generator=rng, dtype=torch.float64))[0]
    sent = torch.einsum("ij,jrk->irk", mixture, torch.cat([true[None], covers]))
    return sent.to(gradient.dtype), mixture[:, 0]


def combined(passes: Tensor, coefficients: Tensor) -> Tensor:
    """The combination `[rows, width]` of passes `[passes, rows, width]`."""
    return torch.einsum("i,irk->rk", coefficients.double(), passes.double()).float()


def solve_from_update(passes: Tensor, update: Tensor) -> Tensor:
    """The coefficients `[passes]`, from what the vendor's own optimiser takes: by least squares.

    Args:
        passes: `[passes, numbers]`, what each pass gives of some weights' gradients, which the vendor computes.
        update: `[numbers]`, the gradient that was applied.
    """
    found: Tensor = torch.linalg.lstsq(passes.double().T, update.double()[:, None]).solution[:, 0]
    return found


def solve_from_labels(passes: Tensor, probabilities: Tensor) -> Tensor | None:
    """The coefficients `[passes]`, from what is sent and the vendor's own softmax alone.

    Args:
        passes: `[passes, texts, classes]`, gradients of logits.
        probabilities: `[texts, classes]`, p.

    Returns:
        The combination under which p - B Σ_i c_i S_i is nearest to one label a text; `None` where more labels would
        have to be tried than is practical, or the texts are too few to tell.
    """
    count, texts, classes = passes.shape
    rows = -(-count // (classes - 1))
    if classes**rows > _CHOICES or texts <= rows:
        return None
    sent, p = texts * passes.double(), probabilities.double()
    # a row has one number fewer that is its own than it has classes
    system = torch.linalg.pinv(sent[:, :rows, :-1].reshape(count, -1).T)
    choices = torch.cartesian_prod(*[torch.arange(classes)] * rows).reshape(-1, rows)
    targets = p[:rows] - torch.nn.functional.one_hot(choices, classes)
    found = targets[:, :, :-1].reshape(len(choices), -1) @ system.T
    best, nearest = None, torch.inf
    for some in found.split(max(1, 2**22 // (texts * classes))):
        told = p - torch.einsum("ci,irk->crk", some, sent)
        far = ((told**2).sum(2) - 2 * told.amax(2) + 1).sum(1)
        if float(far.min()) < nearest:
            best, nearest = some[far.argmin()], float(far.min())
    return best
