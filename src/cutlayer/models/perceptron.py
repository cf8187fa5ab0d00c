"""A perceptron with hidden layers, one mostly, and the loop that fits it: of attacks and of downstream networks.

Everything that is drawn comes from generators that the caller seeds, so the same text gives the same attack.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from cutlayer.core.deadline import check_time

_MIXED = 8
"""Batches whose texts are sorted by length together, so that little is padded."""


@dataclass(frozen=True)
class Fitting:
    """How something is fitted: of an attack its strength, and what it costs.

    Attributes:
        passes: Over the data.
        batch: Items of a step.
        learning_rate: Of AdamW, at the beginning; it falls linearly to zero.
        weight_decay: Decoupled.
        dropout: Share of hidden units that are left out at each step.
        seed: Draws weights, order and dropout.
    """

    passes: int = 10
    batch: int = 256
    learning_rate: float = 1e-3
    weight_decay: float = 0.01
    dropout: float = 0.0
    seed: int = 0

    def generator(self) -> torch.Generator:
        """The generator that all of it is drawn from."""
        return torch.Generator().manual_seed(self.seed)


class Perceptron(nn.Module):
    """Features, standardised, through hidden layers of rectified units.

    Args:
        features: `[n, f]`, what it is fitted on; for mean and spread.
        hidden: Units of the hidden layer, or of each of several.
        outputs: Numbers that it gives.
        dropout: Share of each layer's hidden units that are left out while it is fitted.
        generator: Draws weights and dropout.
    """

    def __init__(
        self,
        features: Tensor,
        *,
        hidden: int | tuple[int, ...],
        outputs: int,
        dropout: float,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self._mean = features.mean(0)
        # one scale for all: to blow up what hardly varies would make noise of it
        self._scale = (features - self._mean).square().mean().sqrt().clamp(min=1e-6)
        self._dropout = dropout
        self._generator = generator
        widths = (features.shape[1], *((hidden,) if isinstance(hidden, int) else hidden))
        self._inner = nn.ModuleList(linear(before, after, generator) for before, after in pairwise(widths))
        self._outer = linear(widths[-1], outputs, generator)

    def forward(self, features: Tensor) -> Tensor:
        """Outputs `[n, outputs]` for features `[n, f]`."""
        inner = (features.float() - self._mean) / self._scale
        for layer in self._inner:
            inner = torch.relu(layer(inner))
            if self.training and self._dropout:
                kept = torch.rand(inner.shape, generator=self._generator) >= self._dropout
                inner = inner * kept / (1 - self._dropout)
        outer: Tensor = self._outer(inner)
        return outer


def minimise(
    parameters: Iterable[nn.Parameter],
    loss: Callable[[Tensor], Tensor],
    *,
    count: int,
    fitting: Fitting,
    generator: torch.Generator,
    batches: Callable[[Tensor], Iterator[Tensor]] | None = None,
) -> None:
    """Fits parameters by AdamW.

    Args:
        parameters: What is fitted.
        loss: The loss of the items at `[m]` int64.
        count: How many items there are.
        fitting: How.
        generator: Draws the order.
        batches: Cuts an order `[count]` into batches; `fitting.batch` at a time where it is left out.
    """
    fitted = list(parameters)
    optimiser = torch.optim.AdamW(fitted, lr=fitting.learning_rate, weight_decay=fitting.weight_decay, fused=True)
    for done in range(fitting.passes):
        order = torch.randperm(count, generator=generator)
        for number, items in enumerate(parts := list(batches(order) if batches else order.split(fitting.batch))):
            check_time()
            left = 1 - (done + number / len(parts)) / fitting.passes
            optimiser.param_groups[0]["lr"] = fitting.learning_rate * left
            optimiser.zero_grad(set_to_none=True)
            torch.autograd.backward(loss(items), inputs=fitted)
            optimiser.step()


def fit_classifier(
    features: Tensor,
    targets: Tensor,
    *,
    classes: int,
    hidden: int | tuple[int, ...],
    fitting: Fitting,
    response: Tensor | None = None,
) -> Perceptron:
    """A perceptron that tells classes apart, by cross-entropy.

    Args:
        features: `[n, f]`.
        targets: `[n]` int64.
        classes: How many there are.
        hidden: Units of the hidden layer, or of each of several.
        fitting: How it is fitted.
        response: `[classes, classes]`, the probability of each target (column) of a text of each class (row), where
            targets are classes that were drawn at random; the loss is then of what the draw makes of its answer.
            Ref: Patrini et al., arXiv:1609.03683, forward correction.

    Returns:
        Gives a score for each class.
    """
    generator = fitting.generator()
    net = Perceptron(features, hidden=hidden, outputs=classes, dropout=fitting.dropout, generator=generator)

    def loss(items: Tensor) -> Tensor:
        scores = net(features[items])
        if response is None:
            return nn.functional.cross_entropy(scores, targets[items])
        return nn.functional.nll_loss((scores.softmax(1) @ response).log(), targets[items])

    minimise(
        net.parameters(),
        loss,
        count=len(features),
        fitting=fitting,
        generator=generator,
    )
    return net.eval().requires_grad_(False)


def by_length(order: Tensor, lengths: Tensor, size: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Batches of texts of about one length, in random order.

    Args:
        order: `[n]` int64, the order of a pass.
        lengths: `[texts]` int64.
        size: Texts of a batch.
        generator: Draws the order of batches.

    Yields:
        `[texts of a batch]` int64, their numbers.
    """
    parts = [
        part for some in order.split(_MIXED * size) for part in some[lengths[some].argsort(stable=True)].split(size)
    ]
    return (parts[number] for number in torch.randperm(len(parts), generator=generator).tolist())


def linear(inputs: int, outputs: int, generator: torch.Generator) -> nn.Linear:
    """A linear map with weights that a generator draws."""
    layer = nn.Linear(inputs, outputs, device="meta").to_empty(device="cpu")
    bound = inputs**-0.5
    with torch.no_grad():
        layer.weight.uniform_(-bound, bound, generator=generator)
        layer.bias.uniform_(-bound, bound, generator=generator)
    return layer
