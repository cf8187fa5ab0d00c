"""Jobs and adapters in memory: one account of the bytes that they hold, and who leaves when it is full."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Literal, Protocol, TypeVar

import torch

from cutlayer.vendor.compute import memory
from cutlayer.vendor.problems import Refusal, unacceptable
from cutlayer.vendor.settings import Limits


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
        """Whether it may not leave now."""
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
    """

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

    def make_room(self, kind: Literal["job", "adapter"], size: int) -> None:
        """Has those leave that were used the longest ago, until one more finds room. None leaves in vain.

        Raises:
            Refusal: It finds none.
        """
        self.check(kind, size)
        if size + sum(resident.held_bytes for _, _, resident in self._all() if resident.pinned) > self._limit:
            raise Refusal(
                503,
                "memory-full",
                "Adapters that generation sessions use take this vendor's memory for jobs and adapters.",
                remedy="Try again in a moment.",
                headers={"Retry-After": "1"},
            )
        self._shrink(self._limit - size)

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
        for other, old in list(shelf.items())[:-1]:
            if len(shelf) <= most:
                break
            if not old.pinned:
                del shelf[other]
                old.leave()

    def settle(self, grown: Resident) -> None:
        """Has others leave where one holds more than before."""
        self._shrink(self._limit, stays=grown)

    def expire(self) -> None:
        """Has those leave that have been idle for too long."""
        now = self._clock()
        for shelf, key, resident in self._all():
            if now - resident.used > self._seconds and not resident.pinned:
                del shelf[key]
                resident.leave()

    def _shrink(self, limit: int, *, stays: Resident | None = None) -> None:
        residents = self._all()
        total = sum(resident.held_bytes for _, _, resident in residents)
        for shelf, key, resident in sorted(residents, key=lambda found: found[2].used):
            if total <= limit:
                break
            if not resident.pinned and resident is not stays:
                total -= resident.held_bytes
                del shelf[key]
                resident.leave()

    def _all(self) -> list[tuple[Shelf[Any], tuple[str, str], Resident]]:
        return [(shelf, key, resident) for shelf in self._shelves for key, resident in shelf.items()]


def held_bytes(shelf: Shelf[R]) -> int:
    """What all on a shelf hold of memory; metrics ask from other threads."""
    return sum(resident.held_bytes for resident in list(shelf.values()))
