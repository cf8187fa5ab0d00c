"""Adam, AdamW or Adafactor with a linear or a constant schedule, its state as named tensors.

Both parties train: the vendor its adapter, the customer its bottom. Both must be able to write the
state down and go on bit-identically, so it is a flat set of tensors for one safetensors file.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import torch
from torch import Tensor, nn

from cutlayer.core.tuning import OptimiserKind, Schedule

_ADAM: Final = {"first": "exp_avg", "second": "exp_avg_sq"}
_KEPT: Final[Mapping[OptimiserKind, Mapping[str, str]]] = {
    "adamw": _ADAM,
    "adam": _ADAM,
    "adafactor": {"row": "row_var", "column": "col_var", "second": "variance"},
}
"""What each keeps of a parameter: our name and torch's. Adafactor keeps rows and columns of matrices, else `second`."""

STATE_NUMBERS: Final[Mapping[OptimiserKind, int]] = {"adamw": 2, "adam": 2, "adafactor": 1}
"""Numbers that each keeps for a number that is trained, at most; of a matrix Adafactor keeps far fewer."""


class Optimiser:
    """An optimiser over named parameters; the rate stays, or falls linearly to zero (SAP §5.1).

    Args:
        parameters: Trainable parameters by name.
        kind: `adamw` (Loshchilov & Hutter 2019, arXiv:1711.05101), `adam` (Kingma & Ba 2015, arXiv:1412.6980), or
            `adafactor` (Shazeer & Stern 2018, arXiv:1804.04235), as torch has it: steps relative to a tensor's size,
            the rate being their largest.
        schedule: Whether the rate falls after the warm-up.
        learning_rate: Initial rate.
        weight_decay: Weight decay, decoupled but of `adam`, where it is added to the gradients.
        warmup_steps: Steps over which the rate rises linearly to `learning_rate`.
        total_steps: Steps after which the rate is zero, where it falls.
    """

    def __init__(
        self,
        parameters: Mapping[str, nn.Parameter],
        *,
        kind: OptimiserKind = "adamw",
        schedule: Schedule = "linear",
        learning_rate: float,
        weight_decay: float,
        warmup_steps: int,
        total_steps: int,
    ) -> None:
        self._parameters = dict(parameters)
        self._kept = _KEPT[kind]
        self._schedule = schedule
        self._learning_rate = learning_rate
        self._warmup_steps = warmup_steps
        self._total_steps = total_steps
        made: Any = {"adamw": torch.optim.AdamW, "adam": torch.optim.Adam, "adafactor": torch.optim.Adafactor}[kind]
        self._inner: torch.optim.Optimizer = made(
            list(self._parameters.values()), lr=learning_rate, weight_decay=weight_decay, foreach=False
        )
        self.steps = 0

    def rate(self, step: int) -> float:
        """The learning rate of the update that follows `step` updates."""
        if step < self._warmup_steps:
            return self._learning_rate * step / max(1, self._warmup_steps)
        if self._schedule == "constant":
            return self._learning_rate
        left = self._total_steps - step
        return self._learning_rate * max(0.0, left / max(1, self._total_steps - self._warmup_steps))

    def step(self) -> None:
        """Applies the gradients and clears them."""
        for group in self._inner.param_groups:
            group["lr"] = self.rate(self.steps)
        self._inner.step()
        self._inner.zero_grad(set_to_none=True)
        self.steps += 1

    def state(self) -> dict[str, Tensor]:
        """What goes on with the same updates.

        Returns:
            Copies of what is kept of each parameter, `first/NAME` and `second/NAME` in its shape; of matrices that
            Adafactor updates `row/NAME` `[rows, 1]` and `column/NAME` `[1, columns]`; and `steps` `[]`, the updates so
            far.
        """
        tensors = {"steps": torch.tensor(self.steps)}
        for name, parameter in self._parameters.items():
            held = self._inner.state.get(parameter, {})
            for ours, theirs in self._kept.items():
                if theirs in held:
                    tensors[f"{ours}/{name}"] = held[theirs].detach().clone()
        return tensors

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Puts back what `state` returned."""
        self.steps = int(tensors["steps"])
        self._inner.state.clear()
        for name, parameter in self._parameters.items():
            held = {
                theirs: tensors[f"{ours}/{name}"].to(parameter).clone()
                for ours, theirs in self._kept.items()
                if f"{ours}/{name}" in tensors
            }
            if held:
                self._inner.state[parameter] = {"step": torch.tensor(float(self.steps)), **held}


def updates_in(steps: int, accumulation: int) -> int:
    """Updates in so many steps; the last one takes what there is."""
    return -(-steps // accumulation)


def warmup_in(updates: int, warmup: float) -> int:
    """Updates over which the rate rises: as many as are given, or below 1 that share of all, rounded up."""
    return int(warmup) if warmup >= 1 else math.ceil(warmup * updates)


def is_update(step: int, accumulation: int, total_steps: int) -> bool:
    """Whether an update follows a step, counted from 1."""
    return step % accumulation == 0 or step == total_steps
