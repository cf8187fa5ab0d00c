"""The order in which texts leave, and of an epoch: every text once, nothing that the file or a label decides."""

from __future__ import annotations

import itertools

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from cutlayer.customer.order import Order
from cutlayer.models.batches import epoch_batches
from cutlayer.privacy import CustomerSecret

SECRET = CustomerSecret(bytes(range(32)))
TEXTS = tuple((f"text {number}",) for number in range(400))


def batches(lengths: Tensor, *, seed: int = 3, epoch: int = 0, group: bool = True, size: int = 8) -> list[list[int]]:
    rng = np.random.Generator(np.random.PCG64((seed, epoch)))
    found = epoch_batches(lengths, batch_size=size, rng=rng, group_by_length=group)
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


def test_the_generator_decides() -> None:
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


# ---------------------------------------------------------------- of texts


def ordered(texts: tuple[tuple[str, ...], ...], secret: CustomerSecret = SECRET, purpose: str = "run/1") -> list[str]:
    return [texts[place][0] for place in Order(secret, purpose).of(texts)]


def test_an_order_follows_from_the_texts_and_the_secret_and_not_from_the_file() -> None:
    first = ordered(TEXTS)
    assert sorted(first) == sorted(text for (text,) in TEXTS)
    assert ordered(TEXTS[::-1]) == first
    assert ordered(TEXTS, CustomerSecret(bytes(32))) != first
    assert ordered(TEXTS, purpose="run/2") != first
    fewer = ordered(TEXTS[::2])
    assert fewer == [text for text in first if text in set(fewer)], "the other texts decide nothing"


def test_the_files_order_cannot_be_told_from_it() -> None:
    """Spearman's correlation of places in the file and in the order, over many secrets: that of two random orders."""
    places = []
    for number in range(60):
        order = Order(CustomerSecret.unsafe(number), "run").of(TEXTS)
        places.append(np.corrcoef(order, np.arange(len(TEXTS)))[0, 1])
    assert abs(np.mean(places)) < 5 / np.sqrt(60 * len(TEXTS))
    assert np.std(places) < 3 / np.sqrt(len(TEXTS))


def test_parts_of_a_pair_are_told_apart() -> None:
    one, other = (("ab", "c"),), (("a", "bc"),)
    assert Order(SECRET, "x")._rank(one[0]) != Order(SECRET, "x")._rank(other[0])


def test_each_epoch_has_a_generator_of_its_own() -> None:
    order = Order(SECRET, "run/1")
    draws = [order.generator(epoch).integers(2**60) for epoch in (0, 1, 0)]
    assert draws[0] == draws[2] != draws[1]
