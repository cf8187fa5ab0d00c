"""`cutlayer recipe`: a paper's experiments, at the scale of the model given."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from cutlayer.cli.options import AsJson
from cutlayer.cli.output import Output

app = typer.Typer(help="Run a paper's experiments and set the results beside the paper's.", no_args_is_help=True)
Name = Annotated[str, typer.Argument(help="The recipe, for example sap.", show_default=False)]


class Size(StrEnum):
    """How much of an experiment is run."""

    SMALL = "small"
    FULL = "full"


@app.callback()
def recipe() -> None:
    """Run a paper's experiments and set the results beside the paper's."""
