"""`cutlayer recipe`: a paper's experiments, at the scale of the model given."""

from __future__ import annotations

from typing import Annotated

import typer

app = typer.Typer(help="Run a paper's experiments and set the results beside the paper's.", no_args_is_help=True)
Name = Annotated[str, typer.Argument(help="The recipe, for example sap.", show_default=False)]


@app.callback()
def recipe() -> None:
    """Run a paper's experiments and set the results beside the paper's."""
