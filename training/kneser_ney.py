"""An n-gram language model with modified Kneser-Ney smoothing: what an embedded decoder is judged against.

Exact: no n-gram is pruned, no probability is rounded, and every distribution sums to 1 over the whole vocabulary.

Source: S. F. Chen and J. Goodman, An Empirical Study of Smoothing Techniques for Language Modeling, Technical Report
TR-10-98, Computer Science Group, Harvard University, 1998: section 2.7 on Kneser-Ney smoothing, and where the report
introduces its own algorithm, modified Kneser-Ney smoothing, with interpolation and three discounts for each order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
TokenIds = npt.NDArray[np.integer[Any]]


@dataclass(frozen=True, eq=False)
class Level:
    """The n-grams of one order; each is packed into one number, the first token in the highest place.

    With c the count of an n-gram, h its context (all but its last token w) and D the discount that belongs to c:

        p(w | h) = (c(h w) - D) / sum_v c(h v)  +  backoff(h) * p(w | h without its first token)

    Attributes:
        grams: The n-grams with a count, ascending.
        kept: For each n-gram the first summand.
        contexts: The contexts of these n-grams, ascending.
        backoff: For each context the share that discounting took away.
        discounts: D1, D2 and D3+, for counts of one, of two, and of three or more.
    """

    grams: Integers
    kept: Floats
    contexts: Integers
    backoff: Floats
    discounts: tuple[float, float, float]

    @classmethod
    def of(cls, grams: Integers, counts: Integers, *, vocabulary: int, order: int) -> Level:
        """The level for distinct ascending n-grams of this order and their (continuation) counts."""
        discounts = estimate_discounts(counts, order=order)
        histories = grams // vocabulary
        starts = np.flatnonzero(np.concatenate(([True], histories[1:] != histories[:-1])))
        totals = np.add.reduceat(counts, starts)
        taken = np.array([0.0, *discounts])[np.minimum(counts, 3)]
        kept = (counts - taken) / np.repeat(totals, np.diff(starts, append=len(grams)))
        return cls(grams, kept, histories[starts], np.add.reduceat(taken, starts) / totals, discounts)

    def interpolate(self, grams: Integers, lower: Floats, *, vocabulary: int) -> Floats:
        """The probability of each n-gram's last token, given its probability in a context one token shorter."""
        kept = _look_up(grams, self.grams, self.kept, missing=0.0)
        # A context that was never seen says nothing: all that the shorter context says is believed.
        return kept + _look_up(grams // vocabulary, self.contexts, self.backoff, missing=1.0) * lower


@dataclass(frozen=True, eq=False)
class KneserNey:
    """An interpolated n-gram model with modified Kneser-Ney smoothing, made by `KneserNey.fit`.

    The highest order counts how often an n-gram occurs. Every lower order counts after how many different tokens it
    occurs (its continuation count), for lower orders matter where the longer context was not seen. The lowest order is
    interpolated with the uniform distribution over the vocabulary, so that every id has a probability above 0.

    Attributes:
        vocabulary: How many ids there are: 0 up to, not including, this.
        levels: One for each order, that of single tokens first.
    """

    vocabulary: int
    levels: tuple[Level, ...]

    @classmethod
    def fit(cls, ids: TokenIds, *, vocabulary: int, order: int = 3) -> KneserNey:
        """Counts a text and estimates the discounts of every order from it.

        Args:
            ids: The text as one stream; n-grams cross whatever marks it holds.
            vocabulary: How many ids there are, whether or not the text has them all.
            order: The longest n-gram: 3 predicts a token from the two before it.

        Raises:
            ValueError: The ids are empty or outside the vocabulary, the order is below 1 or too high for this
                vocabulary (an n-gram is packed into 63 bits), or the text is too small to estimate discounts from.
        """
        if order < 1:
            raise ValueError(f"The order is {order}; it must be at least 1.")
        stream = _checked(ids, vocabulary)
        if vocabulary**order >= 2**63:
            raise ValueError(f"{order}-grams over {vocabulary} ids do not fit into 63 bits; choose a lower order.")
        types, counts = np.unique(_packed(stream, order, vocabulary), return_counts=True)
        levels = [Level.of(types, counts, vocabulary=vocabulary, order=order)]
        for lower in range(order - 1, 0, -1):
            # One longer n-gram of each kind: how many kinds end in a shorter one is its continuation count.
            if lower < order - 1:
                types = np.unique(_packed(stream, lower + 1, vocabulary))
            grams, counts = np.unique(types % vocabulary**lower, return_counts=True)
            levels.insert(0, Level.of(grams, counts, vocabulary=vocabulary, order=lower))
        return cls(vocabulary, tuple(levels))

    @property
    def order(self) -> int:
        """The longest n-gram."""
        return len(self.levels)

    def log_probabilities(self, ids: TokenIds) -> Floats:
        """The natural logarithm of the probability of each id but the first, given the ids before it.

        Each id is predicted from as many of the `order - 1` ids before it as there are: where the text begins, lower
        orders predict. An order of 1 predicts from none.

        Raises:
            ValueError: The ids are empty or outside the vocabulary.
        """
        stream = _checked(ids, self.vocabulary)
        found = np.full(len(stream) - 1, 1 / self.vocabulary)
        for order, level in enumerate(self.levels, 1):
            first = max(order - 1, 1)  # the first position that is predicted and has enough ids before it
            grams = _packed(stream, order, self.vocabulary)[first - (order - 1) :]
            found[first - 1 :] = level.interpolate(grams, found[first - 1 :], vocabulary=self.vocabulary)
        logarithms: Floats = np.log(found)
        return logarithms

    def perplexity(self, ids: TokenIds) -> float:
        """The inverse of the geometric mean of the probabilities of all ids but the first.

        Raises:
            ValueError: There are fewer than two ids, or one outside the vocabulary.
        """
        logarithms = self.log_probabilities(ids)
        if not len(logarithms):
            raise ValueError("A single id has no perplexity: the first is not predicted. Give at least two.")
        return math.exp(-float(np.mean(logarithms)))

    def next_distribution(self, context: Sequence[int]) -> Floats:
        """The probability of every id after a context, of which the last `order - 1` ids count; it may be empty.

        Raises:
            ValueError: The context has an id outside the vocabulary.
        """
        stream = _checked(np.array(context), self.vocabulary) if len(context) else np.empty(0, np.int64)
        found = np.full(self.vocabulary, 1 / self.vocabulary)
        for order, level in enumerate(self.levels[: len(stream) + 1], 1):
            history = int(_packed(stream[len(stream) - (order - 1) :], order - 1, self.vocabulary)[0])
            first = history * self.vocabulary
            start, stop = np.searchsorted(level.grams, [first, first + self.vocabulary])
            if start < stop:
                found *= level.backoff[np.searchsorted(level.contexts, history)]
                found[level.grams[start:stop] - first] += level.kept[start:stop]
        return found


def estimate_discounts(counts: Integers, *, order: int) -> tuple[float, float, float]:
    """The discounts D1, D2 and D3+ of one order, from how many of its n-grams have a count of 1, 2, 3 and 4.

    With n1 to n4 these numbers and Y = n1 / (n1 + 2 n2), they are 1 - 2 Y n2/n1, 2 - 3 Y n3/n2 and 3 - 4 Y n4/n3
    (Chen and Goodman 1998, on modified Kneser-Ney smoothing). They are never greater than 1, 2 and 3.

    Raises:
        ValueError: One of them is undefined, or not above 0, which leaves nothing for what was not seen.
    """
    n1, n2, n3, n4 = (int(np.count_nonzero(counts == count)) for count in (1, 2, 3, 4))
    seen = f"of its {order}-grams, {n1}, {n2}, {n3} and {n4} have a count of 1, 2, 3 and 4"
    if not (n1 and n2 and n3):
        raise ValueError(f"The text is too small for Kneser-Ney discounts, they are undefined: {seen}.")
    y = n1 / (n1 + 2 * n2)
    discounts = (1 - 2 * y * n2 / n1, 2 - 3 * y * n3 / n2, 3 - 4 * y * n4 / n3)
    if min(discounts) <= 0:
        raise ValueError(f"The text is too small or too odd for Kneser-Ney discounts, one is not above 0: {seen}.")
    return discounts


def _checked(ids: TokenIds, vocabulary: int) -> Integers:
    """The ids as 64-bit integers, or why they are not a text over this vocabulary."""
    if ids.ndim != 1 or not np.issubdtype(ids.dtype, np.integer):
        raise ValueError(f"Ids are one row of integers, not {ids.ndim}-dimensional {ids.dtype}.")
    if not len(ids):
        raise ValueError("There are no ids: the text is empty.")
    low, high = int(ids.min()), int(ids.max())
    if low < 0 or high >= vocabulary:
        raise ValueError(
            f"The ids reach from {low} to {high}; this vocabulary of {vocabulary} has 0 to {vocabulary - 1}."
        )
    return ids.astype(np.int64)


def _packed(ids: Integers, order: int, vocabulary: int) -> Integers:
    """Every n-gram of this order as one number, in the order of the text."""
    packed = np.zeros(max(len(ids) - order + 1, 0), np.int64)
    for offset in range(order):
        packed *= vocabulary
        packed += ids[offset : offset + len(packed)]
    return packed


def _look_up(wanted: Integers, keys: Integers, values: Floats, *, missing: float) -> Floats:
    """The value of each wanted key; `keys` ascends and is not empty."""
    places = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[places] == wanted, values[places], missing)
