"""Training by steps stops by name where it diverges, and keeps nothing of it."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from cutlayer.core import ConfigError
from cutlayer.vendor.checkpoints import Checkpoints
from cutlayer.vendor.stepwise import Stepwise


def stepwise(weight: nn.Parameter, folder: Path, *, rate: float = 0.1) -> Stepwise:
    return Stepwise(
        {"weight": weight}, steps=6, learning_rate=rate, checkpoint_steps=1, checkpoints=Checkpoints(folder)
    )


def at_step(step: int, value: Callable[[Tensor], Tensor], weight: nn.Parameter) -> Callable[[int], Tensor]:
    return lambda number: value(weight).sum() if number == step else weight.square().sum()


DIVERGED: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "no number": (lambda weight: weight * math.nan, "its loss is nan"),
    "infinite": (lambda weight: weight.exp() * 1e38 * 1e38, "its loss is inf"),
    "a gradient alone": (lambda weight: (weight - weight.detach()).abs().sqrt(), "gradient's norm (nan|inf)"),
}


@pytest.mark.parametrize("name", DIVERGED)
def test_a_step_that_diverges_is_named_before_anything_of_it_is_kept(name: str, tmp_path: Path) -> None:
    value, said = DIVERGED[name]
    weight = nn.Parameter(torch.ones(3))
    with pytest.raises(ConfigError, match=rf"diverged at step 4 of 6, at learning rate 0\.1: .*{said}") as caught:
        stepwise(weight, tmp_path).train(at_step(3, value, weight), lambda *told: None)
    assert "lower learning rate" in caught.value.remedy
    found = Checkpoints(tmp_path).newest()
    assert found is not None
    step, state = found
    assert step == 3
    assert all(bool(each.isfinite().all()) for each in state.tensors.values() if each.is_floating_point())


def test_weights_that_an_update_makes_infinite_are_not_kept(tmp_path: Path) -> None:
    weight = nn.Parameter(torch.full((3,), 1e37))
    with pytest.raises(ConfigError, match=r"diverged at step 2 of 6.* not all weights are finite"):
        stepwise(weight, tmp_path, rate=1e36).train(lambda number: weight.mean(), lambda *told: None)
    assert Checkpoints(tmp_path).steps() == [1]  # the first update's rate is zero
