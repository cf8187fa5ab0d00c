"""Settings on which privacy depends: closed, complete in their complaints, and safe to write down."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutlayer.core import ConfigError, DataError, Place, checked
from cutlayer.privacy import CtiSpec, DChi, NoPrivacy, PrivacySpec, TextToText, Vector, Words


@pytest.mark.parametrize("eta", [0, -1, -math.inf, math.nan])
def test_eta_must_be_above_zero(eta: float) -> None:
    with pytest.raises(ConfigError, match=r"eta = .*(above 0|finite)"):
        TextToText(eta=eta)


def test_eta_has_no_default() -> None:
    with pytest.raises(ConfigError, match="eta"):
        TextToText()  # type: ignore[call-arg]


def test_infinite_exactly_when_nothing_is_done() -> None:
    with pytest.raises(ConfigError, match=r"must be a finite number .* --eta inf"):
        TextToText(eta=math.inf)
    with pytest.raises(ConfigError, match=r"eta = 80: is no setting here, but of .*TextToText and Vector"):
        NoPrivacy(eta=80)
    assert NoPrivacy().eta == math.inf


def test_a_dropped_key_stops_the_run() -> None:
    with pytest.raises(ConfigError, match="epsilon"):
        TextToText(eta=80, epsilon=1)  # type: ignore[call-arg]


def test_all_faults_are_listed() -> None:
    with pytest.raises(ConfigError) as caught:
        TextToText(eta=-1, place=Place.ACTIVATIONS, noise_window=0)
    assert [fault.path for fault in caught.value.faults] == ["eta", "noise_window", "place"]
    with pytest.raises(ConfigError, match="there is no mechanism 'laplace'"), checked():
        PrivacySpec.model_validate({"mechanism": "laplace", "eta": "much"})


def test_noise_on_rows_has_its_way_named() -> None:
    with pytest.raises(ConfigError, match=r"place = .*but of Vector"):
        TextToText(eta=80, place=Place.ACTIVATIONS)


def test_clipping_is_of_noisy_rows_of_tokens_alone() -> None:
    with pytest.raises(ConfigError, match=r"clip = True: is no setting here, but of Vector"):
        TextToText(eta=80, clip=True)  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match='must be left out at place "activations"'):
        Vector(eta=80, clip=True, place=Place.ACTIVATIONS)
    with pytest.raises(ConfigError, match="must be left out with cti"):
        Vector(eta=80, clip=True, cti=CtiSpec())
    assert "clip" not in Vector(eta=80).model_dump_json()
    assert Vector(eta=80).identity.endswith('"cti":null}')
    assert Vector(eta=80, clip=True).identity.endswith('"cti":null,"clip":true}')
    assert not NoPrivacy().clipped


def test_nothing_to_steer_without_noise() -> None:
    with pytest.raises(ConfigError, match=r"cti = .*is no setting here"):
        NoPrivacy(cti=CtiSpec())


@pytest.mark.parametrize(
    ("settings", "path"),
    [({"smoothing": 0}, "smoothing"), ({"smoothing": math.inf}, "smoothing"), ({"c0": math.nan}, "c0")],
)
def test_cti_settings(settings: dict[str, float], path: str) -> None:
    with pytest.raises(ConfigError) as caught:
        CtiSpec(**settings)
    assert caught.value.faults[0].path == path


@given(
    eta=st.floats(min_value=1e-6, max_value=1e6),
    cti=st.none() | st.builds(CtiSpec, smoothing=st.floats(0.01, 10), class_free=st.booleans()),
)
def test_json_round_trip(eta: float, cti: CtiSpec | None) -> None:
    for spec in (TextToText(eta=eta, cti=cti), NoPrivacy()):
        assert PrivacySpec.model_validate_json(spec.model_dump_json()) == spec


def test_frozen() -> None:
    with pytest.raises(Exception, match="frozen"):
        TextToText(eta=80).eta = 90  # type: ignore[misc]


def test_the_papers_noise_is_not_written_down() -> None:
    """So that runs that were begun before there was a choice go on in their order."""
    spec = TextToText(eta=80)
    assert spec.identity == '{"mechanism":"text-to-text","eta":80.0,"place":"tokens","cti":null}'
    assert NoPrivacy().identity == '{"mechanism":"none","eta":"Infinity","place":"tokens","cti":null}'
    other = TextToText(eta=80, noise="laplace")
    assert PrivacySpec.model_validate_json(other.model_dump_json()) == other != spec
    assert other.identity.endswith('"cti":null,"noise":"laplace"}')
    assert spec.noise == DChi.name


def test_a_vocabulary_is_what_it_holds_and_not_where_it_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The order in which texts leave follows from it: the same file elsewhere, or by a relative path, is the same."""
    first, second = tmp_path / "words.tsv", tmp_path / "copy.tsv"
    for file in (first, second):
        file.write_text("dog\tNOUN\t3\n")
    monkeypatch.chdir(tmp_path)
    told = {Words(eta=60, vocabulary=path).identity for path in (first, second, Path("words.tsv"))}
    assert len(told) == 1
    assert str(tmp_path) not in told.pop()
    before = Words(eta=60, vocabulary=first).identity
    first.write_text("cat\tNOUN\t3\n")
    assert Words(eta=60, vocabulary=first).identity != before != Words(eta=60).identity
    first.unlink()
    with pytest.raises(DataError, match="There is no file"):
        Words(eta=60, vocabulary=first).identity  # noqa: B018 - asked for the error


def test_no_noise_is_named_where_none_is_drawn() -> None:
    with pytest.raises(ConfigError, match=r"noise = 'laplace': is no setting here"):
        NoPrivacy(noise="laplace")
