"""Exact nearest neighbours in an embedding table, at the speed of inexact ones.

The answer is that of a float64 brute-force search, proved query by query: a coarse product in the
processor's fastest element type ranks all candidates, those of the best few that can be nearest are
measured in float64, and a bound on the coarse error shows that no other can be nearer. Where the bound does not
show it, the query is searched again more widely, in the end without any shortcut.

The search never looks at the token that a query was made from: there is no early exit and no cache
of a token's own row. So whatever it returns is post-processing of the noisy vector.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Final, NamedTuple

import numpy as np
import torch
from torch import Tensor

from cutlayer.core import ConfigError
from cutlayer.privacy.mechanisms import round_to_lattice

QUERY_BLOCK: Final = 2048
"""Queries per product: with fewer, bf16 products reach half their speed."""
COARSE_BYTES: Final = 128 * 2**20
"""Size of one block of coarse scores; larger vocabularies are searched block by block."""
EXACT_ELEMENTS: Final = 2**18
"""float64 numbers gathered at a time for the exact measurement: 2 MiB stay in a core's cache."""
WIDTHS: Final = (8, 64)
"""Candidates that may be measured exactly at the first attempt, and at the wider ones."""
_GROUP: Final = 32
"""Candidates of which only the best is looked at, until its group is among the best."""
_DEPTH: Final = 32
"""Products' inner length is a multiple of this; matrix units take a fifth longer for ragged ones."""
_BUILD_ROWS: Final = 4096
_CACHE_LINE: Final = 64
_BF16_FEATURES: Final = ("amx_bf16", "avx512_bf16", "bf16")
"""Instructions for bf16 products, by torch's names; the last is ARM's."""
_OUT_OF_REACH: Final = -3e38
_FLUSHED: Final = 2.0**-125


class _Coarse(NamedTuple):
    """An element type for coarse products.

    Attributes:
        parts: How many rounded numbers stand for ‖row‖² / 2.
        summation: Relative error of one addition of the product's sums; twice the unit roundoff,
            which covers processors that truncate.
        output: Relative error of the result's last rounding, against the rounded result.
    """

    parts: int
    summation: float
    output: float


_TYPES: Final = {
    torch.bfloat16: _Coarse(parts=3, summation=2.0**-23, output=2.0**-8 * (1 + 2.0**-6)),
    torch.float32: _Coarse(parts=2, summation=2.0**-23, output=0.0),
    torch.float64: _Coarse(parts=1, summation=2.0**-52, output=0.0),
}


@dataclass
class SearchCounts:
    """How often the proof held at first sight.

    Attributes:
        queries: All queries so far.
        widened: Those that needed the second, wider attempt.
        double: Those that needed a product in float64.
        brute: Those that were measured against every candidate: there were more candidates at the
            same distance than the widest attempt holds.
    """

    queries: int = 0
    widened: int = 0
    double: int = 0
    brute: int = 0


@dataclass
class _Errors:
    """The table's share of the bound: the largest of each over all candidates so far."""

    residual: float = 0.0
    """‖row - rounded row‖"""
    norm: float = 0.0
    """‖rounded row‖"""
    half: float = 0.0
    """|‖row‖² / 2 - sum of its parts|"""
    half_size: float = 0.0
    """Sum of the parts' absolute values."""

    def include(self, other: _Errors) -> None:
        for name, value in vars(other).items():
            setattr(self, name, max(getattr(self, name), value))


class _Block(NamedTuple):
    """Candidates `start` and following, as the right side of a product.

    `matrix` is `[at least width + parts, columns]`: the centred rows transposed and rounded, below
    them the parts of -‖row‖² / 2, and zeros. Columns behind the last candidate are out of reach.
    """

    start: int
    matrix: Tensor
    errors: _Errors


class NeighbourSearch:
    """Finds for each query the candidate row at the smallest Euclidean distance.

    **Bound.** Let c be a point near the centre of the candidates, x = query - c, r = row - c and
    h = ‖r‖² / 2: the nearest row has the largest score s = x·r - h. The coarse score is made of x̂,
    r̂ and the parts ĥ of h, rounded to the coarse type, summed in fp32 in any order, and rounded:

        |s - coarse| ≤ ‖x‖ max‖r - r̂‖ + ‖x - x̂‖ max‖r̂‖ + max|h - Σĥ|      rounded inputs
                       + γ (‖x̂‖ max‖r̂‖ + max Σ|ĥ|)                          summation
                       + K 2^-125 (1 + ‖x̂‖ + max‖r̂‖)                        flushed subnormals
                       + υ |coarse|                                          rounded output

    by Cauchy-Schwarz, with γ = (K + 8) 2^-23 for K products (twice the worst case of fp32) and
    υ = 2^-8 (1 + 2^-6) for bf16, 0 otherwise. The norms are those of this table and this query,
    computed in float64. So if the best exact score lies above the best coarse score that was not
    measured plus this bound, no other row is nearer, or as near.

    Equal rows count once, under their lowest id; of several rows at exactly the same distance the
    lowest id is returned. So the answer does not depend on blocks, threads or element type.

    Memory: the table (not copied), one copy of the candidates in the coarse type, and blocks of
    fixed size, whatever the number of queries.

    Args:
        table: `[vocabulary, width]`, floating.
        candidates: `[vocabulary]` bool, public: which rows may be returned.
        coarse: Element type of the coarse product, bf16 or fp32; `None` picks bf16 where this
            processor has instructions for it.

    Raises:
        ConfigError: Wrong shapes, no candidate, or a row that is not finite.
    """

    def __init__(self, table: Tensor, candidates: Tensor, *, coarse: torch.dtype | None = None) -> None:
        if table.dim() != 2 or not table.is_floating_point() or candidates.shape != table.shape[:1]:
            raise ConfigError(
                f"A search needs a floating table [vocabulary, width] and candidates [vocabulary], not {table.dtype}"
                f"{list(table.shape)} and {list(candidates.shape)}.",
                remedy="Give the model's token-embedding table and its list of candidates.",
            )
        self.table = table
        self.candidates = _first_of_equals(table, candidates.nonzero().flatten())
        """Ids of the rows that can be returned, ascending."""
        if not len(self.candidates):
            raise ConfigError("There is no candidate to search.", remedy="Allow at least one row of the table.")
        self.coarse = coarse or (torch.bfloat16 if bf16_serves() else torch.float32)
        self.counts = SearchCounts()
        self._centre = self._near_centre()
        self._blocks: list[_Block] = []

    def nearest(self, queries: Tensor) -> Tensor:
        """Ids of the nearest candidates.

        Args:
            queries: `[queries, width]` float64.

        Returns:
            `[queries]` int64.

        Raises:
            ConfigError: Queries of another shape or type, or not finite.
        """
        if queries.dtype != torch.float64 or queries.dim() != 2 or queries.shape[1] != self.table.shape[1]:
            raise ConfigError(
                f"Queries must be float64 [queries, {self.table.shape[1]}], not {queries.dtype}{list(queries.shape)}."
            )
        if len(queries) and not bool(torch.stack(queries.aminmax()).isfinite().all()):
            raise ConfigError("There are queries that are not finite.")
        if self.coarse is torch.float32:
            _require_full_precision()
        if not self._blocks:
            self._blocks = list(self._build(self.coarse))
        self.counts.queries += len(queries)
        found, proved = self._attempt(queries, self.coarse, WIDTHS[0])
        for dtype in (self.coarse, torch.float64):
            pending = (~proved).nonzero().flatten()
            if not len(pending):
                break
            if dtype == self.coarse:
                self.counts.widened += len(pending)
            else:
                self.counts.double += len(pending)
            found[pending], proved[pending] = self._attempt(queries[pending], dtype, WIDTHS[1])
        for i in (~proved).nonzero().flatten().tolist():
            self.counts.brute += 1
            found[i] = self._brute(queries[i])
        return self.candidates[found]

    # ------------------------------------------------------------ one attempt

    def _attempt(self, queries: Tensor, dtype: torch.dtype, width: int) -> tuple[Tensor, Tensor]:
        """Positions `[n]` of the nearest candidates, and whether each is proved `[n]`."""
        values = torch.full((len(queries), width + 1), -torch.inf, dtype=torch.float64)
        index = torch.zeros((len(queries), width + 1), dtype=torch.int64)
        errors = _Errors()
        scratch = torch.empty(0, dtype=dtype)
        # a float64 copy is not kept: it is needed about never, and then for a few queries
        for block in self._blocks if dtype == self.coarse else self._build(dtype):
            errors.include(block.errors)
            rows, columns = min(len(queries), QUERY_BLOCK), block.matrix.shape[1]
            if scratch.numel() < rows * columns:
                scratch = _huge_pages(rows * columns, dtype)
            scores = scratch[: rows * columns].view(rows, columns)
            for start in range(0, len(queries), QUERY_BLOCK):
                part = slice(start, start + QUERY_BLOCK)
                some = queries[part]
                left = torch.ones((len(some), len(block.matrix)), dtype=dtype)
                left[:, : queries.shape[1]] = some - self._centre
                ranked, found_at = _rank(torch.mm(left, block.matrix, out=scores[: len(left)]), width)
                values[part], chosen = torch.cat([values[part], ranked.double()], 1).topk(width + 1)
                index[part] = torch.cat([index[part], found_at + block.start], 1).gather(1, chosen)
        # columns behind the last candidate: any candidate may stand in for them
        index.clamp_(max=len(self.candidates) - 1)

        found, proved = index[:, 0].clone(), torch.empty(len(queries), dtype=torch.bool)
        step = max(1, EXACT_ELEMENTS // queries.shape[1])
        for start in range(0, len(queries), step):
            part = slice(start, start + step)
            centred = queries[part] - self._centre
            # [width + 1, queries]: no candidate's exact score is above it
            most = values[part].T + self._bound(centred, values[part].T, errors, dtype)
            measured = torch.full((width, len(centred)), -torch.inf, dtype=torch.float64)
            measured[0] = self._exact(centred, index[part, 0])
            # one that cannot reach the first one's exact score need not be measured
            place, query = (most[1:width] >= measured[0]).nonzero(as_tuple=True)
            for at, whose in zip(place.split(step), query.split(step), strict=True):
                measured[at + 1, whose] = self._exact(centred[whose], index[part].T[at + 1, whose])
            best = measured.amax(0)
            found[part] = index[part, :width].T.where(measured == best, len(self.candidates)).amin(0)
            proved[part] = best > most[width]
        return found, proved

    def _bound(self, centred: Tensor, coarse: Tensor, errors: _Errors, dtype: torch.dtype) -> Tensor:
        """The class docstring's bound on |exact - coarse|, for queries `[n, width]` and scores `[..., n]`."""
        kind = _TYPES[dtype]
        rounded = centred.to(dtype).double()
        size = rounded.norm(dim=1)
        products = centred.shape[1] + kind.parts
        bound: Tensor = (
            centred.norm(dim=1) * errors.residual
            + (centred - rounded).norm(dim=1) * errors.norm
            + errors.half
            + (products + 8) * kind.summation * (size * errors.norm + errors.half_size)
            + products * _FLUSHED * (1 + size + errors.norm)
            + kind.output * coarse.abs()
        )
        return bound

    def _exact(self, centred: Tensor, index: Tensor) -> Tensor:
        """Scores x·r - ‖r‖² / 2 in float64, `[n]`, of candidates `index` `[n]` for queries `[n, width]` or one query.

        Each is summed by itself and in the same order, so that it does not depend on the others.
        """
        rows = self.table[self.candidates[index]] - self._centre
        return rows.mul_(torch.add(centred, rows, alpha=-0.5)).sum(1)

    def _brute(self, query: Tensor) -> int:
        """Index of the nearest candidate by measuring all of them; of equals, the first."""
        centred = (query - self._centre)[None]
        best, found = -torch.inf, 0
        for index in torch.split(torch.arange(len(self.candidates)), _BUILD_ROWS):
            score, position = self._exact(centred, index).max(0)
            if float(score) > best:
                best, found = float(score), int(index[position])
        return found

    # ------------------------------------------------------------ the table's side

    def _near_centre(self) -> Tensor:
        """The candidates' mean on the lattice, so that subtracting it is exact; it makes the bound tight."""
        total = torch.zeros(self.table.shape[1], dtype=torch.float64)
        for ids in torch.split(self.candidates, _BUILD_ROWS):
            rows = self.table[ids].double()
            if not bool(torch.isfinite(rows).all()):
                raise ConfigError("The embedding table has values that are not finite.", remedy="Load the model again.")
            total += rows.sum(0)
        return round_to_lattice(total / len(self.candidates))

    def _build(self, dtype: torch.dtype) -> Iterator[_Block]:
        """The candidates in blocks, rounded to `dtype`."""
        kind, width = _TYPES[dtype], self.table.shape[1]
        most = max(_GROUP * (WIDTHS[1] + 1), COARSE_BYTES // (QUERY_BLOCK * dtype.itemsize) // _GROUP * _GROUP)
        for start in range(0, len(self.candidates), most):
            ids = self.candidates[start : start + most]
            columns = -(-max(len(ids), WIDTHS[1] + 1) // _GROUP) * _GROUP
            matrix = torch.zeros((-(-(width + kind.parts) // _DEPTH) * _DEPTH, columns), dtype=dtype)
            matrix[width, len(ids) :] = _OUT_OF_REACH
            errors = _Errors()
            for offset in range(0, len(ids), _BUILD_ROWS):
                rows = self.table[ids[offset : offset + _BUILD_ROWS]] - self._centre
                rounded = rows.to(dtype)
                rest = -rows.square().sum(1) / 2
                parts = []
                for _ in range(kind.parts):
                    parts.append(rest.to(dtype))
                    rest = rest - parts[-1].double()
                errors.include(
                    _Errors(
                        residual=float((rows - rounded.double()).norm(dim=1).max()),
                        norm=float(rounded.double().norm(dim=1).max()),
                        half=float(rest.abs().max()),
                        half_size=float(torch.stack(parts).double().abs().sum(0).max()),
                    )
                )
                below = torch.cat([rounded.T, torch.stack(parts)])
                matrix[: len(below), offset : offset + len(rows)] = below
            yield _Block(start, matrix, errors)


def _huge_pages(count: int, dtype: torch.dtype) -> Tensor:
    """`[count]`, not initialised: numpy asks for huge pages. A first write to small ones costs as much as a product.

    It begins where a cache line does, which numpy's own begin need not.
    """
    raw = torch.from_numpy(np.empty(count * dtype.itemsize + _CACHE_LINE, dtype=np.uint8))
    start = -raw.data_ptr() % _CACHE_LINE
    return raw[start : start + count * dtype.itemsize].view(dtype)


def _rank(scores: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """The `width` + 1 largest scores of each row, descending, and their columns.

    Exactly those of a full sort: the best n columns lie in the n groups with the best peaks.
    """
    queries, columns = scores.shape
    group = _GROUP if columns >= _GROUP * (width + 1) else 1
    groups = columns // group
    best = _best_groups(scores.view(queries, group, groups), width + 1)
    members = (best[:, :, None] + torch.arange(0, columns, groups)).flatten(1)
    values, chosen = scores.gather(1, members).topk(width + 1)
    return values, members.gather(1, chosen)


def _best_groups(scores: Tensor, n: int) -> Tensor:
    """The `n` groups with the largest peaks, for scores `[queries, group, groups]`.

    Bits of bf16 numbers that are not negative are ordered as int16 as well, in which a maximum is
    several times as fast; negative ones come below all of them, though in reversed order. So the
    answer is right wherever the n-th peak is not negative, and is found anew elsewhere.
    """
    if scores.dtype != torch.bfloat16:
        return scores.amax(1).topk(n, sorted=False).indices
    peaks, best = scores.view(torch.int16).amax(1).view(torch.bfloat16).topk(n, sorted=False)
    unclear = (peaks < 0).any(1).nonzero().flatten()
    if len(unclear):
        best[unclear] = scores[unclear].amax(1).topk(n, sorted=False).indices
    return best


def _first_of_equals(table: Tensor, ids: Tensor) -> Tensor:
    """`ids` without those whose row equals that of a lower id."""
    if not len(ids):
        return ids
    # rows hashed with integers, whose sums are exact in any order: equal rows have equal hashes wherever they stand
    factors = torch.frombuffer(bytearray(hashlib.shake_128(b"rows").digest(8 * table.shape[1])), dtype=torch.int64)
    hashes = []
    for some in torch.split(ids, _BUILD_ROWS):
        bits = (table[some].double() + 0.0).view(torch.int64)  # + 0.0 makes -0.0 and 0.0 the same bits
        hashes.append(((bits ^ (bits >> 32)) * factors).sum(1))
    _, group = torch.unique(torch.cat(hashes), return_inverse=True)
    first = torch.full((int(group.max()) + 1,), len(ids)).scatter_reduce(0, group, torch.arange(len(ids)), "amin")[
        group
    ]
    repeated = (first != torch.arange(len(ids))).nonzero().flatten()
    keep = torch.ones(len(ids), dtype=torch.bool)
    for some in torch.split(repeated, _BUILD_ROWS):
        keep[some] = (table[ids[some]] != table[ids[first[some]]]).any(1)
    return ids[keep]


def _require_full_precision() -> None:
    if (precision := torch.get_float32_matmul_precision()) != "highest":
        raise ConfigError(
            f"torch's fp32 products are set to {precision!r} precision, for which the search's bound does not hold.",
            remedy='Call torch.set_float32_matmul_precision("highest").',
        )


@cache
def bf16_serves() -> bool:
    """Whether bf16 products pay and can be trusted here; the same in every process of a machine.

    They pay where the processor has instructions for them: with AVX512-BF16 they were measured to be 2.2 times as fast
    as fp32, with AMX 2 to 5 times. That is asked and not timed: beside another busy program a timing tells of that
    program, and its answer would hold for the whole run.

    They can be trusted where their sums are kept in fp32, which the search's bound relies on: a processor or library
    that rounds sums on the way shows in a product whose exact result is known.
    """
    # A torch that cannot say leaves the choice to fp32, which is slower and as exact.
    features: Mapping[str, object] = getattr(torch.cpu, "get_capabilities", dict)()
    if not any(features.get(name, False) for name in _BF16_FEATURES):
        return False
    # all positive times half positive, half negative: sums that grow large and cancel, whatever their order
    left = torch.arange(1024 * 384).sin().div(2).add(1).view(1024, 384).bfloat16()
    right = torch.arange(384 * 4096).cos().div(2).add(1).view(384, 4096).bfloat16()
    right[192:] *= -1
    result = torch.mm(left, right)
    some = left[:32].double()
    exact, coarse, kind = some @ right.double(), result[:32].double(), _TYPES[torch.bfloat16]
    sizes = some.norm(dim=1, keepdim=True) * right.double().norm(dim=0)
    trusted = (coarse - exact).abs() <= (384 + 8) * kind.summation * sizes + kind.output * coarse.abs()
    return bool(trusted.all())
