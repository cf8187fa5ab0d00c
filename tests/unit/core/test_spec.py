from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from cutlayer.core import ConfigError, Registry, Spec
from cutlayer.privacy import PrivacySpec


class Noise(Spec):
    eta: float


def test_a_spec_is_frozen_and_closed() -> None:
    with pytest.raises(ValidationError, match="Extra inputs"):
        Noise(eta=1, epsilon=2)  # type: ignore[call-arg]
    with pytest.raises(ValidationError, match="frozen"):
        Noise(eta=1).eta = 2  # type: ignore[misc]


@pytest.mark.parametrize("named", [[], {}, None, 3, "cnoise"])
def test_what_names_no_kind_is_refused_as_a_value(named: Any) -> None:
    """Also where it is not even a name: a hostile answer must not raise what nobody expects."""
    with pytest.raises(ValueError, match="there is no mechanism"):
        PrivacySpec.read({"mechanism": named, "eta": 1})


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


# ---------------------------------------------------------------- plug-ins


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Installs a package of one file that names parts of kind `attack`."""

    def install(package: str, names: str) -> None:
        (tmp_path / f"{package}.py").write_text("PART = 7\n")
        about = tmp_path / f"{package}-1.2.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.2\n")
        (about / "entry_points.txt").write_text(f"[tests.attacks]\n{names}\n")
        monkeypatch.syspath_prepend(tmp_path)

    return install


def test_an_installed_package_gives_parts(installed: Callable[[str, str], None]) -> None:
    installed("bundle", "seven = bundle:PART")
    parts: Registry[int] = Registry("attack", plugins="tests.attacks")
    parts.add("six")(6)
    assert (list(parts), len(parts)) == (["seven", "six"], 2)
    assert parts.plugged_in() == {"seven": "bundle 1.2"}
    assert [parts.origin(name) for name in ("six", "seven", "eight")] == [None, "bundle 1.2", None]
    assert "bundle" not in sys.modules, "nothing is imported before it is asked for"
    assert parts["seven"] == 7
    with pytest.raises(ConfigError, match="Did you mean 'seven'"):
        parts["sevn"]
    sys.modules.pop("bundle")


@pytest.mark.parametrize(
    ("packages", "said"),
    [
        ({"one": "six = one:PART"}, "cutlayer and one 1.2 both have the name 'six' for a part of kind attack"),
        ({"one": "x = one:PART", "two": "x = two:PART"}, "both have the name 'x'"),
    ],
)
def test_a_name_that_is_taken_is_refused(
    installed: Callable[[str, str], None], packages: dict[str, str], said: str
) -> None:
    parts: Registry[int] = Registry("attack", plugins="tests.attacks")
    parts.add("six")(6)
    for package, names in packages.items():
        installed(package, names)
    with pytest.raises(ConfigError, match=said):
        list(parts)


def test_a_part_of_another_class_is_refused(installed: Callable[[str, str], None]) -> None:
    installed("bundle", "seven = bundle:PART")
    assert Registry("attack", plugins="tests.attacks", of=int)["seven"] == 7
    with pytest.raises(ConfigError, match=r"Attack 'seven' of bundle 1\.2 is of type int") as caught:
        Registry("attack", plugins="tests.attacks", of=Noise)["seven"]
    assert caught.value.remedy == "Its entry point must name an instance of Noise."
    sys.modules.pop("bundle")


def test_a_part_that_cannot_be_loaded_is_named(installed: Callable[[str, str], None]) -> None:
    installed("broken", "gone = broken:MISSING")
    parts: Registry[int] = Registry("attack", plugins="tests.attacks")
    with pytest.raises(ConfigError, match=r"Attack 'gone' of broken 1\.2 cannot be loaded: AttributeError"):
        parts["gone"]
