"""`cutlayer vendor denoiser`: train what customers take the noise out of embeddings with, and list what is offered."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cutlayer.cli.command import Part, settings_command
from cutlayer.cli.options import DATA_HELP, AsJson
from cutlayer.cli.output import Output, fields
from cutlayer.core.setting import Shown, setting
from cutlayer.core.spec import SettingsSpec
from cutlayer.customer.columns import TEXTS, DataSpec
from cutlayer.vendor.denoiser_settings import DENOISER, DenoisedReleases, DenoiserTraining

if TYPE_CHECKING:
    from cutlayer.wire.denoisers import DenoiserInfo

_COLUMNS = (
    *("etas", "trained at", "texts"),
    *("cosine: as answered", "denoised", "answer masked", "mean embedding", "MSE: as answered", "denoised"),
)
denoisers = typer.Typer(no_args_is_help=True, help="Denoisers of a model's embeddings, which customers run at home.")


class DenoiserPlace(SettingsSpec):
    """The vendor's folder, and one of its models."""

    data_dir: Path = setting(help="The vendor's folder.", shown=Shown(DENOISER, common=True, metavar="DIR"))
    model: str = setting(help="One of its models.", shown=Shown(DENOISER, common=True, metavar="NAME"))


class PublicFiles(SettingsSpec):
    """Public text."""

    public: tuple[str, ...] = setting(
        help=f"Public text, never a customer's; may be given several times: {DATA_HELP}",
        shown=Shown(TEXTS, common=True, metavar="FILE"),
    )


@settings_command
def train(
    place: DenoiserPlace,
    files: PublicFiles,
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
            VendorSettings.load(place.data_dir),
            place.model,
            [(_called(source), TextFile(source, column)) for source in files.public],
            releases,
            training,
            on_step=lambda done, total, note: progress.update("train denoisers", done, total, note),
        )
    _show(output, place.model, made)
    output.result({"model": place.model, **fields(made)})


@settings_command(config=False)
def list_(place: DenoiserPlace, as_json: AsJson = False) -> None:
    """List the denoisers that are offered for a model, with what was measured of each, and unfinished trainings.

    One whose manifest cannot be read is named; customers are not offered it.
    """
    from cutlayer.vendor import VendorSettings
    from cutlayer.vendor.denoisers import read_denoisers, unfinished

    output, settings = Output(as_json=as_json), VendorSettings.load(place.data_dir)
    settings.check_model(place.model)
    (found, unreadable), begun = read_denoisers(settings, place.model), unfinished(settings, place.model)
    for each in found:
        _show(output, place.model, each)
    if not found:
        output.show(f"There is no denoiser for {place.model}.")
    for denoiser in unreadable:
        output.show(f"Unreadable: {denoiser}. Customers are not offered it. `remove` it, and train it again.")
    for denoiser in begun:
        output.show(f"Unfinished: {denoiser}. Training resumes when it is started again; `remove` discards it.")
    output.result(
        {
            "model": place.model,
            "denoisers": [fields(each) for each in found],
            "unreadable": unreadable,
            "unfinished": list(begun),
        }
    )


@settings_command(config=False)
def remove(
    place: DenoiserPlace,
    denoiser: Annotated[
        str, typer.Option("--id", metavar="ID", help="The denoiser, as `list` names it.", show_default=False)
    ],
    as_json: AsJson = False,
) -> None:
    """Withdraw a denoiser, or discard an unfinished training. Customers stop using it with their next call."""
    from cutlayer.core import ConfigError
    from cutlayer.vendor import VendorSettings
    from cutlayer.vendor.denoisers import remove_denoiser

    output, settings = Output(as_json=as_json), VendorSettings.load(place.data_dir)
    settings.check_model(place.model)
    if not remove_denoiser(settings, place.model, denoiser):
        raise ConfigError(f"{place.model} has no denoiser {denoiser!r}.", remedy="See: cutlayer vendor denoiser list.")
    output.show(f"Removed denoiser {denoiser} of {place.model}.")
    output.result({"model": place.model, "denoiser": denoiser})


def _called(source: str) -> str:
    """A public file's name in the manifest, without its folder: customers read it."""
    return source if source.startswith("hub:") else Path(source).name[:255]


def _show(output: Output, model: str, made: DenoiserInfo) -> None:
    noise = "" if made.noise == DenoisedReleases.model_fields["noise"].default else f", noise {made.noise}"
    control = ", a control without the model's answer" * made.without_answer
    output.table(
        f"Denoiser {made.denoiser} of {model}: {made.shape.kind}, for {made.releases}{noise}{control}",
        _COLUMNS,
        [
            (
                f"{each.lowest:g} to {each.highest:g}",
                ", ".join(f"{eta:g}" for eta in each.trained_at),
                str(each.n),
                f"{each.noisy.cosine:.3f}",
                f"{each.denoised.cosine:.3f}",
                f"{each.without_answer.cosine:.3f}",
                f"{each.mean_embedding.cosine:.3f}",
                f"{each.noisy.mse:.3g}",
                f"{each.denoised.mse:.3g}",
            )
            for each in made.groups
        ],
    )


def register(app: typer.Typer) -> None:
    """Adds the commands to a vendor's app."""
    denoisers.command(
        epilog="Example: cutlayer vendor denoiser train --data-dir vendor --model starter --public news.csv "
        "--mechanism vector --clip"
    )(train)
    denoisers.command("list", epilog="Example: cutlayer vendor denoiser list --data-dir vendor --model starter")(list_)
    denoisers.command(epilog="Example: cutlayer vendor denoiser remove --id 8856a5… --data-dir vendor --model starter")(
        remove
    )
    app.add_typer(denoisers, name="denoiser")
