"""Exact nearest neighbours in an embedding table, at the speed of inexact ones.

The answer is that of a float64 brute-force search: a coarse product in the processor's fastest element type scores all
candidates, and a bound on its error says which of them can be nearest. Those are measured in float64, and no other can
be as near. Where they are too many, the query is searched again by products in float64, whose bound excludes about all
but ties.

The search never looks at the token that a query was made from: there is no early exit and no cache
of a token's own row. So whatever it returns is post-processing of the noisy vector.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Final, NamedTuple

import numpy as np
import torch
from torch import Tensor

from cutlayer.core import ConfigError
from cutlayer.privacy.equal_rows import first_of_equals
from cutlayer.privacy.mechanisms import round_to_lattice

QUERY_BLOCK: Final = 2048
"""Queries per product: with fewer, bf16 products reach half their speed."""
COARSE_BYTES: Final = 128 * 2**20
"""Size of one block of coarse scores; larger vocabularies are searched block by block."""
EXACT_ELEMENTS: Final = 2**18
"""float64 numbers gathered at a time for the exact measurement: 2 MiB stay in a core's cache."""
MEASURED: Final = 64
"""Candidates of a block that are measured exactly for a query after a coarse product; if more can be nearest, a float64
product leaves fewer."""
_DOUBLE_QUERIES: Final = 64
"""Queries per product in float64, of which any number of candidates may be measured."""
_GROUP: Final = 32
"""Candidates of which only the best is looked at, unless that can be nearest."""
_DEPTH: Final = 32
"""Products' inner length is a multiple of this; matrix units take a fifth longer for ragged ones."""
_BUILD_ROWS: Final = 4096
_CACHE_LINE: Final = 64
_BF16_FEATURES: Final = ("amx_bf16", "avx512_bf16", "bf16")
"""Instructions for bf16 products, by torch's names; the last is ARM's."""
_OUT_OF_REACH: Final = -3e38
_LARGEST: Final = 1e38
"""What sums of a coarse product may come to: well inside fp32's range."""
_FARTHEST: Final = 1e150
"""What a query's components may come to, so that float64 products are finite."""
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
    """How often coarse products sufficed.

    Attributes:
        queries: All queries so far.
        double: Those that needed products in float64.
    """

    queries: int = 0
    double: int = 0


@dataclass
class _Errors:
    """The block's share of the bound: the largest of each over its candidates."""

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


class _Nearest(NamedTuple):
    """The nearest candidates so far.

    Attributes:
        score: `[n]` float64, exact.
        position: `[n]` int64, among candidates.
        unclear: `[n]` bool, queries of which too many candidates can be nearest.
    """

    score: Tensor
    position: Tensor
    unclear: Tensor

    @classmethod
    def of_none(cls, queries: int) -> _Nearest:
        """Before any candidate was measured."""
        return cls(
            torch.full((queries,), -torch.inf, dtype=torch.float64),
            torch.zeros(queries, dtype=torch.int64),
            torch.zeros(queries, dtype=torch.bool),
        )

    def part(self, part: slice) -> _Nearest:
        """Some of them, as views."""
        return _Nearest(*(each[part] for each in self))


class _Block(NamedTuple):
    """Candidates from `start` up to `stop`, all of one group, as the right side of a product.

    `matrix` is `[at least width + parts, columns]`: the centred rows transposed and rounded, below
    them the parts of -‖row‖² / 2, and zeros. Columns behind the last candidate are out of reach.
    """

    start: int
    stop: int
    group: int
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
    computed in float64. So a row whose coarse score plus this bound lies below any exact score is not
    the nearest; the candidate with the best coarse score is measured first, then all that this leaves.

    Equal rows count once, under their lowest id; of several rows at exactly the same distance the
    lowest id is returned. So the answer does not depend on blocks, threads or element type.

    A query is answered from its own group: a block's candidates are of one, and meet the queries of that group alone.

    Memory: the table (not copied), one copy of the candidates in the coarse type, and blocks of
    fixed size, whatever the number of queries.

    Args:
        table: `[vocabulary, width]`, floating.
        candidates: `[vocabulary]` bool, public: which rows may be returned.
        groups: `[vocabulary]` int64, the group of each row; `None` where all candidates are of one.
        coarse: Element type of the coarse product, bf16 or fp32; `None` picks bf16 where this
            processor has instructions for it.

    Raises:
        ConfigError: Wrong shapes, no candidate, or a row that is not finite.
    """

    def __init__(
        self,
        table: Tensor,
        candidates: Tensor,
        *,
        groups: Tensor | None = None,
        coarse: torch.dtype | None = None,
    ) -> None:
        if table.dim() != 2 or not table.is_floating_point() or candidates.shape != table.shape[:1]:
            raise ConfigError(
                f"A search needs a floating table [vocabulary, width] and candidates [vocabulary], not {table.dtype}"
                f"{list(table.shape)} and {list(candidates.shape)}.",
                remedy="Give the model's token-embedding table and its list of candidates.",
            )
        self.table = table
        self.groups = groups
        ids = candidates.nonzero().flatten()
        group = torch.zeros_like(ids) if groups is None else groups[ids]
        numbers = group.unique().tolist()
        of_groups = [first_of_equals(table, ids[group == number]) for number in numbers]
        self.candidates = torch.cat([ids[:0], *of_groups])
        """Ids of the rows that can be returned, group by group, ascending in each."""
        self._groups = dict(zip(numbers, _ranges(torch.tensor([len(own) for own in of_groups])), strict=True))
        if not len(self.candidates):
            raise ConfigError("There is no candidate to search.", remedy="Allow at least one row of the table.")
        self.coarse = coarse or (torch.bfloat16 if bf16_serves() else torch.float32)
        self.counts = SearchCounts()
        self._centre = self._near_centre()
        self._blocks: list[_Block] = []

    def nearest(self, queries: Tensor, groups: Tensor | None = None) -> Tensor:
        """Ids of the nearest candidates.

        Args:
            queries: `[queries, width]` float64.
            groups: `[queries]` int64, of which group each one's answer is to be; `None` for that of any.

        Returns:
            `[queries]` int64.

        Raises:
            ConfigError: Queries of another shape or type, or with components that are not finite or beyond
                `_FARTHEST`; or a group without a candidate.
        """
        if queries.dtype != torch.float64 or queries.dim() != 2 or queries.shape[1] != self.table.shape[1]:
            raise ConfigError(
                f"Queries must be float64 [queries, {self.table.shape[1]}], not {queries.dtype}{list(queries.shape)}."
            )
        if len(queries) and not bool((torch.stack(queries.aminmax()).abs() <= _FARTHEST).all()):
            raise ConfigError(f"There are queries that are not finite, or beyond {_FARTHEST:g}.")
        if self.coarse is torch.float32:
            _require_full_precision()
        if not self._blocks:
            self._blocks = list(self._build(self.coarse))
        self.counts.queries += len(queries)
        if groups is None:
            return self.candidates[self._nearest(queries, dict.fromkeys(self._groups, range(len(queries))))]
        in_order, order = groups.sort(stable=True)
        asked, counts = in_order.unique_consecutive(return_counts=True)
        if missing := set(asked.tolist()) - self._groups.keys():
            raise ConfigError(f"There is no candidate of group {min(missing)}.")
        found = torch.empty_like(order)
        found[order] = self._nearest(queries[order], dict(zip(asked.tolist(), _ranges(counts), strict=True)))
        return self.candidates[found]

    def _nearest(self, queries: Tensor, parts: Mapping[int, range]) -> Tensor:
        """Positions `[n]` of the nearest candidates, for queries group by group."""
        found, unclear = self._search(queries, self.coarse, self._blocks, parts)
        again = unclear.nonzero().flatten()
        if len(again):
            self.counts.double += len(again)
            bounds = torch.tensor([(part.start, part.stop) for part in parts.values()])
            within = dict(
                zip(parts, (range(*each) for each in torch.searchsorted(again, bounds).tolist()), strict=True)
            )
            # a float64 copy is not kept: it is needed about never, and then for a few queries
            found[again], _ = self._search(queries[again], torch.float64, self._build(torch.float64), within)
        return found

    # ------------------------------------------------------------ one element type

    def _search(
        self, queries: Tensor, dtype: torch.dtype, blocks: Iterable[_Block], parts: Mapping[int, range]
    ) -> tuple[Tensor, Tensor]:
        """Positions `[n]` of the nearest candidates, and the queries `[n]` of which products in float64 must tell.

        Args:
            queries: `[n, width]`, group by group.
            dtype: Of the products.
            blocks: All candidates.
            parts: Which of the queries are of each group.
        """
        nearest = _Nearest.of_none(len(queries))
        at_once = _DOUBLE_QUERIES if dtype is torch.float64 else QUERY_BLOCK
        scratch = torch.empty(0, dtype=dtype)
        for block in blocks:
            asked = parts.get(block.group, range(0))
            most, columns = min(len(asked), at_once), block.matrix.shape[1]
            if scratch.numel() < most * columns:
                scratch = _huge_pages(most * columns, dtype)
            scores = scratch[: most * columns].view(most, columns)
            for start in range(asked.start, asked.stop, at_once):
                part = slice(start, min(start + at_once, asked.stop))
                some, found = queries[part], nearest.part(part)
                left = torch.ones((len(some), len(block.matrix)), dtype=dtype)
                bound = torch.empty(len(some), dtype=torch.float64)
                for rows in self._steps(len(some)):
                    centred = some[rows] - self._centre
                    left[rows, : centred.shape[1]] = centred
                    bound[rows] = self._bound(centred, left[rows, : centred.shape[1]], block.errors)
                torch.mm(left, block.matrix, out=scores[: len(left)])
                self._measure(some, scores[: len(left)], bound, range(block.start, block.stop), found)
        return nearest.position, nearest.unclear

    def _measure(self, some: Tensor, scores: Tensor, bound: Tensor, block: range, nearest: _Nearest) -> None:
        """Measures those candidates of a block that can be nearest.

        Args:
            some: `[n, width]` float64, queries.
            scores: `[n, columns]`, coarse ones.
            bound: `[n]`, see `_bound`.
            block: The candidates' positions.
            nearest: What was found so far; changed.
        """
        queries, groups = len(scores), scores.shape[1] // _GROUP
        grouped = scores.view(queries, _GROUP, groups)
        peaks = _ordered(grouped).amax(1)
        best, group = peaks.max(1)
        if len(below := (best < 0).nonzero().flatten()):
            group[below] = grouped[below].amax(1).max(1).indices
        everyone = torch.arange(queries)
        first = grouped[everyone, :, group].argmax(1) * groups + group
        self._include(some, everyone, first, block, nearest)

        # the smallest coarse score that a row can have which is as near as the nearest one so far
        output, gap = _TYPES[scores.dtype].output, nearest.score - bound
        least = torch.where(gap < 0, gap / (1 - output), gap / (1 + output)).to(scores.dtype)
        hit = peaks >= _ordered(least)[:, None]
        if len(below := (least <= 0).nonzero().flatten()):
            hit[below] = grouped[below].amax(1) >= least[below, None]
        query, group = hit.nonzero(as_tuple=True)
        if scores.dtype is not torch.float64:
            nearest.unclear.logical_or_(bound.isinf() | _many(query, queries))
            few = ~nearest.unclear[query]
            query, group = query[few], group[few]
        place, member = (grouped[query, :, group] >= least[query, None]).nonzero(as_tuple=True)
        query, column = query[place], member * groups + group[place]
        if scores.dtype is not torch.float64:
            nearest.unclear.logical_or_(_many(query, queries))
        rest = (column != first[query]) & ~nearest.unclear[query]
        self._include(some, query[rest], column[rest], block, nearest)

    def _include(self, some: Tensor, query: Tensor, column: Tensor, block: range, nearest: _Nearest) -> None:
        """Measures candidates `column` `[m]` of a block for queries `some[query]`; of equals the lowest one counts."""
        # columns behind the block's last candidate: any of its candidates may stand in for them
        position = (column + block.start).clamp_(max=block.stop - 1)
        measured = torch.empty(len(query), dtype=torch.float64)
        for rows in self._steps(len(query)):
            measured[rows] = self._exact(some[query[rows]].sub_(self._centre), position[rows])
        score = nearest.score.scatter_reduce(0, query, measured, "amax")
        nearest.position[score > nearest.score] = len(self.candidates)
        nearest.score.copy_(score)
        best = measured == score[query]
        nearest.position.scatter_reduce_(0, query[best], position[best], "amin")

    def _steps(self, count: int) -> Iterator[slice]:
        """Rows of the table's width, so many at a time that they stay in a core's cache."""
        step = max(1, EXACT_ELEMENTS // self.table.shape[1])
        return (slice(start, start + step) for start in range(0, count, step))

    def _bound(self, centred: Tensor, rounded: Tensor, errors: _Errors) -> Tensor:
        """The class docstring's bound on |exact - coarse|, without the rounded output.

        Args:
            centred: `[n, width]` float64, queries.
            rounded: The same in the coarse type.
            errors: Of the block.

        Returns:
            `[n]` float64; infinite, so that any candidate can be nearest, where sums may leave fp32's range.
        """
        kind, products = _TYPES[rounded.dtype], centred.shape[1] + _TYPES[rounded.dtype].parts
        as_double = rounded.double()
        size = as_double.norm(dim=1)
        bound: Tensor = (
            centred.norm(dim=1) * errors.residual
            + (centred - as_double).norm(dim=1) * errors.norm
            + errors.half
            + (products + 8) * kind.summation * (size * errors.norm + errors.half_size)
            + products * _FLUSHED * (1 + size + errors.norm)
        )
        in_range = size * errors.norm + errors.half_size <= _LARGEST  # not so of a number that is none, either
        return bound.masked_fill_(~in_range, torch.inf)

    def _exact(self, centred: Tensor, index: Tensor) -> Tensor:
        """Scores x·r - ‖r‖² / 2 in float64, `[n]`, of candidates `index` `[n]` for queries `[n, width]` or one query.

        Each is summed by itself and in the same order, so that it does not depend on the others.
        """
        rows = self.table[self.candidates[index]] - self._centre
        return rows.mul_(torch.add(centred, rows, alpha=-0.5)).sum(1)

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
        most = max(_GROUP * MEASURED, COARSE_BYTES // (QUERY_BLOCK * dtype.itemsize) // _GROUP * _GROUP)
        for group, own in self._groups.items():
            for start in range(own.start, own.stop, most):
                stop = min(start + most, own.stop)
                matrix, errors = self._columns(self.candidates[start:stop], dtype)
                yield _Block(start, stop, group, matrix, errors)

    def _columns(self, ids: Tensor, dtype: torch.dtype) -> tuple[Tensor, _Errors]:
        """Candidates `[n]` as the right side of a product, and their share of the bound; see `_Block`."""
        kind, width = _TYPES[dtype], self.table.shape[1]
        columns = -(-len(ids) // _GROUP) * _GROUP
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
        return matrix, errors


def _ranges(counts: Tensor) -> Iterator[range]:
    """Consecutive ranges of these lengths, `[n]` int64."""
    stops = counts.cumsum(0).tolist()
    return (range(start, stop) for start, stop in zip([0, *stops], stops, strict=False))


def _huge_pages(count: int, dtype: torch.dtype) -> Tensor:
    """`[count]`, not initialised: numpy asks for huge pages. A first write to small ones costs as much as a product.

    It begins where a cache line does, which numpy's own begin need not.
    """
    raw = torch.from_numpy(np.empty(count * dtype.itemsize + _CACHE_LINE, dtype=np.uint8))
    start = -raw.data_ptr() % _CACHE_LINE
    return raw[start : start + count * dtype.itemsize].view(dtype)


def _many(query: Tensor, queries: int) -> Tensor:
    """Which queries `[queries]` stand in `query` more often than candidates are measured."""
    return torch.bincount(query, minlength=queries) > MEASURED


def _ordered(scores: Tensor) -> Tensor:
    """Scores of any shape as they are compared: bf16 numbers as int16, in which a maximum is several times as fast.

    Those that are not negative are in the same order then. Negative ones come below all of them, though in reversed
    order: among them the largest is not the best.
    """
    return scores.view(torch.int16) if scores.dtype is torch.bfloat16 else scores


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
