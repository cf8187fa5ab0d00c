"""The plug-ins in `examples/`, installed by pip into a folder of their own, found by their entry points, and used."""

from __future__ import annotations

import csv
import importlib.util
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType

import pytest
import torch

from cutlayer.attacks import ATTACKS, Measured, TokenTruth, Transcript, examine
from cutlayer.privacy import MECHANISMS, PluggedIn, find_mechanism
from cutlayer.reports import check_mechanism
from tests.contract.noise_checks import stream
from tests.promises.runs import corpus
from tests.service.fixtures import tiny_model  # noqa: F401 - fixtures are used by name
from tests.unit.attacks import worlds
from tests.unit.cli.conftest import Run, run  # noqa: F401 - fixtures are used by name

EXAMPLES = Path(__file__).parents[2] / "examples"
TEXTS = 200


def install(example: str, folder: Path) -> Path:
    """What `pip install ./examples/…` writes."""
    for needed in ("pip", "setuptools"):
        if importlib.util.find_spec(needed) is None:
            pytest.skip(f"{needed} is not installed, by which a plug-in is")
    source = shutil.copytree(EXAMPLES / example, folder / "source")  # a build leaves files beside it
    target = folder / "installed"
    options = ["--quiet", "--no-index", "--no-deps", "--no-build-isolation", "--disable-pip-version-check"]
    subprocess.run([sys.executable, "-m", "pip", "install", *options, "--target", target, source], check=True)
    return target


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Both plug-ins are installed."""
    with pytest.MonkeyPatch.context() as patch:
        for example in sorted(path.parent.name for path in EXAMPLES.glob("*/pyproject.toml")):
            patch.syspath_prepend(install(example, tmp_path_factory.mktemp(example)))
        for registry in (MECHANISMS, ATTACKS):
            patch.setattr(registry, "_loaded", {})
        yield
    for module in ("cutlayer_laplace", "cutlayer_smallest_angle"):
        sys.modules.pop(module, None)


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    texts = corpus(TEXTS, seed=5)
    path = tmp_path / "notes.csv"
    with path.open("w", newline="") as file:
        rows = zip(texts.texts, texts.labels or (), strict=True)
        csv.writer(file).writerows([("text", "label"), *((text, label) for (text,), label in rows)])
    return path


# ---------------------------------------------------------------- the mechanism


def changed(faults: Mapping[str, str]) -> ModuleType:
    """The mechanism's module with some of its text replaced."""
    text = (EXAMPLES / "mechanism_plugin/cutlayer_laplace.py").read_text()
    for old, new in faults.items():
        assert text.count(old) == 1
        text = text.replace(old, new)
    module = ModuleType("faulty")
    exec(compile(text, "faulty", "exec"), vars(module))
    return module


@pytest.mark.usefixtures("packages")
def test_the_mechanism_is_found_and_conforms(run: Run, tmp_path: Path) -> None:  # noqa: F811
    assert MECHANISMS.origin("laplace") == "cutlayer-laplace 0.1.0"
    assert isinstance(find_mechanism("laplace"), PluggedIn)
    checked = run("conformance", "laplace", "--no-replacement", "--seed", 1, "--json", "--home", tmp_path)
    assert checked.code == 0
    answers = {check["name"]: check["passed"] for check in checked.result["checks"]}
    assert {"density", "normaliser", "ratio", "privacy loss", "scale"} <= {
        name for name, passed in answers.items() if passed
    }
    assert answers["cosines"] is answers["fourth moment"] is None, "its density is no function of the norm"
    assert checked.result["guarantee"]["claimed_by"] == "cutlayer-laplace 0.1.0"


@pytest.mark.parametrize(
    ("faults", "failed"),
    [
        # what its page says to try: a promise in another norm, as public code has it
        ({"(np.sqrt(width) / etas)": "(1 / etas)", "etas / np.sqrt(width)": "etas"}, {"ratio", "privacy loss"}),
        ({"(np.sqrt(width) / etas)": "(1 / etas)"}, {"density", "privacy loss"}),
        ({"etas / np.sqrt(width)": "etas"}, {"density", "ratio"}),
        ({"width * np.log(rate / 2)": "np.log(rate / 2)"}, {"normaliser"}),
        ({"budget=eta": "budget=eta / 2"}, {"ratio", "privacy loss"}),
    ],
)
def test_a_fault_in_the_mechanism_is_caught_by_name(faults: dict[str, str], failed: set[str]) -> None:
    told = check_mechanism(changed(faults).LAPLACE, rng=stream(1), loss_samples=100_000)
    assert set(told.failed) == failed


@pytest.mark.usefixtures("packages")
def test_texts_are_privatized_with_the_mechanism(
    run: Run,  # noqa: F811
    notes: Path,
    tmp_path: Path,
    tiny_model: Path,  # noqa: F811
) -> None:
    shown = {}
    for noise in ("laplace", "d-chi"):
        options = ("--input", notes, "--output", tmp_path / f"{noise}.csv", "--eta", 200, "--model", tiny_model)
        left = run("privatize", *options, "--noise", noise, "--home", tmp_path / "home", "--json")
        assert left.code == 0, left.err
        assert left.result["noise"] == noise
        shown[noise] = left
    assert shown["laplace"].result["replaced"] > shown["d-chi"].result["replaced"] > 0.1, "longer noise"
    assert shown["laplace"].result["largest_distance"] is None
    assert "cutlayer-laplace 0.1.0: cutlayer has not verified" in shown["laplace"].err


# ---------------------------------------------------------------- the attack


@pytest.mark.usefixtures("packages")
def test_the_attack_is_found_and_measured_with_its_controls(tmp_path: Path) -> None:
    assert ATTACKS.origin("smallest-angle") == "cutlayer-smallest-angle 0.1.0"
    tokens = worlds.random_tokens(TEXTS)
    truth = TokenTruth(tokens, records={worlds.RECORD_SET: torch.arange(TEXTS)})
    found = {}
    for sigma in (0.0, 0.4, 4.0):
        folder = tmp_path / str(sigma)
        worlds.record(folder, [worlds.shard(0, worlds.as_rows(tokens, sigma=sigma))])
        outcome = examine(
            "smallest-angle", Transcript.recorded(folder), knowledge=worlds.KNOWLEDGE, truth=truth
        ).outcome
        assert isinstance(outcome, Measured), outcome
        assert {control.check for control in outcome.controls} == worlds.ASKED
        found[sigma] = outcome.success.value
    assert found[0.0] == 1 > found[0.4] > found[4.0] > 0


@pytest.mark.usefixtures("packages")
def test_the_attack_stands_in_an_audit_of_the_mechanism(
    run: Run,  # noqa: F811
    notes: Path,
    tmp_path: Path,
    tiny_model: Path,  # noqa: F811
) -> None:
    privacy = ("--eta", 40, "--mechanism", "vector", "--noise", "laplace")
    attacker = ("--model", tiny_model, "--public", notes, "--home", tmp_path)
    named = ("smallest-angle", "nearest-neighbour", "maximum-posterior")
    chosen = [word for name in named for word in ("--attack", name)]
    audited = run("audit", "--data", notes, "--out", tmp_path / "report", *privacy, *attacker, *chosen, "--json")
    assert audited.code == 0, audited.err
    attacks = {attack["name"]: attack for attack in audited.result["attacks"]}
    mine, paper = attacks["smallest-angle"], attacks["nearest-neighbour"]
    assert mine["status"] == paper["status"] == "measured"
    assert [control["passed"] for control in mine["controls"]] == [True] * 5
    (graded,) = (control for control in mine["controls"] if control["check"] == "graded")
    assert graded["reason"] is None
    assert graded["recovered"] >= graded["bound"], "of laplace noise it reads what the nearest row does"
    assert mine["needs"] == ["the embedding table"]
    assert mine["reference"].endswith("(plug-in of cutlayer-smallest-angle 0.1.0)")
    assert mine["value"] == pytest.approx(paper["value"], abs=0.1)
    likeliest = attacks["maximum-posterior"]
    assert likeliest["status"] == "measured", "it reads rows by the density that the plug-in states"
    assert likeliest["value"] >= paper["value"] - 0.05
    assert audited.result["settings"]["noise"] == "laplace"
    assert audited.result["guarantee"]["claimed_by"] == "cutlayer-laplace 0.1.0"
    page = (tmp_path / "report/report.html").read_text()
    assert "the row of the embedding table at the smallest angle" in page
    assert "Drawn by laplace" in page
