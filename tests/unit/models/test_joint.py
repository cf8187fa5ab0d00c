"""Updates that two parties take together: one norm, and one gradient for what both hold copies of."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from cutlayer.core import Cut, ModelError
from cutlayer.models import FAMILIES
from cutlayer.models.joint import JointGradients, joint_stacks, squared_norm


def gradients(shapes: tuple[tuple[int, ...], ...], *, seed: int, scale: float) -> list[nn.Parameter]:
    rng = torch.Generator().manual_seed(seed)
    found = [nn.Parameter(torch.zeros(shape)) for shape in shapes]
    for value in found:
        value.grad = scale * torch.randn(value.shape, generator=rng)
    return found


@pytest.mark.parametrize("scale", [1e-3, 1.0, 50.0])
@pytest.mark.parametrize("limit", [0.5, 5.0])
def test_two_parties_clip_as_one_would(scale: float, limit: float) -> None:
    left = gradients(((4, 3), (5,)), seed=1, scale=scale)
    right = gradients(((2, 2, 2), (30,)), seed=2, scale=3 * scale)
    left.append(nn.Parameter(torch.zeros(3)))  # one that got none
    whole = [copy.deepcopy(value) for value in left + right]
    for own, value in zip(whole, left + right, strict=True):
        own.grad = None if value.grad is None else value.grad.clone()
    total = torch.nn.utils.clip_grad_norm_(whole, limit)
    norms = squared_norm(left), squared_norm(right)
    assert [norm.shape for norm in norms] == [(1,), (1,)]
    assert [norm.dtype for norm in norms] == [torch.float32] * 2
    assert float((norms[0] + norms[1]).sqrt()) == pytest.approx(float(total), rel=1e-5)
    JointGradients(left, {}).join(norm=norms[1], copied=None, limit=limit)
    JointGradients(right, {}).join(norm=norms[0], copied=None, limit=limit)
    for own, value in zip(whole, left + right, strict=True):
        if own.grad is None:
            assert value.grad is None
        else:
            torch.testing.assert_close(value.grad, own.grad, rtol=1e-5, atol=0)
    alone = gradients(((4, 3), (5,)), seed=1, scale=scale)
    JointGradients(alone, {}).join(norm=torch.zeros(1), copied=None, limit=limit)
    if scale > 1:
        assert alone[0].grad is not None
        assert left[0].grad is not None
        assert not torch.allclose(alone[0].grad, left[0].grad), "planted fault: each by its own norm alone"


def test_gradients_below_the_limit_keep_their_bits() -> None:
    own = gradients(((4, 3),), seed=1, scale=1e-3)
    before = own[0].grad
    assert before is not None
    kept = before.clone()
    JointGradients(own, {}).join(norm=torch.zeros(1), copied=None, limit=1.0)
    assert own[0].grad is not None
    assert torch.equal(own[0].grad, kept)


def test_nothing_has_no_norm() -> None:
    assert squared_norm([]).tolist() == [0.0]
    assert squared_norm([nn.Parameter(torch.zeros(3))]).tolist() == [0.0]


def test_a_norm_is_summed_in_fp64() -> None:
    value = nn.Parameter(torch.zeros(2**20))
    value.grad = torch.full((2**20,), 1e-4)
    value.grad[0] = 100.0
    assert float(squared_norm([value])) == pytest.approx(1e4 + (2**20 - 1) * 1e-8, rel=1e-6)


# ---------------------------------------------------------------- copies


def parties(scale: float) -> tuple[tuple[list[nn.Parameter], dict[str, nn.Parameter]], ...]:
    """Two parties' weights, the last two of each copies of the same; the second one got no gradient at one of them."""
    found = []
    for seed, shapes in enumerate((((4, 3), (5,)), ((2, 2),)), start=1):
        own = gradients((*shapes, (6, 2), (3, 2)), seed=seed, scale=scale)
        found.append((own, {"encoder": own[-2], "decoder": own[-1]}))
    found[1][0][-1].grad = None
    return tuple(found)


@pytest.mark.parametrize("scale", [1e-3, 50.0])
@pytest.mark.parametrize("limit", [0.5, None])
def test_copies_get_the_gradient_of_one_model(scale: float, limit: float | None) -> None:
    (left, left_copies), (right, right_copies) = parties(scale)
    alone = [copy.deepcopy(value) for value in (*left[:2], *right[:1])]
    both = [nn.Parameter(torch.zeros(shape)) for shape in ((6, 2), (3, 2))]
    for own, value in zip(alone, (*left[:2], *right[:1]), strict=True):
        own.grad = None if value.grad is None else value.grad.clone()
    assert left[2].grad is not None
    assert right[1].grad is not None
    assert left[3].grad is not None
    both[0].grad, both[1].grad = left[2].grad + right[1].grad, left[3].grad.clone()
    if limit is not None:
        torch.nn.utils.clip_grad_norm_([*alone, *both], limit)
    sides = JointGradients(left, left_copies), JointGradients(right, right_copies)
    assert [side.numbers for side in sides] == [18, 18]
    told = [(side.norm(), side.copied()) for side in sides]
    for side, (norm, copied) in zip(sides, reversed(told), strict=True):
        side.join(norm=None if limit is None else norm, copied=copied, limit=limit)
    for own, value in zip((*alone, *both, *both), (*left[:2], right[0], *left[2:], *right[1:]), strict=True):
        torch.testing.assert_close(value.grad, own.grad, rtol=1e-5, atol=0)
    for mine, theirs in zip(left[2:], right[1:], strict=True):
        assert mine.grad is not None
        assert theirs.grad is not None
        assert torch.equal(mine.grad, theirs.grad), "copies go apart by their last bits"


def test_copies_of_something_else_are_refused() -> None:
    (left, copies), _ = parties(1.0)
    for copied in (None, torch.zeros(17)):
        with pytest.raises(ModelError, match="there are 18 here"):
            JointGradients(left, copies).join(norm=None, copied=copied, limit=None)


@pytest.mark.parametrize(("norm", "limit"), [(None, 0.5), (torch.ones(1), None)])
def test_parties_that_do_not_clip_alike_are_refused(norm: torch.Tensor | None, limit: float | None) -> None:
    with pytest.raises(ModelError, match=r"the other party told (no|a) norm"):
        JointGradients(gradients(((4, 3),), seed=1, scale=1.0), {}).join(norm=norm, copied=None, limit=limit)


@pytest.mark.parametrize(
    ("cut", "stacks"),
    [
        (Cut(bottom=1, target=1, tail=1), ("encoder", "decoder")),
        (Cut(bottom=1, target=0, tail=0), ("encoder",)),
        (Cut(bottom=0, target=0, tail=1), ("decoder",)),
        (Cut(bottom=0, target=1, tail=0), ("decoder",)),
        (Cut(bottom=0, target=0, tail=0), ()),
        (Cut(bottom=None), ()),
    ],
    ids=lambda given: given.slug if isinstance(given, Cut) else "+".join(given),
)
def test_both_hold_copies_where_both_hold_blocks_of_a_stack(cut: Cut, stacks: tuple[str, ...]) -> None:
    assert joint_stacks(FAMILIES["t5"], cut) == stacks
    assert joint_stacks(FAMILIES["gpt2"], cut.model_copy(update={"target": 0})) == ()
