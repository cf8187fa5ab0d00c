from __future__ import annotations

import numpy as np
import pytest
import torch

from cutlayer.privacy import LATTICE
from cutlayer.privacy.neighbours import NeighbourSearch
from cutlayer.privacy.replacement import noisy_rows, replacements

TABLE = torch.randn(200, 12, generator=torch.Generator().manual_seed(1))
CANDIDATES = torch.arange(200) % 3 > 0
IDS = torch.randint(200, (500,), generator=torch.Generator().manual_seed(2))
NOISE = np.random.Generator(np.random.PCG64(3)).normal(size=(500, 12))


@pytest.mark.parametrize("on_lattice", [True, False])
def test_the_nearest_candidate_to_each_noisy_row(on_lattice):
    noise, table = NOISE.copy(), TABLE.clone()
    found = replacements(IDS, noise, NeighbourSearch(table, CANDIDATES), on_lattice=on_lattice)
    rows = TABLE[IDS].double().numpy() + NOISE
    if on_lattice:
        rows = np.round(rows / LATTICE) * LATTICE
    away = ((rows[:, None] - TABLE.double().numpy()) ** 2).sum(-1)
    away[:, ~CANDIDATES.numpy()] = np.inf
    assert found.tolist() == away.argmin(1).tolist()
    assert np.array_equal(noise, NOISE)
    assert torch.equal(table, TABLE)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_sums_are_of_float64_and_on_the_lattice_where_they_leave(dtype):
    rows = TABLE[IDS].to(dtype)
    exact = rows.double().numpy() + NOISE
    kept = noisy_rows(rows, NOISE, on_lattice=False)
    assert kept.dtype is torch.float64
    assert np.array_equal(kept.numpy(), exact)
    sent = noisy_rows(rows, torch.from_numpy(NOISE))
    assert np.array_equal(sent.numpy(), np.round(exact / LATTICE) * LATTICE)
    assert torch.equal(rows, TABLE[IDS].to(dtype))


def test_no_token_is_replaced_by_none():
    search = NeighbourSearch(TABLE, CANDIDATES)
    assert replacements(IDS[:0], NOISE[:0], search).tolist() == []
