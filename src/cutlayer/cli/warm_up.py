"""`cutlayer vendor warm-up`: make a model that reads a mechanism's releases better, from public text."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from cutlayer.cli.command import Part, settings_command
from cutlayer.cli.options import DATA_HELP, DRAW, AsJson, LocalModel
from cutlayer.cli.output import Output
from cutlayer.core.setting import Shown, setting
from cutlayer.core.spec import SettingsSpec
from cutlayer.customer.columns import TEXTS, DataSpec
from cutlayer.customer.settings import FinetuneSpec, Training
from cutlayer.vendor.settings import WARM_UP, WarmUpSpec


class WarmUpFiles(SettingsSpec):
    """Public text that is read, and the folder of the model that is made."""

    text: str = setting(
        help=f"Public text, never a customer's: {DATA_HELP}", shown=Shown(TEXTS, common=True, metavar="FILE")
    )
    out: Path = setting(
        help="The new model's folder; a stopped warm-up in it goes on, a finished one is shown again.",
        shown=Shown(WARM_UP, common=True, metavar="DIR"),
    )


@settings_command
def warm_up(
    files: WarmUpFiles,
    columns: Annotated[dict[str, Any], Part(DataSpec, ("text_column",))],
    settings: Annotated[dict[str, Any], Part(FinetuneSpec, (*DRAW, "training.max_length"))],
    training: WarmUpSpec,
    local: LocalModel,
    as_json: AsJson = False,
) -> None:
    """Train a model on public text to read what a mechanism makes of text, before any customer's text comes.

    Releases of the public text are drawn here, by the settings that customers use.
    """
    from cutlayer.customer import Draw, PublicDraws
    from cutlayer.vendor import warm_up as run

    output = Output(as_json=as_json)
    longest = settings.get("training", Training()).max_length
    drawing = Draw(settings["privacy"], model=local.model, max_length=longest)
    with output.progress() as progress:
        made = run(
            local.model,
            files.out,
            training,
            draws=PublicDraws.of_file(files.text, DataSpec(**columns).text_column, drawing, progress),
            on_step=lambda done, total, note: progress.update("warm up", done, total, note),
        )
    output.show(f"Made {made.folder}: loss {made.before:.3f} at first, {made.after:.3f} at last.")
    output.show(f"Next: cutlayer vendor init --data-dir DIR --model NAME={made.folder}")
    output.result(
        {"out": str(made.folder), "fingerprint": made.fingerprint, "before": made.before, "after": made.after}
    )


def register(app: typer.Typer) -> None:
    """Adds the command to a vendor's app."""
    app.command(
        "warm-up",
        epilog="Example: cutlayer vendor warm-up --model starter --text books.jsonl.gz --mechanism words --eta 44 "
        "--out models/warm",
    )(warm_up)
