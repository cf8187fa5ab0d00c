"""Comparing how long things take, on machines that do other work, too."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping


def interleaved(contenders: Mapping[str, Callable[[], object]], *, rounds: int) -> dict[str, float]:
    """Median seconds of each contender, taking turns so that a busy machine slows all of them.

    Args:
        contenders: What to time; each is run once before the rounds, to warm up.
        rounds: How often each is timed.
    """
    for run in contenders.values():
        run()
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, run in contenders.items():
            start = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(times) for name, times in seconds.items()}
