"""What `pip install cutlayer` leaves out: packages that come with an extra, and what is said where they are missing."""

from __future__ import annotations

from functools import cache
from importlib.metadata import Distribution, PackageNotFoundError, distribution

from cutlayer.core.errors import MissingExtraError


@cache
def require(extra: str) -> None:
    """Checks that the packages of an extra are installed: called where a room, or a function, begins that imports them.

    Args:
        extra: Its name in `pyproject.toml`.

    Raises:
        MissingExtraError: One of them is not.
    """
    from packaging.requirements import Requirement  # half of the time that `cutlayer --help` takes

    own = _installed("cutlayer")
    needed = [Requirement(line) for line in (own.requires or ())] if own is not None else []
    missing = [
        each.name
        for each in needed
        if each.marker is not None and each.marker.evaluate({"extra": extra}) and _installed(each.name) is None
    ]
    if missing:
        raise MissingExtraError(extra, missing)


def _installed(package: str) -> Distribution | None:
    try:
        return distribution(package)
    except PackageNotFoundError:
        return None
