"""Jobs and adapters in memory: one account of the bytes that they hold, and who leaves when it is full."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal, Protocol, TypeVar

import torch

from cutlayer.serving.compute import Pieces, memory
from cutlayer.serving.refusal import Refusal
from cutlayer.vendor.problems import unacceptable
from cutlayer.vendor.settings import Limits
from cutlayer.vendor.shares import Holding, first_to_leave, share, taken


class Resident(Protocol):
    """A job or an adapter in memory; all of it can be made again from what is on disk.

    Attributes:
        used: When it was last asked for something, by the clock that measures idleness.
    """

    used: float

    @property
    def held_bytes(self) -> int:
        """What it holds of memory between two requests, without what it shares with others."""
        ...

    @property
    def pinned(self) -> bool:
        """Whether something keeps it in memory that would have to end first."""
        ...

    @property
    def busy(self) -> bool:
        """Whether it is in the middle of a request, and so may not leave now."""
        ...

    def leave(self) -> None:
        """Writes to disk what is not there yet, and lets go."""
        ...


R = TypeVar("R", bound=Resident)
Shelf = OrderedDict[tuple[str, str], R]
"""Residents of one kind by tenant and name, those that were used the longest ago first."""


class Residents:
    """All tenants' jobs and adapters in memory. Lives in the compute thread.

    Args:
        limits: What they may take together.
        device: Where they compute.
        clock: Seconds, for idleness.

    Attributes:
        unpin: Ends what pins one.
    """

    unpin: Callable[[Resident], object]

    def __init__(self, limits: Limits, device: torch.device, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = limits.live_seconds
        # By default a quarter of it: graphs may take a half, caches of sessions an eighth.
        self._limit = limits.max_live_bytes or memory(device) // 4
        self._clock = clock
        self._shelves: list[Shelf[Any]] = []

    def add(self, shelf: Shelf[R]) -> None:
        """Counts what stands on a shelf from now on."""
        self._shelves.append(shelf)

    def check(self, kind: Literal["job", "adapter"], size: int) -> None:
        """Refuses what would not fit alone.

        Raises:
            Refusal: It would not.
        """
        if size > self._limit:
            raise unacceptable(
                f"{kind}-too-large",
                f"This {kind} takes {size} bytes of memory; this vendor gives all jobs and adapters {self._limit}.",
                remedy="Train less of the model (lora, a lower rank, a deeper bottom or tail), "
                "or ask the vendor to raise max_live_bytes.",
            )

    def make_room(self, kind: Literal["job", "adapter"], size: int, *, tenant: str) -> Pieces[None]:
        """Has others leave until one more finds room. None leaves in vain.

        What is pinned leaves only where its tenant takes more than its share, for a tenant within its own. Where
        others are busy that would have to leave, it waits for them.

        Raises:
            Refusal: It finds none.
        """
        self.check(kind, size)
        while True:
            holdings = self._holdings(size, asking=tenant)
            if sum(holding.size for holding in holdings if not holding.movable) + size <= self._limit:
                break
            if not any(holding.item[2].busy for holding in holdings):
                raise Refusal(
                    503,
                    "memory-full",
                    "Adapters that generation sessions use take this vendor's memory for jobs and adapters.",
                    remedy="Try again in a moment.",
                    headers={"Retry-After": "1"},
                )
            yield
        self._shrink(size, asking=tenant)

    def keep(self, shelf: Shelf[R], key: tuple[str, str], resident: R, *, most: int) -> None:
        """Puts a resident on its shelf, or back to where those stand that were used last.

        Args:
            shelf: Its shelf.
            key: Tenant and name.
            resident: For which there is room.
            most: How many may stand on the shelf, besides those that may not leave.
        """
        resident.used = self._clock()
        shelf[key] = resident
        shelf.move_to_end(key)
        while len(shelf) > most:
            holdings = [
                Holding(other[0], 1, other, not (old.pinned or old.busy or old is resident))
                for other, old in shelf.items()
            ]
            leaving = first_to_leave(holdings, asking=key[0], size=0)
            if leaving is None:
                break
            shelf.pop(leaving).leave()

    def settle(self, tenant: str, grown: Resident) -> None:
        """Has others leave where one of a tenant's holds more than before."""
        self._shrink(0, asking=tenant, stays=grown)

    def expire(self) -> Pieces[None]:
        """Has those leave that have been idle for too long. Each is written to disk; others are served in between."""
        for shelf, key, resident in self._all():
            is_there = shelf.get(key) is resident and not (resident.pinned or resident.busy)
            if is_there and self._clock() - resident.used > self._seconds:
                del shelf[key]
                resident.leave()
                yield

    def _shrink(self, size: int, *, asking: str, stays: Resident | None = None) -> None:
        """Has those leave that come first until there is room for `size` more, as far as any may leave."""
        while True:
            holdings = self._holdings(size, asking=asking, stays=stays)
            if sum(holding.size for holding in holdings) + size <= self._limit:
                return
            leaving = first_to_leave(holdings, asking=asking, size=size)
            if leaving is None:
                return
            shelf, key, resident = leaving
            if resident.pinned:
                self.unpin(resident)
            else:
                del shelf[key]
                resident.leave()

    def _holdings(
        self, size: int, *, asking: str, stays: Resident | None = None
    ) -> list[Holding[tuple[Shelf[Any], tuple[str, str], Resident]]]:
        """What all hold, and which may leave for a tenant that asks for more, in the order in which they do."""
        found = sorted(self._all(), key=lambda found: (found[2].pinned, found[2].used))
        held = [Holding(key[0], resident.held_bytes, (shelf, key, resident)) for shelf, key, resident in found]
        most = share(self._limit, held, asking)
        pinned = [holding for holding in held if holding.item[2].pinned]
        is_within = size > 0 and taken(pinned, asking) + size <= most

        def may_leave(holding: Holding[Any]) -> bool:
            resident = holding.item[2]
            if resident.pinned and not (is_within and holding.tenant != asking and taken(held, holding.tenant) > most):
                return False
            return not resident.busy and resident is not stays

        return [replace(holding, movable=may_leave(holding)) for holding in held]

    def _all(self) -> list[tuple[Shelf[Any], tuple[str, str], Resident]]:
        return [(shelf, key, resident) for shelf in self._shelves for key, resident in shelf.items()]


def held_bytes(shelf: Shelf[R]) -> int:
    """What all on a shelf hold of memory; metrics ask from other threads."""
    return sum(resident.held_bytes for resident in list(shelf.values()))
