"""Settings on which privacy depends: closed, complete in their complaints, and safe to write down."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutlayer.cli.options import OWN_NOISE
from cutlayer.core import ConfigError, Place
from cutlayer.privacy import CtiSpec, PrivacySpec


@pytest.mark.parametrize("eta", [0, -1, -math.inf, math.nan])
def test_eta_must_be_above_zero(eta: float) -> None:
    with pytest.raises(ConfigError, match=r"eta = .*must be above 0") as caught:
        PrivacySpec(eta=eta)
    assert "eta=inf" in caught.value.remedy


def test_eta_has_no_default() -> None:
    with pytest.raises(ConfigError, match="eta"):
        PrivacySpec()  # type: ignore[call-arg]


def test_infinite_exactly_when_nothing_is_done() -> None:
    with pytest.raises(ConfigError, match="must be finite"):
        PrivacySpec(eta=math.inf)
    with pytest.raises(ConfigError, match="must be inf"):
        PrivacySpec(mechanism="none", eta=80)
    assert PrivacySpec.no_privacy() == PrivacySpec(mechanism="none", eta=math.inf)


def test_a_dropped_key_stops_the_run() -> None:
    with pytest.raises(ConfigError, match="epsilon"):
        PrivacySpec(eta=80, epsilon=1)  # type: ignore[call-arg]


def test_all_faults_are_listed() -> None:
    with pytest.raises(ConfigError) as caught:
        PrivacySpec(mechanism="text-to-text", eta=-1, place=Place.ACTIVATIONS, cti=CtiSpec())
    assert [fault.path for fault in caught.value.faults] == ["eta", "place", "cti"]
    with pytest.raises(ConfigError) as caught:
        PrivacySpec.model_validate({"mechanism": "laplace", "eta": "much"})
    assert {fault.path for fault in caught.value.faults} == {"mechanism", "eta"}


def test_noise_on_rows_has_its_way_named() -> None:
    with pytest.raises(ConfigError, match="place") as caught:
        PrivacySpec(eta=80, place=Place.ACTIVATIONS)
    assert "--mechanism vector" in caught.value.remedy


def test_nothing_to_steer_without_noise() -> None:
    with pytest.raises(ConfigError, match="no noise to steer"):
        PrivacySpec(mechanism="none", eta=math.inf, cti=CtiSpec())


@pytest.mark.parametrize(
    ("settings", "path"),
    [({"smoothing": 0}, "cti.smoothing"), ({"smoothing": math.inf}, "cti.smoothing"), ({"c0": math.nan}, "cti.c0")],
)
def test_cti_settings(settings: dict[str, float], path: str) -> None:
    with pytest.raises(ConfigError) as caught:
        CtiSpec.model_validate(settings)
    assert caught.value.faults[0].path == path


@given(
    eta=st.floats(min_value=1e-6, max_value=1e6),
    cti=st.none() | st.builds(CtiSpec, smoothing=st.floats(0.01, 10), class_free=st.booleans()),
)
def test_json_round_trip(eta: float, cti: CtiSpec | None) -> None:
    for spec in (PrivacySpec(eta=eta, cti=cti), PrivacySpec.no_privacy()):
        assert PrivacySpec.model_validate_json(spec.model_dump_json()) == spec


def test_frozen() -> None:
    with pytest.raises(Exception, match="frozen"):
        PrivacySpec(eta=80).eta = 90  # type: ignore[misc]


def test_the_papers_noise_is_not_written_down() -> None:
    """So that runs, profiles and folders that were named before there was a choice keep their names."""
    spec = PrivacySpec(eta=80)
    assert spec.model_dump_json() == '{"mechanism":"text-to-text","eta":80.0,"place":"tokens","cti":null}'
    assert "noise" not in spec.model_dump()
    assert PrivacySpec.model_validate_json(spec.model_dump_json()) == spec
    other = PrivacySpec(eta=80, noise="laplace")
    assert PrivacySpec.model_validate_json(other.model_dump_json()) == other != spec
    assert spec.noise == OWN_NOISE


def test_no_noise_is_named_where_none_is_drawn() -> None:
    with pytest.raises(ConfigError, match=r"noise = 'laplace': must be left out"):
        PrivacySpec(mechanism="none", eta=math.inf, noise="laplace")
