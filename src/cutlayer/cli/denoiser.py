"""`cutlayer vendor denoiser`: train what customers take the noise out of embeddings with, and list what is offered."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from cutlayer.cli.command import Part, settings_command
from cutlayer.cli.options import DATA_HELP, AsJson
from cutlayer.cli.output import Output, fields
from cutlayer.core.setting import Shown, setting
from cutlayer.core.spec import SettingsSpec
from cutlayer.customer.columns import TEXTS, DataSpec
from cutlayer.vendor.settings import DENOISER, DenoisedReleases, DenoiserTraining

denoisers = typer.Typer(no_args_is_help=True, help="Denoisers of a model's embeddings, which customers run at home.")


class DenoiserFiles(SettingsSpec):
    """The vendor's folder, one of its models, and public text."""

    data_dir: Path = setting(help="The vendor's folder.", shown=Shown(DENOISER, common=True, metavar="DIR"))
    model: str = setting(help="One of its models.", shown=Shown(DENOISER, common=True, metavar="NAME"))
    public: tuple[str, ...] = setting(
        help=f"Public text, never a customer's; may be given several times: {DATA_HELP}",
        shown=Shown(TEXTS, common=True, metavar="FILE"),
    )


@settings_command
def train(
    files: DenoiserFiles,
    columns: Annotated[dict[str, Any], Part(DataSpec, ("text_column",))],
    releases: DenoisedReleases,
    training: DenoiserTraining,
    as_json: AsJson = False,
) -> None:
    """Train denoisers on public text, one for each range of etas, and offer them to customers.

    A vendor that serves this folder offers them as soon as they are whole. A training that was stopped goes on.
    """
    from cutlayer.data import TextFile
    from cutlayer.vendor import VendorSettings
    from cutlayer.vendor.denoiser_training import train_denoisers

    output = Output(as_json=as_json)
    column = DataSpec(**columns).text_column
    with output.progress() as progress:
        made = train_denoisers(
            VendorSettings.load(files.data_dir),
            files.model,
            [TextFile(source, column) for source in files.public],
            releases,
            training,
            on_step=lambda done, total, note: progress.update("train denoisers", done, total, note),
        )
    output.table(
        f"Denoiser {made.denoiser} of {files.model}",
        ("etas", "trained at", "cosine, noisy", "denoised", "without the answer", "texts"),
        [
            (
                f"{each.lowest:g} to {each.highest:g}",
                ", ".join(f"{eta:g}" for eta in each.trained_at),
                f"{each.noisy.cosine:.3f}",
                f"{each.denoised.cosine:.3f}",
                f"{each.customer_only.cosine:.3f}",
                str(each.n),
            )
            for each in made.groups
        ],
    )
    output.result({"model": files.model, **fields(made)})


def register(app: typer.Typer) -> None:
    """Adds the commands to a vendor's app."""
    denoisers.command(
        epilog="Example: cutlayer vendor denoiser train --data-dir vendor --model starter --public news.csv "
        "--mechanism vector --clip"
    )(train)
    app.add_typer(denoisers, name="denoiser")
