from __future__ import annotations

import pytest
from pydantic import ValidationError

from cutlayer.core import ConfigError, Registry, Spec


class Noise(Spec):
    eta: float


def test_a_spec_is_frozen_and_closed() -> None:
    with pytest.raises(ValidationError, match="Extra inputs"):
        Noise(eta=1, epsilon=2)  # type: ignore[call-arg]
    with pytest.raises(ValidationError, match="frozen"):
        Noise(eta=1).eta = 2  # type: ignore[misc]


def test_infinity_survives_json() -> None:
    assert Noise(eta=float("inf")).eta == float("inf")


def test_a_name_can_be_taken_once() -> None:
    parts: Registry[int] = Registry("mechanism")
    parts.add("laplace")(1)
    with pytest.raises(ConfigError, match="two parts named 'laplace'"):
        parts.add("laplace")(2)
    assert parts["laplace"] == 1
    assert (list(parts), len(parts)) == (["laplace"], 1)


def test_an_unknown_name_gets_a_suggestion() -> None:
    parts: Registry[int] = Registry("attack")
    parts.add("nearest-neighbour")(1)
    with pytest.raises(ConfigError, match="Did you mean 'nearest-neighbour'"):
        parts["nearest-neighbor"]
    with pytest.raises(ConfigError, match="Known: nearest-neighbour"):
        parts["zzz"]
