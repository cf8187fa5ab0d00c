"""`cutlayer privatize`: what would leave, without a vendor and without anything leaving."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cutlayer.cli.files import UNSAFE, check_columns, check_kind, check_not_input, rows_file
from cutlayer.cli.options import (
    DATA_HELP,
    OWN_NOISE,
    OWN_WINDOW,
    PRIVACY,
    AsJson,
    Eta,
    Home,
    Jobs,
    Noise,
    NoiseWindow,
    Ray,
    TextColumn,
    TextPairColumn,
    UnsafeNoiseSeed,
    parse_window,
    require_eta,
    warn_unprotected,
)
from cutlayer.cli.output import Output

if TYPE_CHECKING:
    from cutlayer.customer import PrivatizedText

Row = tuple[str, ...]

SHOWN = 5
"""Texts on the terminal."""

SHOWN_CHARACTERS = 200
"""Of each of them; the file holds the rest."""


def privatize(
    input_file: Annotated[str, typer.Option("--input", metavar="FILE", help=DATA_HELP, show_default=False)],
    output_file: Annotated[
        Path,
        typer.Option(
            "--output", metavar="FILE", help="Originals beside releases: .csv, .tsv, .jsonl.", show_default=False
        ),
    ],
    eta: Eta = None,
    noise: Noise = OWN_NOISE,
    noise_window: NoiseWindow = OWN_WINDOW,
    text_column: TextColumn = "text",
    text_pair_column: TextPairColumn = None,
    model: Annotated[
        str, typer.Option(metavar="SOURCE", help="starter, a local folder or a hub id: the vendor's model.")
    ] = "starter",
    max_length: Annotated[
        int | None,
        typer.Option(
            help="Tokens per text, special tokens included, as in `finetune`. Default: the model's limit.",
            show_default=False,
        ),
    ] = None,
    unsafe_noise_seed: UnsafeNoiseSeed = None,
    charge: Annotated[
        bool,
        typer.Option(
            "--charge",
            help="Charge the texts in the ledger as if they left: where you pass the releases on by a way of your own.",
            rich_help_panel=PRIVACY,
        ),
    ] = False,
    privacy_budget: Annotated[
        float | None,
        typer.Option(
            min=0,
            metavar="ETA",
            help="With --charge: the largest sum of eta over all releases of a text. Beyond it nothing is drawn.",
            show_default=False,
            rich_help_panel=PRIVACY,
        ),
    ] = None,
    jobs: Jobs = 1,
    ray: Ray = None,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Show what would leave at an eta, side by side with the original. Nothing is sent, nor charged without --charge.

    The draw of a text is the one that `finetune` and `predict` release at the same eta with the same --noise, --model
    and --max-length. It is not what they release with CTI, with `--mechanism vector` or with `--train-bottom redraw`.
    """
    chosen = require_eta(eta)
    check_kind(output_file)
    names = [text_column, *([text_pair_column] if text_pair_column else [])]
    columns = [*names, *(f"{name}_released" for name in names), "replaced", "tokens"]
    check_columns({"--text-column": [text_column], "--text-pair-column": names[1:]}, [*columns[len(names) :], UNSAFE])
    check_not_input(input_file, output_file)
    from cutlayer.core.executors import executor
    from cutlayer.customer import Client, Draw
    from cutlayer.data import TextFile
    from cutlayer.privacy import PrivacySpec

    output = Output(as_json=as_json)
    warn_unprotected(output, eta=chosen, noise=noise, unsafe_noise_seed=unsafe_noise_seed)
    work = executor(jobs=jobs, ray=ray)
    texts = TextFile(input_file, text_column, text_pair_column)
    len(texts)  # reads all of it: what is wrong with a row is told before any work
    privacy = PrivacySpec(
        mechanism="none" if math.isinf(chosen) else "text-to-text",
        eta=chosen,
        noise=noise,
        noise_window=parse_window(noise_window),
    )
    marks = () if unsafe_noise_seed is None else (unsafe_noise_seed,)
    columns += [UNSAFE for _ in marks]
    first: list[tuple[Row, Row]] = []

    def rows(shown: Iterable[PrivatizedText]) -> Iterator[tuple[object, ...]]:
        for original, text in zip(texts, shown, strict=True):
            if len(first) < SHOWN:
                first.append((original, text.released))
            # not `text.original`: that is how its tokens read, by which no row is found again in the input
            yield (*original, *text.released, text.replaced, text.tokens, *marks)

    with rows_file(output_file) as write, output.progress() as progress:
        shown = Client(home=home).privatize_stream(
            texts,
            Draw(privacy, model=model, max_length=max_length, unsafe_noise_seed=unsafe_noise_seed),
            charge=charge,
            privacy_budget=privacy_budget,
            executor=work,
            progress=progress,
        )
        with closing(shown):
            write(columns, rows(shown))

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
    output.show(f"{shown.replaced:.1%} of {shown.tokens} tokens replaced at eta {chosen:g}; all texts: {output_file}")
    output.show(f"- Texts cut, because the model or --max-length takes no more: {shown.cut_texts} of {len(shown)}")
    if shown.largest_distance is not None:
        from cutlayer.privacy import WorstCase

        output.show(f"- {WorstCase(eta=chosen, distance=shown.largest_distance)}")
    output.result(
        {
            "output": str(output_file),
            "texts": len(shown),
            "tokens": shown.tokens,
            "replaced": shown.replaced,
            "cut_texts": shown.cut_texts,
            "eta": chosen,
            "charged": charge,
            "noise": noise,
            "largest_distance": shown.largest_distance,
            "no_privacy": chosen == float("inf"),
            "unsafe_noise": unsafe_noise_seed is not None,
        }
    )


def _clipped(text: str) -> str:
    """The text's beginning, in one line and without what a terminal would take for a command."""
    line = " ".join("".join(character if character.isprintable() else " " for character in text).split())
    return line if len(line) <= SHOWN_CHARACTERS else f"{line[: SHOWN_CHARACTERS - 1]}…"


def register(app: typer.Typer) -> None:
    """Adds the command to the main app."""
    app.command(epilog="Example: cutlayer privatize --input notes.csv --output seen_by_vendor.csv --eta 80")(privatize)
