"""`cutlayer conformance`: whether a mechanism does what it states."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from cutlayer.cli.options import DATA, DATA_HELP, AsJson, Home, TextColumn
from cutlayer.cli.output import Output

if TYPE_CHECKING:
    from cutlayer.customer import Progress
    from cutlayer.reports import Conformance, TokenSample

DRAWS, TABLE = "Draws", "Tokens replaced"


def conformance(
    name: Annotated[str, typer.Argument(metavar="NAME", help="d-chi, or the name of an installed plug-in's.")],
    etas: Annotated[
        list[float] | None,
        typer.Option(
            "--eta",
            metavar="NUMBER",
            help="Eta of some of the draws. Repeatable. Default: 3 and 50, which take turns.",
            show_default=False,
            rich_help_panel=DRAWS,
        ),
    ] = None,
    widths: Annotated[
        list[int] | None,
        typer.Option(
            "--width",
            metavar="N",
            help="Coordinates of a row. Repeatable. Default: 1, 2, 3, 8 and 384; small ones see most.",
            show_default=False,
            rich_help_panel=DRAWS,
        ),
    ] = None,
    samples: Annotated[
        int,
        typer.Option(help="Draws at each width; a hundred times as many for the privacy loss.", rich_help_panel=DRAWS),
    ] = 4000,
    seed: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Repeat a check: the number it printed. What is drawn is not released. Default: a new one.",
            show_default=False,
            rich_help_panel=DRAWS,
        ),
    ] = None,
    replacement: Annotated[
        bool, typer.Option(help="Measure over eta how many tokens are replaced.", rich_help_panel=TABLE)
    ] = True,
    model: Annotated[
        str,
        typer.Option(
            metavar="SOURCE", help="In whose table: starter, a local folder or a hub id.", rich_help_panel=TABLE
        ),
    ] = "starter",
    data: Annotated[
        str | None,
        typer.Option(
            "--data",
            metavar="FILE",
            help=f"Whose tokens. {DATA_HELP} Default: the sample texts.",
            show_default=False,
            rich_help_panel=DATA,
        ),
    ] = None,
    text_column: TextColumn = "text",
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="Write the result there too, as JSON.", show_default=False),
    ] = None,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Check whether a mechanism, your own included, does what it states.

    Radius, directions and density of its draws are compared with its stated density, that with its claim, and a lower
    bound of the privacy loss that draws show with exp(claimed eta · distance). A true mechanism fails a check with
    probability 1e-6 at most. One that fails leaves exit code 11. Passing proves nothing: other events may show more.
    """
    output = Output(as_json=as_json)
    from cutlayer.core import ConformanceError
    from cutlayer.privacy import find_mechanism, generator
    from cutlayer.privacy.randomness import KEY_BYTES
    from cutlayer.reports import check_mechanism, write_json
    from cutlayer.reports.conformance import ETAS, WIDTHS

    mechanism = find_mechanism(name)
    drawn = secrets.randbits(63) if seed is None else seed
    with output.progress() as progress:
        tokens = _tokens(data, text_column, model, home, progress) if replacement else None
        found = check_mechanism(
            mechanism,
            rng=generator(drawn.to_bytes(KEY_BYTES, "little")),
            etas=tuple(etas) if etas else ETAS,
            widths=tuple(widths) if widths else WIDTHS,
            samples=samples,
            tokens=tokens,
            progress=progress,
        )
    content = {**found.model_dump(mode="json"), "failed": found.failed, "seed": drawn}
    if out is not None:
        write_json(out, content)
    _show(output, found)
    output.show(f"- To repeat it: --seed {drawn}")
    if out is not None:
        output.show(f"- {out}")
    output.result(content)
    try:
        found.require()
    except ConformanceError as error:  # what was found is the result, and an error would stand in its place
        output.say(str(error))
        raise typer.Exit(error.exit_code) from error


def _tokens(data: str | None, text_column: str, model: str, home: Path | None, progress: Progress) -> TokenSample:
    import torch

    from cutlayer import customer
    from cutlayer.core import Cut
    from cutlayer.customer.handout import local_archive
    from cutlayer.data import read_dataset, sample_path, tokenise
    from cutlayer.privacy import NeighbourSearch
    from cutlayer.reports import TokenSample

    stage = "read texts and table"
    progress.update(stage, 0, 1)
    texts = read_dataset(sample_path("train") if data is None else data, text_column=text_column)
    archive = local_archive(customer.Home(home), model, Cut(bottom=0))
    tokens = tokenise(texts, archive.tokenizer, max_content=archive.template.max_content(texts.segments))
    table = cast(torch.Tensor, archive.table)  # a cut with a bottom has one
    search = NeighbourSearch(table, archive.candidates)
    progress.update(stage, 1, 1)
    return TokenSample(search, torch.cat([side.values for side in tokens.segments]))


def _show(output: Output, found: Conformance) -> None:
    words = {True: "as stated", False: "NOT AS STATED", None: "not asked"}
    whose = "cutlayer" if found.origin is None else found.origin
    output.table(
        f"Mechanism {found.mechanism} of {whose}",
        ("check", "answer", "what was found"),
        [(check.name, words[check.passed], f"{check.asks} {check.found}") for check in found.checks],
        lines=True,
    )
    if found.replacement:
        output.table(
            "Tokens replaced, text-to-text",
            ("eta", "replaced", "95 % interval"),
            [
                (f"{point.eta:g}", f"{point.replaced:.1%}", f"{point.ci[0]:.1%} to {point.ci[1]:.1%}")
                for point in found.replacement
            ],
        )
    output.show(f"At eta {found.etas[0]:g} it promises: {found.guarantee}")
    if not found.failed:
        output.show("No check fails. That is no proof of the promise: events that were not looked at may show more.")


def register(app: typer.Typer) -> None:
    """Adds the command to the main app."""
    app.command(epilog="Example: cutlayer conformance d-chi --out conformance.json")(conformance)
