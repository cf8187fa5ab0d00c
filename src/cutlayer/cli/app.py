"""The `cutlayer` command: its groups, and how it fails.

Exit codes are stable: 0 done, 2 the command line is wrong, every other one belongs to a class of
`cutlayer.core.errors`. Errors that a user can cause are one line with the remedy; a traceback means
a bug in cutlayer.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.metadata
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Sequence
from types import TracebackType
from typing import Annotated, Any, TextIO

import typer
from typer.core import TyperGroup
from typer.main import get_command

from cutlayer.cli import (
    adapter,
    audit,
    calibrate,
    conformance,
    convert_eta,
    demo,
    embed,
    finetune,
    gateway,
    generate,
    job,
    ledger,
    privatize,
    protect,
    recipe,
    vendor,
)
from cutlayer.cli.output import Output, fail
from cutlayer.cli.renamed import today as renamed
from cutlayer.core import CutlayerError, CutlayerWarning, Fault, Stopped
from cutlayer.printable import printable

UsageError: type[Exception] = typer.BadParameter.__mro__[1]
"""What typer raises for a wrong command line; it has no public name that all versions share."""


class Interrupted(Exception):  # noqa: N818 - the user's wish, not a fault
    """Ctrl-C, under a name that typer does not turn into a silent exit."""


class Commands(TyperGroup):
    """All commands."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        for each in (self, *self.commands.values()):
            # typer keeps the source's line breaks, beside those of a narrow terminal
            paragraphs = (each.help or "").split("\n\n")
            each.help = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)

    def invoke(self, ctx: Any) -> Any:
        """Runs the command that was asked for.

        Raises:
            Interrupted: On Ctrl-C, if the command has nothing of its own to say about it.
        """
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            raise Interrupted from error


app = typer.Typer(
    name="cutlayer",
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,  # they print local variables, and those may hold private text
    rich_markup_mode="rich",
)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"cutlayer {importlib.metadata.version('cutlayer')}")
        raise typer.Exit


@app.callback(epilog="Example: cutlayer demo")
def cutlayer(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Fine-tune and query a vendor's language model without showing it your text.

    A vendor keeps the top of the model, you hold text and labels. What leaves is privatized, and written to a ledger
    first.
    """


audit.register(app)
calibrate.register(app)
conformance.register(app)
convert_eta.register(app)
demo.register(app)
embed.register(app)
finetune.register(app)
generate.register(app)
privatize.register(app)
protect.register(app)
app.add_typer(adapter.app, name="adapter")
app.add_typer(gateway.app, name="gateway")
app.add_typer(job.app, name="job")
app.add_typer(ledger.app, name="ledger")
app.add_typer(recipe.app, name="recipe")
app.add_typer(vendor.app, name="vendor")


def _in_options(error: CutlayerError, given: Sequence[str]) -> tuple[str, str]:
    """An error's message and remedy; settings that are options of the command are called by the name that was typed."""
    faults: Sequence[Fault] = getattr(error, "faults", ())
    if not faults:
        return error.message, error.remedy
    command = _commands()
    called = ["cutlayer"]
    for word in given:
        if not isinstance(command, TyperGroup):
            break
        if word in command.commands:
            command = command.commands[word]
            called.append(word)
    typed = {word.partition("=")[0] for word in given}
    options = {
        parameter.name: next((name for name in parameter.opts if name in typed), parameter.opts[0])
        for parameter in command.params
        if parameter.opts[0].startswith("--")
    }
    # the whole path must be the setting's: one that stands in a file is called as it stands there
    named = [
        dataclasses.replace(fault, path=options.get(fault.path.removeprefix("vendor."), fault.path)) for fault in faults
    ]
    return "; ".join(map(str, named)), error.remedy or f"See `{' '.join(called)} --help`."


@functools.cache
def _commands() -> Any:
    """The program with all its commands, which takes a tenth of a second to build."""
    return get_command(app)


def _show_bug(kind: type[BaseException], error: BaseException, where: TracebackType | None) -> None:
    """Prints a traceback as Python does, with the control characters in its messages written out."""
    sys.stderr.write(printable("".join(traceback.format_exception(kind, error, where))))


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Prints a warning of cutlayer's as a command's own, and any other as Python does."""
    if issubclass(category, CutlayerWarning):
        Output().warn(str(message))
    else:
        told = warnings.formatwarning(message, category, filename, lineno, line)
        (file or sys.stderr).write(printable(told))


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command line and leaves the process.

    Args:
        arguments: Without the program's name; None: those of the process.

    Raises:
        SystemExit: Always, with the exit code.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    as_json = "--json" in given
    # Threads of a matrix product that wait for one another spin for so long and then sleep. Left alone they spin
    # for milliseconds, and where processes share cores one of them waits for a core that the other is burning: a
    # training step took 5.1 s instead of 0.85 s. A vendor has its machine to itself, and waking a thread costs it
    # 4 to 15 % of a step. Read when torch is imported.
    serves = given[:2] == ["vendor", "serve"] or (given[:1] == ["gateway"] and given[1:2] != ["key"])
    os.environ.setdefault("GOMP_SPINCOUNT", "100000" if serves else "10000")
    # the bars of model loading would stand between ours; read when transformers is imported
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    if not serves:
        # schedulers and containers stop a program so; it goes on later as after Ctrl-C
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.excepthook = _show_bug
    warnings.showwarning = _show_warning
    try:
        code = _commands().main(given, prog_name="cutlayer", standalone_mode=False)
    except UsageError as error:
        context = getattr(error, "ctx", None)
        path = context.command_path if context is not None else "cutlayer"
        message = getattr(error, "format_message", error.__str__)().rstrip(".")
        old = getattr(error, "option_name", None)
        if old is not None and (today := renamed(old, path)) is not None:
            message = f"{old} is now {today}"
        code = fail(
            message if message.endswith("?") else f"{message}.",
            remedy=f"See `{path} --help`.",
            exit_code=2,
            as_json=as_json,
        )
    except Interrupted:
        code = Stopped.exit_code
        if not serves:  # which runs until it is interrupted, and says itself that it ends
            fail("Stopped before it was done.", remedy="Run the same command again.", exit_code=code, as_json=as_json)
    except CutlayerError as error:
        message, remedy = _in_options(error, given)
        code = fail(message, remedy=remedy, exit_code=error.exit_code, as_json=as_json)
    raise SystemExit(code or 0)
