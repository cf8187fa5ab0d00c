from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from cutlayer.core.tuning import OptimiserKind
from cutlayer.models import Optimiser
from cutlayer.models.optimiser import STATE_NUMBERS

SETTINGS: dict[str, Any] = {"learning_rate": 0.1, "weight_decay": 0.01, "warmup_steps": 3, "total_steps": 10}


def make() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(3, 2)


def step(module: nn.Linear, seed: int) -> None:
    module(torch.randn(4, 3, generator=torch.Generator().manual_seed(seed))).square().sum().backward()


def test_it_is_adamw_with_a_linear_schedule() -> None:
    ours, theirs = make(), make()
    optimiser = Optimiser(dict(ours.named_parameters()), **SETTINGS)
    adamw = torch.optim.AdamW(theirs.parameters(), lr=0.1, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(adamw, lambda at: at / 3 if at < 3 else max(0.0, (10 - at) / (10 - 3)))
    for seed in range(12):
        for module in (ours, theirs):
            step(module, seed)
        optimiser.step()
        adamw.step()
        adamw.zero_grad()
        schedule.step()
        assert torch.allclose(ours.weight, theirs.weight, atol=1e-7)
    assert optimiser.steps == 12
    assert optimiser.rate(10) == optimiser.rate(11) == 0
    assert all(value.grad is None for value in ours.parameters())


@pytest.mark.parametrize(
    ("kind", "theirs"), [("adam", torch.optim.Adam), ("adafactor", torch.optim.Adafactor)], ids=str
)
def test_others_are_torchs_own_and_a_constant_rate_stays(kind: OptimiserKind, theirs: Any) -> None:
    ours, reference = make(), make()
    optimiser = Optimiser(dict(ours.named_parameters()), kind=kind, schedule="constant", **SETTINGS)
    inner = theirs(reference.parameters(), lr=0.1, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(inner, lambda at: min(at / 3, 1))
    for seed in range(12):
        for module in (ours, reference):
            step(module, seed)
        optimiser.step()
        inner.step()
        inner.zero_grad()
        schedule.step()
        assert torch.allclose(ours.weight, reference.weight, atol=1e-7)
    assert optimiser.rate(2) == pytest.approx(0.2 / 3)
    assert optimiser.rate(3) == optimiser.rate(11) == 0.1
    kept = sum(tensor.numel() for name, tensor in optimiser.state().items() if name != "steps")
    trained = sum(value.numel() for value in ours.parameters())
    assert kept <= STATE_NUMBERS[kind] * trained


@pytest.mark.parametrize("kind", ["adamw", "adam", "adafactor"])
@pytest.mark.parametrize("stop", [0, 1, 6])
def test_a_resumed_run_ends_bit_identical(stop: int, kind: OptimiserKind) -> None:
    straight = make()
    optimiser = Optimiser(dict(straight.named_parameters()), kind=kind, **SETTINGS)
    kept: dict[str, torch.Tensor] = {}
    weights: dict[str, torch.Tensor] = {}
    for seed in range(10):
        if seed == stop:
            kept, weights = optimiser.state(), copy.deepcopy(straight.state_dict())
        step(straight, seed)
        optimiser.step()
    resumed = make()
    resumed.load_state_dict(weights)
    optimiser = Optimiser(dict(resumed.named_parameters()), kind=kind, **SETTINGS)
    optimiser.load(kept)
    for seed in range(stop, 10):
        step(resumed, seed)
        optimiser.step()
    assert all(
        torch.equal(left, right) for left, right in zip(straight.parameters(), resumed.parameters(), strict=True)
    )
