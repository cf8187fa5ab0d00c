"""Where what a report finds is held against exact expectations, the noise of its runs is always the same."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from cutlayer.privacy import secret


@pytest.fixture(scope="module")
def known_secret() -> Iterator[None]:
    """Each new folder's secret, from which draws and order follow: a test at 5 % alarms with one in twenty others."""
    known = SimpleNamespace(token_bytes=lambda size: bytes(range(size)), token_hex=secrets.token_hex)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(secret, "secrets", known)
        yield
