"""A plug-in's noise is looked at before it is used, and what it promises is never shown as cutlayer's promise."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from cutlayer.core import Claim, ConfigError, Guarantee, Place, PrivacyError, Ragged, Tokens
from cutlayer.privacy import (
    CtiSpec,
    CustomerSecret,
    DChi,
    PluggedIn,
    PrivacySpec,
    Privatizer,
    TextToText,
    UtilityImportance,
    Vector,
    build_privatizer,
    find_mechanism,
)
from tests.contract.noise_checks import stream
from tests.plugins import Install, installing

TABLE = torch.from_numpy(stream(1).standard_normal((60, 12)) * 0.3).float()
TEXT = Tokens((Ragged.from_lists([[7, 8, 9]]),))
BOASTFUL = """
from cutlayer.core import Claim, Guarantee
from cutlayer.privacy import DChi


class Boastful(DChi):
    name = "d-chi"

    def guarantee(self, *, eta, space, per):
        return Guarantee(claim=Claim.METRIC, budget=eta / 1000, unit=f"1/distance in {space}", per="corpus")


class Modest(DChi):
    def guarantee(self, *, eta, space, per):
        return Guarantee.nothing("It is a guess.")


BOASTFUL, MODEST = Boastful(), Modest()
"""


@pytest.fixture
def install(tmp_path: Path) -> Iterator[Install]:
    with installing(tmp_path) as function:
        yield function


def build(spec: PrivacySpec, **changes: object) -> Privatizer:
    given: dict[str, object] = {"secret": CustomerSecret(bytes(range(32))), "boundary": "sha256:m/2", **changes}
    return build_privatizer(
        spec,
        table=TABLE,
        candidates=torch.ones(60, dtype=torch.bool),
        table_fingerprint="sha256:t",
        **given,  # type: ignore[arg-type]
    )


# ---------------------------------------------------------------- whose promise


@pytest.mark.parametrize("mechanism", ["text-to-text", "vector"])
@pytest.mark.parametrize("place", list(Place))
def test_a_plug_ins_promise_is_its_packages(install: Install, mechanism: str, place: Place) -> None:
    if mechanism == "text-to-text" and place is Place.ACTIVATIONS:
        return  # there is no such release
    install("bundle", BOASTFUL, boastful="BOASTFUL")
    spec = TextToText(eta=20, noise="boastful")
    if mechanism == "vector":
        spec = Vector(eta=20, place=place, noise="boastful")
    privatizer, own = build(spec), build(spec.model_copy(update={"noise": "d-chi"}))
    told = privatizer.guarantee
    assert (told.claim, told.claimed_by, told.verified) == (Claim.METRIC, "bundle 1.2", False)
    assert str(told).endswith("claimed by bundle 1.2 and not verified by cutlayer")
    assert "bundle 1.2: cutlayer has not verified either" in told.caveats[0]
    assert "in 1/distance in" in told.caveats[0], "how it counts is told"
    assert told.per == ("token" if place is Place.TOKENS else "row"), "not what the plug-in says"
    assert privatizer.largest_distance() is None
    assert own.guarantee.verified
    assert privatizer.unit == told.unit != own.unit
    assert "boastful" in privatizer.unit
    assert "boastful, of bundle 1.2" in [deviation.ours for deviation in privatizer.deviations]
    assert not [deviation for deviation in own.deviations if "noise, eq." in deviation.what]
    with pytest.raises(PrivacyError, match="unlike units"):
        told.compose(own.guarantee)


def test_a_plug_in_that_promises_nothing_has_a_unit_of_its_own(install: Install) -> None:
    install("bundle", BOASTFUL, modest="MODEST", boastful="BOASTFUL")
    modest = build(TextToText(eta=20, noise="modest"))
    assert modest.guarantee.claim is Claim.NONE
    assert str(modest.guarantee) == "none"
    assert not modest.guarantee.verified
    assert modest.unit not in ("none", build(TextToText(eta=20, noise="boastful")).unit)


def test_a_seed_voids_a_plug_ins_promise_too(install: Install) -> None:
    install("bundle", BOASTFUL, boastful="BOASTFUL")
    spec = TextToText(eta=20, noise="boastful")
    assert build(spec, secret=CustomerSecret.unsafe(1)).guarantee.claim is Claim.NONE
    texts = Tokens((Ragged.from_lists([[7, 8], [9]]),))
    importance = UtilityImportance.fit(texts, torch.tensor([0, 1]), vocab_size=60, num_labels=2, spec=CtiSpec())
    steered = build(spec.model_copy(update={"cti": CtiSpec()}), importance=importance)
    assert steered.guarantee.claim is Claim.NONE
    assert steered.name == "text-to-text+cti, noise boastful"


def test_one_unverified_part_leaves_a_whole_unverified() -> None:
    own = Guarantee(claim=Claim.METRIC, budget=1, unit="u", per="token")
    claimed = own.model_copy(update={"claimed_by": "bundle 1.2"})
    for both in (own.compose(claimed), claimed.compose(own), claimed.compose(claimed)):
        assert (both.claimed_by, both.budget) == ("bundle 1.2", 2)
    assert claimed.compose(own.model_copy(update={"claimed_by": "bundle 1.3"})).claimed_by == "bundle 1.2, bundle 1.3"
    assert own.compose(own).verified


# ---------------------------------------------------------------- names of draws


def test_another_noise_is_another_draw_in_another_unit(install: Install, tmp_path: Path) -> None:
    secret = CustomerSecret(bytes(range(32)))
    releases = {}
    for version in ("1.2", "1.3"):
        with installing(tmp_path / version) as again:
            again("bundle", BOASTFUL, version=version, boastful="BOASTFUL")
            spec = Vector(eta=20, noise="boastful")
            releases[version] = build(spec, secret=secret).tokens(TEXT, labels=None)
    own = build(Vector(eta=20), secret=secret).tokens(TEXT, labels=None)
    new, old = releases["1.3"], releases["1.2"]
    assert len({own.identities, new.identities, old.identities}) == 3, "another version may draw otherwise"
    assert old.unit == new.unit != own.unit, "its budgets add up all the same"
    assert (own.mechanism, new.mechanism) == ("vector", "vector, noise boastful")
    assert own.contents == new.contents


# ---------------------------------------------------------------- what a plug-in can get wrong

FAULTS = {
    "two rows for one": "return rng.standard_normal((2, width))",
    "one row": "return rng.standard_normal(width)",
    "half precision": "return rng.standard_normal((len(etas), width)).astype('float32')",
    "a list": "return [[0.0] * width] * len(etas)",
    "no number": "return np.full((len(etas), width), np.nan)",
    "beyond the lattice": "return rng.standard_normal((len(etas), width)) * 1e12",
    "an error": "raise KeyError('ids 7, 8, 9')",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_noise_that_cannot_be_used_is_refused(install: Install, fault: str) -> None:
    source = f"""
import numpy as np
from cutlayer.privacy import DChi


class Wrong(DChi):
    def noise(self, *, etas, width, rng):
        {FAULTS[fault]}


WRONG = Wrong()
"""
    install("faulty", source, wrong="WRONG")
    with pytest.raises(ConfigError, match=r"faulty 1\.2|finite noise") as caught:
        build(Vector(eta=20, noise="wrong")).tokens(TEXT, labels=None)
    assert caught.value.remedy
    assert "7, 8, 9" not in str(caught.value)


def test_errors_that_say_what_to_do_are_passed_on(install: Install) -> None:
    install("bundle", BOASTFUL, boastful="BOASTFUL")
    with pytest.raises(ConfigError, match="must be finite and at least"):
        find_mechanism("boastful").noise(etas=np.array([1e-12]), width=384, rng=stream(0))


def test_what_is_no_mechanism_is_refused(install: Install) -> None:
    install("bundle", f"{BOASTFUL}\nNUMBER = 7\n", number="NUMBER", kind="Modest")
    with pytest.raises(ConfigError, match=r"'number' of bundle 1\.2 has no noise and no log_density and no guarantee"):
        find_mechanism("number")
    with pytest.raises(ConfigError, match=r"'kind' of bundle 1\.2 is a class"):
        find_mechanism("kind")


def test_a_density_and_a_guarantee_are_looked_at(install: Install) -> None:
    source = """
class Wrong:
    def noise(self, *, etas, width, rng):
        return rng.standard_normal((len(etas), width))

    def log_density(self, noise, *, etas):
        return noise

    def guarantee(self, *, eta, space, per):
        return {"claim": "metric-dp"}


WRONG = Wrong()
"""
    install("faulty", source, wrong="WRONG")
    wrong = find_mechanism("wrong")
    with pytest.raises(ConfigError, match=r"states a density of shape \[3, 12\] for 3 rows"):
        wrong.log_density(np.zeros((3, 12)), etas=np.ones(3))
    with pytest.raises(ConfigError, match="gives a dict for a guarantee"):
        wrong.guarantee(eta=1.0, space="s", per="token")


def test_own_mechanisms_are_not_wrapped(install: Install) -> None:
    install("bundle", BOASTFUL, boastful="BOASTFUL")
    assert isinstance(find_mechanism("d-chi"), DChi)
    assert isinstance(find_mechanism("boastful"), PluggedIn)
    with pytest.raises(ConfigError, match="Did you mean 'boastful'"):
        find_mechanism("boastfull")


def test_a_plug_in_does_not_take_the_place_of_own_noise(install: Install) -> None:
    install("bundle", BOASTFUL, d_chi="BOASTFUL")
    assert type(find_mechanism("d-chi")) is DChi
    with pytest.raises(ConfigError, match=r"cutlayer and bundle 1\.2 both have the name 'd-chi'"):
        find_mechanism("another")
