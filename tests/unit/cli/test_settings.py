"""Settings that specs declare: as options, in `--help`, config files, the JSON schema and the settings page."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
import typer
from pydantic import SecretStr
from typer.main import get_command
from typer.testing import CliRunner, Result

from cutlayer.cli import reference
from cutlayer.cli.command import MISSING, Part, arguments, settings_command
from cutlayer.cli.finetune import finetune
from cutlayer.cli.renamed import RENAMED, today
from cutlayer.cli.settings import Setting, settings_of
from cutlayer.core.errors import ConfigError
from cutlayer.core.setting import Shown, setting
from cutlayer.core.spec import SettingsSpec, SpecFamily
from cutlayer.customer.attacker import AttackerSpec
from cutlayer.customer.columns import DataSpec
from cutlayer.customer.settings import FinetuneSpec, Sampling, Training
from cutlayer.reports.audit_spec import AuditSpec

KEY = "cl_0123456789ab_" + "A" * 43
SOURCE = Path(reference.__file__).parents[1]


class Steering(SettingsSpec):
    smoothing: float = setting(1.0, help="Added.", shown=Shown("Noise", flags=("--steering-smoothing",)), gt=0)


class Noise(SpecFamily):
    tag = "kind"


class NoNoise(Noise):
    """Nothing is added."""

    kind: Literal["none"] = "none"


class Gauss(Noise):
    """Normal noise. And more."""

    kind: Literal["text-to-text"] = "text-to-text"
    eta: float = setting(help="How little.", shown=Shown("Noise", common=True, metavar="NUMBER|inf"), gt=0)
    steering: Steering | None = setting(None, help="Steered.", shown=Shown("Noise"))


class Inner(SettingsSpec):
    rounds: int = setting(
        3, help="Times.", shown=Shown("Work", unit="rounds", flags=("--rounds", "--times")), ge=1, le=9
    )
    rate: float | None = setting(None, help="Speed.", shown=Shown("Work", default="3e-4"), gt=0, allow_inf_nan=False)
    depth: int | None = setting(0, help="Levels.", shown=Shown("Work", none="all"), ge=0)
    quick: bool = setting(True, help="Fast.", shown=Shown("Work"))
    also: tuple[str, ...] = setting((), help="More.", shown=Shown("Work", metavar="NAME"))


class Whole(SettingsSpec):
    noise: Noise
    inner: Inner = Inner()
    where: Path | None = setting(None, help="A place.", shown=Shown("Work", metavar="DIR", env="CUTLAYER_TEST_WHERE"))
    column: str = setting("text", help="A name.", shown=Shown("Work", metavar="NAME"))
    password: SecretStr | None = setting(None, help="A secret.", shown=Shown("Work", env="CUTLAYER_TEST_PASSWORD"))


Invoke = Callable[..., Result]


@pytest.fixture
def seen() -> dict[str, Any]:
    """What the command was called with."""
    return {}


@pytest.fixture
def invoke(seen: dict[str, Any]) -> Invoke:
    return invoke_with(Whole, seen)


def invoke_with(spec: type[SettingsSpec], seen: dict[str, Any]) -> Invoke:
    app = typer.Typer(rich_markup_mode="rich")

    def work(settings: Annotated[dict[str, Any], Part(spec)]) -> None:
        """Works."""
        seen.update(settings)

    work.__annotations__ = {"settings": Annotated[dict[str, Any], Part(spec)], "return": None}
    app.command()(settings_command(work))
    command = get_command(app)

    def run(*words: object, **environment: str) -> Result:
        seen.clear()
        return CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": "200", **environment})

    run.command = command  # type: ignore[attr-defined]
    return run


def refused(result: Result) -> str:
    assert isinstance(result.exception, ConfigError), result.output
    return str(result.exception)


# ---------------------------------------------------------------- options


def test_options_are_handed_on_as_specs(invoke: Invoke, seen: dict[str, Any]) -> None:
    done = invoke("--eta", 80, "--steering", "--steering-smoothing", 0.5, "--times", 4, "--depth", "all", "--no-quick")
    assert done.exit_code == 0, done.output
    assert seen == {
        "noise": Gauss(eta=80, steering=Steering(smoothing=0.5)),
        "inner": Inner(rounds=4, depth=None, quick=False),
    }
    assert seen["inner"].model_fields_set == {"rounds", "depth", "quick"}, "what was not said is left to the spec"


def test_what_takes_several_values_is_given_several_times(invoke: Invoke, seen: dict[str, Any]) -> None:
    invoke("--eta", 80, "--also", "a", "--also", "b")
    assert seen["inner"].also == ("a", "b")


def test_infinity_is_the_kind_without_noise(invoke: Invoke, seen: dict[str, Any]) -> None:
    assert invoke("--eta", "inf").exit_code == 0
    assert seen["noise"] == NoNoise()
    assert "means nothing with kind none" in refused(invoke("--eta", "inf", "--steering"))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--eta", "80", "--rounds", "many"), "--rounds: many must be a whole number"),
        (("--eta", "80", "--rounds", "1.5"), "--rounds: 1.5 must be a whole number"),
        (("--eta", "80", "--depth", "some"), "--depth: some must be a whole number, or all"),
        (("--eta", "80", "--rate", "1e999"), "--rate: 1e999 must be a number"),
        (("--eta", "80", "--steering-smoothing", "1"), "it means nothing without --steering"),
        ((), MISSING["eta"]),
    ],
)
def test_a_value_of_the_wrong_type_is_a_wrong_command_line(words: tuple[str, ...], said: str, invoke: Invoke) -> None:
    failed = invoke(*words)
    assert failed.exit_code == 2
    assert said in " ".join(re.sub("[│╭╮╰╯─]", " ", failed.output).split())


def test_every_value_out_of_bounds_is_told(invoke: Invoke) -> None:
    said = refused(invoke("--eta", 80, "--rounds", 0, "--rate", -1))
    assert said == ("rounds = 0: must be at least 1; rate = -1.0: must be above 0")


def test_help_has_common_settings_first_and_the_others_by_topic(invoke: Invoke) -> None:
    shown = invoke("--help").output
    common, *panels = re.split("╭─ ", shown)[1:]
    assert common.startswith("Options")
    assert "--eta" in common
    assert "--rounds" not in common
    assert [panel.split(" ─")[0] for panel in panels] == ["Noise", "Work", "Output and config file"]
    words = " ".join(re.sub("[│╭╮╰╯─]", " ", shown).split())
    for said in (
        "Times. [default: 3; unit: rounds; at least 1, at most 9]",
        "Speed. [default: 3e-4; above 0]",
        "--rounds,--times",
        "N|all",
        "none: Nothing is added. text-to-text: Normal noise.",
    ):
        assert said in words


def test_options_and_their_values_are_completed(invoke: Invoke) -> None:
    command = invoke.command  # type: ignore[attr-defined]
    with command.make_context("work", [], resilient_parsing=True) as context:
        assert {"--eta", "--rounds"} <= {item.value for item in command.shell_complete(context, "--")}
        (kind,) = (each for each in command.params if each.name == "kind")
        assert [item.value for item in kind.shell_complete(context, "t")] == ["text-to-text"]


# ---------------------------------------------------------------- config files


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "run.yaml"


def test_a_file_gives_what_options_give(invoke: Invoke, seen: dict[str, Any], file: Path) -> None:
    file.write_text(
        "noise:\n  eta: 80\n  steering: {smoothing: 0.5}\ninner.rate: 3e-4\ntimes: 4\n--depth: all\n"
        "inner:\n  quick: no\n  also: [a, no]\ncolumn: no\nwhere:\n"
    )
    assert invoke("--config", file).exit_code == 0
    assert seen == {
        "noise": Gauss(eta=80, steering=Steering(smoothing=0.5)),
        "inner": Inner(rounds=4, rate=3e-4, depth=None, quick=False, also=("a", "no")),
        "column": "no",
    }


def test_the_command_line_wins(invoke: Invoke, seen: dict[str, Any], file: Path) -> None:
    file.write_text("eta: 80\nrounds: 4\nquick: false\n")
    assert invoke("--config", file, "--rounds", 5, "--quick").exit_code == 0
    assert (seen["noise"].eta, seen["inner"].rounds, seen["inner"].quick) == (80, 5, True)


WRONG = {
    "unknown": ("inner:\n  ruonds: 3", 2, "there is no setting `inner.ruonds`. Did you mean `inner.rounds`?"),
    "unknown part": ("inr:\n  rounds: 3", 1, "there is no setting `inr`. Did you mean `inner`?"),
    "in another part": ("noise:\n  rounds: 3", 2, "there is no `noise.rounds`. It is `inner.rounds`"),
    "like nothing": ("zzz: 3", 1, "there is no setting `zzz`. `--print-config` lists those that there are"),
    "wrong type": ("inner:\n  rounds: many", 2, "inner.rounds = many: must be a whole number"),
    "no switch": ("\nquick: 3", 2, "inner.quick = 3: must be true or false"),
    "no list": ("rounds: [1, 2]", 1, "inner.rounds: must be one value"),
    "no value": ("rounds: {a: 1}", 1, "inner.rounds: must be a value, and no more names"),
    "neither on nor off": ("noise:\n  steering:", 2, "noise.steering = : must be true or false"),
    "out of bounds": ("rounds: 10", 1, "inner.rounds = 10: must be at most 9"),
    "no name": ("[a]: 3", 1, "a name must be a word"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_in_a_file_is_told_with_its_line(
    name: str, invoke: Invoke, seen: dict[str, Any], file: Path
) -> None:
    content, line, said = WRONG[name]
    file.write_text(content)
    assert f"{file}, line {line}: {said}" in refused(invoke("--config", file, "--eta", 80))
    assert not seen, "nothing is done"


def test_all_that_is_wrong_is_told_at_once(invoke: Invoke, file: Path) -> None:
    file.write_text("eta: much\nruonds: 3\nrate: -1\n")
    said = refused(invoke("--config", file))
    assert [f"line {number}" in said for number in (1, 2, 3)] == [True] * 3


def test_a_value_that_is_said_twice_must_be_the_same(invoke: Invoke, seen: dict[str, Any], file: Path) -> None:
    file.write_text("eta: 80\nrounds: 3\ninner:\n  rounds: 4\n")
    said = refused(invoke("--config", file))
    assert f"{file}, lines 2 and 4: inner.rounds is 3 and 4. Keep one of them" in said
    file.write_text("eta: 80\nrounds: 3\ninner:\n  rounds: 3\n")
    assert invoke("--config", file).exit_code == 0
    assert seen["inner"].rounds == 3


def test_a_file_and_the_environment_must_agree(invoke: Invoke, seen: dict[str, Any], file: Path) -> None:
    file.write_text("eta: 80\nwhere: a\n")
    said = refused(invoke("--config", file, CUTLAYER_TEST_WHERE="b"))
    assert f"{file}, line 2: where is a, and CUTLAYER_TEST_WHERE is b. Give --where, which wins over both" in said
    assert not seen
    assert invoke("--config", file, "--where", "c", CUTLAYER_TEST_WHERE="b").exit_code == 0
    assert seen["where"] == Path("c")


@pytest.mark.parametrize(
    ("content", "line"),
    [("eta: [80", 1), ("eta: 80\n  a: b: c", 2), ("- eta", 1), ("80", 1), ("eta: *a", 1), ("eta: 80\n---\neta: 1", 2)],
)
def test_a_file_that_is_no_yaml_of_names_is_refused(content: str, line: int, invoke: Invoke, file: Path) -> None:
    file.write_text(content)
    said = refused(invoke("--config", file))
    assert re.search(rf"run.yaml, line {line}: it is no ", said)
    assert "--print-config" in said


def test_a_file_that_cannot_be_read_is_refused(invoke: Invoke, file: Path) -> None:
    assert f"{file} cannot be read" in refused(invoke("--config", file))
    file.write_bytes(b"eta: 80\n\xff\xfe")
    assert f"{file}, line 2: it is no YAML: not UTF-8" in refused(invoke("--config", file))


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (f"eta: 80\ncolumn: {KEY}", 2),
        (f"eta: 80\n# {KEY}", 2),
        ("password: secret-7", 1),
        ("api_key: secret-7", 1),
        ("inner:\n  vendor-token: secret-7", 2),
    ],
)
def test_a_file_with_a_key_is_refused_and_the_key_not_shown(
    content: str, line: int, invoke: Invoke, seen: dict[str, Any], file: Path
) -> None:
    file.write_text(content)
    failed = invoke("--config", file)
    said = refused(failed)
    assert f"{file}, line {line}: an API key does not belong in a file" in said
    assert "CUTLAYER_API_KEY" in said
    assert KEY not in said + failed.output
    assert "secret-7" not in said + failed.output
    assert not seen


def test_a_rule_across_settings_names_the_line_of_the_one_that_breaks_it(file: Path) -> None:
    app = typer.Typer()

    def work(settings: Annotated[dict[str, Any], Part(Whole)]) -> None:
        from cutlayer.core.errors import Fault

        raise ConfigError([Fault("rounds", 3, "must be 1 here"), Fault("inner.rate", 1, "must be 2 here")])

    work.__annotations__ = {"settings": Annotated[dict[str, Any], Part(Whole)], "return": None}
    app.command()(settings_command(work))
    file.write_text("eta: 80\nrounds: 3\n")
    failed = CliRunner().invoke(app, ["--config", str(file), "--rate", "1"])
    assert refused(failed) == f"{file}, line 2: inner.rounds = 3: must be 1 here; rate = 1: must be 2 here"


# ---------------------------------------------------------------- printed


def test_a_printed_file_runs_and_gives_the_same(invoke: Invoke, seen: dict[str, Any], file: Path) -> None:
    given = ("--eta", 80, "--steering", "--steering-smoothing", 0.5, "--depth", "all", "--no-quick", "--rate", 3e-4)
    given += ("--also", "no", "--also", "a: b", "--column", "null", "--where", "# x")
    printed = invoke(*given, "--print-config", CUTLAYER_TEST_PASSWORD="secret-7")
    assert not seen, "nothing is run"
    assert "secret-7" not in printed.output
    assert "password" not in printed.output
    file.write_text(printed.output)
    assert invoke(*given).exit_code == 0
    expected = dict(seen)
    assert invoke("--config", file).exit_code == 0
    assert seen == expected


def test_what_a_printed_file_comments_out_is_the_default(invoke: Invoke, seen: dict[str, Any], file: Path) -> None:
    printed = invoke("--eta", 80, "--print-config").output
    file.write_text(printed)
    assert invoke("--config", file).exit_code == 0
    assert seen == {"noise": Gauss(eta=80)}
    opened = re.sub(r"^( *)# (rounds|depth|quick|column): ", r"\1\2: ", printed, flags=re.MULTILINE)
    assert opened.count("\n  rounds: 3\n") == 1
    file.write_text(opened)
    assert invoke("--config", file).exit_code == 0
    assert seen == {"noise": Gauss(eta=80), "inner": Inner(), "column": "text"}


def test_the_schema_has_every_setting_but_the_secret_ones(invoke: Invoke) -> None:
    schema = json.loads(invoke("--print-schema").output)
    assert set(schema["properties"]) == {"noise", "inner", "where", "column"}
    assert schema["additionalProperties"] is False
    inner = schema["properties"]["inner"]["properties"]
    assert (inner["rounds"]["minimum"], inner["rounds"]["maximum"], inner["rounds"]["default"]) == (1, 9, 3)
    assert inner["depth"]["anyOf"] == [{"type": "integer", "minimum": 0}, {"enum": ["all"]}]
    noise = schema["properties"]["noise"]["properties"]
    assert noise["kind"]["enum"] == ["none", "text-to-text"]
    assert noise["eta"]["anyOf"] == [{"type": "number", "exclusiveMinimum": 0}, {"enum": ["inf"]}]
    assert noise["steering"]["anyOf"][1]["properties"]["smoothing"]["default"] == 1.0
    assert re.fullmatch(r"https://json-schema.org/draft/[0-9-]+/schema", schema["$schema"])


# ---------------------------------------------------------------- once


def test_a_setting_that_a_spec_gains_is_everywhere(seen: dict[str, Any], file: Path) -> None:
    class More(Training):
        warmth: float = setting(
            0.5, help="How warm it is.", shown=Shown("Training", unit="share", source="nobody"), ge=0, le=1
        )

    class Run(SettingsSpec):
        training: More = More()

    run = invoke_with(Run, seen)
    assert run("--warmth", 0.25).exit_code == 0
    assert seen["training"] == More(warmth=0.25)
    assert "How warm it is. [default: 0.5; unit: share; at least 0, at most 1]" in " ".join(
        re.sub("[│╭╮╰╯─]", " ", run("--help").output).split()
    )
    assert json.loads(run("--print-schema").output)["properties"]["training"]["properties"]["warmth"]["maximum"] == 1
    assert "  # warmth: 0.5\n" in run("--print-config").output
    file.write_text("training:\n  warmth: 0.75\n")
    assert run("--config", file).exit_code == 0
    assert seen["training"].warmth == 0.75
    assert (
        "| `training.warmth` | `--warmth` | `0.5` | How warm it is. [unit: share; at least 0, at most 1] "
        "Source: nobody. |" in reference.settings_table(Run, "Training")
    )


DECLARED = (FinetuneSpec, DataSpec, Sampling, AttackerSpec, AuditSpec)
OWN = {
    ("vendor", "--model"): "what a vendor offers, not what a customer asks for",
}
"""Options that are called as a setting and mean another thing, each with the reason."""


def declared() -> dict[str, Setting]:
    return {flag: each for spec in DECLARED for each in settings_of(spec) for flag in each.flags}


def options_of(module: Path) -> set[str]:
    """Names of options that a module declares by itself."""
    found = set()
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("typer.Option", "Option"):
            found |= {each.value for each in node.args if isinstance(each, ast.Constant)}
        if isinstance(node, ast.FunctionDef):
            for each in (*node.args.args, *node.args.kwonlyargs):
                if each.annotation is not None and "typer.Option(" in ast.unparse(each.annotation):
                    found.add(f"--{each.arg.replace('_', '-')}")
    return found


def test_no_command_declares_a_setting_again() -> None:
    again = {
        (module.stem, flag)
        for module in sorted((SOURCE / "cli").glob("*.py"))
        for flag in options_of(module) & set(declared())
    }
    assert again - set(OWN) == set()
    assert set(OWN) <= again, "an exception that is none any more"


def test_a_second_declaration_would_be_found(tmp_path: Path) -> None:
    module = tmp_path / "again.py"
    module.write_text(
        "def f(epochs: Annotated[int, typer.Option(help='x')] = 5, *, r: A = typer.Option('--lora-r')): ..."
    )
    assert options_of(module) >= {"--epochs", "--lora-r"}
    assert {"--epochs", "--lora-r"} <= set(declared())


def test_no_function_gives_a_setting_a_default_of_its_own() -> None:
    """Defaults are the specs': a number or word in a signature would be a second one."""
    names = {each.path[-1]: each for spec in DECLARED for each in settings_of(spec)}
    again = []
    for module in (SOURCE / "customer/client.py", *sorted((SOURCE / "cli").glob("*.py"))):
        for node in ast.walk(ast.parse(module.read_text())):
            if not isinstance(node, ast.FunctionDef):
                continue
            positional = [*node.args.posonlyargs, *node.args.args]
            pairs = [
                *zip(positional[len(positional) - len(node.args.defaults) :], node.args.defaults, strict=True),
                *zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True),
            ]
            again += [
                f"{module.stem}.{node.name}({each.arg}={ast.unparse(default)})"
                for each, default in pairs
                if each.arg in names and isinstance(default, ast.Constant) and default.value not in (None, ...)
            ]
    assert again == []


def test_a_setting_is_declared_in_one_spec() -> None:
    names = [each.key for spec in (FinetuneSpec, DataSpec) for each in settings_of(spec)]
    assert len(names) == len(set(names))
    flags = [flag for spec in (FinetuneSpec, DataSpec) for each in settings_of(spec) for flag in each.flags]
    assert len(flags) == len(set(flags))


# ---------------------------------------------------------------- names


@pytest.mark.parametrize("old", [name for name in RENAMED if name != "--cti-option"])
def test_an_old_name_is_that_of_an_option_of_today(old: str) -> None:
    flags = {name for command in reference.commands() for each in command.parameters for name in each.names}
    assert RENAMED[old] in flags
    assert old not in flags
    assert today(old, "cutlayer finetune") == RENAMED[old]


def test_one_old_name_had_two_meanings() -> None:
    assert today("--budget=5m", "cutlayer audit") == "--time-limit"
    assert today("--budget", "cutlayer finetune") == "--privacy-budget"
    assert today("--epochs", "cutlayer finetune") is None


def test_the_help_of_finetune_begins_with_ten_options() -> None:
    settings = [each for argument in arguments(finetune) for each in argument.settings]
    assert len([each for each in settings if each.shown.common]) == 10
