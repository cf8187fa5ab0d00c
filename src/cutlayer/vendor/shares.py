"""Memory that tenants share: each may take what is free, and gives back what is beyond its share when others ask."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Holding(Generic[T]):
    """Something that takes memory.

    Attributes:
        tenant: Whose it is.
        size: What it takes: bytes, or 1 where things are counted.
        item: What it is.
        movable: Whether it may leave.
    """

    tenant: str
    size: int
    item: T
    movable: bool = True


def share(limit: int, holdings: Sequence[Holding[T]], tenant: str) -> int:
    """What a tenant may take even where others have to give it back: an equal part for each that takes something."""
    return limit // len({holding.tenant for holding in holdings} | {tenant})


def taken(holdings: Sequence[Holding[T]], tenant: str) -> int:
    """What a tenant takes."""
    return sum(holding.size for holding in holdings if holding.tenant == tenant)


def first_to_leave(holdings: Sequence[Holding[T]], *, asking: str, size: int) -> T | None:
    """What leaves first so that a tenant finds room: the first of the tenant that takes the most.

    Where there is not room for all, that one takes more than its share. So what belongs to a tenant within its
    share leaves only if nothing else may.

    Args:
        holdings: All that take something, in the order in which those of a tenant leave.
        asking: Who asks for more, which counts as taken.
        size: How much more.

    Returns:
        `None` where nothing may leave.
    """
    totals = Counter({asking: size})
    for holding in holdings:
        totals[holding.tenant] += holding.size
    movable = [holding for holding in holdings if holding.movable]
    # of equals the first
    return max(movable, key=lambda holding: totals[holding.tenant]).item if movable else None
