"""Threads are what they were, whatever happens meanwhile."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from cutlayer.customer.threads import threads, threads_for


@pytest.fixture(autouse=True)
def two() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_they_are_put_back_also_after_an_error(count: int) -> None:
    with threads(count):
        assert torch.get_num_threads() == count
    assert torch.get_num_threads() == 2
    with pytest.raises(RuntimeError, match="gone"), threads(count):
        raise RuntimeError("gone")
    assert torch.get_num_threads() == 2


def test_a_small_pass_has_one_and_a_large_one_all() -> None:
    with threads_for(2_000_000, 1):
        assert torch.get_num_threads() == 1
    with threads_for(2_000_000, 100):
        assert torch.get_num_threads() == 2
