"""How every command behaves: help, errors, exit codes."""

from __future__ import annotations

import itertools
import json
import os
import shlex
import signal
import time
from pathlib import Path

import pytest

from cutlayer.cli.reference import Command, commands
from cutlayer.core import BudgetError, ConfigError, CutlayerError, Fault, Stopped, StorageError
from tests.unit.cli.conftest import Run

COMMANDS = list(commands())


def by_name(command: Command) -> str:
    return command.name


def test_the_commands_are_those_of_the_plan() -> None:
    assert {command.name.removeprefix("cutlayer ") for command in COMMANDS} == {
        "demo",
        "embed",
        "finetune",
        "gateway",
        "gateway key",
        "generate",
        "predict",
        "privatize",
        "vendor init",
        "vendor serve",
        "vendor warm-up",
        "vendor denoiser train",
        "vendor denoiser list",
        "vendor denoiser remove",
        "vendor key create",
        "vendor key list",
        "vendor key revoke",
        "recipe list",
        "recipe show",
        "recipe run",
        "adapter list",
        "adapter show",
        "adapter delete",
        "audit",
        "calibrate",
        "conformance",
        "convert-eta",
        "discard",
        "job list",
        "job watch",
        "job cancel",
        "ledger show",
        "protect",
        "restore",
    }


@pytest.mark.parametrize("eta", ["0", "-5", "nan", "-inf", "1e400", "1e-400", "much"])
def test_an_eta_that_is_no_amount_of_noise_is_refused(eta: str, run: Run) -> None:
    failed = run("privatize", "--input", "x.csv", "--output", "y.csv", f"--eta={eta}", "--json")
    assert failed.code == failed.result["exit_code"] == 2
    assert f"{eta} is no number above 0" in failed.err
    assert "--eta inf" in failed.err


@pytest.mark.parametrize("command", COMMANDS, ids=by_name)
def test_help_has_an_example_that_the_command_takes(command: Command, run: Run) -> None:
    words = command.name.split()[1:]
    shown = run(*words, "--help")
    assert shown.code == 0
    assert "Example:" in shown.out
    example = shlex.split(command.example)
    assert " ".join(example).startswith(command.name)
    known = {name for parameter in command.parameters for name in parameter.names}
    assert {word for word in example if word.startswith("--")} <= known
    required = {parameter.names[0] for parameter in command.parameters if parameter.default == "required"}
    assert {name for name in required if name.startswith("--")} <= set(example)


@pytest.mark.parametrize("command", COMMANDS, ids=by_name)
def test_help_breaks_lines_where_the_terminal_does(command: Command, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    shown = run(*command.name.split()[1:], "--help").out
    lines = [line.strip() for line in shown.partition("╭")[0].split("\n")]
    # the usage is the library's own line: behind a long name it keeps twenty columns free for arguments
    lines = [line for line in lines if not line.startswith("Usage:")]
    for line, following in itertools.pairwise(lines):
        assert not line or not following or len(f"{line} {following.split()[0]}") > 58, line


@pytest.mark.parametrize("command", COMMANDS, ids=by_name)
def test_every_command_has_a_result_for_machines(command: Command) -> None:
    names = {name for parameter in command.parameters for name in parameter.names}
    assert "--json" in names


@pytest.mark.parametrize("command", COMMANDS, ids=by_name)
def test_every_option_says_what_it_means(command: Command) -> None:
    assert command.text
    assert not [parameter.names for parameter in command.parameters if not parameter.text]


@pytest.mark.parametrize("command", ["show", "delete"])
def test_what_is_no_adapters_identifier_is_refused_before_anybody_is_asked(command: str, run: Run) -> None:
    failed = run("adapter", command, "nope", "--json")
    assert failed.code == failed.result["exit_code"] == 3
    assert "adapter = 'nope'" in failed.err
    assert "adapter list" in failed.result["remedy"]


def test_leaving_eta_out_is_an_error_that_names_the_way_out(run: Run) -> None:
    for arguments in (("finetune", "--train", "x.csv"), ("privatize", "--input", "x.csv", "--output", "y.csv")):
        failed = run(*arguments)
        assert failed.code == 2
        assert "`--eta inf` for no privacy" in failed.err
        assert len(failed.err.strip().splitlines()) == 1
        assert not failed.out


@pytest.mark.parametrize(
    "arguments",
    [("fintune",), ("finetune",), ("finetune", "--train", "x", "--eta", "much"), ("ledger", "show", "--lmit", "3")],
)
def test_a_wrong_command_line_is_one_line_with_code_2(arguments: tuple[str, ...], run: Run) -> None:
    failed = run(*arguments)
    assert failed.code == 2
    assert len(failed.err.strip().splitlines()) == 1
    assert "--help`" in failed.err


ERRORS = [
    ConfigError([Fault("eta", -1.0, "must be above 0"), Fault("rank", 0, "must be at least 1")], remedy="Change them."),
    BudgetError("A text would be charged 160 of 100.", remedy="Raise --budget."),
    StorageError("The folder is full."),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_our_errors_are_one_line_with_their_code(
    error: CutlayerError, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def account(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("cutlayer.customer.Account", account)
    for extra in ((), ("--json",)):
        failed = run("adapter", "list", *extra)
        assert failed.code == error.exit_code
        sentence = f"{error.message}." if error.remedy and not error.message.endswith(".") else error.message
        assert failed.err.strip() == f"error: {sentence} {error.remedy}".strip()
    assert failed.result == {"error": error.message, "remedy": error.remedy, "exit_code": error.exit_code}
    assert len(failed.out.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "error", "called"),
    [
        (("recipe", "run", "sap", "--seeds", "0", "--data", "{folder}"), "--seeds = 0: ", "recipe run"),
        (("vendor", "init", "--data-dir", "{folder}/new", "--threads", "2000"), "--threads = 2000: ", "vendor init"),
        (("vendor", "key", "create", "A b", "--data-dir", "{folder}"), "name = 'A b': must be", "vendor key create"),
        (("vendor", "key", "create", "--data-dir", "{folder}"), "name = None: must be", "vendor key create"),
        (("vendor", "key", "create", "a", "--metrics", "--data-dir", "{folder}"), "name = 'a': ", "vendor key create"),
    ],
)
def test_settings_of_a_sub_command_are_called_by_their_options(
    arguments: tuple[str, ...], error: str, called: str, run: Run, tmp_path: Path
) -> None:
    failed = run(*(word.format(folder=tmp_path) for word in arguments), "--json")
    assert failed.code == ConfigError.exit_code
    assert failed.result["error"].startswith(error)
    assert failed.result["remedy"] == f"See `cutlayer {called} --help`."


def test_a_setting_that_stands_in_a_file_is_called_as_it_stands_there(run: Run, tmp_path: Path) -> None:
    """`vendor serve` has an option --threads too, but this is not its value."""
    settings = {"models": {"m": "starter"}, "default_model": "m", "threads": 0}
    (tmp_path / "vendor.json").write_text(json.dumps(settings))
    failed = run("vendor", "serve", "--data-dir", tmp_path)
    assert failed.code == ConfigError.exit_code
    assert f"{tmp_path / 'vendor.json'}.threads = 0" in failed.err


@pytest.mark.parametrize("terminated", [False, True])
def test_an_interrupted_command_says_how_to_go_on(terminated: bool, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def account(*_: object, **__: object) -> None:
        if not terminated:
            raise KeyboardInterrupt  # no signal: a shell's background jobs ignore it
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(5)  # it is handled at the next step of the interpreter

    monkeypatch.setattr("cutlayer.customer.Account", account)
    for extra in ((), ("--json",)):
        stopped = run("adapter", "list", *extra)
        assert stopped.code == Stopped.exit_code
        assert stopped.err.strip() == "error: Stopped before it was done. Run the same command again."
    assert stopped.result["exit_code"] == Stopped.exit_code
    assert "same command" in stopped.result["remedy"]


def test_a_service_that_is_interrupted_has_not_failed(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def serve(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("cutlayer.vendor.serve", serve)
    stopped = run("vendor", "serve", "--data-dir", "vendor")
    assert (stopped.code, stopped.err) == (Stopped.exit_code, "")


def test_a_bug_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    from cutlayer.cli import main

    def account(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("cutlayer.customer.Account", account)
    with pytest.raises(ZeroDivisionError):
        main(["adapter", "list"])


def test_a_bug_does_not_print_local_variables() -> None:
    """Rich tracebacks with locals would print private text."""
    from cutlayer.cli import app

    assert not app.pretty_exceptions_enable
    assert not app.pretty_exceptions_show_locals


def test_version(run: Run) -> None:
    assert run("--version").out.startswith("cutlayer ")


def test_a_misspelt_folder_is_no_empty_ledger(run: Run, tmp_path: Path) -> None:
    """An empty one would tell whoever audits it that nothing left."""
    failed = run("ledger", "show", "--home", tmp_path / "typo", "--json")
    assert failed.code == 3
    assert "there is no ledger in it" in failed.err
    assert not (tmp_path / "typo").exists()
