"""`cutlayer privatize`: what would leave, without a vendor and without anything leaving."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cutlayer.cli.command import Part, settings_command
from cutlayer.cli.files import UNSAFE, check_columns, check_kind, check_not_input, rows_file
from cutlayer.cli.options import RELEASE, AsJson, Connection, LocalModel, TableFiles, Work, warn_unprotected
from cutlayer.cli.output import Output
from cutlayer.core.setting import Shown, setting
from cutlayer.core.spec import SettingsSpec
from cutlayer.customer.columns import DataSpec
from cutlayer.customer.settings import FinetuneSpec, Training
from cutlayer.privacy.spec import PRIVACY

if TYPE_CHECKING:
    from cutlayer.customer import PrivatizedText

SHOWN = 5
"""Texts on the terminal."""

SHOWN_CHARACTERS = 200
"""Of each of them; the file holds the rest."""

Row = tuple[str, ...]


class Charging(SettingsSpec):
    """Whether releases that are not sent from here are charged."""

    charge: bool = setting(
        False,
        help="Charge the texts in the ledger as if they left: where you pass the releases on by a way of your own. "
        "--privacy-budget then bounds what a text is charged.",
        shown=Shown(PRIVACY),
    )


@settings_command
def privatize(
    files: TableFiles,
    columns: Annotated[dict[str, Any], Part(DataSpec, ("text_column", "text_pair_column"))],
    settings: Annotated[dict[str, Any], Part(FinetuneSpec, RELEASE)],
    charging: Charging,
    local: LocalModel,
    work: Work,
    folder: Annotated[dict[str, Any], Part(Connection, ("home",))],
    as_json: AsJson = False,
) -> None:
    """Show what would leave at an eta, side by side with the original. Nothing is sent, nor charged without --charge.

    The draw of a text is the one that `finetune` and `predict` release at the same eta with the same --noise, --model
    and --max-length. It is not what they release with CTI or with `--train-bottom resample`.
    """
    check_kind(files.output)
    where = DataSpec(**columns)
    names = [name for name in (where.text_column, where.text_pair_column) if name]
    added = [*(f"{name}_released" for name in names), "replaced", "tokens"]
    check_columns({"--text-column": names[:1], "--text-pair-column": names[1:]}, [*added, UNSAFE])
    check_not_input(files.input, files.output)
    from cutlayer.customer import Client, Draw
    from cutlayer.data import TextFile

    output = Output(as_json=as_json)
    privacy, seed = settings["privacy"], settings.get("unsafe_noise_seed")
    if privacy.mechanism == "vector":
        raise typer.BadParameter("rows of numbers leave, and no text that could be shown", param_hint="--mechanism")
    warn_unprotected(output, eta=privacy.eta, noise=privacy.noise, unsafe_noise_seed=seed)
    executor = work.executor()
    texts = TextFile(files.input, where.text_column, where.text_pair_column)
    len(texts)  # reads all of it: what is wrong with a row is told before any work
    marks = () if seed is None else (seed,)
    first: list[tuple[Row, Row]] = []

    def rows(shown: Iterable[PrivatizedText]) -> Iterator[tuple[object, ...]]:
        for original, text in zip(texts, shown, strict=True):
            if len(first) < SHOWN:
                first.append((original, text.released))
            # not `text.original`: that is how its tokens read, by which no row is found again in the input
            yield (*original, *text.released, text.replaced, text.tokens, *marks)

    longest = settings.get("training", Training()).max_length
    with rows_file(files.output) as write, output.progress() as progress:
        shown = Client(**folder).privatize_stream(
            texts,
            Draw(privacy, model=local.model, max_length=longest, unsafe_noise_seed=seed),
            charge=charging.charge,
            privacy_budget=settings.get("privacy_budget"),
            executor=executor,
            progress=progress,
        )
        with closing(shown):
            write([*names, *added, *(UNSAFE for _ in marks)], rows(shown))

    # what machines run, or what goes into a file, is a log, and texts belong in no log
    if output.on_terminal and not as_json:
        output.table(
            f"The first {len(first)} of {len(shown)} texts",
            ("original", "released"),
            [(" / ".join(map(_clipped, before)), " / ".join(map(_clipped, after))) for before, after in first],
            lines=True,
        )
    elif not as_json:
        output.show("The first texts are shown on a terminal only.")
    units = "words" if privacy.mechanism == "words" else "tokens"
    output.show(
        f"{shown.replaced:.1%} of {shown.tokens} {units} replaced at eta {privacy.eta:g}; all texts: {files.output}"
    )
    if shown.clear:
        clear = sum(shown.clear.values())
        shares = ", ".join(f"{kind} {count / shown.tokens:.1%}" for kind, count in sorted(shown.clear.items()))
        output.show(f"- {clear / shown.tokens:.1%} of the words leave as they are: {shares}")
    output.show(f"- Texts cut, because the model or --max-length takes no more: {shown.cut_texts} of {len(shown)}")
    if shown.largest_distance is not None:
        from cutlayer.privacy import WorstCase

        output.show(f"- {WorstCase(eta=privacy.eta, distance=shown.largest_distance)}")
    output.result(
        {
            "output": str(files.output),
            "texts": len(shown),
            "tokens": shown.tokens,
            "replaced": shown.replaced,
            "cut_texts": shown.cut_texts,
            "clear": dict(shown.clear),
            "eta": privacy.eta,
            "charged": charging.charge,
            "noise": privacy.noise,
            "largest_distance": shown.largest_distance,
            "no_privacy": math.isinf(privacy.eta),
            "unsafe_noise": seed is not None,
        }
    )


def _clipped(text: str) -> str:
    """The text's beginning, in one line and without what a terminal would take for a command."""
    line = " ".join("".join(character if character.isprintable() else " " for character in text).split())
    return line if len(line) <= SHOWN_CHARACTERS else f"{line[: SHOWN_CHARACTERS - 1]}…"


def register(app: typer.Typer) -> None:
    """Adds the command to the main app."""
    app.command(epilog="Example: cutlayer privatize --input notes.csv --output seen_by_vendor.csv --eta 80")(privatize)
