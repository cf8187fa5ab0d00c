"""`cutlayer recipe`: a paper's experiments, at the scale of the model given."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from cutlayer.cli.options import AsJson, named_values
from cutlayer.cli.output import Output

app = typer.Typer(epilog="Example: cutlayer recipe show sap", no_args_is_help=True)
Name = Annotated[str, typer.Argument(metavar="NAME", help="The recipe, for example sap.", show_default=False)]


@app.callback()
def recipe() -> None:
    """Run a paper's experiments and set the results beside the paper's."""


@app.command("list", epilog="Example: cutlayer recipe list")
def list_recipes(as_json: AsJson = False) -> None:
    """List the recipes and their papers."""
    from cutlayer.recipes import RECIPES

    output = Output(as_json=as_json)
    recipes = RECIPES.listing()
    output.table("Recipes", ("name", "paper", "reference"), recipes)
    output.result({"recipes": [recipe._asdict() for recipe in recipes]})


@app.command(epilog="Example: cutlayer recipe show sap")
def show(name: Name, as_json: AsJson = False) -> None:
    """Show a recipe's settings, the paper's figures, and where we differ from the paper."""
    import yaml

    from cutlayer.recipes import RECIPES

    output = Output(as_json=as_json)
    content = RECIPES[name].show()
    output.show(yaml.safe_dump(dict(content), sort_keys=False, allow_unicode=True, width=100).rstrip())
    output.result(content)


@app.command(epilog="Example: cutlayer recipe run sap --size small --seeds 1 --data DIR --out runs/sap")
def run(
    name: Name,
    size: Annotated[Literal["tiny", "small", "full"], typer.Option(help="How much of it is run.")] = "small",
    seeds: Annotated[int, typer.Option(metavar="N", help="Runs of each cell, with seeds 0 to N-1.")] = 1,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="SOURCE",
            help="The vendor's model: an embedded one's name, a local folder or a hub id. Default: the recipe's.",
            show_default=False,
        ),
    ] = None,
    only: Annotated[
        str | None,
        typer.Option(
            metavar="PART,…", help="These parts alone; `recipe show` lists them. Default: all.", show_default=False
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="Another setting than `recipe show` lists, by its dotted name; may be repeated.",
            show_default=False,
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            envvar="CUTLAYER_DATA",
            metavar="DIR",
            help="The folder of public data sets: NAME/SPLIT.jsonl.gz.",
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Cells and report. Default: runs/NAME-SIZE.", show_default=False),
    ] = None,
    jobs: Annotated[
        int, typer.Option(metavar="N", min=1, help="Worker processes that run cells beside each other.")
    ] = 1,
    ray: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="Run cells on an existing Ray cluster: auto, or HOST:PORT. Its machines must see --data and --out.",
            show_default=False,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Run a recipe cell by cell. Finished cells are kept: interrupt it, run it again, and it goes on."""
    from cutlayer.core import IncompleteError, checked
    from cutlayer.core.executors import executor
    from cutlayer.recipes import RECIPES, RecipeOptions, Size, data_folder

    output = Output(as_json=as_json)
    chosen = RECIPES[name]
    with checked():
        options = RecipeOptions(
            size=Size(size),
            seeds=seeds,
            model=model or chosen.default_model,
            data=data_folder(data).resolve(),
            out=(out or Path("runs") / f"{name}-{size}").resolve(),
            only=tuple(part.strip() for part in only.split(",")) if only else (),
            settings=dict(named_values(settings or (), "--set")),
        )
    with output.progress() as progress:
        report = chosen.run(options, progress, executor(jobs=jobs, ray=ray))
    for table in report.tables:
        output.table(table.title, table.columns, table.rows)
        for note in table.notes:
            output.show(note)
    output.show("Written: " + ", ".join(str(file) for file in report.files))
    output.result({**report.content, "files": [str(file) for file in report.files]})
    if report.failures:
        raise IncompleteError(
            f"{len(report.failures)} cells have no result: "
            + "; ".join(f"{cell} ({why})" for cell, why in report.failures.items()),
            remedy="The report lacks them. Run the same command again to go on.",
        )
