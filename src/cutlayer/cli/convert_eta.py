"""`cutlayer convert-eta`: what an eta is called by papers and public tools."""

from __future__ import annotations

from typing import Annotated

import typer

from cutlayer.cli.options import AsJson
from cutlayer.cli.output import Output


def convert_eta(
    value: Annotated[float, typer.Argument(metavar="VALUE", help="An eta of d_chi noise, or with --of a parameter.")],
    of: Annotated[
        str | None,
        typer.Option(
            "--of",
            metavar="TOOL",
            help="Read VALUE as this tool's parameter and convert it to etas: sap, rapt, snd, snd-code, snd-gaussian, "
            "mldp, splitllm, diffprivlib, santext or custext.",
            show_default=False,
        ),
    ] = None,
    width: Annotated[int, typer.Option(help="Coordinates of an embedding: 384 for MiniLM, 768 for BERT base.")] = 384,
    as_json: AsJson = False,
) -> None:
    """Convert an eta to the parameters of papers and public tools, or with --of one of theirs to etas.

    Tools that name the same mechanism draw noise that differs more than tenfold for the same number. So two things are
    told, which need not agree: the value that gives noise of the same size, and the value that promises as much.
    """
    output = Output(as_json=as_json)
    from cutlayer.reports import convert_eta as convert
    from cutlayer.reports import eta_of

    if of is not None:
        etas = eta_of(of, value, width=width)
        output.facts(
            f"{etas.parameter} {value:g} of {etas.tool}, in rows of width {width}",
            [
                ("eta of as much noise", _number(etas.same_noise, "none: it adds no noise to rows")),
                ("eta of as much promise", _number(etas.same_promise, "none: no multiple of a distance bounds it")),
                ("it draws", etas.draws),
                ("it promises", etas.promises),
                ("read in", etas.reference),
            ],
        )
        output.result(etas.model_dump(mode="json"))
        return
    found = convert(value, width=width)
    output.table(
        f"eta {value:g} in rows of width {width}: noise of mean norm {found.mean_norm:.4g}",
        ("tool", "its parameter", "of as much noise", "of as much promise", "noise at the same number"),
        [
            (
                tool.name,
                tool.parameter,
                _number(tool.same_noise),
                _number(tool.same_promise),
                "none" if tool.times is None else f"{tool.times:.3g} times as long",
            )
            for tool in found.tools
        ],
    )
    output.show("What a tool draws and promises, and where that was read: --of TOOL, or --json.")
    output.result(found.model_dump(mode="json"))


def _number(value: float | None, otherwise: str = "none") -> str:
    return otherwise if value is None else f"{value:.4g}"


def register(app: typer.Typer) -> None:
    """Adds the command to the main app."""
    app.command(epilog="Example: cutlayer convert-eta 500 --of snd-code --width 768")(convert_eta)
