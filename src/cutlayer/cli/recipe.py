"""`cutlayer recipe`: a paper's experiments, at the scale of the model given."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from cutlayer.cli.command import settings_command
from cutlayer.cli.options import AsJson, Work, named_values
from cutlayer.cli.output import Output
from cutlayer.core.setting import Shown, setting
from cutlayer.core.spec import SettingsSpec

EXPERIMENT = "Experiment"
"""The topic of its settings."""

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


class Experiment(SettingsSpec):
    """How much of a recipe is run, on what, and where its results go."""

    size: Literal["tiny", "small", "full"] = setting("small", help="How much of it is run.", shown=Shown(EXPERIMENT))
    seeds: int = setting(1, help="Runs of each cell, with seeds 0 to N-1.", shown=Shown(EXPERIMENT), ge=1)
    model: str | None = setting(
        None,
        help="The vendor's model: an embedded one's name, a local folder or a hub id.",
        shown=Shown(EXPERIMENT, metavar="SOURCE", default="the recipe's"),
    )
    only: str | None = setting(
        None,
        help="These parts alone; `recipe show` lists them.",
        shown=Shown(EXPERIMENT, metavar="PART,…", default="all"),
    )
    settings: tuple[str, ...] = setting(
        (),
        help="Another setting than `recipe show` lists, by its dotted name; may be repeated.",
        shown=Shown(EXPERIMENT, flags=("--set",), metavar="NAME=VALUE"),
    )
    data: Path | None = setting(
        None,
        help="The folder of public data sets: NAME/SPLIT.jsonl.gz.",
        shown=Shown(EXPERIMENT, metavar="DIR", env="CUTLAYER_DATA"),
    )
    out: Path | None = setting(
        None, help="Cells and report.", shown=Shown(EXPERIMENT, metavar="DIR", default="runs/NAME-SIZE")
    )


@app.command(epilog="Example: cutlayer recipe run sap --size small --seeds 1 --data DIR --out runs/sap")
@settings_command(config=False)
def run(name: Name, experiment: Experiment, work: Work, as_json: AsJson = False) -> None:
    """Run a recipe cell by cell. Finished cells are kept: interrupt it, run it again, and it goes on."""
    from cutlayer.core import IncompleteError, checked
    from cutlayer.recipes import RECIPES, RecipeOptions, Size, data_folder

    output = Output(as_json=as_json)
    chosen = RECIPES[name]
    with checked():
        options = RecipeOptions(
            size=Size(experiment.size),
            seeds=experiment.seeds,
            model=experiment.model or chosen.default_model,
            data=data_folder(experiment.data).resolve(),
            out=(experiment.out or Path("runs") / f"{name}-{experiment.size}").resolve(),
            only=tuple(part.strip() for part in experiment.only.split(",")) if experiment.only else (),
            settings=dict(named_values(experiment.settings, "--set")),
        )
    with output.progress() as progress:
        report = chosen.run(options, progress, work.executor())
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
