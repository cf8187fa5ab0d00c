"""`cutlayer ledger`: what left this machine."""

from __future__ import annotations

from typing import Annotated

import typer

from cutlayer.cli.options import AsJson, Home
from cutlayer.cli.output import Output, fields

app = typer.Typer(help="The record of what left, written before it left.", no_args_is_help=True)


@app.callback()
def ledger() -> None:
    """The record of what left, written before it left."""


@app.command(epilog="Example: cutlayer ledger show --releases --limit 20")
def show(
    frames: Annotated[bool, typer.Option("--frames", help="Every frame that left.")] = False,
    releases: Annotated[bool, typer.Option("--releases", help="Every text that was released, and how.")] = False,
    limit: Annotated[int, typer.Option(min=1, help="The newest rows of --frames and --releases.")] = 50,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Show what left: texts, tokens, eta, bytes. Texts are named by keyed hashes; no text is stored."""
    from cutlayer.customer import Client

    output = Output(as_json=as_json)
    book = Client(home=home).ledger
    content: dict[str, object] = {"summary": fields(book.summary())}
    output.table("What left", ("what", "value"), list(fields(book.summary()).items()))
    for wanted, name, read in ((frames, "frames", book.frames), (releases, "releases", book.releases)):
        if wanted:
            rows = [fields(row) for row in read()][-limit:]
            content[name] = rows
            if rows:
                output.table(name.capitalize(), list(rows[0]), [list(row.values()) for row in rows])
    output.result(content)
