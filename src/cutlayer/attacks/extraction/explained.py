"""How much of the variance of rows a student's rows explain."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from cutlayer.attacks.evaluation.statistics import resampled
from cutlayer.attacks.extraction.exchanged import Exchanged
from cutlayer.attacks.extraction.windows import spread_of


@dataclass(frozen=True)
class Explained:
    """The share of variance that is explained: 1 - errors / spreads.

    Attributes:
        errors: `[texts]` float64, squared distances from true rows, each coordinate in units of its spread, summed over
            a text's rows.
        spreads: `[texts]` float64, the same of the true rows from their mean.
    """

    errors: Tensor
    spreads: Tensor

    @property
    def value(self) -> float:
        """Over all texts; negative where rows are farther off than the mean row."""
        return 1 - float(self.errors.sum() / self.spreads.sum())

    @property
    def interval(self) -> tuple[float, float]:
        """95 % over resampled texts."""
        low, high = resampled(self.errors, self.spreads)
        return 1 - high, 1 - low

    @property
    def standard_error(self) -> float:
        """The ratio estimator's, over texts; see `statistics.clustered`."""
        m, total = len(self.errors), float(self.spreads.sum())
        if m < 2:
            return math.inf
        off = self.errors - (1 - self.value) * self.spreads
        return math.sqrt(m / (m - 1) * float(off.square().sum())) / total


def explained_by(rows: Tensor, compared: Exchanged, learnt: Exchanged) -> Explained:
    """How much of the variance of compared texts' rows out is explained, in units of spreads that were learnt.

    Args:
        rows: `[rows, width]`, a student's, for all rows of the compared texts.
        compared: Texts that it has not seen.
        learnt: Texts that it was taught on.
    """
    known = learnt.returned.packed.values.float()
    centre, spread = known.mean(0), spread_of(known)
    true = compared.returned.packed.values
    errors, spreads = (
        compared.per_text((off.float() / spread).double().square().sum(1)) for off in (rows - true, true - centre)
    )
    return Explained(errors, spreads)
