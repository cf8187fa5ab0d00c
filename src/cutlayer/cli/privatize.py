"""`cutlayer privatize`: what would leave, without a vendor and without anything leaving."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cutlayer.cli.files import UNSAFE, check_columns, check_kind, check_not_input, rows_file
from cutlayer.cli.options import (
    DATA_HELP,
    OWN_NOISE,
    OWN_WINDOW,
    AsJson,
    Eta,
    Home,
    Noise,
    NoiseWindow,
    TextColumn,
    TextPairColumn,
    UnsafeNoiseSeed,
    parse_window,
    require_eta,
    warn_unprotected,
)
from cutlayer.cli.output import Output

if TYPE_CHECKING:
    from cutlayer.customer import Preview
    from cutlayer.data import Dataset

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
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Show what would leave at an eta, side by side with the original. Nothing is sent or charged.

    The draw of a text is the one that `finetune` and `predict` release at the same eta with the same --noise, --model
    and --max-length. It is not what they release with CTI, with `--mechanism vector` or with `--train-bottom redraw`.
    """
    chosen = require_eta(eta)
    check_kind(output_file)
    names = [text_column, *([text_pair_column] if text_pair_column else [])]
    columns = [*names, *(f"{name}_released" for name in names), "replaced", "tokens"]
    check_columns({"--text-column": [text_column], "--text-pair-column": names[1:]}, [*columns[len(names) :], UNSAFE])
    check_not_input(input_file, output_file)
    from cutlayer.customer import Client
    from cutlayer.data import read_dataset

    output = Output(as_json=as_json)
    warn_unprotected(output, eta=chosen, noise=noise, unsafe_noise_seed=unsafe_noise_seed)
    texts = read_dataset(input_file, text_column=text_column, text_pair_column=text_pair_column)
    with rows_file(output_file) as write:
        with output.progress() as progress:
            shown = Client(home=home).privatize(
                texts,
                eta=chosen,
                noise=noise,
                noise_window=parse_window(noise_window),
                model=model,
                max_length=max_length,
                unsafe_noise_seed=unsafe_noise_seed,
                progress=progress,
            )
        # not `text.original`: that is how its tokens read, by which no row is found again in the input
        rows: list[tuple[object, ...]] = [
            (*original, *text.released, text.replaced, text.tokens)
            for original, text in zip(texts.texts, shown, strict=True)
        ]
        if unsafe_noise_seed is not None:
            columns.append(UNSAFE)
            rows = [(*row, unsafe_noise_seed) for row in rows]
        write(columns, rows)

    # what machines run, or what goes into a file, is a log, and texts belong in no log
    if output.on_terminal and not as_json:
        _show_first(output, texts, shown)
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
            "noise": noise,
            "largest_distance": shown.largest_distance,
            "no_privacy": chosen == float("inf"),
            "unsafe_noise": unsafe_noise_seed is not None,
        }
    )


def _show_first(output: Output, texts: Dataset, shown: Preview) -> None:
    output.table(
        f"The first {min(SHOWN, len(shown))} of {len(shown)} texts",
        ("original", "released"),
        [
            (" / ".join(map(_clipped, original)), " / ".join(map(_clipped, text.released)))
            for original, text in zip(texts.texts[:SHOWN], shown.texts[:SHOWN], strict=True)
        ],
        lines=True,
    )


def _clipped(text: str) -> str:
    """The text's beginning, in one line and without what a terminal would take for a command."""
    line = " ".join("".join(character if character.isprintable() else " " for character in text).split())
    return line if len(line) <= SHOWN_CHARACTERS else f"{line[: SHOWN_CHARACTERS - 1]}…"


def register(app: typer.Typer) -> None:
    """Adds the command to the main app."""
    app.command(epilog="Example: cutlayer privatize --input notes.csv --output seen_by_vendor.csv --eta 80")(privatize)
