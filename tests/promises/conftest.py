"""A vendor in this process on a tiny model, and runs against it."""

import pytest

from cutlayer.attacks import NotApplicable
from cutlayer.attacks.language import next_tokens
from cutlayer.customer import measure
from tests.promises.accounts import Watched
from tests.service.fixtures import (  # noqa: F401 - used by name
    api_key,
    blank_decoder_vendor,
    blank_vendor,
    data_dir,
    decoder,
    decoder_dir,
    tiny_model,
)


def measure_at_most(tokens: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Has a run read so many tokens back, or one step's and one answer's."""
    for module, bound in (
        (measure, "_SEARCHED_TOKENS"),
        (measure, "MEASURED_TOKENS"),
        (next_tokens, "MEASURED_TOKENS"),
    ):
        monkeypatch.setattr(module, bound, tokens)


@pytest.fixture
def barely_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run reads one step's tokens back, not thousands: for tests of something else than what can be read."""
    measure_at_most(1, monkeypatch)


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
