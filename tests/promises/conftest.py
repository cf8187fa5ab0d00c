"""A vendor in this process on a tiny model, and runs against it."""

import pytest

from cutlayer.attacks import NotApplicable
from cutlayer.customer import measure
from tests.promises.accounts import Watched
from tests.service.fixtures import api_key, blank_vendor, data_dir, tiny_model  # noqa: F401 - used by name


@pytest.fixture
def barely_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run reads one step's tokens back, not thousands: for tests of something else than what can be read."""
    for bound in ("_MEASURED_TOKENS", "_SEARCHED_TOKENS"):
        monkeypatch.setattr(measure, bound, 1)


@pytest.fixture
def unmeasured(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run reads nothing back, which takes a third of the time of a small one: for tests of what is computed."""
    monkeypatch.setattr(measure, "measure", lambda name, *_, **__: NotApplicable(attack=name, reason="not asked"))


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Watched:
    """What privatizers return and what arrives from now on."""
    seen = Watched()
    seen.watch(monkeypatch)
    return seen
