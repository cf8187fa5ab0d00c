"""Of a test with many cases `make test` takes some, and `make test-all` takes all."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def slow_but(quick: Iterable[Any], cases: Iterable[Any], *, ids: Iterable[str] | None = None) -> list[Any]:
    """A test's cases, tuples if of several arguments; all but those in `quick`, given whole or by id, are slow."""
    quick, cases = list(quick), list(cases)
    names = [*ids] if ids is not None else [None] * len(cases)
    # a name with a slip in it would make a case slow unseen
    unknown = [each for each in quick if each not in cases and each not in names]
    assert not unknown, f"There is no case {unknown}."
    made = []
    for case, name in zip(cases, names, strict=True):
        fast = case in quick or (name is not None and name in quick)
        values = case if isinstance(case, tuple) else (case,)
        made.append(pytest.param(*values, id=name, marks=() if fast else pytest.mark.slow))
    return made
