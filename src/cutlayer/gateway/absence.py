"""That the vendor is away, remembered for a moment: else each request would wait for itself to learn it."""

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
            raise VendorError(self._last.message, status=self._last.status, remedy=self._last.remedy)
        try:
            yield
        except VendorError as error:
            if is_away(error):
                self._last, self._until = error, time.monotonic() + _SECONDS
            raise
