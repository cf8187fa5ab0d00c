"""A training of the vendor's own, of so many steps: it goes on from its last checkpoint, to the same weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from cutlayer.core import ConfigError
from cutlayer.models import Optimiser
from cutlayer.models.optimiser import warmup_in
from cutlayer.vendor.checkpoints import Checkpoints, State

_WARMUP, _DECAY, _NORM = 0.06, 0.01, 1.0
"""Share of the steps over which the rate rises; weight decay; the gradients' largest norm."""

OnStep = Callable[[int, int, str], object]
"""Is told the steps taken, of how many, and a remark."""


class Stepwise:
    """Weights that are trained by steps, each of which follows from its number.

    Args:
        weights: By name.
        steps: How many.
        learning_rate: The highest rate; it falls to zero.
        checkpoint_steps: Steps between two checkpoints.
        checkpoints: Where they are.
    """

    def __init__(
        self,
        weights: Mapping[str, nn.Parameter],
        *,
        steps: int,
        learning_rate: float,
        checkpoint_steps: int,
        checkpoints: Checkpoints,
    ) -> None:
        self._weights = dict(weights)
        self._steps, self._every, self._rate = steps, checkpoint_steps, learning_rate
        self._checkpoints = checkpoints
        for value in self._weights.values():
            value.requires_grad_(True)
        self._optimiser = Optimiser(
            self._weights,
            learning_rate=learning_rate,
            weight_decay=_DECAY,
            warmup_steps=warmup_in(steps, _WARMUP),
            total_steps=steps,
        )

    def train(self, loss_of: Callable[[int], Tensor], on_step: OnStep) -> list[float]:
        """Takes all steps that are left; returns the losses of all.

        Args:
            loss_of: The loss `[]` of a step, counted from 0.
            on_step: Told of each.

        Raises:
            ConfigError: A loss, a gradient or a weight is not finite; no checkpoint has any of it.
        """
        losses = self._resume()
        for step in range(len(losses), self._steps):
            loss = loss_of(step)
            loss.backward()
            norm = nn.utils.clip_grad_norm_(self._weights.values(), _NORM)
            losses.append(float(loss.detach()))
            if not math.isfinite(losses[-1]) or not math.isfinite(norm):
                raise self._diverged(len(losses), f"its loss is {losses[-1]:g}, and its gradient's norm {norm:g}")
            self._optimiser.step()
            kept = len(losses) % self._every == 0
            if (kept or len(losses) == self._steps) and not all(
                bool(value.isfinite().all()) for value in self._weights.values()
            ):
                raise self._diverged(len(losses), "not all weights are finite")
            if kept:
                self._keep(losses)
            on_step(len(losses), self._steps, f"loss {losses[-1]:.3g}")
        return losses

    def _diverged(self, step: int, why: str) -> ConfigError:
        return ConfigError(
            f"Training diverged at step {step} of {self._steps}, at learning rate {self._rate:g}: {why}.",
            remedy="Begin another one with a lower learning rate, or in fp32 where it was in bf16.",
        )

    def _resume(self) -> list[float]:
        found = self._checkpoints.newest()
        if found is None:
            return []
        _, state = found
        with torch.no_grad():
            for name, value in self._weights.items():
                value.copy_(state.tensors[f"weights/{name}"])
        self._optimiser.load(state.tensors)
        return list(state.notes["losses"])

    def _keep(self, losses: list[float]) -> None:
        weights = {f"weights/{name}": value.detach() for name, value in self._weights.items()}
        self._checkpoints.save(len(losses), State({**weights, **self._optimiser.state()}, {"losses": losses}))
        self._checkpoints.keep_last(1)


def ends(losses: list[float]) -> tuple[float, float]:
    """The mean loss of the first twentieth of the steps, and of the last."""
    some = max(1, len(losses) // 20)
    return sum(losses[:some]) / some, sum(losses[-some:]) / some
