"""Remembers for a moment that the vendor is away, so that not every request waits for its own timeout."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager

from cutlayer.core import VendorError
from cutlayer.gateway.answers import is_away

_SECONDS = 1.0
"""Shorter than the Retry-After that applications get, so that their next request reaches the vendor."""


class Absence:
    """Remembers for a moment that the vendor did not answer. Safe to use from several threads."""

    def __init__(self) -> None:
        self._last = VendorError("The vendor was not asked.")
        self._until = -math.inf

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Asks the vendor something, unless it was away a moment ago.

        Raises:
            VendorError: It was; or what asking it raises.
        """
        if time.monotonic() < self._until:
            raise _copy(self._last)
        try:
            yield
        except VendorError as error:
            if is_away(error):
                # a copy: the error's own traceback holds the texts that were asked for
                self._last, self._until = _copy(error), time.monotonic() + _SECONDS
            raise


def _copy(error: VendorError) -> VendorError:
    return VendorError(error.message, status=error.status, remedy=error.remedy)
