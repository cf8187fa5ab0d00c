"""A linear map from boundary rows to rows of the embedding table, and the token that each is nearest to.

With z the standardised features of a position and e_w the rows of the table, a ridge regression in closed form gives

    min over A, b:  mean ‖A z_t + b - e_{w_t}‖² + lambda ‖A‖²,

and the token is the nearest row of the table in distance or in angle. Written as scores g_w (A z + b) · e_w + c_w, both
are one form, which learning may start from (`sharpened`).

Ref: Hoerl and Kennard, "Ridge regression", Technometrics 12, 1970.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from cutlayer.core import ConfigError, DataError, Proportion

_SCORES = 2**24
"""Scores in memory at a time: 64 MiB."""
_ROWS = 8192
"""Rows that are turned into fp64 at a time."""
_CONSTANT = 1e-12
"""Share of a feature's mean square below which its variance is rounding."""


@dataclass(frozen=True)
class Trial:
    """How well a way of reading did on public text that it was not fitted on.

    Attributes:
        reading: `ridge` or `linear`.
        ridge: lambda of the closed form; where a learned reading started.
        distance: What its nearest row is nearest in; a learned reading began there.
        accuracy: The share of tokens read.
    """

    reading: Literal["ridge", "linear"]
    ridge: float
    distance: Literal["euclid", "cosine"]
    accuracy: Proportion


@dataclass(frozen=True)
class RowReader:
    """score[w] = (f(z) · e_w) gain[w] + bias[w], with z the standardised features and f(z) = z weight + offset.

    With gain 1 and bias -‖e_w‖² / 2 the best token is the nearest in distance; with gain 1 / ‖e_w‖ and
    bias 0 the nearest in angle.

    Attributes:
        mean: `[f]`, of each feature.
        scale: `[f]`, its standard deviation; 1 where it does not vary.
        weight: `[f, table_width]`.
        offset: `[table_width]`.
        gain: `[vocab]`.
        bias: `[vocab]`.
    """

    mean: Tensor
    scale: Tensor
    weight: Tensor
    offset: Tensor
    gain: Tensor
    bias: Tensor

    def rows(self, features: Tensor) -> Tensor:
        """f(z), `[n, table_width]`, for features `[n, f]`."""
        return (features - self.mean) / self.scale @ self.weight + self.offset

    def scores(self, features: Tensor, table: Tensor) -> Tensor:
        """Each token's score `[n, vocab]`, for features `[n, f]` and the table `[vocab, table_width]`."""
        return torch.addcmul(self.bias, self.rows(features) @ table.T, self.gain)


class Moments:
    """Sums from which the ridge regression follows, in fp64: text is added in pieces and not kept."""

    def __init__(self, table: Tensor) -> None:
        # Apple's GPUs have no fp64
        self._device = torch.device("cpu") if table.device.type == "mps" else table.device
        self.count = 0
        self._sums: list[Tensor] | None = None

    def add(self, features: Tensor, targets: Tensor) -> None:
        """Adds features `[n, f]` and their targets, rows of the table `[n, table_width]`."""
        for some, wanted in zip(features.split(_ROWS), targets.split(_ROWS), strict=True):
            x, y = some.to(self._device).double(), wanted.to(self._device).double()
            terms = [x.sum(0), y.sum(0), x.T @ x, x.T @ y]
            if self._sums is None:
                self._sums = terms
            else:
                for total, term in zip(self._sums, terms, strict=True):
                    total.add_(term)
            self.count += len(x)

    def solve(self, ridge: float, table: Tensor) -> dict[Literal["euclid", "cosine"], RowReader]:
        """The readers of a penalty: the normal equations (Z'Z / n + lambda I) A' = Z'E / n, centred.

        Args:
            ridge: lambda, per mean square of a standardised feature.
            table: `[vocab, table_width]`, whose nearest row is read.

        Raises:
            DataError: The boundary has values that are not finite.
        """
        if self._sums is None:
            raise ValueError("nothing was added")
        x, y, xx, xy = (total / self.count for total in self._sums)
        if not bool(xx.isfinite().all()):
            raise DataError(
                "The public text's boundary has values that are not finite.", remedy="Load the model again."
            )
        variance = xx.diagonal() - x.square()
        constant = variance <= _CONSTANT * xx.diagonal()
        scale = torch.where(constant, 1, variance).sqrt()
        correlation = (xx - torch.outer(x, x)) / torch.outer(scale, scale)
        cross = (xy - torch.outer(x, y)) / scale[:, None]
        correlation.diagonal().add_(ridge)
        weight = torch.cholesky_solve(cross, torch.linalg.cholesky(correlation))
        norms = table.norm(dim=1)
        ways: dict[Literal["euclid", "cosine"], tuple[Tensor, Tensor]] = {
            "euclid": (torch.ones_like(norms), -norms.square() / 2),
            # a row of zeros has no direction: its score is 0
            "cosine": (torch.where(norms > 0, 1 / norms, 0), torch.zeros_like(norms)),
        }
        mean, scale, weight, offset = (tensor.float().to(table.device) for tensor in (x, scale, weight, y))
        return {name: RowReader(mean, scale, weight, offset, gain, bias) for name, (gain, bias) in ways.items()}


def barrier_of(table: Tensor, candidates: Tensor | None) -> Tensor:
    """What is added to scores so that candidates alone are guessed.

    Args:
        table: `[vocab, table_width]`.
        candidates: `[vocab]` bool; `None` allows all.

    Returns:
        `[vocab]`, 0 for candidates and -inf for others.

    Raises:
        ConfigError: Candidates of another shape or type, or none at all.
    """
    allowed = torch.ones(len(table), dtype=torch.bool) if candidates is None else candidates
    if allowed.dtype != torch.bool or allowed.shape != table.shape[:1] or not bool(allowed.any()):
        raise ConfigError(
            f"The candidates are {allowed.dtype}{list(allowed.shape)} with {int(allowed.sum())} allowed; needed is a "
            f"bool for each of the table's {len(table)} rows and at least one candidate."
        )
    return torch.zeros(len(table), device=table.device).masked_fill(~allowed.to(table.device), -math.inf)


def best_tokens(reader: RowReader, features: Tensor, table: Tensor, barrier: Tensor, k: int) -> Tensor:
    """The k best candidates of each row.

    Args:
        reader: Scores them.
        features: `[n, f]`.
        table: `[vocab, table_width]`.
        barrier: `[vocab]`, as of `barrier_of`.
        k: How many.

    Returns:
        `[n, k]` int64, best first.
    """
    size = max(1, _SCORES // len(table))
    with torch.no_grad(), torch.autocast(table.device.type, enabled=False):
        return torch.cat([reader.scores(some, table).add_(barrier).topk(k).indices for some in features.split(size)])


def sharpened(reader: RowReader, chosen: Trial, residual: Tensor, table: Tensor) -> RowReader:
    """Where learning starts: the closed form's reading as log-probabilities, with the same best tokens.

    If a predicted row is e_w plus Gaussian noise of variance s² in each element, the logarithm of the
    likelihood of w is (x · e_w - ‖e_w‖² / 2) / s² up to a constant; for angles, rows are taken as if all
    were of the mean length. They are measured in units of their elements' standard deviation, so that
    one learning rate suits tables of any size.

    Args:
        reader: The closed form's.
        chosen: Which way of reading that is.
        residual: `[]`, mean square of an element of predicted rows less true ones.
        table: `[vocab, table_width]`.
    """
    unit = table.std()
    sharpness = 1 / residual.clamp(min=1e-4 * unit.square())
    if chosen.distance == "cosine":
        sharpness = sharpness * table.norm(dim=1).mean()
    return replace(
        reader,
        weight=reader.weight / unit,
        offset=reader.offset / unit,
        gain=reader.gain * unit * sharpness,
        bias=reader.bias * sharpness,
    )
