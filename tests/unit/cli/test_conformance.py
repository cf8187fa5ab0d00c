"""`conformance` and `convert-eta`: what they print, write and leave with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cutlayer.cli.reference import commands
from cutlayer.core import ConformanceError
from cutlayer.reports import Conformance
from cutlayer.reports.conformance import ETAS, SAMPLES, WIDTHS
from tests.plugins import installing
from tests.service.tiny import write_tiny_bert
from tests.unit.cli.conftest import Run

WRONG = """
from cutlayer.privacy import DChi


class TooLittle(DChi):
    def noise(self, *, etas, width, rng):
        return super().noise(etas=1.5 * etas, width=width, rng=rng)


NOISE = TooLittle()
"""
QUICK = ("--samples", 1000, "--width", 1, "--width", 4)


def test_a_true_mechanism_is_checked_in_a_models_table(tmp_path: Path, run: Run) -> None:
    notes, out = tmp_path / "notes.csv", tmp_path / "found.json"
    notes.write_text("text\n" + "w1 w2 w3 secretword\n" * 50)
    model = write_tiny_bert(tmp_path / "tiny")
    options = ("--model", model, "--data", notes, "--out", out, "--home", tmp_path / "home")
    found = run("conformance", "d-chi", *QUICK, *options, "--seed", 7, "--json")
    assert found.code == 0, found.err
    assert json.loads(out.read_text()) == found.result
    report = Conformance(**{name: value for name, value in found.result.items() if name not in ("failed", "seed")})
    assert (report.passed, found.result["failed"], found.result["seed"]) == (True, [], 7)
    assert (report.samples, report.widths, report.etas) == (1000, (1, 4), (3.0, 50.0))
    shares = [point.replaced for point in report.replacement]
    assert shares[0] > 0.9 > 0.6 > shares[-1]
    assert "secretword" not in found.out + found.err + out.read_text()
    assert run("conformance", "d-chi", *QUICK, *options, "--seed", 7, "--json").result == found.result
    shown = run("conformance", "d-chi", *QUICK, "--no-replacement")
    assert shown.code == 0
    for said in ("privacy loss", "as stated", "not asked", "That is no proof", "--seed", "exponential draw"):
        assert said in shown.out
    (drawn,) = (check for check in report.checks if check.name == "exponential draw")
    assert drawn.passed


def test_the_released_sampler_of_snd_keeps_its_promise(run: Run) -> None:
    found = run("conformance", "snd-code", *QUICK, "--no-replacement", "--seed", 7, "--json")
    assert (found.code, found.result["failed"]) == (0, []), found.err


def test_as_few_draws_as_are_allowed_do_not_fail_a_true_mechanism(run: Run) -> None:
    """In all the widths that are asked of by default; with too many cells none held enough of them."""
    found = run("conformance", "d-chi", "--samples", 1000, "--no-replacement", "--seed", 7, "--json")
    assert (found.code, found.result["failed"]) == (0, [])


@pytest.mark.parametrize("as_json", [True, False])
def test_a_wrong_mechanism_leaves_its_exit_code(tmp_path: Path, run: Run, as_json: bool) -> None:
    out = tmp_path / "found.json"
    with installing(tmp_path) as install:
        install("faulty", WRONG, too_little="NOISE")
        options = (*QUICK, "--no-replacement", "--out", out, *(["--json"] if as_json else []))
        found = run("conformance", "too-little", *options)
    assert found.code == ConformanceError.exit_code == 11
    written = json.loads(out.read_text())
    assert {"radius", "density", "privacy loss"} <= set(written["failed"])
    assert (written["passed"], written["origin"]) == (False, "faulty 1.2")
    assert "'too-little' does not do what it states" in found.err
    assert "Do not release anything" in found.err
    if as_json:
        assert found.result == written, "the result, not an error in its place"
    else:
        assert "NOT AS STATED" in found.out
        assert "No check fails" not in found.out


def test_what_cannot_be_checked_is_refused(run: Run) -> None:
    unknown = run("conformance", "d-chj", "--json")
    assert (unknown.code, unknown.result["remedy"]) == (3, "Did you mean 'd-chi'?")
    wrong = run("conformance", "d-chi", "--no-replacement", "--eta", 0, "--width", 0, "--samples", 10, "--json")
    assert wrong.code == 3
    for fault in ("eta = 0", "width = 0", "samples = 10"):
        assert fault in wrong.result["error"]


def test_the_help_tells_the_defaults() -> None:
    (command,) = (command for command in commands() if command.name == "cutlayer conformance")
    text = {parameter.names[0]: parameter for parameter in command.parameters}
    assert text["--samples"].default == str(SAMPLES)
    assert " and ".join(f"{eta:g}" for eta in ETAS) in text["--eta"].text
    assert ", ".join(map(str, WIDTHS[:-1])) + f" and {WIDTHS[-1]}" in text["--width"].text
    assert f"exit code {ConformanceError.exit_code}" in command.text


def test_an_eta_is_converted(run: Run) -> None:
    found = run("convert-eta", 80, "--width", 768, "--json").result
    tools = {tool["name"]: tool for tool in found["tools"]}
    assert tools["snd-code"]["times"] == pytest.approx(16)
    assert (found["mean_norm"], tools["sap"]["same_noise"], tools["custext"]["same_promise"]) == (9.6, 80, None)
    shown = run("convert-eta", 80)
    assert shown.code == 0
    assert "11.3 times as long" in shown.out


def test_a_tools_parameter_is_converted(run: Run) -> None:
    found = run("convert-eta", 500, "--of", "snd-code", "--width", 768, "--json").result
    assert found["same_noise"] == pytest.approx(500 / 16)
    assert found["same_promise"] == pytest.approx(500 * 768**0.5)
    shown = run("convert-eta", 2, "--of", "custext")
    assert "none: it adds no noise to rows" in shown.out
    assert "none: no multiple of a distance bounds it" in shown.out
    wrong = run("convert-eta", 2, "--of", "custex", "--json")
    assert (wrong.code, wrong.result["remedy"]) == (3, "Did you mean 'custext'?")


def test_the_help_names_every_tool() -> None:
    from cutlayer.reports import PARAMETERISATIONS

    (command,) = (command for command in commands() if command.name == "cutlayer convert-eta")
    (of,) = (parameter for parameter in command.parameters if parameter.names == ("--of",))
    assert all(name in of.text for name in PARAMETERISATIONS)
