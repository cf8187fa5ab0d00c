"""AdamW with a linear schedule, its state as named tensors.

Both parties train: the vendor its adapter, the customer its bottom. Both must be able to write the
state down and go on bit-identically, so it is a flat set of tensors for one safetensors file.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn


class Optimiser:
    """AdamW over named parameters; the rate falls linearly to zero (SAP §5.1).

    Args:
        parameters: Trainable parameters by name.
        learning_rate: Initial rate.
        weight_decay: Decoupled weight decay.
        warmup_steps: Steps over which the rate rises linearly to `learning_rate`.
        total_steps: Steps after which the rate is zero.
    """

    def __init__(
        self,
        parameters: Mapping[str, nn.Parameter],
        *,
        learning_rate: float,
        weight_decay: float,
        warmup_steps: int,
        total_steps: int,
    ) -> None:
        self._parameters = dict(parameters)
        self._learning_rate = learning_rate
        self._warmup_steps = warmup_steps
        self._total_steps = total_steps
        self._adamw = torch.optim.AdamW(
            list(self._parameters.values()), lr=learning_rate, weight_decay=weight_decay, foreach=False
        )
        self.steps = 0

    def rate(self, step: int) -> float:
        """The learning rate of the update that follows `step` updates."""
        if step < self._warmup_steps:
            return self._learning_rate * step / max(1, self._warmup_steps)
        left = self._total_steps - step
        return self._learning_rate * max(0.0, left / max(1, self._total_steps - self._warmup_steps))

    def step(self) -> None:
        """Applies the gradients and clears them."""
        for group in self._adamw.param_groups:
            group["lr"] = self.rate(self.steps)
        self._adamw.step()
        self._adamw.zero_grad(set_to_none=True)
        self.steps += 1

    def state(self) -> dict[str, Tensor]:
        """What goes on with the same updates.

        Returns:
            Copies of the moments, `first/NAME` and `second/NAME` in the shape of the parameter; and `steps` `[]`, the
            updates so far.
        """
        tensors = {"steps": torch.tensor(self.steps)}
        for name, parameter in self._parameters.items():
            held = self._adamw.state.get(parameter)
            if held:
                tensors[f"first/{name}"] = held["exp_avg"].detach().clone()
                tensors[f"second/{name}"] = held["exp_avg_sq"].detach().clone()
        return tensors

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Puts back what `state` returned: moments in the parameters' shapes, and `steps` `[]`."""
        self.steps = int(tensors["steps"])
        self._adamw.state.clear()
        for name, parameter in self._parameters.items():
            if f"first/{name}" in tensors:
                self._adamw.state[parameter] = {
                    "step": torch.tensor(float(self.steps)),
                    "exp_avg": tensors[f"first/{name}"].to(parameter).clone(),
                    "exp_avg_sq": tensors[f"second/{name}"].to(parameter).clone(),
                }


def updates_in(steps: int, accumulation: int) -> int:
    """Updates in so many steps; the last one takes what there is."""
    return -(-steps // accumulation)


def warmup_in(updates: int, warmup: float) -> int:
    """Updates over which the rate rises: as many as are given, or below 1 that share of all, rounded up."""
    return int(warmup) if warmup >= 1 else math.ceil(warmup * updates)


def is_update(step: int, accumulation: int, total_steps: int) -> bool:
    """Whether an update follows a step, counted from 1."""
    return step % accumulation == 0 or step == total_steps
