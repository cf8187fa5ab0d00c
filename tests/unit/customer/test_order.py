"""The order of an epoch: every text once, a function of lengths and seed, little padding."""

from __future__ import annotations

import itertools

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from cutlayer.customer.order import epoch_batches


def batches(lengths: Tensor, *, seed: int = 3, epoch: int = 0, group: bool = True, size: int = 8) -> list[list[int]]:
    found = epoch_batches(lengths, batch_size=size, seed=seed, epoch=epoch, group_by_length=group)
    return [batch.tolist() for batch in found]


def padding(lengths: Tensor, found: list[list[int]]) -> int:
    return sum(int(lengths[batch].max()) * len(batch) - int(lengths[batch].sum()) for batch in found)


@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=900),
    seed=st.integers(0, 2**63 - 1),
    size=st.integers(1, 9),
    group=st.booleans(),
)
def test_every_text_once_in_full_batches(lengths: list[int], seed: int, size: int, group: bool) -> None:
    found = batches(torch.tensor(lengths), seed=seed, size=size, group=group)
    assert sorted(itertools.chain.from_iterable(found)) == list(range(len(lengths)))
    assert len(found) == -(-len(lengths) // size)
    assert all(len(batch) == size for batch in found[:-1])


def test_seed_and_epoch_decide() -> None:
    lengths = torch.arange(1, 700) % 37 + 1
    for group in (True, False):
        first = batches(lengths, group=group)
        assert first == batches(lengths, group=group)
        assert first != batches(lengths, seed=4, group=group)
        assert first != batches(lengths, epoch=1, group=group)


def test_groups_hold_little_padding_in_random_order() -> None:
    lengths = torch.randint(1, 60, (5000,), generator=torch.Generator().manual_seed(1))
    grouped = batches(lengths)
    assert padding(lengths, grouped) < 0.1 * padding(lengths, batches(lengths, group=False))
    longest = [int(lengths[batch].max()) for batch in grouped]
    assert longest != sorted(longest)
    assert longest != sorted(longest, reverse=True)
    # neighbours in order are no neighbours in length
    steps = [abs(a - b) for a, b in itertools.pairwise(longest)]
    assert sum(steps) / len(steps) > 10
