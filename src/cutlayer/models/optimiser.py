"""AdamW with a linear schedule, its state as named tensors, and clipping across a cut.

Both parties train: the vendor its adapter, the customer its bottom. Both must be able to write the
state down and go on bit-identically, so it is a flat set of tensors for one safetensors file.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

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
        """Moments by `first/NAME` and `second/NAME`, and the number of updates; copies."""
        tensors = {"steps": torch.tensor(self.steps)}
        for name, parameter in self._parameters.items():
            held = self._adamw.state.get(parameter)
            if held:
                tensors[f"first/{name}"] = held["exp_avg"].detach().clone()
                tensors[f"second/{name}"] = held["exp_avg_sq"].detach().clone()
        return tensors

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Puts back what `state` returned."""
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


def is_update(step: int, accumulation: int, total_steps: int) -> bool:
    """Whether an update follows a step, counted from 1."""
    return step % accumulation == 0 or step == total_steps


def squared_norm(parameters: Iterable[nn.Parameter]) -> Tensor:
    """`[1]` fp32: squared norm of all gradients together, summed in fp64."""
    found = [value.grad.double().square().sum().cpu() for value in parameters if value.grad is not None]
    return (torch.stack(found).sum() if found else torch.zeros((), dtype=torch.float64)).float().reshape(1)


def scale_gradients(parameters: Iterable[nn.Parameter], mine: Tensor, theirs: Tensor, *, limit: float) -> None:
    """Clips the norm of two parties' gradients together; each scales its own.

    Both compute the same factor from the same two numbers, and it is that of
    `torch.nn.utils.clip_grad_norm_` on the whole model.

    Args:
        parameters: One party's.
        mine: `[1]` fp32, squared norm of their gradients.
        theirs: `[1]` fp32, squared norm of the other party's.
        limit: Largest norm of all of them.
    """
    norm = float((mine.double() + theirs.double()).sqrt())
    factor = min(1.0, limit / (norm + 1e-6))
    if factor < 1:
        for parameter in parameters:
            if parameter.grad is not None:
                parameter.grad.mul_(factor)
